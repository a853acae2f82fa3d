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
#include "cli/cli.h"

#define FILE_LIMIT ((size_t)1 << 30)

typedef struct perplexity_options {
    cli_engine engine;
    int ctx, chunks;
    bool json;
} perplexity_options;

static const cli_option options[] = {
    { "--ctx", "N", OPT_INT, offsetof(perplexity_options, ctx), .min = 4, .max = 1 << 24,
      .help = "tokens in a chunk (default: 512)" },
    { "--chunks", "K", OPT_INT, offsetof(perplexity_options, chunks), .min = 1, .max = INT_MAX,
      .help = "only the first K chunks (default: all)" },
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

static infer_status score_chunk(score *s, infer_engine *engine, infer_row *rows, int max_rows,
                                const int32_t *ids, int n_ctx, int32_t bos, int n_vocab,
                                infer_error *err)
{
    infer_sequence *seq = infer_sequence_new(engine, err);
    infer_status st = seq ? infer_sequence_rope_length(seq, n_ctx, err) : err->code;
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
        for (int i = 0; !st && i < n; i++) {
            if (!rows[i].want) continue;
            double d = surprise(infer_logits(engine, i), n_vocab, ids[done + i + 1]);
            s->sum += d;
            s->square += d * d;
            s->n++;
        }
        done += n;
        if (s->n)
            cli_progress("chunk %d of %d: %d%%, perplexity %.4f", s->chunks + 1, s->n_chunks,
                         done * 100 / n_ctx, perplexity_of(s));
        else
            cli_progress("chunk %d of %d: %d%%", s->chunks + 1, s->n_chunks, done * 100 / n_ctx);
    }
    infer_sequence_free(seq);
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
    s->seconds = cli_now() - start;
    cli_interrupt_engine(NULL);
    mem_free(rows);
    infer_engine_free(engine);
    return st;
}

static int print_score(const score *s, const perplexity_options *o)
{
    double tokens = (double)s->chunks * o->ctx;
    if (o->json)
        return cli_json_print(json_pack(
            "{s:f,s:f,s:f,s:i,s:i,s:I,s:f,s:f}", "perplexity", perplexity_of(s), "error",
            error_of(s), "nll", s->sum / (double)s->n, "ctx", o->ctx, "chunks", s->chunks, "scored",
            (json_int_t)s->n, "seconds", s->seconds, "tok_s", tokens / s->seconds));
    printf("perplexity %.4f +- %.4f\n", perplexity_of(s), error_of(s));
    fprintf(stderr, "%d chunks of %d tokens, %ld scored, %.1f s, %.1f tok/s\n", s->chunks, o->ctx,
            s->n, s->seconds, tokens / s->seconds);
    return EXIT_DONE;
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
    else if (score_text(&s, model, o, ids, bos, &err))
        code = cli_fail(&err);
    else if (!isfinite(s.sum))
        code = cli_error(EXIT_FAILED, "%s: the logits are not numbers", path);
    else {
        cli_progress_end();
        code = print_score(&s, o);
    }
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
        infer_model_close(model);
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
