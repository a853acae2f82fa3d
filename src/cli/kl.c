/* kl.c: bases of comparison, and the figures: sums in double over the whole vocabulary. */
#include "cli/kl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"

#define MAGIC "INFERKL1"
#define HEADER 32

struct kl_base {
    kl_text text;
    file_map file; // of logits, or ...
    infer_model *model;
    infer_engine *engine;
    infer_sequence *seq;
    infer_row *rows; // [max_rows]
    int chunk;
    float *kl; // [n, at most all scored positions]
    long n, n_same;
    double sum, square, base_sum;   // of KL; of the base's surprise
    double ratio_sum, ratio_square; // of the model's surprise less the base's
};

static int n_scored(const kl_text *t) { return t->n_ctx - 1 - t->n_ctx / 2; }

/* ---- bases ----------------------------------------------------------------------------------- */

static uint32_t load32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int check_file(const kl_base *b, const char *name)
{
    const kl_text *t = &b->text;
    const uint8_t *p = b->file.data;
    if (b->file.size < HEADER) return cli_error(EXIT_FAILED, "%s: file ends in its header", name);
    uint64_t vocab = load32(p + 8), ctx = load32(p + 12), chunks = load32(p + 16);
    if (vocab != (uint64_t)t->n_vocab)
        return cli_error(EXIT_FAILED, "%s: logits of %llu tokens, the model has %d", name,
                         (unsigned long long)vocab, t->n_vocab);
    if (ctx != (uint64_t)t->n_ctx)
        return cli_error(EXIT_FAILED, "%s: chunks of %llu tokens, expected %d (--ctx)", name,
                         (unsigned long long)ctx, t->n_ctx);
    uint64_t scored = (uint64_t)n_scored(t);
    if (chunks < (uint64_t)t->n_chunks)
        return cli_error(EXIT_FAILED, "%s: %llu chunks, expected at least %d (--chunks)", name,
                         (unsigned long long)chunks, t->n_chunks);
    // none of the factors exceeds 2^32, so their products with chunks are compared by division
    uint64_t each = 4 * (ctx + scored * vocab);
    if ((b->file.size - HEADER) / each < chunks || HEADER + chunks * each != b->file.size)
        return cli_error(EXIT_FAILED, "%s: expected %llu bytes, found %zu", name,
                         (unsigned long long)(HEADER + chunks * each), b->file.size);
    for (size_t i = 0; i < (size_t)t->n_chunks * (size_t)t->n_ctx; i++)
        if ((int32_t)load32(p + HEADER + 4 * i) != t->ids[i])
            return cli_error(EXIT_FAILED, "%s: made of another text (token %zu differs)", name, i);
    return EXIT_DONE;
}

static int open_model(kl_base *b, const char *name, const cli_engine *e)
{
    infer_error err = { 0 };
    cli_engine plain = *e; // the base runs from its own weights
    plain.ffn = NULL;
    plain.patches.n = plain.walk_from = 0;
    plain.walk_only = false;
    plain.index = NULL;
    plain.patch = NULL;
    int code = cli_model_open(&b->model, name, &plain);
    if (code) return code;
    int n_vocab = infer_model_describe(b->model).n_vocab;
    if (n_vocab != b->text.n_vocab)
        return cli_error(EXIT_FAILED, "%s: %d tokens, the model has %d", name, n_vocab,
                         b->text.n_vocab);
    infer_engine_options eo = cli_engine_options(&plain);
    eo.n_ctx = b->text.n_ctx;
    eo.max_sequences = 1;
    eo.max_rows = b->text.max_rows;
    b->rows = mem_zero((size_t)eo.max_rows, sizeof *b->rows);
    if (!b->rows) return cli_error(EXIT_FAILED, "%s: out of memory", name);
    return infer_engine_new(&b->engine, b->model, &eo, &err) ? cli_fail(&err) : EXIT_DONE;
}

