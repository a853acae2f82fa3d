/*
 * cmd_run.c: `infer run`: completes a prompt. The text streams to standard output as it is made;
 * progress, warnings and statistics go to standard error.
 */
#include <float.h>
#include <limits.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"

typedef struct run_options {
    cli_engine engine;
    infer_sampling sampling;
    int n, ctx;
    cli_list stop;
    bool ignore_eos, stats, json;
} run_options;

static const cli_option options[] = {
    { "-n", "N", OPT_INT, offsetof(run_options, n), .min = -1, .max = INT_MAX,
      .help = "most tokens to generate (default: -1, until the end or a full context)" },
    { "--temp", "T", OPT_FLOAT, offsetof(run_options, sampling.temperature), .max = FLT_MAX,
      .help = "temperature; 0 is greedy, the likeliest token each time (default: 0)" },
    { "--top-k", "K", OPT_INT, offsetof(run_options, sampling.top_k), .max = INT_MAX,
      .help = "draw from the K likeliest tokens; 0: off (default)" },
    { "--top-p", "P", OPT_FLOAT, offsetof(run_options, sampling.top_p), .max = 1,
      .help = "draw from the likeliest that sum to P; 1: off (default); 0: greedy" },
    { "--min-p", "P", OPT_FLOAT, offsetof(run_options, sampling.min_p), .max = 1,
      .help = "drop tokens below P times the likeliest; 0: off (default)" },
    { "--repeat-penalty", "X", OPT_FLOAT, offsetof(run_options, sampling.repeat_penalty),
      .max = FLT_MAX, .above_min = true, .help = "make seen tokens less likely; 1: off (default)" },
    { "--repeat-window", "N", OPT_INT, offsetof(run_options, sampling.repeat_window), .min = -1,
      .max = INT_MAX,
      .help = "tokens that penalties look back at; 0: none, -1: all (default: 64)" },
    { "--frequency-penalty", "X", OPT_FLOAT, offsetof(run_options, sampling.frequency_penalty),
      .min = -FLT_MAX, .max = FLT_MAX,
      .help = "taken from a logit for each time its token was seen" },
    { "--presence-penalty", "X", OPT_FLOAT, offsetof(run_options, sampling.presence_penalty),
      .min = -FLT_MAX, .max = FLT_MAX, .help = "taken from a logit once its token was seen" },
    { "--seed", "N", OPT_U64, offsetof(run_options, sampling.seed),
      .help = "of the random draws; 0: a fresh one each time (default), see --stats" },
    { "--stop", "TEXT", OPT_LIST, offsetof(run_options, stop),
      .help = "end before this text; may be repeated" },
    { "--ignore-eos", NULL, OPT_FLAG, offsetof(run_options, ignore_eos),
      .help = "go on after the model's end token" },
    { "--ctx", "N", OPT_INT, offsetof(run_options, ctx), .min = 1, .max = INT_MAX,
      .help = "context in tokens (default: the trained one, at most 8192)" },
    ENGINE_OPTIONS(run_options),
    { "--stats", NULL, OPT_FLAG, offsetof(run_options, stats),
      .help = "speed and memory, on standard error at the end" },
    { "--json", NULL, OPT_FLAG, offsetof(run_options, json),
      .help = "one JSON object at the end in place of streamed text" },
    { "--engine", "NAME", OPT_LATER, 0, .help = "" },
    { "--gpu-layers", "N", OPT_LATER, 0, .help = "" },
    { "--profile", NULL, OPT_LATER, 0, .help = "" },
    { 0 },
};

static const char *finish_name(infer_finish f)
{
    switch (f) {
    case INFER_FINISH_STOP: return "stop";
    case INFER_FINISH_LENGTH: return "length";
    case INFER_FINISH_CANCELLED: return "cancelled";
    case INFER_FINISH_NONE: break;
    }
    return "none";
}

