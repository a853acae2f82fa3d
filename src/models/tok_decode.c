/*
 * tok_decode.c: from ids back to text, in streaming steps.
 *
 * A decoder is a chain of stages. A stage receives the tokens of the one before it as fragments
 * (whole UTF-8 characters, the first and the last of a token marked) and passes fragments on; what
 * it cannot decide yet it holds. tok_decode pushes all ids and then the end; tok_stream does the
 * same with a pause after each id, so that both give the same text by construction.
 *
 * Held text: ByteLevel the bytes of an unfinished character, ByteFallback the run of byte tokens
 * (one invalid byte turns all of it into U+FFFD), Replace what may become a match, Strip what may
 * be stripped, WordPiece, BPE and a Replace by pattern the whole token. A stream's buffers are made
 * once: should a run outgrow them (HOLD bytes), what is held is decided as if the run ended there.
 */
#include "models/tok.h"

#define HOLD ((size_t)256 << 10)
#define MAX_STAGES 32

typedef struct stage {
    const tok_step *step;
    bytes hold;     // see above
    bytes whole;    // a token that arrives in fragments and is needed whole
    uint64_t index; // tokens begun so far
    bool began;     // has passed the beginning of its token on (stages that give one token)
    int left;       // STRIP: characters that may still go at the token's start
    size_t pending; // STRIP: characters held at the token's end
} stage;

typedef struct decoder {
    const tokenizer *t;
    stage v[MAX_STAGES];
    int n;
    bytes out;
    bool fixed; // buffers may not grow
    bool skip_special;
    regex_scratch *regex;
    infer_status status;
    infer_error *err;
} decoder;

static const tok_step join_step = { .type = DEC_JOIN };

static void pass(decoder *d, int i, const char *s, size_t n, bool begin, bool end);

static void append(decoder *d, bytes *b, const char *s, size_t n)
{
    if (d->fixed && n > b->cap - b->n)
        n = b->cap - b->n; // callers keep within the room
    else if (!d->fixed && !d->status)
        d->status = bytes_room(b, n, d->err);
    if (d->status || !n) return;
    memcpy(b->p + b->n, s, n);
    b->n += n;
}

static bool no_room(const decoder *d, const bytes *b, size_t n)
{
    return d->fixed && b->cap - b->n < n;
}

// ---- stages that see whole tokens -----------------------------------------------------------

// Bytes of the ill-formed part at s that becomes one U+FFFD: a maximal subpart, as Unicode
// recommends.
static size_t bad_part(const char *s, size_t n)
{
    unsigned char c = (unsigned char)s[0], d = n > 1 ? (unsigned char)s[1] : 0;
    unsigned char low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    unsigned char high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    if (c < 0xE0 || c > 0xF4 || d < low || d > high) return 1;
    return c >= 0xF0 && n > 2 && ((unsigned char)s[2] & 0xC0) == 0x80 ? 3 : 2;
}

static void byte_level_flush(decoder *d, int i, bool end)
{
    stage *g = &d->v[i];
    const char *s = g->hold.p;
    size_t n = g->hold.n, whole = end || !n ? n : utf8_whole(s, n), done = 0;
    bool begin = !g->began;
    if (!whole && !end) return;
    g->began = true;
    while (done < whole) {
        uint32_t cp;
        int k;
        size_t e = done;
        while (e < whole && (k = utf8_decode(s + e, whole - e, &cp)) > 0)
            e += (size_t)k;
        if (e > done)
            pass(d, i + 1, s + done, e - done, begin, false);
        else
            pass(d, i + 1, "\xEF\xBF\xBD", 3, begin, false);
        begin = false;
        done = e > done ? e : done + bad_part(s + done, whole - done);
    }
    if (n) memmove(g->hold.p, s + whole, n - whole);
    g->hold.n = n - whole;
    if (end) pass(d, i + 1, "", 0, begin, true);
}