static bool is_base_file(const char *name)
{
    char magic[8] = "";
    FILE *f = dir_exists(name) ? NULL : fopen(name, "rb");
    size_t n = f ? fread(magic, 1, sizeof magic, f) : 0;
    if (f) fclose(f);
    return n == sizeof magic && !memcmp(magic, MAGIC, sizeof magic);
}

int kl_open(kl_base **out, const char *name, const cli_engine *e, const kl_text *text)
{
    infer_error err = { 0 };
    int code;
    kl_base *b = mem_zero(1, sizeof *b);
    *out = b;
    if (!b) return cli_error(EXIT_FAILED, "%s: out of memory", name);
    b->text = *text;
    b->kl = mem_alloc((size_t)text->n_chunks * (size_t)n_scored(text), sizeof *b->kl);
    if (!b->kl)
        code = cli_error(EXIT_FAILED, "%s: out of memory", name);
    else if (!is_base_file(name))
        code = open_model(b, name, e);
    else
        code = map_open(&b->file, name, NULL, NULL, &err) ? cli_fail(&err) : check_file(b, name);
    if (!code) return code;
    kl_close(b);
    *out = NULL;
    return code;
}

void kl_close(kl_base *b)
{
    if (!b) return;
    kl_end(b);
    if (b->file.path) map_close(&b->file);
    infer_engine_free(b->engine);
    infer_model_close(b->model);
    mem_free(b->rows);
    mem_free(b->kl);
    mem_free(b);
}

infer_status kl_begin(kl_base *b, int chunk, infer_error *err)
{
    b->chunk = chunk;
    if (!b->engine) return INFER_OK;
    b->seq = infer_sequence_new(b->engine, err);
    return b->seq ? infer_sequence_rope_length(b->seq, b->text.n_ctx, err) : err->code;
}

infer_status kl_step(kl_base *b, const infer_row *rows, int n, infer_error *err)
{
    if (!b->engine)
        return map_broken(&b->file)
                   ? error_set(err, INFER_IO, "%s: the file became shorter", b->file.path)
                   : INFER_OK;
    memcpy(b->rows, rows, (size_t)n * sizeof *rows);
    for (int i = 0; i < n; i++)
        b->rows[i].seq = b->seq;
    return infer_step(b->engine, b->rows, n, err);
}

void kl_end(kl_base *b)
{
    infer_sequence_free(b->seq);
    b->seq = NULL;
}

const float *kl_logits(const kl_base *b, int row, int at)
{
    if (b->engine) return infer_logits(b->engine, row);
    const kl_text *t = &b->text;
    uint64_t chunks = load32(b->file.data + 16), scored = (uint64_t)n_scored(t);
    uint64_t i = (uint64_t)b->chunk * scored + (uint64_t)(at - t->n_ctx / 2);
    uint64_t from = HEADER + 4 * (chunks * (uint64_t)t->n_ctx + i * (uint64_t)t->n_vocab);
    return (const float *)(const void *)(b->file.data + from); // a multiple of 4 in a mapped file
}

/* ---- figures --------------------------------------------------------------------------------- */

/* log of the sum of exp, and the index of the largest. */
static double log_sum(const float *x, int n, int *top)
{
    *top = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[*top]) *top = i;
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)expf(x[i] - x[*top]);
    return log(sum) + (double)x[*top];
}

void kl_add(kl_base *b, const float *base, const float *model, int32_t id)
{
    int n = b->text.n_vocab, top_base, top_model;
    double norm_base = log_sum(base, n, &top_base), norm_model = log_sum(model, n, &top_model);
    double kl = 0;
    for (int i = 0; i < n; i++) {
        double log_p = (double)base[i] - norm_base;
        if (log_p < -50) continue; // below any share that could be seen
        kl += (double)expf((float)log_p) * (log_p - ((double)model[i] - norm_model));
    }
    if (kl < 0) kl = 0; // by rounding
    double surprise = norm_base - (double)base[id];
    double ratio = norm_model - (double)model[id] - surprise;
    b->kl[b->n++] = (float)kl;
    b->n_same += top_base == top_model;
    b->sum += kl;
    b->square += kl * kl;
    b->base_sum += surprise;
    b->ratio_sum += ratio;
    b->ratio_square += ratio * ratio;
}

