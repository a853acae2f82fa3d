/*
 * cmd_bench.c: `infer bench`: tokens a second for prompts and for generation, by repetition, beside
 * the memory bandwidth measured in the same run: generation reads every weight once a token, so the
 * share of the bandwidth says how far from the machine's limit it is. --profile runs each test once
 * more, not counted, and tells the operations that its time went to.
 */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "cli/cli.h"

typedef struct bench_options {
    cli_engine engine;
    int prompt, generate, depth, repeat;
    bool profile, json, csv;
} bench_options;

static const cli_option options[] = {
    { "-p", "N", OPT_INT, offsetof(bench_options, prompt), .max = 1 << 20,
      .help = "prompt tokens; 0: no prompt test (default: 512)" },
    { "-n", "N", OPT_INT, offsetof(bench_options, generate), .max = 1 << 20,
      .help = "generated tokens; 0: no generation test (default: 64)" },
    { "-d", "N", OPT_INT, offsetof(bench_options, depth), .max = 1 << 20,
      .help = "tokens that are in the context already (default: 0)" },
    { "-r", "N", OPT_INT, offsetof(bench_options, repeat), .min = 1, .max = 1000,
      .help = "repetitions, after one that is not counted (default: 5)" },
    ENGINE_OPTIONS(bench_options),
    { "--profile", NULL, OPT_FLAG, offsetof(bench_options, profile),
      .help = "the time of each operation, from one more run of each test" },
    { "--json", NULL, OPT_FLAG, offsetof(bench_options, json), .help = "one JSON object" },
    { "--csv", NULL, OPT_FLAG, offsetof(bench_options, csv),
      .help = "comma-separated lines, with --profile one for each operation" },
    { 0 },
};

/* One of the two measurements. */
typedef struct test {
    const char *name; // "pp", "tg"
    int n;            // tokens; 0: not run
    double *rate;     // [repeat] tokens a second
    uint64_t bytes;   // of weights and cache that all its tokens read
    double mean, deviation;
    infer_profile_row rows[CLI_PROFILE_ROWS];
    int n_rows;
} test;

typedef struct bench {
    const bench_options *o;
    infer_model_info info;
    infer_engine *engine;
    infer_engine_info e;
    infer_sequence *past; // depth tokens, from which every test starts
    int32_t *ids;         // [n_ctx]
    test tests[2];
    char machine[160];
    double rss_mb, read_gbs;
} bench;

/* ---- measuring ------------------------------------------------------------------------------- */

static infer_status feed(bench *b, infer_sequence *seq, int n, infer_error *err)
{
    int last;
    infer_status st = infer_sequence_rope_length(seq, infer_sequence_length(seq) + n, err);
    return st ? st : cli_feed(b->engine, seq, b->ids, (size_t)n, INFER_WANT_TOP, &last, err);
}

static infer_status run_prompt(bench *b, test *t, infer_sequence *seq, double *seconds,
                               infer_error *err)
{
    double start = cli_now();
    infer_status st = feed(b, seq, t->n, err);
    *seconds = cli_now() - start;
    // Each step reads all weights.
    int n_steps = (t->n + b->e.max_rows - 1) / b->e.max_rows;
    t->bytes = (uint64_t)n_steps * b->info.bytes_per_token;
    return st;
}

/* The largest of the last step's logits: what a greedy answer goes on with. */
static int32_t largest(const infer_engine *engine)
{
    const int32_t *ids;
    const float *logits;
    int n = infer_top(engine, 0, &ids, &logits), best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return ids ? ids[best] : best;
}

static infer_status run_generation(bench *b, test *t, infer_sequence *seq, double *seconds,
                                   infer_error *err)
{
    infer_row row = { .seq = seq, .token = b->ids[0], .want = INFER_WANT_TOP, .top = 1 };
    infer_status st = infer_step(b->engine, &row, 1, err);
    uint64_t cache = infer_sequence_read_bytes(seq), unread = 0;
    double start = cli_now();
    for (int i = 1; !st && i <= t->n; i++) {
        row.token = largest(b->engine);
        st = infer_step(b->engine, &row, 1, err);
        unread += infer_engine_describe(b->engine).unread_bytes;
    }
    *seconds = cli_now() - start;
    cache = (cache + infer_sequence_read_bytes(seq)) / 2; // it grows evenly
    t->bytes = (uint64_t)t->n * (b->info.bytes_per_token + cache) - unread;
    return st;
}

