/*
 * cmd_run.c: `infer run`: completes a prompt. The text streams to standard output as it is made;
 * progress, warnings and statistics go to standard error.
 */
#include <float.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"

typedef struct run_options {
    cli_session s;
    bool json, profile;
} run_options;

static const cli_option options[] = {
    { "-n", "N", OPT_INT, offsetof(run_options, s.n), .min = -1, .max = INT_MAX,
      .help = "most tokens to generate (default: -1, until the end or a full context)" },
    { "--ignore-eos", NULL, OPT_FLAG, offsetof(run_options, s.ignore_eos),
      .help = "go on after the model's end token" },
    SESSION_OPTIONS("0", "0: off (default)", "speed and memory, on standard error at the end"),
    { "--json", NULL, OPT_FLAG, offsetof(run_options, json),
      .help = "one JSON object at the end in place of streamed text" },
    { "--profile", NULL, OPT_FLAG, offsetof(run_options, profile),
      .help = "the time of each operation, prompt and generation together, on standard error" },
    { "--engine", "NAME", OPT_LATER, 0, .help = "" },
    { "--gpu-layers", "N", OPT_LATER, 0, .help = "" },
    { 0 },
};

static void show_progress(int done, int n, void *user)
{
    (void)user;
    cli_progress("prompt %d of %d tokens", done, n);
}

static int print_json(const char *model, const char *text, size_t n, const infer_stats *s,
                      const infer_engine_info *e, float temperature)
{
    json_t *j =
        json_pack("{s:o,s:o,s:s,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:s,s:s,s:i}", "model",
                  cli_json_text(model, strlen(model)), "text", cli_json_text(text, n), "finish",
                  cli_finish_name(s->finish), "n_prompt", s->n_prompt, "n_generated",
                  s->n_generated, "prompt_s", s->prompt_s, "generate_s", s->generate_s,
                  "first_token_s", s->first_token_s, "prompt_tok_s", cli_prompt_rate(s),
                  "generate_tok_s", cli_generation_rate(s), "resident_bytes",
                  (json_int_t)cli_peak_memory(), "mapped_bytes", (json_int_t)s->mapped_bytes,
                  "kv_bytes", (json_int_t)s->kv_bytes, "work_bytes", (json_int_t)s->work_bytes,
                  "backend", e->backend, "cpu", e->cpu_level, "threads", e->n_threads);
    json_object_set_new(j, "load_s", json_real(s->load_s));
    json_object_set_new(j, "repacked_bytes", json_integer((json_int_t)s->repacked_bytes));
    json_object_set_new(j, "n_drafted", json_integer(s->n_drafted));
    json_object_set_new(j, "n_accepted", json_integer(s->n_accepted));
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

// What follows the text: its last newline, the JSON object, the statistics.
static int conclude(infer_session *session, const char *name, const run_options *o,
                    const collected *all, int code)
{
    if (!o->json && isatty(STDOUT_FILENO)) putchar('\n');
    code = cli_flush(code);
    infer_stats stats = infer_session_stats(session);
    if (o->s.n == 0) stats.finish = INFER_FINISH_LENGTH;
    infer_engine_info info = infer_engine_describe(infer_session_engine(session));
    if (o->json) {
        int printed = print_json(name, all->text ? all->text : "", all->n, &stats, &info,
                                 o->s.sampling.temperature);
        if (!code) code = printed;
    }
    if (o->s.stats) cli_print_stats(stderr, &stats, &info, o->s.sampling.temperature);
    if (o->profile) {
        infer_profile_row rows[CLI_PROFILE_ROWS];
        int n = infer_profile(infer_session_engine(session), rows, CLI_PROFILE_ROWS);
        cli_print_profile(stderr, "", rows, n);
    }
    return code;
}

static int complete(const infer_model *model, const char *name, const run_options *o,
                    const char *prompt, size_t n)
{
    const infer_tokenizer *tok = cli_tokenizer(model, name);
    if (!tok) return EXIT_FAILED;
    infer_session_options so = cli_session_options(&o->s);
    so.progress = show_progress;
    infer_session *session;
    infer_error err = { 0 };
    if (infer_session_new(&session, model, &so, &err)) return cli_fail(&err);
    cli_interrupt_session(session);
    collected all = { 0 };
    infer_status st =
        o->profile ? infer_engine_profile(infer_session_engine(session), true, &err) : INFER_OK;
    if (!st) st = feed(session, tok, prompt, n, &err);
    int code = st ? cli_fail(&err) : EXIT_DONE;
    cli_progress_end();
    if (!code && o->s.n != 0) code = generate(session, o, &all);
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
    const infer_sampling usual = { .top_p = 1, .repeat_penalty = 1, .repeat_window = 64 };
    run_options o = { .s = { .n = -1, .sampling = usual } };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_run, &o, &args, argc, argv, &code)) return code;
    if ((code = cli_session_check(&cmd_run, &o.s, &usual))) return code;
    infer_model *model;
    if ((code = cli_model_open(&model, args.v[0], &o.s.engine))) return code;
    char *input = NULL;
    const char *prompt = args.v[1];
    size_t n = prompt ? strlen(prompt) : 0;
    if (!prompt) code = cli_read_input(&input, &n, "the prompt");
    if (!code) code = complete(model, args.v[0], &o, prompt ? prompt : input, n);
    mem_free(input);
    cli_model_close(model, &o.s.engine);
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