static void byte_level(decoder *d, int i, const char *s, size_t n)
{
    stage *g = &d->v[i];
    bool plain = false; // a character that stands for no byte: the token is text
    uint32_t cp;
    for (size_t j = 0; j < n && !plain;) {
        j += (size_t)utf8_decode(s + j, n - j, &cp);
        plain = cp_to_byte(cp) < 0;
    }
    if (no_room(d, &g->hold, n)) byte_level_flush(d, i, false);
    if (plain) {
        append(d, &g->hold, s, n);
    } else {
        for (size_t j = 0; j < n;) {
            j += (size_t)utf8_decode(s + j, n - j, &cp);
            char b = (char)cp_to_byte(cp);
            append(d, &g->hold, &b, 1);
        }
    }
    if (!d->status) byte_level_flush(d, i, false);
}

static void byte_run_flush(decoder *d, int i)
{
    stage *g = &d->v[i];
    size_t n = g->hold.n;
    g->hold.n = 0;
    if (!n) return;
    if (utf8_valid(g->hold.p, n)) {
        pass(d, i + 1, g->hold.p, n, true, true);
    } else {
        for (size_t j = 0; j < n; j++)
            pass(d, i + 1, "\xEF\xBF\xBD", 3, true, true);
    }
}

static void byte_fallback(decoder *d, int i, const char *s, size_t n)
{
    stage *g = &d->v[i];
    int b = byte_token(s, n);
    if (b < 0) {
        byte_run_flush(d, i);
        pass(d, i + 1, s, n, true, true);
        return;
    }
    char c = (char)b;
    if (no_room(d, &g->hold, 1)) byte_run_flush(d, i);
    append(d, &g->hold, &c, 1);
}

static void replace_pattern(decoder *d, int i, const char *s, size_t n)
{
    const tok_step *step = d->v[i].step;
    regex_iter it = { 0 };
    size_t done = 0, b = 0, e = 0;
    bool found = false, begin = true;
    while (!d->status) {
        d->status = regex_next(step->re, d->regex, s, n, &it, &b, &e, &found, d->err);
        if (d->status || !found) break;
        pass(d, i + 1, s + done, b - done, begin, false);
        pass(d, i + 1, step->s.s, step->s.n, false, false);
        begin = false;
        done = e;
    }
    pass(d, i + 1, s + done, n - done, begin, true);
}