/* From the same past each time. */
static infer_status run_test(bench *b, test *t, double *rate, infer_error *err)
{
    double seconds = 0;
    infer_sequence *seq = infer_sequence_fork(b->past, err);
    if (!seq) return err->code;
    infer_status st = infer_sequence_rope_length(seq, 0, err);
    if (!st) st = (t == b->tests ? run_prompt : run_generation)(b, t, seq, &seconds, err);
    infer_sequence_free(seq);
    *rate = seconds > 0 ? t->n / seconds : 0;
    return st;
}

static infer_status run_all(bench *b, infer_error *err)
{
    infer_status st = INFER_OK;
    double rate[2] = { 0 };
    if (b->o->depth) st = feed(b, b->past, b->o->depth, err);
    for (int r = -1; !st && r < b->o->repeat; r++) {
        if (r < 0)
            cli_progress("warming up");
        else
            cli_progress("repetition %d of %d, before: pp %.1f, tg %.1f tok/s", r + 1, b->o->repeat,
                         rate[0], rate[1]);
        for (int i = 0; i < 2 && !st; i++) {
            test *t = &b->tests[i];
            if (t->n) st = run_test(b, t, &rate[i], err);
            if (r >= 0) t->rate[r] = rate[i];
        }
    }
    cli_progress_end();
    return st;
}

static infer_status profile(bench *b, infer_error *err)
{
    infer_status st = INFER_OK;
    for (test *t = b->tests; t < b->tests + 2 && !st; t++) {
        double rate;
        if (!t->n) continue;
        st = infer_engine_profile(b->engine, true, err);
        if (!st) st = run_test(b, t, &rate, err);
        t->n_rows = infer_profile(b->engine, t->rows, CLI_PROFILE_ROWS);
        infer_engine_profile(b->engine, false, NULL);
    }
    return st;
}

static infer_status prepare(bench *b, const infer_model *model, infer_error *err)
{
    const bench_options *o = b->o;
    int n = o->depth + (o->prompt > o->generate + 1 ? o->prompt : o->generate + 1);
    infer_engine_options e = cli_engine_options(&o->engine);
    e.n_ctx = n;
    e.n_kv_tokens = o->depth + n; // the past and a test's copy of it, of which most is shared
    e.max_sequences = 2;
    infer_status st = infer_engine_new(&b->engine, model, &e, err);
    if (st) return st;
    b->e = infer_engine_describe(b->engine);
    cli_interrupt_engine(b->engine);
    if (!(b->past = infer_sequence_new(b->engine, err))) return err->code;
    b->tests[0] = (test){ .name = "pp", .n = o->prompt };
    b->tests[1] = (test){ .name = "tg", .n = o->generate };
    b->ids = mem_alloc((size_t)n, sizeof *b->ids);
    for (int i = 0; i < 2; i++)
        b->tests[i].rate = mem_zero((size_t)o->repeat, sizeof(double));
    if (!b->ids || !b->tests[0].rate || !b->tests[1].rate)
        return error_set(err, INFER_NOMEM, "bench: out of memory");
    uint32_t noise = 1;
    for (int i = 0; i < n; i++) {
        noise = noise * 1664525u + 1013904223u;
        b->ids[i] = (int32_t)((noise >> 8) % (uint32_t)b->info.n_vocab);
    }
    return INFER_OK;
}

static void summarise(test *t, int n)
{
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++)
        sum += t->rate[i];
    t->mean = sum / n;
    for (int i = 0; i < n; i++)
        square += (t->rate[i] - t->mean) * (t->rate[i] - t->mean);
    t->deviation = n > 1 ? sqrt(square / (n - 1)) : 0;
}

/* ---- reporting ------------------------------------------------------------------------------- */

