/*
 * labels.c: E . W_down in tiles: some features at a time against some rows of the embedding at a
 * time, on the engine's float kernels; of each feature the best few are kept in a sorted list.
 * Equal scores go to the lowest id. NaN is never chosen. Of labels, tokens without a text fall out
 * of the chosen ones; of words, other tokens are not looked at.
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
    bool words;   // only whole words are chosen from
    uint8_t *out; // [n_vocab] 1: no word, or without a text
    float *x, *y; // [FEATURES, stride], [FEATURES, TOKENS]
    size_t stride;
    candidate *best; // [FEATURES, top_k]
    int *n_best;     // [FEATURES]
    /* the running job */
    const tensor *of;
    bool by_rows;
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
    mem_free(x->out);
    mem_free(x->best);
    mem_free(x->n_best);
    mem_free(x);
}

infer_status label_text(char **out, const tokenizer *tok, int32_t id, infer_error *err)
{
    char *text = NULL;
    size_t n = 0, begin = 0;
    infer_status st = tok_decode(tok, &text, &n, &id, 1, true, err);
    if (st && st != INFER_NOMEM) text = mem_strdup("");
    if (!text) return error_set(err, INFER_NOMEM, "labels: out of memory");
    n = strlen(text);
    while (text[begin] && strchr(" \t\r\n", text[begin]))
        begin++;
    while (n > begin && strchr(" \t\r\n", text[n - 1]))
        n--;
    memmove(text, text + begin, n - begin);
    text[n - begin] = 0;
    *out = text;
    return INFER_OK;
}

static bool is_word(const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'z') ||
              (s[i] >= 'A' && s[i] <= 'Z') || s[i] == '-' || s[i] == '\''))
            return false;
    return n >= 3;
}

/* Ids that are not to be chosen: special ones and spaces; or whatever is no word. */
static infer_status find_out(labeller *x, const tokenizer *tok, infer_error *err)
{
    x->out = mem_zero((size_t)x->embed.n_rows, 1);
    if (!x->out) return error_set(err, INFER_NOMEM, "labels: out of memory");
    for (int32_t id = 0; tok && id < x->embed.n_rows; id++) {
        char *text;
        infer_status st = label_text(&text, tok, id, err);
        if (st) return st;
        x->out[id] = x->words ? !is_word(text) : !*text;
        mem_free(text);
    }
    return INFER_OK;
}

infer_status labeller_new(labeller **out, const tensor *embed, const tokenizer *tok, bool words,
                          int top_k, int n_threads, infer_error *err)
{
    *out = NULL;
    labeller *x = mem_zero(1, sizeof *x);
    if (!x) return error_set(err, INFER_NOMEM, "labels: out of memory");
    x->embed = *embed;
    x->words = words;
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
        st = x->x && x->y ? find_out(x, tok, err)
                          : error_set(err, INFER_NOMEM, "labels: out of memory");
    }
    if (st) {
        labeller_free(x);
        return st;
    }
    *out = x;
    return INFER_OK;
}

/* Columns [first, first + n) as rows; the threads share the matrix's rows. */
static void take_columns(const worker *w, labeller *x)
{
    int begin, end;
    float row[FEATURES];
    const quant_format *f = quant_formats[x->of->type];
    size_t at = (size_t)(x->first / f->block_size) * (size_t)f->block_bytes;
    thread_share(x->of->n_rows, 16, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        f->dequant(row, x->of->data + (size_t)r * x->of->row_bytes + at, (size_t)x->n);
        for (int i = 0; i < x->n; i++)
            x->x[(size_t)i * x->stride + (size_t)r] = row[i];
    }
}

static void take_rows(const worker *w, labeller *x)
{
    int begin, end;
    thread_share(x->n, 1, w->thread, w->n_threads, &begin, &end);
    for (int i = begin; i < end; i++)
        tensor_row(x->x + (size_t)i * x->stride, x->of, x->first + i);
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
                if (y[t + k] > (x->n_best[i] < x->top_k ? -INFINITY : last->score) &&
                    !(x->words && x->out[x->token + t + k]))
                    offer(x, i, x->token + t + k, y[t + k]);
        }
    }
}

static void run_tile(const worker *w, void *arg)
{
    labeller *x = arg;
    if (x->token == 0) {
        x->by_rows ? take_rows(w, x) : take_columns(w, x);
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
        if (x->out[best[i].id]) continue;
        if (!n) put_pair(to, best[i]);
        put_pair(to + 8 + 8 * (size_t)n++, best[i]);
    }
}

infer_status labeller_run(labeller *x, uint8_t *records, const tensor *of, bool by_rows,
                          bool (*tick)(double share, void *user), void *user, infer_error *err)
{
    size_t size = 8 + 8 * (size_t)x->top_k;
    x->of = of;
    x->by_rows = by_rows;
    int n = by_rows ? of->n_rows : of->n_cols, width = by_rows ? of->n_cols : of->n_rows;
    if (width != x->embed.n_cols)
        return error_set(err, INFER_FORMAT, "labels: features of %d values, embeddings of %d",
                         width, x->embed.n_cols);
    for (x->first = 0; x->first < n; x->first += FEATURES) {
        x->n = n - x->first < FEATURES ? n - x->first : FEATURES;
        memset(x->n_best, 0, FEATURES * sizeof *x->n_best);
        for (x->token = 0; x->token < x->embed.n_rows; x->token += TOKENS) {
            int left = x->embed.n_rows - x->token;
            x->n_tokens = left < TOKENS ? left : TOKENS;
            x->be->run(x->dev, run_tile, x);
            double share =
                ((double)x->first + (double)x->n * (x->token + x->n_tokens) / x->embed.n_rows) / n;
            if (tick && !tick(share, user))
                return error_set(err, INFER_CANCELLED, "labels: stopped");
        }
        for (int i = 0; i < x->n; i++)
            write_record(x, records + (size_t)(x->first + i) * size, i);
    }
    return INFER_OK;
}
