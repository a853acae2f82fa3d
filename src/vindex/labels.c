/*
 * labels.c: E . W_down in tiles: some features at a time against some rows of the embedding at a
 * time, on the engine's float kernels; of each feature the best few are kept in a sorted list.
 * Equal scores go to the lowest id. NaN is never chosen.
 */
#include "vindex/labels.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

#define FEATURES 512 // at a time: their scores of a tile stay in the last cache
#define TOKENS 4096

typedef struct candidate {
    int32_t id;
    float score;
} candidate;

struct labeller {
    const backend *be;
    device *dev;
    tensor embed;
    int top_k;
    uint8_t *silent; // [n_vocab] 1: its text is empty
    float *x, *y;    // [FEATURES, stride], [FEATURES, TOKENS]
    size_t stride;
    candidate *best; // [FEATURES, top_k]
    int *n_best;     // [FEATURES]
    /* the running job */
    const tensor *down;
    int first, n, token, n_tokens;
};

void labeller_free(labeller *x)
{
    if (!x) return;
    if (x->dev) {
        x->be->free(x->dev, x->x, FEATURES * x->stride * sizeof(float));
        x->be->free(x->dev, x->y, sizeof(float) * FEATURES * TOKENS);
        x->be->close(x->dev);
    }
    mem_free(x->silent);
    mem_free(x->best);
    mem_free(x->n_best);
    mem_free(x);
}

/* Ids that read as nothing: special ones, spaces. */
static infer_status find_silent(labeller *x, const tokenizer *tok, infer_error *err)
{
    x->silent = mem_zero((size_t)x->embed.n_rows, 1);
    if (!x->silent) return error_set(err, INFER_NOMEM, "labels: out of memory");
    for (int32_t id = 0; tok && id < x->embed.n_rows; id++) {
        char *text = NULL;
        size_t n = 0, i = 0;
        infer_status st = tok_decode(tok, &text, &n, &id, 1, true, err);
        if (st == INFER_NOMEM) return st;
        while (!st && i < n && strchr(" \t\r\n", text[i]))
            i++;
        x->silent[id] = st || i == n;
        mem_free(text);
    }
    return INFER_OK;
}

infer_status labeller_new(labeller **out, const tensor *embed, const tokenizer *tok, int top_k,
                          int n_threads, infer_error *err)
{
    *out = NULL;
    labeller *x = mem_zero(1, sizeof *x);
    if (!x) return error_set(err, INFER_NOMEM, "labels: out of memory");
    x->embed = *embed;
    x->top_k = top_k;
    x->be = default_backend();
    x->stride = row_stride(embed->n_cols);
    x->best = mem_zero((size_t)FEATURES * (size_t)top_k, sizeof *x->best);
    x->n_best = mem_zero(FEATURES, sizeof *x->n_best);
    device_options d = { n_threads, NULL, embed->n_cols, 64 };
    infer_status st = x->best && x->n_best ? x->be->open(&x->dev, &d, err)
                                           : error_set(err, INFER_NOMEM, "labels: out of memory");
    if (!st) {
        x->x = x->be->alloc(x->dev, FEATURES * x->stride * sizeof(float));
        x->y = x->be->alloc(x->dev, sizeof(float) * FEATURES * TOKENS);
        st = x->x && x->y ? find_silent(x, tok, err)
                          : error_set(err, INFER_NOMEM, "labels: out of memory");
    }
    if (st) {
        labeller_free(x);
        return st;
    }
    *out = x;
    return INFER_OK;
}

/* Columns [first, first + n) of down as rows; the threads share the matrix's rows. */
static void take_columns(const worker *w, labeller *x)
{
    int begin, end;
    float row[FEATURES];
    const quant_format *f = quant_formats[x->down->type];
    size_t at = (size_t)(x->first / f->block_size) * (size_t)f->block_bytes;
    thread_share(x->down->n_rows, 16, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        f->dequant(row, x->down->data + (size_t)r * x->down->row_bytes + at, (size_t)x->n);
        for (int i = 0; i < x->n; i++)
            x->x[(size_t)i * x->stride + (size_t)r] = row[i];
    }
}

