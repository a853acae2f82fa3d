/*
 * cmd_eval.c: `infer eval`: the numbers behind an answer, raw: logits, hidden states and attention
 * of a prompt as little-endian float32 files, and the greedy continuation as ids.
 *
 * --chunk and --beside change how the same numbers are computed (rows a step, other sequences in
 * the step) and must change no bit of them.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "cli/cli.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are written as they lie in memory");

typedef struct eval_options {
    cli_engine engine;
    const char *ids, *prompt, *logits, *hidden;
    cli_int_text attention;
    int greedy, chunk, beside;
    bool last;
} eval_options;

static const cli_option options[] = {
    { "--ids", "5,6,7", OPT_TEXT, offsetof(eval_options, ids),
      .help = "the prompt as ids, used as given" },
    { "--prompt", "TEXT", OPT_TEXT, offsetof(eval_options, prompt),
      .help = "the prompt as text, with the model's BOS rule" },
    { "--logits", "FILE", OPT_TEXT, offsetof(eval_options, logits),
      .help = "write logits [n_pos, n_vocab]" },
    { "--last", NULL, OPT_FLAG, offsetof(eval_options, last),
      .help = "only the last position's logits [n_vocab]" },
    { "--hidden", "FILE", OPT_TEXT, offsetof(eval_options, hidden),
      .help = "write hidden states [n_layers+1, n_pos, d_model]: the embedding output, then each "
              "layer's output, before the final norm" },
    { "--attention", "LAYER FILE", OPT_INT_TEXT, offsetof(eval_options, attention), .max = INT_MAX,
      .help = "write attention of one layer [n_heads, n_pos, n_pos]; masked places are 0, a sink "
              "column is left out" },
    { "--greedy", "N", OPT_INT, offsetof(eval_options, greedy), .max = 1 << 24,
      .help =
          "append exactly N ids, the largest logit each time, ties to the lowest id; an end token "
          "does not stop it" },
    { "--chunk", "N", OPT_INT, offsetof(eval_options, chunk), .max = INT_MAX,
      .help = "feed the prompt N rows a step; 0: whole (default)" },
    { "--beside", "N", OPT_INT, offsetof(eval_options, beside), .max = 256,
      .help = "step N other sequences in the same steps (default: 0)" },
    ENGINE_OPTIONS(eval_options),
    { 0 },
};

/* One evaluation: the engine with its sequences, the prompt, and the files being written. */
typedef struct evaluation {
    const eval_options *o;
    infer_model_info info;
    infer_engine *engine;
    infer_sequence *seq;
    infer_sequence **others; // [beside]
    int32_t *ids, *greedy;   // [n], [o->greedy]
    int n, n_greedy;
    infer_row *rows;     // [max_rows]
    int max_rows, first; // room, and the row of `seq`'s first token in the last step
    uint32_t noise;      // state of the other sequences' tokens: fixed, so runs can be repeated
    FILE *logits, *hidden, *attention;
    float *states;      // [n_layers + 1, n, d_model]
    float *step_states; // [n_layers + 1, rows of a step, d_model]
    float *weights;     // [n_heads, n, n]
} evaluation;

/* ---- input ----------------------------------------------------------------------------------- */

static int parse_ids(const char *list, int32_t **ids, size_t *n)
{
    *n = 0;
    *ids = mem_alloc(strlen(list) / 2 + 1, sizeof **ids);
    if (!*ids) return cli_error(EXIT_FAILED, "--ids: out of memory");
    for (const char *p = list;; p++) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (*p < '0' || *p > '9' || errno || v > INT32_MAX || (*end && *end != ',')) {
            mem_free(*ids);
            *ids = NULL;
            return cli_usage(&cmd_eval, "--ids: expected ids like 5,6,7, found '%.40s'", p);
        }
        (*ids)[(*n)++] = (int32_t)v;
        if (!*end) return EXIT_DONE;
        p = end;
    }
}

static int read_prompt(const infer_model *model, const char *name, const eval_options *o,
                       int32_t **ids, size_t *n)
{
    infer_error err = { 0 };
    if (o->ids) return parse_ids(o->ids, ids, n);
    const infer_tokenizer *tok = cli_tokenizer(model, name);
    if (!tok) return EXIT_FAILED;
    int32_t *made;
    if (cli_prompt_ids(tok, &made, n, o->prompt, strlen(o->prompt), &err)) return cli_fail(&err);
    *ids = mem_alloc(*n + 1, sizeof **ids);
    if (*ids) memcpy(*ids, made, *n * sizeof **ids);
    infer_free(made);
    if (!*ids) return cli_error(EXIT_FAILED, "--prompt: out of memory");
    if (*n) return EXIT_DONE;
    return cli_usage(&cmd_eval, "--prompt: it is empty and the model has no BOS token");
}

