/*
 * tok_pre.c: pre-tokenizers. A step turns a list of pieces of a text into another: most only cut,
 * ByteLevel and Metaspace write the text anew. Empty pieces vanish.
 */
#include "models/tok.h"

const char tok_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                                "|\\s+(?!\\S)|\\s+";

static infer_status push(tok_work *w, piece_list *l, size_t at, size_t n, bool flag)
{
    if (l->n == l->cap) {
        infer_status st;
        GROW(st, l->v, l->cap, l->n + 1, w->err);
        if (st) return st;
    }
    l->v[l->n++] = (piece){ (uint32_t)at, (uint32_t)n, flag };
    return INFER_OK;
}

// ---- matches, in w->spans: they cover the piece; first tells a match from what lies between -

static infer_status match_regex(tok_work *w, const tok_regex *re, const char *s, size_t n)
{
    regex_iter it = { 0 };
    size_t done = 0, b, e;
    bool found;
    for (;;) {
        TRY(regex_next(re, w->regex, s, n, &it, &b, &e, &found, w->err));
        if (!found) break;
        if (b > done) TRY(push(w, &w->spans, done, b - done, false));
        TRY(push(w, &w->spans, b, e - b, true));
        done = e;
    }
    return done < n ? push(w, &w->spans, done, n - done, false) : INFER_OK;
}

static bool char_is(const tok_step *s, uint32_t cp)
{
    switch (s->type) {
    case PRE_DIGITS: return cp_is_numeric(cp);
    case PRE_PUNCTUATION: return cp_is_punct(cp);
    case PRE_BERT: return cp_is_punct(cp);
    default: return cp_is_space(cp);
    }
}

// Each character that the step means is a match of its own.
static infer_status match_chars(tok_work *w, const tok_step *step, const char *s, size_t n)
{
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t k = (size_t)utf8_decode(s + i, n - i, &cp);
        if (char_is(step, cp)) {
            if (i > done) TRY(push(w, &w->spans, done, i - done, false));
            TRY(push(w, &w->spans, i, k, true));
            done = i + k;
        }
        i += k;
    }
    return done < n ? push(w, &w->spans, done, n - done, false) : INFER_OK;
}

static infer_status match_literal(tok_work *w, text lit, const char *s, size_t n)
{
    size_t done = 0;
    while (done < n) {
        const char *hit = lit.n ? memmem(s + done, n - done, lit.s, lit.n) : NULL;
        size_t at = hit ? (size_t)(hit - s) : n;
        if (at > done) TRY(push(w, &w->spans, done, at - done, false));
        if (hit) TRY(push(w, &w->spans, at, lit.n, true));
        done = at + lit.n;
    }
    return INFER_OK;
}

// ---- from matches to pieces -----------------------------------------------------------------

static infer_status emit(tok_work *w, piece_list *out, const piece *p, size_t b, size_t e)
{
    if (b == e) return INFER_OK;
    return push(w, out, p->at + b, e - b, p->first && b == 0);
}

static infer_status pieces_of(tok_work *w, const piece *p, piece_list *out, split_behavior how,
                              bool invert)
{
    piece *v = w->spans.v;
    size_t n = w->spans.n, b = 0, e = 0;
    bool open = false, last = false; // a piece [b, e) may still grow; the last span was a match
    if (how == SPLIT_MERGED_NEXT) {  // a match belongs to what follows
        for (size_t i = 0; i < n; i++) {
            bool m = v[i].first != invert, next = i + 1 < n && v[i + 1].first != invert;
            if (!open) b = v[i].at;
            e = v[i].at + v[i].n;
            open = m && i + 1 < n && !next;
            if (!open) TRY(emit(w, out, p, b, e));
        }
        return INFER_OK;
    }
    for (size_t i = 0; i < n; i++) {
        bool m = v[i].first != invert, join = false;
        if (how == SPLIT_REMOVED && m) {
            last = m;
            continue;
        }
        if (how == SPLIT_CONTIGUOUS) join = open && m == last;
        if (how == SPLIT_MERGED_PREVIOUS) join = open && m && !last;
        if (!join) {
            if (open) TRY(emit(w, out, p, b, e));
            b = v[i].at;
        }
        e = v[i].at + v[i].n;
        open = true;
        last = m;
    }
    return open ? emit(w, out, p, b, e) : INFER_OK;
}

// ---- steps ----------------------------------------------------------------------------------

static infer_status cut(tok_work *w, const tok_step *s, const piece_list *in, piece_list *out)
{
    const char *base = w->text[0].p;
    for (size_t i = 0; i < in->n; i++) {
        const piece *p = &in->v[i];
        split_behavior how = s->behavior;
        bool invert = s->invert;
        w->spans.n = 0;
        if (s->type == PRE_CHAR_DELIMITER) {
            TRY(match_literal(w, s->s, base + p->at, p->n));
            how = SPLIT_REMOVED;
        } else if (s->type == PRE_WHITESPACE) {
            TRY(match_regex(w, s->re, base + p->at, p->n));
            how = SPLIT_REMOVED;
            invert = true;
        } else if (s->type == PRE_WHITESPACE_SPLIT) {
            TRY(match_chars(w, s, base + p->at, p->n));
            how = SPLIT_REMOVED;
        } else if (s->type == PRE_SPLIT) {
            TRY(match_regex(w, s->re, base + p->at, p->n));
        } else {
            TRY(match_chars(w, s, base + p->at, p->n));
            if (s->type == PRE_DIGITS) how = s->individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        }
        TRY(pieces_of(w, p, out, how, invert));
    }
    return INFER_OK;
}