static void offer(labeller *x, int feature, int32_t id, float score)
{
    candidate *best = x->best + (size_t)feature * (size_t)x->top_k;
    int n = x->n_best[feature], at = n < x->top_k ? n : n - 1;
    while (at > 0 && best[at - 1].score < score) {
        best[at] = best[at - 1];
        at--;
    }
    best[at] = (candidate){ id, score };
    if (n < x->top_k) x->n_best[feature]++;
}

static void choose(const worker *w, labeller *x)
{
    int begin, end;
    thread_share(x->n, 1, w->thread, w->n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        const float *y = x->y + (size_t)i * TOKENS;
        const candidate *last = x->best + (size_t)i * (size_t)x->top_k + x->top_k - 1;
        for (int t = 0; t < x->n_tokens; t += 16) {
            int n = x->n_tokens - t < 16 ? x->n_tokens - t : 16;
            float least = x->n_best[i] < x->top_k ? -INFINITY : last->score;
            bool any = false;
            for (int k = 0; k < n; k++)
                any |= y[t + k] > least;
            for (int k = 0; any && k < n; k++)
                if (y[t + k] > (x->n_best[i] < x->top_k ? -INFINITY : last->score))
                    offer(x, i, x->token + t + k, y[t + k]);
        }
    }
}

static void run_tile(const worker *w, void *arg)
{
    labeller *x = arg;
    if (x->token == 0) {
        take_columns(w, x);
        x->be->barrier(w);
    }
    linear tile = { tensor_rows(&x->embed, x->token, x->n_tokens), NULL };
    act in = { .x = x->x, .n_rows = x->n, .n_cols = x->embed.n_cols, .stride = x->stride };
    x->be->matmul(w, x->y, TOKENS, &tile, &in, true);
    x->be->barrier(w);
    choose(w, x);
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}
static void put_pair(uint8_t *p, candidate c)
{
    uint32_t bits;
    memcpy(&bits, &c.score, 4);
    put_u32(p, (uint32_t)c.id);
    put_u32(p + 4, bits);
}

static void write_record(const labeller *x, uint8_t *to, int feature)
{
    const candidate *best = x->best + (size_t)feature * (size_t)x->top_k;
    int n = 0;
    memset(to, 0, 8 + 8 * (size_t)x->top_k);
    for (int i = 0; i < x->n_best[feature]; i++) {
        if (x->silent[best[i].id]) continue;
        if (!n) put_pair(to, best[i]);
        put_pair(to + 8 + 8 * (size_t)n++, best[i]);
    }
}

infer_status labeller_run(labeller *x, uint8_t *records, const tensor *down,
                          bool (*tick)(double share, void *user), void *user, infer_error *err)
{
    size_t size = 8 + 8 * (size_t)x->top_k;
    x->down = down;
    if (down->n_rows != x->embed.n_cols)
        return error_set(err, INFER_FORMAT, "labels: down rows of %d, embeddings of %d",
                         down->n_rows, x->embed.n_cols);
    for (x->first = 0; x->first < down->n_cols; x->first += FEATURES) {
        x->n = down->n_cols - x->first < FEATURES ? down->n_cols - x->first : FEATURES;
        memset(x->n_best, 0, FEATURES * sizeof *x->n_best);
        for (x->token = 0; x->token < x->embed.n_rows; x->token += TOKENS) {
            int left = x->embed.n_rows - x->token;
            x->n_tokens = left < TOKENS ? left : TOKENS;
            x->be->run(x->dev, run_tile, x);
            double share =
                ((double)x->first + (double)x->n * (x->token + x->n_tokens) / x->embed.n_rows) /
                down->n_cols;
            if (tick && !tick(share, user))
                return error_set(err, INFER_CANCELLED, "labels: stopped");
        }
        for (int i = 0; i < x->n; i++)
            write_record(x, records + (size_t)(x->first + i) * size, i);
    }
    return INFER_OK;
}