/* ---- output ---------------------------------------------------------------------------------- */

static int open_output(FILE **f, const char *path)
{
    if (!path) return EXIT_DONE;
    *f = fopen(path, "wb");
    return *f ? EXIT_DONE : cli_error(EXIT_FAILED, "%s: %s", path, strerror(errno));
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    if (!a || !b || stat(a, &x) || stat(b, &y)) return a && b && !strcmp(a, b);
    return x.st_dev == y.st_dev && x.st_ino == y.st_ino && S_ISREG(x.st_mode);
}

// Two outputs in one file would be neither.
static int check_outputs(const eval_options *o)
{
    const char *paths[] = { o->logits, o->hidden, o->attention.text };
    static const char *const names[] = { "--logits", "--hidden", "--attention" };
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < i; k++)
            if (same_file(paths[i], paths[k]))
                return cli_usage(&cmd_eval, "%s and %s: both are %s", names[k], names[i], paths[k]);
    return EXIT_DONE;
}

static int open_outputs(evaluation *v)
{
    const eval_options *o = v->o;
    int code = check_outputs(o);
    if (!code) code = open_output(&v->logits, o->logits);
    if (!code) code = open_output(&v->hidden, o->hidden);
    if (!code) code = open_output(&v->attention, o->attention.text);
    return code ? code : check_outputs(o); // new ones may have been two names of one file
}

static infer_status write_floats(FILE *f, const char *path, const float *v, size_t n,
                                 infer_error *err)
{
    errno = 0;
    if (!f || fwrite(v, sizeof *v, n, f) == n) return INFER_OK;
    return error_set(err, INFER_IO, "%s: %s", path, errno ? strerror(errno) : "write failed");
}