static int by_size(const void *x, const void *y)
{
    float a = *(const float *)x, b = *(const float *)y;
    return (a > b) - (a < b);
}

/* Of sorted v; between two elements on the line that joins them. */
static double quantile(const float *v, long n, double part)
{
    double at = part * (double)(n - 1);
    long i = (long)at;
    double rest = at - (double)i;
    return i + 1 < n ? (double)v[i] * (1 - rest) + (double)v[i + 1] * rest : (double)v[i];
}

static double error_of_mean(double sum, double square, long n)
{
    double mean = sum / (double)n, var = square / (double)n - mean * mean;
    return n > 1 && var > 0 ? sqrt(var / (double)(n - 1)) : 0;
}

kl_figures kl_result(kl_base *b)
{
    kl_figures f = { .n = b->n };
    if (!b->n) return f;
    double n = (double)b->n;
    qsort(b->kl, (size_t)b->n, sizeof *b->kl, by_size);
    f.mean = b->sum / n;
    f.error = error_of_mean(b->sum, b->square, b->n);
    f.median = quantile(b->kl, b->n, 0.5);
    f.p99 = quantile(b->kl, b->n, 0.99);
    f.max = (double)b->kl[b->n - 1];
    f.same_top = (double)b->n_same / n;
    f.base_perplexity = exp(b->base_sum / n);
    f.ratio = exp(b->ratio_sum / n);
    f.ratio_error = f.ratio * error_of_mean(b->ratio_sum, b->ratio_square, b->n);
    return f;
}

/* ---- saving ---------------------------------------------------------------------------------- */

struct kl_writer {
    atomic_file out;
    size_t n_vocab;
};

static infer_status write_error(const kl_writer *w, infer_error *err)
{
    const char *why = errno == ENOSPC || errno == EFBIG ? "No space left" : strerror(errno);
    return error_set(err, INFER_IO, "%s: %s", w->out.path, why);
}

static infer_status put(kl_writer *w, const void *p, size_t size, size_t n, infer_error *err)
{
    errno = 0;
    return fwrite(p, size, n, w->out.f) == n ? INFER_OK : write_error(w, err);
}

static infer_status save_begin(kl_writer *w, const char *path, const kl_text *t, infer_error *err)
{
    w->n_vocab = (size_t)t->n_vocab;
    if (atomic_open(&w->out, path, err)) return err->code;
    uint8_t head[HEADER] = MAGIC;
    const uint32_t numbers[] = { (uint32_t)t->n_vocab, (uint32_t)t->n_ctx, (uint32_t)t->n_chunks };
    for (int i = 0; i < 12; i++)
        head[8 + i] = (uint8_t)(numbers[i / 4] >> 8 * (i % 4));
    infer_status st = put(w, head, 1, HEADER, err);
    return st ? st : put(w, t->ids, 4, (size_t)t->n_chunks * (size_t)t->n_ctx, err);
}

int kl_save_begin(kl_writer **out, const char *path, const kl_text *text)
{
    infer_error err = { 0 };
    kl_writer *w = mem_zero(1, sizeof *w);
    *out = w;
    if (!w) return cli_error(EXIT_FAILED, "%s: out of memory", path);
    if (!save_begin(w, path, text, &err)) return EXIT_DONE;
    kl_writer_free(w);
    *out = NULL;
    return cli_fail(&err);
}

infer_status kl_save(kl_writer *w, const float *logits, infer_error *err)
{
    return put(w, logits, sizeof *logits, w->n_vocab, err);
}

infer_status kl_save_end(kl_writer *w, infer_error *err) { return atomic_commit(&w->out, err); }

void kl_writer_free(kl_writer *w)
{
    if (!w) return;
    atomic_abandon(&w->out);
    mem_free(w);
}
