/*
 * cmd_perplexity.c: `infer perplexity`: how well a model expects a text.
 *
 * The text is cut into chunks of n_ctx tokens. Each is a sequence of its own, with the model's BOS
 * in place of its first token where the model wants one, and the second half is scored: position i
 * predicts token i + 1 for i from n_ctx/2 to n_ctx - 2. This is what published figures for GGUF
 * files mean by perplexity.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "cli/kl.h"

#define FILE_LIMIT ((size_t)1 << 30)

typedef struct perplexity_options {
    cli_engine engine;
    int ctx, chunks;
    const char *kl, *save;
    bool json;
} perplexity_options;

static const cli_option options[] = {
    { "--ctx", "N", OPT_INT, offsetof(perplexity_options, ctx), .min = 4, .max = 1 << 24,
      .help = "tokens in a chunk (default: 512)" },
    { "--chunks", "K", OPT_INT, offsetof(perplexity_options, chunks), .min = 1, .max = INT_MAX,
      .help = "only the first K chunks (default: all)" },
    { "--kl", "BASE", OPT_TEXT, offsetof(perplexity_options, kl),
      .help = "compare with BASE, a model or a file of --save-base: how far the predictions are "
              "from its own" },
    { "--save-base", "FILE", OPT_TEXT, offsetof(perplexity_options, save),
      .help =
          "write the logits, to be a BASE later (4 bytes a vocabulary entry and scored token)" },
    ENGINE_OPTIONS(perplexity_options),
    { "--json", NULL, OPT_FLAG, offsetof(perplexity_options, json), .help = "one JSON object" },
    { 0 },
};

/* Sums over scored tokens of -log p and its square. */
typedef struct score {
    double sum, square;
    long n;
    int chunks, n_chunks;
    double seconds;
    kl_base *base;   // or NULL
    kl_writer *save; // or NULL
} score;

static double perplexity_of(const score *s) { return exp(s->sum / (double)s->n); }

// Standard error of the mean, carried through exp.
static double error_of(const score *s)
{
    double mean = s->sum / (double)s->n, var = s->square / (double)s->n - mean * mean;
    return s->n > 1 && var > 0 ? sqrt(var / (double)(s->n - 1)) * perplexity_of(s) : 0;
}

// -log of the probability of `id`; float exp, summed in double.
static double surprise(const float *logits, int n_vocab, int32_t id)
{
    float top = logits[0];
    for (int i = 1; i < n_vocab; i++)
        top = logits[i] > top ? logits[i] : top;
    double sum = 0;
    for (int i = 0; i < n_vocab; i += 256) { // in short runs, so that the inner loop stays float
        float part = 0;
        for (int k = i; k < n_vocab && k < i + 256; k++)
            part += expf(logits[k] - top);
        sum += (double)part;
    }
    return log(sum) + (double)top - (double)logits[id];
}

// Rows a step: as many as keep the logits of a step near 64 MB.
static int rows_for(int n_vocab, int n_ctx)
{
    int rows = (int)((64u << 20) / 4 / (unsigned)n_vocab);
    rows = rows < 32 ? 32 : rows > 512 ? 512 : rows;
    return rows < n_ctx ? rows : n_ctx;
}

/* One scored row: the logits of position `at`, after which `id` came. */
static infer_status score_row(score *s, const float *logits, int row, int at, int n_vocab,
                              int32_t id, infer_error *err)
{
    double d = surprise(logits, n_vocab, id);
    s->sum += d;
    s->square += d * d;
    s->n++;
    if (s->base) kl_add(s->base, kl_logits(s->base, row, at), logits, id);
    return s->save ? kl_save(s->save, logits, err) : INFER_OK;
}