static infer_status byte_level(tok_work *w, const tok_step *s, const piece_list *in,
                               piece_list *out)
{
    bytes *t = &w->text[1];
    const char *base = w->text[0].p;
    bytes own = { 0 }; // a piece with its space in front
    infer_status st = INFER_OK;
    t->n = 0;
    for (size_t i = 0; i < in->n && !st; i++) {
        const piece *p = &in->v[i];
        const char *src = base + p->at;
        size_t n = p->n;
        w->spans.n = 0;
        if (s->prefix_space && *src != ' ') {
            own.n = 0;
            if ((st = bytes_add(&own, " ", 1, w->err))) break;
            if ((st = bytes_add(&own, src, n, w->err))) break;
            src = own.p;
            n = own.n;
        }
        st = s->re ? match_regex(w, s->re, src, n) : push(w, &w->spans, 0, n, true);
        if (!st) st = bytes_room(t, 2 * n, w->err);
        for (size_t k = 0; k < w->spans.n && !st; k++) {
            piece m = w->spans.v[k];
            if (!m.n) continue;
            size_t at = t->n;
            char *o = t->p + at;
            for (uint32_t j = 0; j < m.n; j++) {
                uint32_t cp = byte_to_cp((unsigned char)src[m.at + j]);
                if (cp < 128) {
                    *o++ = (char)cp;
                } else {
                    *o++ = (char)(0xC0 | cp >> 6);
                    *o++ = (char)(0x80 | (cp & 63));
                }
            }
            t->n = (size_t)(o - t->p);
            st = push(w, out, at, t->n - at, p->first && m.at == 0);
        }
    }
    mem_free(own.p);
    return st;
}

static infer_status metaspace(tok_work *w, const tok_step *s, const piece_list *in, piece_list *out)
{
    bytes *t = &w->text[1];
    const char *base = w->text[0].p;
    t->n = 0;
    for (size_t i = 0; i < in->n; i++) {
        const piece *p = &in->v[i];
        const char *src = base + p->at;
        size_t at = t->n;
        bool has = *src == ' ' || (p->n >= s->s.n && !memcmp(src, s->s.s, s->s.n));
        if (!has && (s->scheme == PREPEND_ALWAYS || (s->scheme == PREPEND_FIRST && p->first)))
            TRY(bytes_add(t, s->s.s, s->s.n, w->err));
        for (size_t j = 0; j < p->n;) {
            const char *space = memchr(src + j, ' ', p->n - j);
            size_t e = space ? (size_t)(space - src) : p->n;
            TRY(bytes_add(t, src + j, e - j, w->err));
            if (space) TRY(bytes_add(t, s->s.s, s->s.n, w->err));
            j = e + (space != NULL);
        }
        piece whole = { (uint32_t)at, (uint32_t)(t->n - at), p->first };
        if (!s->split) {
            TRY(push(w, out, whole.at, whole.n, whole.first));
            continue;
        }
        w->spans.n = 0;
        TRY(match_literal(w, s->s, t->p + at, whole.n));
        TRY(pieces_of(w, &whole, out, SPLIT_MERGED_NEXT, false));
    }
    return INFER_OK;
}

static infer_status fixed_length(tok_work *w, const tok_step *s, const piece_list *in,
                                 piece_list *out)
{
    const char *base = w->text[0].p;
    for (size_t i = 0; i < in->n; i++) {
        const piece *p = &in->v[i];
        size_t b = 0, e = 0;
        for (int k = 0; e < p->n;) {
            uint32_t cp;
            e += (size_t)utf8_decode(base + p->at + e, p->n - e, &cp);
            if (++k == s->start || e == p->n) {
                TRY(emit(w, out, p, b, e));
                b = e;
                k = 0;
            }
        }
    }
    return INFER_OK;
}

infer_status pre_run(tok_work *w, int *which)
{
    const step_list *steps = &w->t->pres;
    int cur = 0;
    for (size_t i = 0; i < steps->n; i++) {
        const tok_step *s = &steps->v[i];
        const piece_list *in = &w->pieces[cur];
        piece_list *out = &w->pieces[!cur];
        bool writes = s->type == PRE_BYTE_LEVEL || s->type == PRE_METASPACE;
        out->n = 0;
        if (s->type == PRE_BYTE_LEVEL) {
            TRY(byte_level(w, s, in, out));
        } else if (s->type == PRE_METASPACE) {
            TRY(metaspace(w, s, in, out));
        } else if (s->type == PRE_FIXED_LENGTH) {
            TRY(fixed_length(w, s, in, out));
        } else if (s->type == PRE_BERT) { // spaces out, then punctuation apart
            tok_step space = { .type = PRE_WHITESPACE_SPLIT },
                     punct = { .type = PRE_BERT, .behavior = SPLIT_ISOLATED };
            TRY(cut(w, &space, in, out));
            w->pieces[cur].n = 0;
            TRY(cut(w, &punct, out, &w->pieces[cur]));
            continue;
        } else {
            TRY(cut(w, s, in, out));
        }
        if (writes) {
            bytes t = w->text[0];
            w->text[0] = w->text[1];
            w->text[1] = t;
        }
        cur = !cur;
    }
    *which = cur;
    return INFER_OK;
}