static double gbs_of(const test *t) { return t->mean * (double)t->bytes / t->n / 1e9; }
static double share_of(const bench *b, double gbs)
{
    return b->read_gbs > 0 ? gbs / b->read_gbs : 0;
}

static double seconds_of(const test *t)
{
    double sum = 0;
    for (int i = 0; i < t->n_rows; i++)
        sum += t->rows[i].seconds;
    return sum > 0 ? sum : 1;
}

static double per_second(const infer_profile_row *r, uint64_t n)
{
    return r->seconds > 0 ? (double)n / r->seconds / 1e9 : 0;
}

static void print_table(const bench *b)
{
    char size[32];
    printf("model      %s %s, %s of weights\n", b->info.arch, b->info.quant,
           cli_bytes(size, b->info.weight_bytes));
    printf("machine    %s\n", b->machine);
    printf("engine     %s, %s, %d thread%s\n", b->e.backend, b->e.cpu_level, b->e.n_threads,
           b->e.n_threads == 1 ? "" : "s");
    printf("bandwidth  %.1f GB/s read, measured now\n", b->read_gbs);
    printf("memory     %.0f MB resident at most\n", b->rss_mb);
    if (b->o->depth) printf("depth      %d tokens before each test\n", b->o->depth);
    printf("\n%stest            tok/s       +-      GB/s   of bandwidth%s\n", cli_bold(stdout),
           cli_plain(stdout));
    for (const test *t = b->tests; t < b->tests + 2; t++)
        if (t->n)
            printf("%s %-7d %10.1f %8.1f %9.1f %13.0f %%\n", t->name, t->n, t->mean, t->deviation,
                   gbs_of(t), 100 * share_of(b, gbs_of(t)));
    for (const test *t = b->tests; t < b->tests + 2; t++)
        if (t->n_rows) cli_print_profile(stdout, t->name, t->rows, t->n_rows);
}

/* A field that a comma or a quote may be in. */
static void put_field(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"') putchar('"');
        if ((unsigned char)*s >= 32) putchar(*s);
    }
    printf("\",");
}

static void print_csv_head(const bench *b)
{
    printf("model,arch,quant,machine,version,backend,cpu,threads,depth,test,n,%s\n",
           b->o->profile ? "op,what,type,calls,seconds,share,gb_s,gop_s"
                         : "tok_s,deviation,gb_s,bandwidth_gb_s,share,rss_mb");
}

static void print_csv_start(const bench *b, const test *t)
{
    put_field(b->info.name);
    printf("%s,%s,", b->info.arch, b->info.quant);
    put_field(b->machine);
    printf("%s,%s,%s,%d,%d,%s,%d,", infer_version(), b->e.backend, b->e.cpu_level, b->e.n_threads,
           b->o->depth, t->name, t->n);
}

static void print_csv(const bench *b)
{
    print_csv_head(b);
    for (const test *t = b->tests; t < b->tests + 2; t++) {
        if (!t->n) continue;
        double gbs = gbs_of(t), all = seconds_of(t);
        if (!b->o->profile) {
            print_csv_start(b, t);
            printf("%.2f,%.2f,%.2f,%.2f,%.3f,%.0f\n", t->mean, t->deviation, gbs, b->read_gbs,
                   share_of(b, gbs), b->rss_mb);
        }
        for (int i = 0; i < t->n_rows; i++) {
            const infer_profile_row *r = &t->rows[i];
            print_csv_start(b, t);
            printf("%s,%s,%s,%llu,%.6f,%.4f,%.2f,%.2f\n", r->op, r->what, r->type,
                   (unsigned long long)r->calls, r->seconds, r->seconds / all,
                   per_second(r, r->bytes), per_second(r, r->ops));
        }
    }
}

static json_t *rates(const test *t, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n && t->n; i++)
        json_array_append_new(a, json_real(t->rate[i]));
    return a;
}