// Closing can be where a full disk shows. A file that was not finished is removed, unless it is a
// device or a pipe.
static int close_output(FILE *f, const char *path, int code)
{
    if (!f) return code;
    struct stat st;
    bool regular = !fstat(fileno(f), &st) && S_ISREG(st.st_mode);
    errno = 0;
    bool failed = fclose(f) != 0;
    if (failed && !code)
        code = cli_error(EXIT_FAILED, "%s: %s", path, errno ? strerror(errno) : "write failed");
    if (code && regular) unlink(path);
    return code;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int32_t other_token(evaluation *v)
{
    v->noise = v->noise * 1664525u + 1013904223u;
    return (int32_t)((v->noise >> 8) % (uint32_t)v->info.n_vocab);
}

// Rows of other sequence j for a step: one to four, so that they end at different places.
static int other_rows(int j) { return 1 + j % 4; }

static infer_status add_other(evaluation *v, int j, int *n_rows, infer_error *err)
{
    infer_sequence **s = &v->others[j];
    int n = other_rows(j), room = infer_engine_describe(v->engine).n_ctx;
    if (*s && infer_sequence_length(*s) + n > room) { // full: begin another one
        infer_sequence_free(*s);
        *s = NULL;
    }
    if (!*s && !(*s = infer_sequence_new(v->engine, err))) return err->code;
    if (n > room) n = room;
    for (int i = 0; i < n; i++)
        v->rows[(*n_rows)++] =
            (infer_row){ .seq = *s,
                         .token = other_token(v),
                         .want = j % 2 ? INFER_WANT_LOGITS : INFER_WANT_NOTHING };
    return INFER_OK;
}

// One step: half of the other sequences, n tokens of ours, the other half.
static infer_status step(evaluation *v, const int32_t *ids, int n, bool all, bool last,
                         infer_error *err)
{
    int n_rows = 0, half = v->o->beside / 2;
    infer_status st = INFER_OK;
    for (int j = 0; j < half && !st; j++)
        st = add_other(v, j, &n_rows, err);
    v->first = n_rows;
    for (int i = 0; i < n; i++)
        v->rows[n_rows++] = (infer_row){ .seq = v->seq,
                                         .token = ids[i],
                                         .want = all || (last && i + 1 == n) ? INFER_WANT_LOGITS
                                                                             : INFER_WANT_NOTHING };
    for (int j = half; j < v->o->beside && !st; j++)
        st = add_other(v, j, &n_rows, err);
    infer_capture capture = { .hidden = v->step_states,
                              .attention = v->weights,
                              .layer = v->o->attention.number };
    bool captures = v->step_states || v->weights;
    if (!st && captures) st = infer_engine_capture(v->engine, &capture, err);
    if (!st) st = infer_step(v->engine, v->rows, n_rows, err);
    // The rows of this step among all states of it, to their places among the prompt's.
    size_t d = (size_t)v->info.d_model, at = (size_t)infer_sequence_length(v->seq) - (size_t)n;
    for (int l = 0; !st && v->step_states && l <= v->info.n_layers; l++)
        memcpy(v->states + ((size_t)l * (size_t)v->n + at) * d,
               v->step_states + ((size_t)l * (size_t)n_rows + (size_t)v->first) * d,
               (size_t)n * d * sizeof(float));
    return st;
}

static infer_status feed_prompt(evaluation *v, infer_error *err)
{
    const eval_options *o = v->o;
    size_t n_vocab = (size_t)v->info.n_vocab;
    int chunk = o->chunk && o->chunk < v->n ? o->chunk : v->n, done = 0;
    infer_status st = infer_sequence_rope_length(v->seq, v->n, err);
    while (!st && done < v->n) {
        int n = v->n - done < chunk ? v->n - done : chunk;
        bool end = done + n == v->n, all = o->logits && !o->last;
        st = step(v, v->ids + done, n, all, end, err);
        for (int i = 0; !st && o->logits && i < n; i++)
            if (all || (end && i + 1 == n))
                st = write_floats(v->logits, o->logits, infer_logits(v->engine, v->first + i),
                                  n_vocab, err);
        done += n;
        if (!st) cli_progress("prompt %d of %d tokens", done, v->n);
        v->first += n - 1; // the row that the next id comes from
    }
    return st;
}

static infer_status continue_greedily(evaluation *v, infer_error *err)
{
    // Temperature 0: the largest logit, ties to the lowest id.
    infer_sampler *sampler = infer_sampler_new(NULL, v->info.n_vocab, 1, err);
    infer_status st = sampler ? infer_sequence_rope_length(v->seq, 0, err) : err->code;
    mem_free(v->step_states); // of the prompt only
    v->step_states = NULL;
    float *weights = v->weights;
    v->weights = NULL;
    if (!st) st = infer_engine_capture(v->engine, NULL, err);
    while (!st && v->n_greedy < v->o->greedy) {
        int32_t id = infer_sample(sampler, infer_logits(v->engine, v->first));
        if (id < 0) {
            st = error_set(err, INFER_FORMAT, "%s: every logit is not a number", v->info.path);
            break;
        }
        v->greedy[v->n_greedy++] = id;
        if (v->n_greedy < v->o->greedy) st = step(v, &id, 1, false, true, err);
        if (!st) cli_progress("greedy %d of %d tokens", v->n_greedy, v->o->greedy);
    }
    infer_sampler_free(sampler);
    v->weights = weights;
    return st;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static infer_status prepare(evaluation *v, const infer_model *model, infer_error *err)
{
    const eval_options *o = v->o;
    infer_engine_options eo = cli_engine_options(&o->engine);
    size_t n = (size_t)v->n, d = (size_t)v->info.d_model, layers = (size_t)v->info.n_layers;
    int chunk = o->chunk && o->chunk < v->n ? o->chunk : v->n;
    v->max_rows = chunk;
    for (int j = 0; j < o->beside; j++)
        v->max_rows += other_rows(j);
    eo.n_ctx = v->n + o->greedy;
    eo.max_rows = v->max_rows;
    eo.max_sequences = 1 + o->beside;
    long long room = (long long)eo.n_ctx * (1 + o->beside);
    if (room > INT_MAX / 2)
        return error_set(err, INFER_LIMIT, "eval: %d sequences of %d tokens are too many",
                         1 + o->beside, eo.n_ctx);
    eo.n_kv_tokens = (int)room;
    if (o->attention.given && o->attention.number >= v->info.n_layers)
        return error_set(err, INFER_ARGUMENT,
                         "--attention: expected a layer from 0 to %d, found %d",
                         v->info.n_layers - 1, o->attention.number);
    infer_status st = infer_engine_new(&v->engine, model, &eo, err);
    if (st) return st;
    cli_interrupt_engine(v->engine);
    v->noise = 12345;
    v->rows = mem_zero((size_t)v->max_rows, sizeof *v->rows);
    v->others = mem_zero((size_t)o->beside + 1, sizeof *v->others);
    v->greedy = mem_zero((size_t)o->greedy + 1, sizeof *v->greedy);
    bool ok = v->rows && v->others && v->greedy;
    size_t floats;
    if (ok && o->hidden) {
        ok =
            mem_mul((layers + 1) * n, d, &floats) && (v->states = mem_alloc(floats, sizeof(float)));
        size_t step_floats = (layers + 1) * (size_t)v->max_rows * d;
        ok = ok && (v->step_states = mem_alloc(step_floats, sizeof(float)));
    }
    if (ok && o->attention.given)
        ok = mem_mul(n * n, (size_t)v->info.n_heads, &floats) &&
             (v->weights = mem_zero(floats, sizeof(float)));
    if (!ok) return error_set(err, INFER_NOMEM, "eval: out of memory");
    v->seq = infer_sequence_new(v->engine, err);
    return v->seq ? INFER_OK : err->code;
}

static infer_status compute(evaluation *v, const infer_model *model, infer_error *err)
{
    const eval_options *o = v->o;
    size_t n = (size_t)v->n, d = (size_t)v->info.d_model, layers = (size_t)v->info.n_layers;
    infer_status st = prepare(v, model, err);
    if (!st) st = feed_prompt(v, err);
    if (!st && o->hidden)
        st = write_floats(v->hidden, o->hidden, v->states, (layers + 1) * n * d, err);
    if (!st && o->attention.given)
        st = write_floats(v->attention, o->attention.text, v->weights,
                          (size_t)v->info.n_heads * n * n, err);
    return st ? st : continue_greedily(v, err);
}

static void release(evaluation *v)
{
    cli_interrupt_engine(NULL);
    for (int j = 0; v->others && j < v->o->beside; j++)
        infer_sequence_free(v->others[j]);
    infer_sequence_free(v->seq);
    infer_engine_free(v->engine);
    mem_free(v->others);
    mem_free(v->rows);
    mem_free(v->greedy);
    mem_free(v->states);
    mem_free(v->step_states);
    mem_free(v->weights);
    mem_free(v->ids);
}

static int evaluate(const infer_model *model, const char *name, const eval_options *o)
{
    evaluation v = { .o = o, .info = infer_model_describe(model) };
    infer_error err = { 0 };
    size_t n = 0;
    int code = read_prompt(model, name, o, &v.ids, &n);
    if (!code && n > 1 << 24) code = cli_usage(&cmd_eval, "%zu ids are too many", n);
    v.n = (int)n;
    if (!code) code = open_outputs(&v);
    if (!code && compute(&v, model, &err)) code = cli_fail(&err);
    cli_progress_end();
    code = close_output(v.logits, o->logits, code);
    code = close_output(v.hidden, o->hidden, code);
    code = close_output(v.attention, o->attention.text, code);
    if (!code)
        code = cli_json_print(json_pack("{s:o,s:i,s:o}", "ids", cli_json_ids(v.ids, n), "n_vocab",
                                        v.info.n_vocab, "greedy",
                                        cli_json_ids(v.greedy, (size_t)v.n_greedy)));
    release(&v);
    return code;
}

static int run(int argc, char **argv)
{
    eval_options o = { 0 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_eval, &o, &args, argc, argv, &code)) return code;
    if (!o.ids == !o.prompt) return cli_usage(&cmd_eval, "expected one of --ids and --prompt");
    if (o.last && !o.logits) return cli_usage(&cmd_eval, "--last: needs --logits FILE");
    if (o.attention.given && (o.chunk || o.beside))
        return cli_usage(&cmd_eval, "--attention: needs the whole prompt alone in one step, not %s",
                         o.chunk ? "--chunk" : "--beside");
    if ((code = cli_engine_check(&cmd_eval, &o.engine))) return code;
    infer_model *model;
    if ((code = cli_model_open(&model, args.v[0], &o.engine))) return code;
    code = evaluate(model, args.v[0], &o);
    cli_model_close(model, &o.engine);
    return code;
}

const cli_command cmd_eval = {
    .name = "eval",
    .args = "MODEL (--ids 5,6,7 | --prompt TEXT)",
    .min_args = 1,
    .max_args = 1,
    .summary = "the numbers behind an answer: logits, states, attention",
    .text = "Files hold little-endian float32, row-major. Prints one JSON object with ids, n_vocab "
            "and greedy.",
    .options = options,
    .run = run,
};
