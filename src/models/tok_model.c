/*
 * tok_model.c: from a piece to ids: byte-pair encoding by merge ranks (Sennrich et al. 2016), by
 * scores (SentencePiece), WordPiece and WordLevel.
 *
 * Both kinds of pair encoding keep the symbols of a piece in a linked list and the pairs that may
 * be merged in a heap, best first and leftmost first among equals. An entry of the heap is stale
 * when the two symbols that start at its position no longer have the bytes they had: symbols only
 * grow, so one comparison tells. A piece of n bytes takes n log n steps and no recursion, whatever
 * its text. Short pieces, which are nearly all, run in two small arrays instead.
 */
#include "models/tok.h"

#define SHORT_PIECE 24 // symbols

infer_status work_id(tok_work *w, int32_t id)
{
    if (w->n_ids == w->ids_cap) {
        infer_status st;
        GROW(st, w->ids, w->ids_cap, w->n_ids + 1, w->err);
        if (st) return st;
    }
    w->ids[w->n_ids++] = id;
    return INFER_OK;
}

// ---- the heap -------------------------------------------------------------------------------

static infer_status heap_push(tok_work *w, bigram b)
{
    if (w->n_heap == w->heap_cap) {
        infer_status st;
        GROW(st, w->heap, w->heap_cap, w->n_heap + 1, w->err);
        if (st) return st;
    }
    size_t i = w->n_heap++;
    while (i && w->heap[(i - 1) / 2].key > b.key) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = b;
    return INFER_OK;
}

static bigram heap_pop(tok_work *w)
{
    bigram *h = w->heap, top = h[0], last = h[--w->n_heap];
    size_t i = 0, n = w->n_heap;
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1].key < h[c].key) c++;
        if (h[c].key >= last.key) break;
        h[i] = h[c];
    }
    if (n) h[i] = last;
    return top;
}

// ---- pairs ----------------------------------------------------------------------------------

// A float whose order is that of unsigned numbers, the largest score first.
static uint32_t score_key(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return ~(u & 0x80000000u ? ~u : u | 0x80000000u);
}

// Queues the pair of symbol i and the one after it, if they may be merged.
static infer_status queue_pair(tok_work *w, const char *s, int32_t i)
{
    const tokenizer *t = w->t;
    if (i < 0 || w->symbols[i].next < 0) return INFER_OK;
    const symbol *a = &w->symbols[i], *b = &w->symbols[a->next];
    uint32_t n = a->n + b->n;
    if (t->model == MODEL_SPM) {
        if (n > t->longest) return INFER_OK;
        int32_t id = str_map_find(&t->vocab, t, s + a->at, n);
        if (id < 0) return INFER_OK;
        return heap_push(w,
                         (bigram){ (uint64_t)score_key(t->scores[id]) << 32 | (uint32_t)i, n, id });
    }
    const pair_slot *p = pair_map_find(&t->merges, a->id, b->id);
    return p ? heap_push(w, (bigram){ (uint64_t)p->rank << 32 | (uint32_t)i, n, p->id }) : INFER_OK;
}

static infer_status merge_all(tok_work *w, const char *s, size_t n_symbols)
{
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < n_symbols; i++)
        TRY(queue_pair(w, s, (int32_t)i));
    while (w->n_heap) {
        bigram b = heap_pop(w);
        symbol *v = w->symbols, *left = &v[(uint32_t)b.key];
        if (!left->n || left->next < 0 || left->n + v[left->next].n != b.n) continue;
        symbol *right = &v[left->next];
        left->n = b.n;
        left->id = b.id;
        right->n = 0;
        left->next = right->next;
        if (right->next >= 0) v[right->next].prev = (int32_t)(left - v);
        int32_t at = (int32_t)(left - v);
        TRY(queue_pair(w, s, left->prev));
        TRY(queue_pair(w, s, at));
    }
    return INFER_OK;
}

// The same for a few symbols: rank[i] is that of the pair (i, i + 1).
static void merge_short(const tokenizer *t, int32_t *id, int *n)
{
    uint32_t rank[SHORT_PIECE];
    int32_t made[SHORT_PIECE];
    const pair_slot *p;
    for (int i = 0; i + 1 < *n; i++) {
        p = pair_map_find(&t->merges, id[i], id[i + 1]);
        rank[i] = p ? p->rank : UINT32_MAX;
        made[i] = p ? p->id : -1;
    }
    while (*n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < *n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == UINT32_MAX) return;
        id[best] = made[best];
        size_t rest = (size_t)(*n - best - 2);
        memmove(id + best + 1, id + best + 2, rest * sizeof *id);
        memmove(rank + best, rank + best + 1, rest * sizeof *rank);
        memmove(made + best, made + best + 1, rest * sizeof *made);
        --*n;
        for (int i = best ? best - 1 : 0; i <= best && i + 1 < *n; i++) {
            p = pair_map_find(&t->merges, id[i], id[i + 1]);
            rank[i] = p ? p->rank : UINT32_MAX;
            made[i] = p ? p->id : -1;
        }
    }
}

