/*
 * cmd_bench.c: `infer bench`: tokens a second for prompts and for generation, by repetition, beside
 * the memory bandwidth measured in the same run: generation reads every weight once a token, so the
 * share of the bandwidth says how far from the machine's limit it is.
 */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "cli/cli.h"

typedef struct bench_options {
    cli_engine engine;
    int prompt, generate, repeat;
    bool json;
} bench_options;

static const cli_option options[] = {
    { "-p", "N", OPT_INT, offsetof(bench_options, prompt), .max = 1 << 20,
      .help = "prompt tokens; 0: no prompt test (default: 512)" },
    { "-n", "N", OPT_INT, offsetof(bench_options, generate), .max = 1 << 20,
      .help = "generated tokens; 0: no generation test (default: 64)" },
    { "-r", "N", OPT_INT, offsetof(bench_options, repeat), .min = 1, .max = 1000,
      .help = "repetitions, after one that is not counted (default: 5)" },
    ENGINE_OPTIONS(bench_options),
    { "--json", NULL, OPT_FLAG, offsetof(bench_options, json), .help = "one JSON object" },
    { 0 },
};

typedef struct bench {
    const bench_options *o;
    infer_model_info info;
    infer_session *session;
    infer_engine *engine;
    infer_sequence *seq;
    int32_t *ids;    // [prompt or generate + 1]
    double *pp, *tg; // [repeat] tokens a second
    uint64_t bytes_per_token;
    double rss_mb, read_gbs;
} bench;

static infer_status run_prompt(bench *b, double *rate, infer_error *err)
{
    size_t n = (size_t)b->o->prompt;
    int last;
    infer_status st = infer_sequence_truncate(b->seq, 0, err);
    if (!st) st = infer_sequence_rope_length(b->seq, (int)n, err);
    double start = cli_now();
    if (!st) st = cli_feed(b->engine, b->seq, b->ids, n, &last, err);
    *rate = (double)n / (cli_now() - start);
    return st;
}

static infer_status run_generation(bench *b, double *rate, infer_error *err)
{
    infer_status st = infer_sequence_truncate(b->seq, 0, err);
    if (!st) st = infer_sequence_rope_length(b->seq, 0, err);
    infer_row row = { .seq = b->seq, .token = b->ids[0], .want = INFER_WANT_LOGITS };
    if (!st) st = infer_step(b->engine, &row, 1, err);
    double start = cli_now();
    for (int i = 1; !st && i <= b->o->generate; i++) {
        row.token = b->ids[i];
        st = infer_step(b->engine, &row, 1, err);
    }
    *rate = b->o->generate / (cli_now() - start);
    return st;
}

static infer_status run_all(bench *b, infer_error *err)
{
    infer_status st = INFER_OK;
    double pp = 0, tg = 0;
    for (int r = -1; !st && r < b->o->repeat; r++) {
        if (r < 0)
            cli_progress("warming up");
        else
            cli_progress("repetition %d of %d, before: pp %.1f, tg %.1f tok/s", r + 1, b->o->repeat,
                         pp, tg);
        if (b->o->prompt) st = run_prompt(b, &pp, err);
        if (!st && b->o->generate) st = run_generation(b, &tg, err);
        if (r >= 0) b->pp[r] = pp, b->tg[r] = tg;
    }
    cli_progress_end();
    return st;
}

static infer_status prepare(bench *b, const infer_model *model, infer_error *err)
{
    const bench_options *o = b->o;
    int n = o->prompt > o->generate + 1 ? o->prompt : o->generate + 1;
    const cli_engine *e = &o->engine;
    infer_session_options so = { .n_ctx = n,
                                 .n_threads = e->threads,
                                 .backend = e->backend,
                                 .cpu_level = e->cpu,
                                 .kv_type = e->kv_type,
                                 .exact = e->exact,
                                 .log = cli_log };
    infer_status st = infer_session_new(&b->session, model, &so, err);
    if (st) return st;
    b->engine = infer_session_engine(b->session);
    b->seq = infer_session_sequence(b->session);
    b->bytes_per_token = infer_session_stats(b->session).bytes_per_token;
    cli_interrupt_engine(b->engine);
    b->ids = mem_alloc((size_t)n, sizeof *b->ids);
    b->pp = mem_zero((size_t)o->repeat, sizeof *b->pp);
    b->tg = mem_zero((size_t)o->repeat, sizeof *b->tg);
    if (!b->ids || !b->pp || !b->tg) return error_set(err, INFER_NOMEM, "bench: out of memory");
    uint32_t noise = 1;
    for (int i = 0; i < n; i++) {
        noise = noise * 1664525u + 1013904223u;
        b->ids[i] = (int32_t)((noise >> 8) % (uint32_t)b->info.n_vocab);
    }
    return INFER_OK;
}