// The command line's zeros differ from the library's, where zero means "default".
static void settle_sampling(run_options *o)
{
    infer_sampling *s = &o->sampling;
    if (s->top_p == 0) s->temperature = 0;
    if (s->repeat_window == 0) {
        s->repeat_penalty = 1;
        s->frequency_penalty = s->presence_penalty = 0;
    }
    const char *idle = s->top_k                       ? "--top-k"
                       : s->top_p > 0 && s->top_p < 1 ? "--top-p"
                       : s->min_p > 0                 ? "--min-p"
                                                      : NULL;
    if (s->temperature == 0 && idle) cli_warn("%s changes nothing at --temp 0", idle);
    // A seed of 32 bits is short enough to be typed again.
    uint32_t fresh;
    if (!s->seed && s->temperature > 0 && getrandom(&fresh, sizeof fresh, 0) == sizeof fresh)
        s->seed = fresh ? fresh : 1;
}

static void show_progress(int done, int n, void *user)
{
    (void)user;
    cli_progress("prompt %d of %d tokens", done, n);
}

static double rate(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

// The first token comes out of the prompt's last step: n tokens take n - 1 steps.
static double generation_rate(const infer_stats *s)
{
    return s->n_generated > 1 ? rate(s->n_generated - 1, s->generate_s) : 0;
}

static void print_stats(const infer_stats *s, const infer_engine_info *e, float temperature)
{
    char peak[32], mapped[32], kv[32], work[32];
    double tg = generation_rate(s);
    fprintf(stderr, "\n%s             tokens    seconds      tok/s       GB/s%s\n",
            cli_bold(stderr), cli_plain(stderr));
    fprintf(stderr, "prompt      %7d %10.3f %10.1f\n", s->n_prompt, s->prompt_s,
            rate(s->n_prompt, s->prompt_s));
    fprintf(stderr, "generation  %7d %10.3f %10.1f %10.1f\n", s->n_generated, s->generate_s, tg,
            tg * (double)s->bytes_per_token / 1e9);
    fprintf(stderr, "first token         %10.3f\n", s->first_token_s);
    fprintf(stderr, "memory      %s resident at most\n", cli_bytes(peak, cli_peak_memory()));
    fprintf(stderr, "reserved    %s file, %s KV cache, %s work\n",
            cli_bytes(mapped, s->mapped_bytes), cli_bytes(kv, s->kv_bytes),
            cli_bytes(work, s->work_bytes));
    fprintf(stderr, "machine     %s, %s, %d thread%s\n", e->backend, e->cpu_level, e->n_threads,
            e->n_threads == 1 ? "" : "s");
    fprintf(stderr, "finish      %s", finish_name(s->finish));
    if (temperature > 0) fprintf(stderr, ", seed %llu", (unsigned long long)s->seed);
    fputc('\n', stderr);
}

static int print_json(const char *model, const char *text, size_t n, const infer_stats *s,
                      const infer_engine_info *e, float temperature)
{
    json_t *j = json_pack(
        "{s:o,s:o,s:s,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:s,s:s,s:i}", "model",
        cli_json_text(model, strlen(model)), "text", cli_json_text(text, n), "finish",
        finish_name(s->finish), "n_prompt", s->n_prompt, "n_generated", s->n_generated, "prompt_s",
        s->prompt_s, "generate_s", s->generate_s, "first_token_s", s->first_token_s, "prompt_tok_s",
        rate(s->n_prompt, s->prompt_s), "generate_tok_s", generation_rate(s), "resident_bytes",
        (json_int_t)cli_peak_memory(), "mapped_bytes", (json_int_t)s->mapped_bytes, "kv_bytes",
        (json_int_t)s->kv_bytes, "work_bytes", (json_int_t)s->work_bytes, "backend", e->backend,
        "cpu", e->cpu_level, "threads", e->n_threads);
    if (temperature > 0) json_object_set_new(j, "seed", json_integer((json_int_t)s->seed));
    return cli_json_print(j);
}

typedef struct collected {
    char *text;
    size_t n, cap;
} collected;

// Streams, or collects for --json. Returns an exit code.
static int generate(infer_session *session, const run_options *o, collected *all)
{
    infer_error err = { 0 };
    const char *piece;
    while ((piece = infer_session_next(session, &err))) {
        size_t n = strlen(piece);
        cli_progress_end();
        if (!o->json) {
            fwrite(piece, 1, n, stdout);
            if (cli_flush(EXIT_DONE)) return EXIT_FAILED;
        } else if (mem_reserve((void **)&all->text, &all->cap, all->n + n + 1, 1, &err)) {
            return cli_fail(&err);
        } else {
            memcpy(all->text + all->n, piece, n + 1);
            all->n += n;
        }
    }
    if (err.code && err.code != INFER_CANCELLED) return cli_fail(&err);
    return EXIT_DONE;
}

// The prompt into the session: text, or whatever bytes standard input had.
static infer_status feed(infer_session *session, const infer_tokenizer *tok, const char *prompt,
                         size_t n, infer_error *err)
{
    int32_t *ids;
    size_t n_ids;
    if (cli_prompt_ids(tok, &ids, &n_ids, prompt, n, err)) return err->code;
    infer_status st = infer_session_prompt_ids(session, ids, n_ids, err);
    infer_free(ids);
    return st;
}

static infer_session_options session_options(const run_options *o)
{
    return (infer_session_options){
        .n_ctx = o->ctx,
        .n_threads = o->engine.threads,
        .max_tokens = o->n > 0 ? o->n : 0,
        .backend = o->engine.backend,
        .cpu_level = o->engine.cpu,
        .kv_type = o->engine.kv_type,
        .exact = o->engine.exact,
        .ignore_eos = o->ignore_eos,
        .sampling = o->sampling,
        .stop = o->stop.v,
        .log = cli_log,
        .progress = show_progress,
    };
}

// What follows the text: its last newline, the JSON object, the statistics.
static int conclude(infer_session *session, const char *name, const run_options *o,
                    const collected *all, int code)
{
    if (!o->json && isatty(STDOUT_FILENO)) putchar('\n');
    code = cli_flush(code);
    infer_stats stats = infer_session_stats(session);
    if (o->n == 0) stats.finish = INFER_FINISH_LENGTH;
    infer_engine_info info = infer_engine_describe(infer_session_engine(session));
    if (o->json) {
        int printed = print_json(name, all->text ? all->text : "", all->n, &stats, &info,
                                 o->sampling.temperature);
        if (!code) code = printed;
    }
    if (o->stats) print_stats(&stats, &info, o->sampling.temperature);
    return code;
}

static int complete(const infer_model *model, const char *name, const run_options *o,
                    const char *prompt, size_t n)
{
    const infer_tokenizer *tok = cli_tokenizer(model, name);
    if (!tok) return EXIT_FAILED;
    infer_session_options so = session_options(o);
    infer_session *session;
    infer_error err = { 0 };
    if (infer_session_new(&session, model, &so, &err)) return cli_fail(&err);
    cli_interrupt_session(session);
    collected all = { 0 };
    int code = feed(session, tok, prompt, n, &err) ? cli_fail(&err) : EXIT_DONE;
    cli_progress_end();
    if (!code && o->n != 0) code = generate(session, o, &all);
    if (!code && cli_interrupted()) code = EXIT_INTERRUPTED;
    // An interrupted answer is shown as far as it came.
    if (!code || code == EXIT_INTERRUPTED) code = conclude(session, name, o, &all, code);
    mem_free(all.text);
    cli_interrupt_session(NULL);
    infer_session_free(session);
    return code;
}

static int run(int argc, char **argv)
{
    run_options o = { .n = -1,
                      .sampling = { .top_p = 1, .repeat_penalty = 1, .repeat_window = 64 } };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_run, &o, &args, argc, argv, &code)) return code;
    if ((code = cli_engine_check(&cmd_run, &o.engine))) return code;
    for (int i = 0; i < o.stop.n; i++)
        if (!*o.stop.v[i]) return cli_usage(&cmd_run, "--stop: expected a text, found ''");
    settle_sampling(&o);
    infer_model *model;
    if ((code = cli_model_open(&model, args.v[0], &o.engine))) return code;
    char *input = NULL;
    const char *prompt = args.v[1];
    size_t n = prompt ? strlen(prompt) : 0;
    if (!prompt) code = cli_read_input(&input, &n, "the prompt");
    if (!code) code = complete(model, args.v[0], &o, prompt ? prompt : input, n);
    mem_free(input);
    infer_model_close(model);
    return code;
}

const cli_command cmd_run = {
    .name = "run",
    .args = "MODEL [PROMPT]",
    .min_args = 1,
    .max_args = 2,
    .summary = "complete a prompt, streaming the text",
    .text =
        "Without PROMPT it is read from standard input, less one final newline. Standard output "
        "holds the generated text alone.",
    .options = options,
    .run = run,
};
