/*
 * cluster_names.c: what a cluster is called. Its features' tokens are counted as words of a
 * document among the clusters (tf-idf); the best few are typical of it, and the best three are its
 * name. Categories by nearness in the embedding were tried: of small models they were noise.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "vindex/clusters.h"
#include "vindex/labels.h"

static const char *const stop_words[] = {
    "about", "after", "again", "all",   "also", "and",  "any",   "are",    "because", "been",
    "being", "but",   "can",   "could", "did",  "does", "each",  "for",    "from",    "had",
    "has",   "have",  "her",   "here",  "him",  "his",  "how",   "into",   "its",     "just",
    "like",  "more",  "most",  "much",  "not",  "now",  "off",   "one",    "only",    "other",
    "our",   "out",   "over",  "own",   "said", "same", "she",   "should", "some",    "such",
    "than",  "that",  "the",   "their", "them", "then", "there", "these",  "they",    "this",
    "those", "too",   "under", "use",   "very", "was",  "were",  "what",   "when",    "where",
    "which", "while", "who",   "why",   "will", "with", "would", "you",    "your",
};

typedef struct term {
    char *text; // lower case
    int32_t id;
} term;

typedef struct naming {
    const cluster_members *c;
    const infer_model *m;
    arena *mem;
    infer_error *err;
    term *terms; // each text once, sorted
    int n_terms;
    int32_t *term_of; // [n_vocab] -1: no word
    int *total;       // [n_terms] of all clusters
} naming;

static infer_status no_memory(infer_error *err)
{
    return error_set(err, INFER_NOMEM, "clusters: out of memory");
}

/* ---- terms ----------------------------------------------------------------------------------- */

/* Token t of a record; -1: there are no more. */
static int32_t token_at(const cluster_members *c, const uint8_t *record, int t)
{
    const uint8_t *p = record + 8 + 8 * (size_t)t;
    if (t >= c->top_k || (!u32_at(p) && !u32_at(p + 4))) return -1;
    return (int32_t)u32_at(p);
}

static bool is_term(char *s)
{
    size_t n = strlen(s), plain = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] >= 'A' && s[i] <= 'Z') s[i] = (char)(s[i] + 'a' - 'A');
        plain += (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9');
    }
    for (int i = 0; i < COUNT_OF(stop_words); i++)
        if (!strcmp(s, stop_words[i])) return false;
    return n >= 3 && 2 * plain >= n;
}