static infer_status symbol_add(tok_work *w, size_t *n, int32_t id, size_t at, size_t len)
{
    if (*n == w->symbols_cap) {
        infer_status st;
        GROW(st, w->symbols, w->symbols_cap, *n + 1, w->err);
        if (st) return st;
    }
    int32_t i = (int32_t)*n;
    w->symbols[i] = (symbol){ id, i - 1, i + 1, (uint32_t)at, (uint32_t)len };
    ++*n;
    return INFER_OK;
}

// ---- BPE by ranks ---------------------------------------------------------------------------

// The entry of the character at s[at]; the ends of a piece may be written differently.
static infer_status char_entry(tok_work *w, const char *s, size_t n, size_t at, size_t len,
                               int32_t *id)
{
    const tokenizer *t = w->t;
    bool first = at == 0, last = at + len == n;
    text pre = t->subword_prefix, post = t->word_suffix;
    if ((first || !pre.n) && (!last || !post.n)) {
        unsigned char c = (unsigned char)s[at];
        if (c < 0x80)
            *id = t->char_id[c];
        else if (len == 2 && c < 0xC8)
            *id = t->char_id[(c & 31u) << 6 | ((unsigned char)s[at + 1] & 63u)];
        else
            *id = str_map_find(&t->vocab, t, s + at, len);
        return INFER_OK;
    }
    w->key.n = 0;
    if (!first) TRY(bytes_add(&w->key, pre.s, pre.n, w->err));
    TRY(bytes_add(&w->key, s + at, len, w->err));
    if (last) TRY(bytes_add(&w->key, post.s, post.n, w->err));
    *id = str_map_find(&t->vocab, t, w->key.p, w->key.n);
    return INFER_OK;
}

// Appends the byte tokens of a character that has no entry; *done false where one is missing.
static infer_status char_bytes(tok_work *w, const char *s, size_t at, size_t len, bool whole,
                               size_t *n_symbols, bool *done)
{
    const tokenizer *t = w->t;
    const char *b = whole ? w->key.p : s + at; // with prefix and suffix, where there are any
    size_t n = whole ? w->key.n : len;
    *done = true;
    for (size_t i = 0; i < n; i++)
        *done &= t->byte_id[(unsigned char)b[i]] >= 0;
    for (size_t i = 0; i < n && *done; i++)
        TRY(symbol_add(w, n_symbols, t->byte_id[(unsigned char)b[i]], at, 1));
    return INFER_OK;
}

static infer_status bpe(tok_work *w, const char *s, size_t n)
{
    const tokenizer *t = w->t;
    size_t k = 0, unk_n = 0; // unk_n: bytes of an unknown run that is not yet a symbol
    if (t->ignore_merges) {
        int32_t id = n <= t->longest ? str_map_find(&t->vocab, t, s, n) : -1;
        if (id >= 0) return work_id(w, id);
    }
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t cp;
        int32_t id;
        len = (unsigned char)s[at] < 0x80 ? 1 : (size_t)utf8_decode(s + at, n - at, &cp);
        TRY(char_entry(w, s, n, at, len, &id));
        if (id >= 0) {
            if (unk_n) TRY(symbol_add(w, &k, t->unk, at, unk_n));
            unk_n = 0;
            TRY(symbol_add(w, &k, id, at, len));
            continue;
        }
        if (t->byte_fallback) {
            bool changed = (at && t->subword_prefix.n) || (at + len == n && t->word_suffix.n), done;
            TRY(char_bytes(w, s, at, len, changed, &k, &done));
            if (done) continue;
        }
        if (t->unk < 0) continue;
        if (unk_n && !t->fuse_unk) TRY(symbol_add(w, &k, t->unk, at, unk_n));
        unk_n = t->fuse_unk ? unk_n + len : len;
    }
    if (unk_n) TRY(symbol_add(w, &k, t->unk, n, unk_n));
    if (!k) return INFER_OK;
    if (k <= SHORT_PIECE) {
        int32_t id[SHORT_PIECE];
        int m = (int)k;
        for (size_t i = 0; i < k; i++)
            id[i] = w->symbols[i].id;
        merge_short(t, id, &m);
        for (int i = 0; i < m; i++)
            TRY(work_id(w, id[i]));
        return INFER_OK;
    }
    w->symbols[k - 1].next = -1;
    TRY(merge_all(w, s, k));
    for (int32_t i = 0; i >= 0; i = w->symbols[i].next)
        TRY(work_id(w, w->symbols[i].id));
    return INFER_OK;
}

