/*
 * tok_unigram.c: the most probable segmentation (Kudo 2018), by the Viterbi algorithm over byte
 * positions. A position where no entry covers exactly one character also gets the unknown token,
 * ten below the worst score; unknown characters in a row become one token, or their bytes.
 */
#include "models/tok.h"

#define UNKNOWN_PENALTY 10.0

static infer_status viterbi(tok_work *w, const char *s, size_t n)
{
    const tokenizer *t = w->t;
    infer_status st;
    GROW(st, w->best, w->best_cap, n + 1, w->err);
    if (st) return st;
    best_path *best = w->best;
    for (size_t i = 0; i <= n; i++)
        best[i] = (best_path){ 0, -1, -1 };
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t cp, node = 0;
        double here = best[at].score;
        bool single = false;
        len = (size_t)utf8_decode(s + at, n - at, &cp);
        for (size_t e = at; e < n;) {
            node = trie_step(&t->pieces, node, (unsigned char)s[e++]);
            if (!node) break;
            int32_t id = t->pieces.value[node];
            if (id < 0) continue;
            double score = here + t->scores64[id];
            if (best[e].start < 0 || score > best[e].score)
                best[e] = (best_path){ score, (int32_t)at, id };
            single |= e - at == len;
        }
        double score = here + t->min_score - UNKNOWN_PENALTY;
        if (!single && (best[at + len].start < 0 || score > best[at + len].score)) {
            if (t->unk < 0)
                return error_set(w->err, INFER_FORMAT,
                                 "tokenizer: U+%04X is not in the vocabulary, "
                                 "which has no unknown token",
                                 cp);
            best[at + len] = (best_path){ score, (int32_t)at, t->unk };
        }
    }
    return INFER_OK;
}

// One token of the path: an entry, else its bytes, else the unknown token.
static infer_status put(tok_work *w, const char *s, size_t n)
{
    const tokenizer *t = w->t;
    int32_t id = n <= t->longest ? str_map_find(&t->vocab, t, s, n) : -1;
    if (id >= 0) return work_id(w, id);
    if (t->byte_fallback) {
        bool all = true;
        for (size_t i = 0; i < n; i++)
            all &= t->byte_id[(unsigned char)s[i]] >= 0;
        for (size_t i = 0; i < n && all; i++)
            TRY(work_id(w, t->byte_id[(unsigned char)s[i]]));
        if (all) return INFER_OK;
    }
    if (t->unk >= 0) return work_id(w, t->unk);
    return error_set(w->err, INFER_FORMAT,
                     "tokenizer: '%.*s' is not in the vocabulary, which has no "
                     "unknown token",
                     (int)(n < 40 ? n : 40), s);
}

infer_status unigram_encode(tok_work *w, const char *s, size_t n)
{
    const tokenizer *t = w->t;
    if (!n) return INFER_OK;
    TRY(viterbi(w, s, n));
    size_t k = 0; // tokens of the path, last first
    for (size_t e = n; e > 0;) {
        best_path b = w->best[e];
        infer_status st;
        GROW(st, w->symbols, w->symbols_cap, k + 1, w->err);
        if (st) return st;
        w->symbols[k++] =
            (symbol){ .id = b.id, .at = (uint32_t)b.start, .n = (uint32_t)e - (uint32_t)b.start };
        e = (size_t)b.start;
    }
    while (k) {
        symbol y = w->symbols[--k];
        while (y.id == t->unk && k && w->symbols[k - 1].id == t->unk)
            y.n += w->symbols[--k].n;
        TRY(put(w, s + y.at, y.n));
    }
    return INFER_OK;
}
