/*
 * labels.c: E . W_down: some features at a time against the whole embedding (nearest.c). Equal
 * scores go to the lowest id. NaN is never chosen. Of labels, tokens without a text fall out of the
 * chosen ones; of words, other tokens are not looked at.
 */
#include "vindex/labels.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "vindex/nearest.h"

struct labeller {
    const backend *be;
    device *dev;
    tensor embed;
    int top_k;
    bool words;   // only whole words are chosen from
    uint8_t *out; // [n_vocab] 1: no word, or without a text
    nearest *search;
    /* the running job */
    const tensor *of;
    bool by_rows;
    int first, n;
};

void labeller_free(labeller *x)
{
    if (!x) return;
    nearest_free(x->search);
    if (x->dev) x->be->close(x->dev);
    mem_free(x->out);
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
    device_options d = { n_threads, NULL, embed->n_cols, 64 };
    infer_status st = x->be->open(&x->dev, &d, err);
    if (!st) st = find_out(x, tok, err);
    if (!st) st = nearest_new(&x->search, x->be, x->dev, embed, top_k, words ? x->out : NULL, err);
    if (st) {
        labeller_free(x);
        return st;
    }
    *out = x;
    return INFER_OK;
}

/* Features [first, first + n) as rows; the threads share the matrix's rows. */
static void take_features(const worker *w, void *arg)
{
    labeller *x = arg;
    const tensor *of = x->of;
    const quant_format *f = quant_formats[of->type];
    size_t stride, at = (size_t)(x->first / f->block_size) * (size_t)f->block_bytes;
    float *to = nearest_vectors(x->search, &stride), row[NEAREST_MOST];
    int begin, end;
    thread_share(x->by_rows ? x->n : of->n_rows, 16, w->thread, w->n_threads, &begin, &end);
    for (int r = begin; r < end; r++) {
        if (x->by_rows) {
            tensor_row(to + (size_t)r * stride, of, x->first + r);
            continue;
        }
        f->dequant(row, of->data + (size_t)r * of->row_bytes + at, (size_t)x->n);
        for (int i = 0; i < x->n; i++)
            to[(size_t)i * stride + (size_t)r] = row[i];
    }
}

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}
static void put_pair(uint8_t *p, const near_row *c)
{
    uint32_t bits;
    memcpy(&bits, &c->score, 4);
    put_u32(p, (uint32_t)c->id);
    put_u32(p + 4, bits);
}

static void write_record(const labeller *x, uint8_t *to, int feature)
{
    int n_best, n = 0;
    const near_row *best = nearest_best(x->search, feature, &n_best);
    memset(to, 0, 8 + 8 * (size_t)x->top_k);
    for (int i = 0; i < n_best; i++) {
        if (x->out[best[i].id]) continue;
        if (!n) put_pair(to, &best[i]);
        put_pair(to + 8 + 8 * (size_t)n++, &best[i]);
    }
}

typedef struct ticker {
    bool (*tick)(double share, void *user);
    void *user;
    double done, size;
} ticker;

static bool on_search(double share, void *user)
{
    const ticker *t = user;
    return !t->tick || t->tick(t->done + t->size * share, t->user);
}

infer_status labeller_run(labeller *x, uint8_t *records, const tensor *of, bool by_rows,
                          bool (*tick)(double share, void *user), void *user, infer_error *err)
{
    size_t size = 8 + 8 * (size_t)x->top_k;
    ticker t = { .tick = tick, .user = user };
    x->of = of;
    x->by_rows = by_rows;
    int n = by_rows ? of->n_rows : of->n_cols, width = by_rows ? of->n_cols : of->n_rows;
    if (width != x->embed.n_cols)
        return error_set(err, INFER_FORMAT, "labels: features of %d values, embeddings of %d",
                         width, x->embed.n_cols);
    for (x->first = 0; x->first < n; x->first += NEAREST_MOST) {
        x->n = n - x->first < NEAREST_MOST ? n - x->first : NEAREST_MOST;
        t.done = (double)x->first / n;
        t.size = (double)x->n / n;
        x->be->run(x->dev, take_features, x);
        if (!nearest_search(x->search, x->n, on_search, &t))
            return error_set(err, INFER_CANCELLED, "labels: stopped");
        for (int i = 0; i < x->n; i++)
            write_record(x, records + (size_t)(x->first + i) * size, i);
    }
    return INFER_OK;
}