static infer_status score_chunk(score *s, infer_engine *engine, infer_row *rows, int max_rows,
                                const int32_t *ids, int n_ctx, int32_t bos, int n_vocab,
                                infer_error *err)
{
    infer_sequence *seq = infer_sequence_new(engine, err);
    infer_status st = seq ? infer_sequence_rope_length(seq, n_ctx, err) : err->code;
    if (!st && s->base) st = kl_begin(s->base, s->chunks, err);
    for (int done = 0; !st && done < n_ctx;) {
        int n = n_ctx - done < max_rows ? n_ctx - done : max_rows;
        for (int i = 0; i < n; i++) {
            int at = done + i;
            bool scored = at >= n_ctx / 2 && at + 1 < n_ctx;
            rows[i] = (infer_row){ .seq = seq,
                                   .token = !at && bos >= 0 ? bos : ids[at],
                                   .want = scored ? INFER_WANT_LOGITS : INFER_WANT_NOTHING };
        }
        st = infer_step(engine, rows, n, err);
        if (!st && s->base) st = kl_step(s->base, rows, n, err);
        for (int i = 0; !st && i < n; i++)
            if (rows[i].want)
                st = score_row(s, infer_logits(engine, i), i, done + i, n_vocab, ids[done + i + 1],
                               err);
        done += n;
        if (s->n)
            cli_progress("chunk %d of %d: %d%%, perplexity %.4f", s->chunks + 1, s->n_chunks,
                         done * 100 / n_ctx, perplexity_of(s));
        else
            cli_progress("chunk %d of %d: %d%%", s->chunks + 1, s->n_chunks, done * 100 / n_ctx);
    }
    infer_sequence_free(seq);
    if (s->base) kl_end(s->base);
    return st;
}

static infer_status score_text(score *s, const infer_model *model, const perplexity_options *o,
                               const int32_t *ids, int32_t bos, infer_error *err)
{
    int n_vocab = infer_model_describe(model).n_vocab;
    infer_engine_options eo = cli_engine_options(&o->engine);
    eo.n_ctx = o->ctx;
    eo.max_sequences = 1;
    eo.max_rows = rows_for(n_vocab, o->ctx);
    infer_engine *engine;
    infer_status st = infer_engine_new(&engine, model, &eo, err);
    if (st) return st;
    cli_interrupt_engine(engine);
    infer_row *rows = mem_zero((size_t)eo.max_rows, sizeof *rows);
    if (!rows) st = error_set(err, INFER_NOMEM, "perplexity: out of memory");
    double start = cli_now();
    while (!st && s->chunks < s->n_chunks) {
        st = score_chunk(s, engine, rows, eo.max_rows, ids + (size_t)s->chunks * (size_t)o->ctx,
                         o->ctx, bos, n_vocab, err);
        if (!st) s->chunks++;
    }
    if (!st && s->save) st = kl_save_end(s->save, err);
    s->seconds = cli_now() - start;
    cli_interrupt_engine(NULL);
    mem_free(rows);
    infer_engine_free(engine);
    return st;
}

static json_t *kl_json(const kl_figures *f)
{
    return json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "mean", f->mean, "error", f->error,
                     "median", f->median, "p99", f->p99, "max", f->max, "same_top", f->same_top,
                     "base_perplexity", f->base_perplexity, "perplexity_ratio", f->ratio,
                     "perplexity_ratio_error", f->ratio_error);
}

static int print_score(const score *s, const perplexity_options *o)
{
    double tokens = (double)s->chunks * o->ctx;
    kl_figures f = s->base ? kl_result(s->base) : (kl_figures){ 0 };
    if (o->json) {
        json_t *j = json_pack("{s:f,s:f,s:f,s:i,s:i,s:I,s:f,s:f}", "perplexity", perplexity_of(s),
                              "error", error_of(s), "nll", s->sum / (double)s->n, "ctx", o->ctx,
                              "chunks", s->chunks, "scored", (json_int_t)s->n, "seconds",
                              s->seconds, "tok_s", tokens / s->seconds);
        if (s->base) json_object_set_new(j, "kl", kl_json(&f));
        return cli_json_print(j);
    }
    printf("perplexity %.4f +- %.4f\n", perplexity_of(s), error_of(s));
    if (s->base) {
        printf("base       %.4f, ratio %.5f +- %.5f\n", f.base_perplexity, f.ratio, f.ratio_error);
        printf("KL         mean %.6f +- %.6f, median %.6f, 99%% %.6f, max %.6f\n", f.mean, f.error,
               f.median, f.p99, f.max);
        printf("same top   %.2f %%\n", 100 * f.same_top);
    }
    fprintf(stderr, "%d chunks of %d tokens, %ld scored, %.1f s, %.1f tok/s\n", s->chunks, o->ctx,
            s->n, s->seconds, tokens / s->seconds);
    return EXIT_DONE;
}