static int by_text(const void *a, const void *b)
{
    const term *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static infer_status add_term(naming *v, int32_t id)
{
    char *text;
    infer_status st = label_text(&text, v->m->tok, id, v->err);
    if (st) return st;
    if (is_term(text)) {
        v->terms[v->n_terms] = (term){ arena_strndup(v->mem, text, strlen(text)), id };
        if (!v->terms[v->n_terms++].text) st = no_memory(v->err);
    }
    mem_free(text);
    return st;
}

static infer_status find_terms(naming *v)
{
    const cluster_members *c = v->c;
    size_t n_vocab = (size_t)v->m->n_vocab, n_used = 0;
    v->term_of = arena_zero(v->mem, n_vocab, sizeof *v->term_of);
    if (!v->term_of) return no_memory(v->err);
    for (int i = 0; i < c->n; i++)
        for (int32_t t = 0, id; (id = token_at(c, c->records[i], t)) >= 0; t++)
            if ((size_t)id < n_vocab && !v->term_of[id]) v->term_of[id] = 1, n_used++;
    v->terms = arena_alloc(v->mem, n_used + 1, sizeof *v->terms);
    if (!v->terms) return no_memory(v->err);
    infer_status st = INFER_OK;
    for (size_t id = 0; id < n_vocab && !st; id++) {
        if (v->term_of[id]) st = add_term(v, (int32_t)id);
        v->term_of[id] = -1;
    }
    if (st) return st;
    qsort(v->terms, (size_t)v->n_terms, sizeof *v->terms, by_text);
    int n = 0;
    for (int i = 0; i < v->n_terms; i++) { // texts that occur twice are one term
        if (!n || strcmp(v->terms[n - 1].text, v->terms[i].text)) v->terms[n++] = v->terms[i];
        v->term_of[v->terms[i].id] = n - 1;
    }
    v->n_terms = n;
    v->total = arena_zero(v->mem, (size_t)n + 1, sizeof *v->total);
    if (!v->total) return no_memory(v->err);
    for (int i = 0; i < c->n; i++)
        for (int32_t t = 0, id; (id = token_at(c, c->records[i], t)) >= 0; t++)
            if ((size_t)id < n_vocab && v->term_of[id] >= 0) v->total[v->term_of[id]]++;
    return INFER_OK;
}

/* ---- a cluster ------------------------------------------------------------------------------- */

typedef struct typical {
    int term, count;
    double score;
} typical;

static bool before(const typical *a, const typical *b)
{
    if (a->score != b->score) return a->score > b->score;
    return a->count != b->count ? a->count > b->count : a->term < b->term;
}

static int by_number(const void *a, const void *b)
{
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* The most typical of the words [n] of a cluster, sorted on the way. */
static int find_typical(const naming *v, typical best[5], int *words, int n)
{
    int n_best = 0;
    qsort(words, (size_t)n, sizeof *words, by_number);
    for (int i = 0, next; i < n; i = next) {
        for (next = i; next < n && words[next] == words[i];)
            next++;
        typical t = { words[i], next - i, 0 };
        t.score = (double)t.count / n * log((double)v->c->n / v->total[t.term]);
        int at = n_best < 5 ? n_best : 5;
        while (at > 0 && before(&t, &best[at - 1]))
            at--;
        if (at == 5) continue;
        memmove(best + at + 1, best + at, (size_t)((n_best < 5 ? n_best : 4) - at) * sizeof *best);
        best[at] = t;
        if (n_best < 5) n_best++;
    }
    return n_best;
}

static infer_status name_cluster(naming *v, cluster_name *name, const typical *best, int n, int k)
{
    name->n_top = n;
    for (int i = 0; i < n; i++)
        name->top[i] = v->terms[best[i].term].text;
    if (n)
        name->label =
            arena_printf(v->mem, "%s%s%s%s%s", name->top[0], n > 1 ? "/" : "",
                         n > 1 ? name->top[1] : "", n > 2 ? "/" : "", n > 2 ? name->top[2] : "");
    else
        name->label = arena_printf(v->mem, "cluster-%d", k);
    return name->label ? INFER_OK : no_memory(v->err);
}

/* Members by cluster: those of k are order[begin[k]] to order[begin[k + 1] - 1]. */
static void sort_members(const cluster_members *c, int *begin, int *order)
{
    for (int i = 0; i < c->n; i++)
        begin[c->cluster[i] + 1]++;
    for (int k = 0; k < c->k; k++)
        begin[k + 1] += begin[k];
    for (int i = 0; i < c->n; i++)
        order[begin[c->cluster[i]]++] = i;
    for (int k = c->k; k > 0; k--)
        begin[k] = begin[k - 1];
    begin[0] = 0;
}

infer_status cluster_names(cluster_name *names, const cluster_members *c, const infer_model *m,
                           arena *mem, infer_error *err)
{
    naming v = { .c = c, .m = m, .mem = mem, .err = err };
    int *begin = arena_zero(mem, (size_t)c->k + 2, sizeof *begin);
    int *order = arena_alloc(mem, (size_t)c->n + 1, sizeof *order);
    int *words = mem_alloc((size_t)c->n * (size_t)c->top_k + 1, sizeof *words);
    infer_status st = begin && order && words ? find_terms(&v) : no_memory(err);
    if (!st) sort_members(c, begin, order);
    for (int k = 0; k < c->k && !st; k++) {
        int n = 0;
        for (int i = begin[k]; i < begin[k + 1]; i++)
            for (int32_t t = 0, id; (id = token_at(c, c->records[order[i]], t)) >= 0; t++)
                if (id < m->n_vocab && v.term_of[id] >= 0) words[n++] = v.term_of[id];
        typical best[5];
        int n_best = find_typical(&v, best, words, n);
        st = name_cluster(&v, &names[k], best, n_best, k);
    }
    mem_free(words);
    return st;
}