// ---- BPE by scores --------------------------------------------------------------------------

/* SentencePiece would also merge into pieces that are marked unused, and take them apart at the
 * end. Here they are no pieces: in published vocabularies they are padding. */
static infer_status spm(tok_work *w, const char *s, size_t n)
{
    const tokenizer *t = w->t;
    size_t k = 0;
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t cp;
        len = (unsigned char)s[at] < 0x80 ? 1 : (size_t)utf8_decode(s + at, n - at, &cp);
        TRY(symbol_add(w, &k, -1, at, len));
    }
    if (!k) return INFER_OK;
    w->symbols[k - 1].next = -1;
    TRY(merge_all(w, s, k));
    bool unk_before = false;
    for (int32_t i = 0; i >= 0; i = w->symbols[i].next) {
        const symbol *y = &w->symbols[i];
        int32_t id = y->id >= 0 ? y->id : str_map_find(&t->vocab, t, s + y->at, y->n);
        if (id >= 0) {
            TRY(work_id(w, id));
            unk_before = false;
            continue;
        }
        bool done = t->byte_fallback;
        for (uint32_t j = 0; j < y->n; j++)
            done &= t->byte_id[(unsigned char)s[y->at + j]] >= 0;
        for (uint32_t j = 0; j < y->n && done; j++)
            TRY(work_id(w, t->byte_id[(unsigned char)s[y->at + j]]));
        if (!done && t->unk >= 0 && !(unk_before && t->fuse_unk)) TRY(work_id(w, t->unk));
        unk_before = !done;
    }
    return INFER_OK;
}

// ---- whole words ----------------------------------------------------------------------------

static infer_status no_unk(tok_work *w, const char *s, size_t n)
{
    return error_set(w->err, INFER_FORMAT,
                     "tokenizer: '%.*s' is not in the vocabulary, which has no "
                     "unknown token",
                     (int)(n < 40 ? n : 40), s);
}

static infer_status wordpiece(tok_work *w, const char *s, size_t n)
{
    const tokenizer *t = w->t;
    size_t chars = 0, ids_before = w->n_ids;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    bool bad = chars > (size_t)t->max_word_chars;
    for (size_t at = 0; at < n && !bad;) {
        text pre = at ? t->subword_prefix : t->first_prefix;
        size_t e = n - at > t->longest ? at + t->longest : n;
        int32_t id = -1;
        while (e < n && e > at && ((unsigned char)s[e] & 0xC0) == 0x80)
            e--;
        w->key.n = 0;
        TRY(bytes_add(&w->key, pre.s, pre.n, w->err));
        TRY(bytes_add(&w->key, s + at, e - at, w->err));
        while (e > at && (id = str_map_find(&t->vocab, t, w->key.p, pre.n + e - at)) < 0) {
            e--;
            while (e > at && ((unsigned char)s[e] & 0xC0) == 0x80)
                e--;
        }
        if (id < 0) {
            bad = true;
        } else {
            TRY(work_id(w, id));
            at = e;
        }
    }
    if (!bad) return INFER_OK;
    w->n_ids = ids_before;
    return t->unk >= 0 ? work_id(w, t->unk) : no_unk(w, s, n);
}

static infer_status wordlevel(tok_work *w, const char *s, size_t n)
{
    int32_t id = str_map_find(&w->t->vocab, w->t, s, n);
    if (id < 0) id = w->t->unk;
    return id >= 0 ? work_id(w, id) : no_unk(w, s, n);
}

infer_status model_encode(tok_work *w, const char *s, size_t n)
{
    switch (w->t->model) {
    case MODEL_BPE: return bpe(w, s, n);
    case MODEL_SPM: return spm(w, s, n);
    case MODEL_UNIGRAM: return unigram_encode(w, s, n);
    case MODEL_WORDPIECE: return wordpiece(w, s, n);
    default: return wordlevel(w, s, n);
    }
}