static void cleanup(bytes *b)
{
    static const struct {
        const char *from, *to;
    } rules[] = { { " .", "." },   { " ?", "?" },     { " !", "!" },    { " ,", "," },
                  { " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },  { " do not", " don't" },
                  { " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" } };
    for (int r = 0; r < COUNT_OF(rules); r++) {
        size_t nf = strlen(rules[r].from), nt = strlen(rules[r].to), o = 0;
        for (size_t j = 0; j < b->n;) {
            if (b->n - j >= nf && !memcmp(b->p + j, rules[r].from, nf)) {
                memcpy(b->p + o, rules[r].to, nt); // never longer than what it replaces
                o += nt;
                j += nf;
            } else {
                b->p[o++] = b->p[j++];
            }
        }
        b->n = o;
    }
}

static void wordpiece(decoder *d, int i, const char *s, size_t n)
{
    stage *g = &d->v[i];
    text pre = g->step->s;
    g->hold.n = 0;
    if (g->index > 1) {
        if (n >= pre.n && !memcmp(s, pre.s, pre.n))
            s += pre.n, n -= pre.n;
        else
            append(d, &g->hold, " ", 1);
    }
    append(d, &g->hold, s, n);
    if (d->status) return;
    if (g->step->cleanup) cleanup(&g->hold);
    pass(d, i + 1, g->hold.p, g->hold.n, true, true);
}

// The token held is the last one or not.
static void bpe_flush(decoder *d, int i, bool last)
{
    stage *g = &d->v[i];
    text suf = g->step->s;
    size_t done = 0, n = g->hold.n;
    bool begin = true;
    if (!g->began) return;
    for (;;) {
        const char *hit =
            suf.n && n > done ? memmem(g->hold.p + done, n - done, suf.s, suf.n) : NULL;
        size_t at = hit ? (size_t)(hit - g->hold.p) : n;
        pass(d, i + 1, n ? g->hold.p + done : "", at - done, begin, !hit);
        begin = false;
        if (!hit) break;
        if (!last) pass(d, i + 1, " ", 1, false, false);
        done = at + suf.n;
    }
    g->hold.n = 0;
    g->began = false;
}

static void whole_token(decoder *d, int i, const char *s, size_t n)
{
    switch (d->v[i].step->type) {
    case DEC_BYTE_LEVEL: byte_level(d, i, s, n); break;
    case DEC_BYTE_FALLBACK: byte_fallback(d, i, s, n); break;
    case DEC_WORDPIECE: wordpiece(d, i, s, n); break;
    case DEC_BPE:
        bpe_flush(d, i, false);
        append(d, &d->v[i].hold, s, n);
        d->v[i].began = true;
        break;
    default: replace_pattern(d, i, s, n);
    }
}

// ---- stages that see fragments --------------------------------------------------------------

static void metaspace(decoder *d, int i, const char *s, size_t n, bool begin, bool end)
{
    const tok_step *step = d->v[i].step;
    bool drop = d->v[i].index == 1 && step->scheme != PREPEND_NEVER;
    for (size_t j = 0;;) {
        const char *hit = step->s.n && n > j ? memmem(s + j, n - j, step->s.s, step->s.n) : NULL;
        size_t at = hit ? (size_t)(hit - s) : n;
        pass(d, i + 1, s + j, at - j, begin, end && !hit);
        begin = false;
        if (!hit) break;
        if (!drop) pass(d, i + 1, " ", 1, false, false);
        j = at + step->s.n;
    }
}

// Bytes at the end of s that begin a match.
static size_t match_begun(const char *s, size_t n, const char *lit, size_t n_lit)
{
    size_t k = n < n_lit - 1 ? n : n_lit - 1;
    while (k && memcmp(s + n - k, lit, k))
        k--;
    return k;
}

static void replace_literal(decoder *d, int i, const char *s, size_t n, bool begin, bool end)
{
    stage *g = &d->v[i];
    size_t n_lit, done = 0;
    const char *lit = regex_literal(g->step->re, &n_lit);
    if (g->hold.n) { // a match may have begun in an earlier fragment
        append(d, &g->hold, s, n);
        s = g->hold.p;
        n = g->hold.n;
        if (d->status) return;
    }
    for (const char *hit; n_lit && n > done && (hit = memmem(s + done, n - done, lit, n_lit));) {
        size_t at = (size_t)(hit - s);
        pass(d, i + 1, s + done, at - done, begin, false);
        pass(d, i + 1, g->step->s.s, g->step->s.n, false, false);
        begin = false;
        done = at + n_lit;
    }
    size_t keep = end || !n_lit ? 0 : match_begun(s + done, n - done, lit, n_lit);
    if (begin || end || n - done > keep) pass(d, i + 1, s + done, n - done - keep, begin, end);
    if (s == g->hold.p) {
        memmove(g->hold.p, s + n - keep, keep);
        g->hold.n = keep;
    } else {
        g->hold.n = 0;
        append(d, &g->hold, s + n - keep, keep);
    }
}

static void strip(decoder *d, int i, const char *s, size_t n, bool begin, bool end)
{
    stage *g = &d->v[i];
    text c = g->step->s;
    if (begin) {
        g->left = g->step->start;
        g->pending = 0;
    }
    while (g->left && n) {
        if (n < c.n || memcmp(s, c.s, c.n)) {
            g->left = 0;
        } else {
            s += c.n;
            n -= c.n;
            g->left--;
        }
    }
    size_t e = n, tail = 0; // the content characters at the end
    while (g->step->stop && e >= c.n && !memcmp(s + e - c.n, c.s, c.n))
        e -= c.n, tail++;
    if (begin) pass(d, i + 1, "", 0, true, false);
    if (e) {
        for (; g->pending; g->pending--)
            pass(d, i + 1, c.s, c.n, false, false);
        pass(d, i + 1, s, e, false, false);
    }
    g->pending += tail;
    for (; g->pending > (size_t)g->step->stop; g->pending--)
        pass(d, i + 1, c.s, c.n, false, false);
    if (end) {
        g->pending = 0;
        pass(d, i + 1, "", 0, false, true);
    }
}

// Hands a fragment to stage i; behind the last lies the output.
static void pass(decoder *d, int i, const char *s, size_t n, bool begin, bool end)
{
    if (d->status) return;
    if (i == d->n) {
        append(d, &d->out, s, n);
        return;
    }
    stage *g = &d->v[i];
    g->index += begin;
    switch (g->step->type) {
    case DEC_JOIN:
        if (begin && g->index > 1) pass(d, i + 1, " ", 1, true, false);
        pass(d, i + 1, s, n, begin && g->index == 1, end);
        return;
    case DEC_FUSE:
        pass(d, i + 1, s, n, !g->began, false);
        g->began = true;
        return;
    case DEC_METASPACE: metaspace(d, i, s, n, begin, end); return;
    case DEC_STRIP: strip(d, i, s, n, begin, end); return;
    case DEC_REPLACE:
        if (regex_literal(g->step->re, &(size_t){ 0 })) {
            replace_literal(d, i, s, n, begin, end);
            return;
        }
        break;
    default: break;
    }
    if (begin && end) {
        whole_token(d, i, s, n);
        return;
    }
    append(d, &g->whole, s, n);
    if (!end || d->status) return;
    size_t k = g->whole.n;
    g->whole.n = 0;
    whole_token(d, i, k ? g->whole.p : "", k);
}

static void finish(decoder *d)
{
    for (int i = 0; i < d->n && !d->status; i++) {
        stage *g = &d->v[i];
        switch (g->step->type) {
        case DEC_BYTE_LEVEL: byte_level_flush(d, i, true); break;
        case DEC_BYTE_FALLBACK: byte_run_flush(d, i); break;
        case DEC_FUSE: pass(d, i + 1, "", 0, !g->began, true); break;
        case DEC_BPE: bpe_flush(d, i, true); break;
        default: break;
        }
    }
}

static void push(decoder *d, int32_t id)
{
    const tokenizer *t = d->t;
    uint8_t f = t->flags[id];
    if (!(f & TOK_PRESENT) || (d->skip_special && f & TOK_SPECIAL)) return;
    if (t->shown && t->shown[id].s)
        pass(d, 0, t->shown[id].s, t->shown[id].n, true, true);
    else
        pass(d, 0, t->pool + t->entries[id].at, t->entries[id].n, true, true);
}

static infer_status decoder_init(decoder *d, const tokenizer *t, bool skip_special,
                                 infer_error *err)
{
    memset(d, 0, sizeof *d);
    d->t = t;
    d->err = err;
    d->skip_special = skip_special;
    for (size_t i = 0; i < t->decoders.n; i++)
        d->v[d->n++].step = &t->decoders.v[i];
    if (!d->n) d->v[d->n++].step = &join_step;
    for (int i = 0; i < d->n; i++)
        if (d->v[i].step->type == DEC_REPLACE && !d->regex) TRY(regex_scratch_new(&d->regex, err));
    return INFER_OK;
}

infer_status tok_decode(const tokenizer *t, char **out, size_t *n, const int32_t *ids, size_t n_ids,
                        bool skip_special, infer_error *err)
{
    decoder d;
    infer_status st = decoder_init(&d, t, skip_special, err);
    for (size_t i = 0; i < n_ids && !st; i++)
        if (ids[i] < 0 || ids[i] >= t->n_ids)
            st = error_set(err, INFER_ARGUMENT, "token %d at %zu: outside the vocabulary of %d",
                           ids[i], i, t->n_ids);
    for (size_t i = 0; i < n_ids && !st; i++) {
        push(&d, ids[i]);
        st = d.status;
    }
    if (!st) {
        finish(&d);
        st = d.status;
    }
    if (!st) st = bytes_add(&d.out, "", 1, err);
    for (int i = 0; i < d.n; i++) {
        mem_free(d.v[i].hold.p);
        mem_free(d.v[i].whole.p);
    }
    regex_scratch_free(d.regex);
    if (st) {
        mem_free(d.out.p);
        return st;
    }
    *out = d.out.p;
    *n = d.out.n - 1;
    return error_clear(err);
}

// ---- streams --------------------------------------------------------------------------------

struct tok_stream {
    decoder d;
    infer_error err;
};

static bool pages(bytes *b, size_t n)
{
    b->p = mem_pages(n);
    b->cap = b->p ? n : 0;
    return b->p != NULL;
}

infer_status tok_stream_new(tok_stream **out, const tokenizer *t, bool skip_special,
                            infer_error *err)
{
    tok_stream *s = mem_zero(1, sizeof *s);
    if (!s) return error_set(err, INFER_NOMEM, "token stream");
    infer_status st = decoder_init(&s->d, t, skip_special, err);
    size_t room = HOLD + 4 * (size_t)t->longest, most = 3 * room + 64;
    bool ok = true;
    s->d.fixed = true;
    for (int i = 0; i < s->d.n; i++) {
        const tok_step *step = s->d.v[i].step;
        ok &= pages(&s->d.v[i].hold, room) && pages(&s->d.v[i].whole, room);
        if (step->type == DEC_REPLACE) { // what a match can grow to
            size_t n_lit = 1;
            regex_literal(step->re, &n_lit);
            size_t times = step->s.n / (n_lit ? n_lit : 1) + 1;
            most = most > ((size_t)1 << 28) / times ? (size_t)1 << 28 : most * times;
        }
    }
    ok &= pages(&s->d.out, most);
    if (!st && !ok) st = error_set(err, INFER_NOMEM, "token stream");
    if (st) {
        tok_stream_free(s);
        return st;
    }
    s->d.err = &s->err;
    *out = s;
    return error_clear(err);
}

void tok_stream_free(tok_stream *s)
{
    if (!s) return;
    for (int i = 0; i < s->d.n; i++) {
        mem_free_pages(s->d.v[i].hold.p, s->d.v[i].hold.cap);
        mem_free_pages(s->d.v[i].whole.p, s->d.v[i].whole.cap);
    }
    mem_free_pages(s->d.out.p, s->d.out.cap);
    regex_scratch_free(s->d.regex);
    mem_free(s);
}

static const char *piece_of(tok_stream *s, size_t *n)
{
    decoder *d = &s->d;
    if (d->out.n == d->out.cap) d->out.n--; // room for the NUL
    d->out.p[d->out.n] = 0;
    if (n) *n = d->out.n;
    return d->out.p;
}

const char *tok_stream_push(tok_stream *s, int32_t id, size_t *n)
{
    s->d.out.n = 0;
    if (id >= 0 && id < s->d.t->n_ids) push(&s->d, id);
    return piece_of(s, n);
}

const char *tok_stream_flush(tok_stream *s, size_t *n)
{
    s->d.out.n = 0;
    finish(&s->d);
    const char *p = piece_of(s, n);
    size_t keep = s->d.out.n;
    tok_stream_reset(s);
    s->d.out.n = keep;
    return p;
}

void tok_stream_reset(tok_stream *s)
{
    for (int i = 0; i < s->d.n; i++) {
        stage *g = &s->d.v[i];
        g->hold.n = g->whole.n = g->pending = 0;
        g->index = 0;
        g->began = false;
        g->left = 0;
    }
    s->d.out.n = 0;
    s->d.status = INFER_OK;
}