static void mean_of(const double *v, int n, double *mean, double *deviation)
{
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++)
        sum += v[i];
    *mean = sum / n;
    for (int i = 0; i < n; i++)
        square += (v[i] - *mean) * (v[i] - *mean);
    *deviation = n > 1 ? sqrt(square / (n - 1)) : 0;
}

static void print_table(const bench *b, const infer_engine_info *e, const char *machine)
{
    char size[32];
    double mean, dev;
    printf("model      %s %s, %s of weights\n", b->info.arch, b->info.quant,
           cli_bytes(size, b->info.weight_bytes));
    printf("machine    %s\n", machine);
    printf("engine     %s, %s, %d thread%s\n", e->backend, e->cpu_level, e->n_threads,
           e->n_threads == 1 ? "" : "s");
    printf("bandwidth  %.1f GB/s read, measured now\n", b->read_gbs);
    printf("memory     %.0f MB resident at most\n\n", b->rss_mb);
    printf("%stest            tok/s       +-      GB/s   of bandwidth%s\n", cli_bold(stdout),
           cli_plain(stdout));
    if (b->o->prompt) {
        mean_of(b->pp, b->o->repeat, &mean, &dev);
        printf("pp %-7d %10.1f %8.1f\n", b->o->prompt, mean, dev);
    }
    if (b->o->generate) {
        mean_of(b->tg, b->o->repeat, &mean, &dev);
        double gbs = mean * (double)b->bytes_per_token / 1e9;
        printf("tg %-7d %10.1f %8.1f %9.1f %13.0f %%\n", b->o->generate, mean, dev, gbs,
               b->read_gbs > 0 ? 100 * gbs / b->read_gbs : 0);
    }
}

static json_t *rates(const double *v, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(a, json_real(v[i]));
    return a;
}

static int report(const bench *b)
{
    infer_engine_info e = infer_engine_describe(b->engine);
    const bench_options *o = b->o;
    char machine[160];
    infer_cpu_name(machine, sizeof machine);
    if (!o->json) {
        print_table(b, &e, machine);
        return EXIT_DONE;
    }
    return cli_json_print(json_pack(
        "{s:o,s:o,s:i,s:s,s:s,s:o,s:f,s:f,s:s,s:s,s:i,s:i,s:I}", "pp",
        rates(b->pp, o->prompt ? o->repeat : 0), "tg", rates(b->tg, o->generate ? o->repeat : 0),
        "threads", e.n_threads, "cpu", e.cpu_level, "backend", e.backend, "machine",
        cli_json_text(machine, strlen(machine)), "read_gbs", b->read_gbs, "rss_mb", b->rss_mb,
        "arch", b->info.arch, "quant", b->info.quant, "n_prompt", o->prompt, "n_generate",
        o->generate, "bytes_per_token", (json_int_t)b->bytes_per_token));
}

static int measure(const infer_model *model, const bench_options *o)
{
    bench b = { .o = o, .info = infer_model_describe(model) };
    infer_error err = { 0 };
    infer_status st = prepare(&b, model, &err);
    if (!st) st = run_all(&b, &err);
    int code = st ? cli_fail(&err) : EXIT_DONE;
    if (!code) {
        cli_interrupt_engine(NULL); // no more steps that could be cancelled: Ctrl-C ends
        b.rss_mb =
            (double)cli_peak_memory() / (1 << 20); // before the bandwidth test takes its own buffer
        b.read_gbs = infer_measure_bandwidth(infer_engine_describe(b.engine).n_threads) / 1e9;
        code = report(&b);
    }
    cli_interrupt_engine(NULL);
    infer_session_free(b.session);
    mem_free(b.ids);
    mem_free(b.pp);
    mem_free(b.tg);
    return code;
}

static int run(int argc, char **argv)
{
    bench_options o = { .prompt = 512, .generate = 64, .repeat = 5 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_bench, &o, &args, argc, argv, &code)) return code;
    if (!o.prompt && !o.generate) return cli_usage(&cmd_bench, "-p 0 -n 0: nothing to measure");
    if ((code = cli_engine_check(&cmd_bench, &o.engine))) return code;
    infer_model *model;
    if ((code = cli_model_open(&model, args.v[0], &o.engine))) return code;
    code = measure(model, &o);
    infer_model_close(model);
    return code;
}

const cli_command cmd_bench = {
    .name = "bench",
    .args = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "prompt and generation speed beside the machine's limit",
    .text = "pp: a prompt of N random ids; tg: N single tokens after one. Both in tokens a second.",
    .options = options,
    .run = run,
};