static json_t *json_profile(const test *t)
{
    json_t *a = json_array();
    for (int i = 0; i < t->n_rows; i++) {
        const infer_profile_row *r = &t->rows[i];
        json_array_append_new(a, json_pack("{s:s,s:s,s:s,s:I,s:f,s:I,s:I}", "op", r->op, "what",
                                           r->what, "type", r->type, "calls", (json_int_t)r->calls,
                                           "seconds", r->seconds, "bytes", (json_int_t)r->bytes,
                                           "ops", (json_int_t)r->ops));
    }
    return a;
}

static int print_json(const bench *b)
{
    const test *pp = &b->tests[0], *tg = &b->tests[1];
    const bench_options *o = b->o;
    json_t *j = json_pack("{s:o,s:o,s:i,s:s,s:s,s:o,s:f,s:f,s:s,s:s,s:i,s:i,s:i,s:I}", "pp",
                          rates(pp, o->repeat), "tg", rates(tg, o->repeat), "threads",
                          b->e.n_threads, "cpu", b->e.cpu_level, "backend", b->e.backend, "machine",
                          cli_json_text(b->machine, strlen(b->machine)), "read_gbs", b->read_gbs,
                          "rss_mb", b->rss_mb, "arch", b->info.arch, "quant", b->info.quant,
                          "n_prompt", o->prompt, "n_generate", o->generate, "depth", o->depth,
                          "bytes_per_token", (json_int_t)b->info.bytes_per_token);
    if (pp->n) json_object_set_new(j, "pp_gbs", json_real(gbs_of(pp)));
    if (tg->n) json_object_set_new(j, "tg_gbs", json_real(gbs_of(tg)));
    if (o->profile)
        json_object_set_new(j, "profile",
                            json_pack("{s:o,s:o}", "pp", json_profile(pp), "tg", json_profile(tg)));
    return cli_json_print(j);
}

static int report(const bench *b)
{
    if (b->o->json) return print_json(b);
    if (b->o->csv)
        print_csv(b);
    else
        print_table(b);
    return EXIT_DONE;
}

static int measure(bench *b, const infer_model *model)
{
    infer_error err = { 0 };
    infer_status st = prepare(b, model, &err);
    if (!st) st = run_all(b, &err);
    if (!st && b->o->profile) st = profile(b, &err);
    if (st) return cli_fail(&err);
    cli_interrupt_engine(NULL); // no more steps that could be cancelled: Ctrl-C ends
    // Before the bandwidth test takes its own buffer.
    b->rss_mb = (double)cli_peak_memory() / (1 << 20);
    b->read_gbs = infer_measure_bandwidth(b->e.n_threads) / 1e9;
    infer_cpu_name(b->machine, sizeof b->machine);
    for (int i = 0; i < 2; i++)
        summarise(&b->tests[i], b->o->repeat);
    return report(b);
}

static int run(int argc, char **argv)
{
    bench_options o = { .prompt = 512, .generate = 64, .repeat = 5 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_bench, &o, &args, argc, argv, &code)) return code;
    if (!o.prompt && !o.generate) return cli_usage(&cmd_bench, "-p 0 -n 0: nothing to measure");
    if (o.json && o.csv) return cli_usage(&cmd_bench, "--json and --csv: expected one of them");
    if ((code = cli_engine_check(&cmd_bench, &o.engine))) return code;
    infer_model *model;
    if ((code = cli_model_open(&model, args.v[0], &o.engine))) return code;
    bench b = { .o = &o, .info = infer_model_describe(model) };
    code = measure(&b, model);
    cli_interrupt_engine(NULL);
    infer_sequence_free(b.past);
    infer_engine_free(b.engine);
    mem_free(b.ids);
    mem_free(b.tests[0].rate);
    mem_free(b.tests[1].rate);
    cli_model_close(model, &o.engine);
    return code;
}

const cli_command cmd_bench = {
    .name = "bench",
    .args = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "prompt and generation speed beside the machine's limit",
    .text = "pp: a prompt of N random ids; tg: N single tokens after one. Both in tokens a second. "
            "GB/s are of weights and cache that had to be read; in a prompt the arithmetic is the "
            "limit, not they.",
    .options = options,
    .run = run,
};