/* The other model or file, and the file to write. Returns an exit code. */
static int open_kl(score *s, const infer_model *model, const perplexity_options *o,
                   const int32_t *ids)
{
    int n_vocab = infer_model_describe(model).n_vocab;
    kl_text text = { .ids = ids,
                     .n_ctx = o->ctx,
                     .n_chunks = s->n_chunks,
                     .n_vocab = n_vocab,
                     .max_rows = rows_for(n_vocab, o->ctx) };
    int code = o->kl ? kl_open(&s->base, o->kl, &o->engine, &text) : EXIT_DONE;
    if (!code && o->save) code = kl_save_begin(&s->save, o->save, &text);
    return code;
}

static int measure(const infer_model *model, const infer_tokenizer *tok, const char *path,
                   const char *text, size_t n_text, const perplexity_options *o)
{
    infer_error err = { 0 };
    int32_t *ids;
    size_t n;
    if (infer_tokenize(tok, &ids, &n, text, n_text, NULL, &err)) return cli_fail(&err);
    // The BOS rule shows in the text's own first token.
    int32_t bos = infer_token_bos(tok);
    if (!n || ids[0] != bos) bos = -1;
    size_t all = n / (size_t)o->ctx;
    score s = { .n_chunks = all > INT_MAX ? INT_MAX : (int)all };
    if (o->chunks && o->chunks < s.n_chunks) s.n_chunks = o->chunks;
    int code;
    if (!s.n_chunks)
        code =
            cli_error(EXIT_FAILED, "%s: expected at least one chunk of %d tokens, found %zu tokens",
                      path, o->ctx, n);
    else if ((code = open_kl(&s, model, o, ids)))
        ; // told
    else if (score_text(&s, model, o, ids, bos, &err))
        code = cli_fail(&err);
    else if (!isfinite(s.sum))
        code = cli_error(EXIT_FAILED, "%s: the logits are not numbers", path);
    else {
        cli_progress_end();
        code = print_score(&s, o);
    }
    kl_close(s.base);
    kl_writer_free(s.save);
    infer_free(ids);
    return code;
}

static int run(int argc, char **argv)
{
    perplexity_options o = { .ctx = 512 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_perplexity, &o, &args, argc, argv, &code)) return code;
    if ((code = cli_engine_check(&cmd_perplexity, &o.engine))) return code;
    char *text = NULL;
    size_t n;
    infer_error err = { 0 };
    infer_model *model;
    if (file_read(args.v[1], FILE_LIMIT, &text, &n, &err)) return cli_fail(&err);
    if (!(code = cli_model_open(&model, args.v[0], &o.engine))) {
        const infer_tokenizer *tok = cli_tokenizer(model, args.v[0]);
        code = tok ? measure(model, tok, args.v[1], text, n, &o) : EXIT_FAILED;
        cli_model_close(model, &o.engine);
    }
    mem_free(text);
    return code;
}

const cli_command cmd_perplexity = {
    .name = "perplexity",
    .args = "MODEL FILE",
    .min_args = 2,
    .max_args = 2,
    .summary = "how well a model expects a text file",
    .text =
        "Chunks of --ctx tokens, the model's BOS in place of each chunk's first token, the second "
        "half scored.",
    .options = options,
    .run = run,
};
