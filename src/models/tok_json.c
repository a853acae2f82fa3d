/*
 * tok_json.c: a strict JSON reader (RFC 8259) with tables that stay text. See tok_json.h.
 */
#include "models/tok_json.h"

#include <stdlib.h>

#define MAX_DEPTH 64

typedef struct parser {
    const char *p, *end, *begin, *name;
    arena *mem;
    infer_error *err;
} parser;

static infer_status fail(parser *p, const char *what)
{
    int line = 1;
    for (const char *q = p->begin; q < p->p; q++)
        line += *q == '\n';
    return error_set(p->err, INFER_FORMAT, "%s: line %d: %s", p->name, line, what);
}

static void space(parser *p)
{
    while (p->p < p->end && (*p->p == ' ' || *p->p == '\n' || *p->p == '\t' || *p->p == '\r'))
        p->p++;
}

static int hex4(const char *s, const char *end)
{
    int v = 0;
    if (end - s < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) return -1;
        v = v << 4 | d;
    }
    return v;
}

// At the u of \u: the code point, and the bytes it takes; 0: malformed (lone surrogates too).
static size_t unicode_escape(const char *s, const char *end, uint32_t *cp)
{
    int a = hex4(s + 1, end), b;
    if (a < 0 || (a >= 0xDC00 && a <= 0xDFFF)) return 0;
    *cp = (uint32_t)a;
    if (a < 0xD800 || a > 0xDBFF) return 5;
    if (end - s < 11 || s[5] != '\\' || s[6] != 'u') return 0;
    b = hex4(s + 7, end);
    if (b < 0xDC00 || b > 0xDFFF) return 0;
    *cp = 0x10000 + ((uint32_t)(a - 0xD800) << 10 | (uint32_t)(b - 0xDC00));
    return 11;
}

// At '"': finds the end of the string; *plain: it has no escapes. The text is known to be UTF-8.
static infer_status scan_string(parser *p, text *body, bool *plain)
{
    const char *s = ++p->p;
    *plain = true;
    for (;; p->p++) {
        if (p->p >= p->end) return fail(p, "string without an end");
        unsigned char c = (unsigned char)*p->p;
        if (c == '"') break;
        if (c < 32) return fail(p, "control character in a string");
        if (c != '\\') continue;
        *plain = false;
        if (++p->p >= p->end) return fail(p, "string without an end");
        if (*p->p == 'u') {
            uint32_t cp;
            size_t n = unicode_escape(p->p, p->end, &cp);
            if (!n) return fail(p, "malformed \\u escape");
            p->p += n - 1;
        } else if (!*p->p || !strchr("\"\\/bfnrt", *p->p)) {
            return fail(p, "unknown escape in a string");
        }
    }
    *body = (text){ s, (size_t)(p->p - s) };
    p->p++;
    return INFER_OK;
}

// Resolves the escapes of a scanned string; out has room for all of it. Returns the length.
static size_t unescape(char *out, text s)
{
    char *o = out;
    for (const char *q = s.s, *end = s.s + s.n; q < end; q++) {
        if (*q != '\\') {
            *o++ = *q;
            continue;
        }
        uint32_t cp = 0;
        switch (*++q) {
        case 'b': *o++ = '\b'; break;
        case 'f': *o++ = '\f'; break;
        case 'n': *o++ = '\n'; break;
        case 'r': *o++ = '\r'; break;
        case 't': *o++ = '\t'; break;
        case 'u':
            q += unicode_escape(q, end, &cp) - 1;
            o += utf8_encode(cp, o);
            break;
        default: *o++ = *q;
        }
    }
    return (size_t)(o - out);
}

static infer_status string(parser *p, text *out)
{
    bool plain;
    TRY(scan_string(p, out, &plain));
    if (plain) return INFER_OK;
    char *s = arena_alloc(p->mem, out->n + 1, 1);
    if (!s) return error_set(p->err, INFER_NOMEM, "%s", p->name);
    *out = (text){ s, unescape(s, *out) };
    return INFER_OK;
}

static infer_status number(parser *p, double *out)
{
    const char *s = p->p;
    char tmp[64];
    size_t n = 0;
    if (p->p < p->end && *p->p == '-') p->p++;
    const char *digits = p->p;
    while (p->p < p->end && *p->p >= '0' && *p->p <= '9')
        p->p++;
    if (p->p == digits || (*digits == '0' && p->p - digits > 1)) return fail(p, "malformed value");
    bool whole = true;
    if (p->p < p->end && *p->p == '.') {
        const char *f = ++p->p;
        whole = false;
        while (p->p < p->end && *p->p >= '0' && *p->p <= '9')
            p->p++;
        if (p->p == f) return fail(p, "malformed number");
    }
    if (p->p < p->end && (*p->p | 32) == 'e') {
        whole = false;
        p->p++;
        if (p->p < p->end && (*p->p == '+' || *p->p == '-')) p->p++;
        const char *f = p->p;
        while (p->p < p->end && *p->p >= '0' && *p->p <= '9')
            p->p++;
        if (p->p == f) return fail(p, "malformed number");
    }
    n = (size_t)(p->p - s);
    if (whole && n < 16) {
        double v = 0;
        for (const char *q = digits; q < p->p; q++)
            v = v * 10 + (*q - '0');
        *out = *s == '-' ? -v : v;
        return INFER_OK;
    }
    if (n >= sizeof tmp) return fail(p, "number of more than 63 characters");
    memcpy(tmp, s, n);
    tmp[n] = 0;
    *out = strtod(tmp, NULL); // the point is a point: programs here leave LC_NUMERIC alone
    return INFER_OK;
}

static infer_status word(parser *p, tj *v)
{
    static const struct {
        const char *s;
        tj_type type;
        double number;
    } words[] = { { "null", TJ_NULL, 0 }, { "true", TJ_BOOL, 1 }, { "false", TJ_BOOL, 0 } };
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i].s);
        if ((size_t)(p->end - p->p) < n || memcmp(p->p, words[i].s, n)) continue;
        v->type = words[i].type;
        v->number = words[i].number;
        p->p += n;
        return INFER_OK;
    }
    return fail(p, "malformed value");
}

static infer_status value(parser *p, tj *v, int depth, bool build);

// After '[' or '{'.
static infer_status members(parser *p, tj *v, int depth, bool build)
{
    char close = v->type == TJ_OBJECT ? '}' : ']';
    tj **tail = &v->child;
    space(p);
    if (p->p < p->end && *p->p == close) {
        p->p++;
        return INFER_OK;
    }
    for (;;) {
        tj one = { 0 }, *m = &one;
        bool plain;
        if (build && !(m = arena_zero(p->mem, 1, sizeof *m)))
            return error_set(p->err, INFER_NOMEM, "%s", p->name);
        space(p);
        if (v->type == TJ_OBJECT) {
            if (p->p >= p->end || *p->p != '"') return fail(p, "expected a member's name");
            TRY(build ? string(p, &m->key) : scan_string(p, &m->key, &plain));
            space(p);
            if (p->p >= p->end || *p->p != ':') return fail(p, "expected ':'");
            p->p++;
        }
        TRY(value(p, m, depth + 1, build));
        if (build) {
            *tail = m;
            tail = &m->next;
        }
        v->n++;
        space(p);
        if (p->p < p->end && *p->p == ',') {
            p->p++;
            continue;
        }
        if (p->p >= p->end || *p->p != close) return fail(p, "expected ',' or the end of the list");
        p->p++;
        return INFER_OK;
    }
}

static bool is_table(text key)
{
    return (key.n == 5 && !memcmp(key.s, "vocab", 5)) ||
           (key.n == 6 && !memcmp(key.s, "merges", 6));
}

static infer_status value(parser *p, tj *v, int depth, bool build)
{
    if (depth > MAX_DEPTH) return fail(p, "nested too deep");
    space(p);
    if (p->p >= p->end) return fail(p, "ends within a value");
    const char *s = p->p;
    switch (*s) {
    case '"': {
        bool plain;
        v->type = TJ_STRING;
        return build ? string(p, &v->s) : scan_string(p, &v->s, &plain);
    }
    case '{':
    case '[':
        v->type = *s == '{' ? TJ_OBJECT : TJ_ARRAY;
        v->raw = !build || is_table(v->key);
        p->p++;
        TRY(members(p, v, depth, !v->raw));
        if (v->raw) v->s = (text){ s, (size_t)(p->p - s) };
        return INFER_OK;
    case 't':
    case 'f':
    case 'n': return word(p, v);
    default: v->type = TJ_NUMBER; return number(p, &v->number);
    }
}

infer_status tj_parse(const tj **out, arena *a, const char *s, size_t n, const char *name,
                      infer_error *err)
{
    parser p = { s, s + n, s, name, a, err };
    if (n > (size_t)1 << 31) return error_set(err, INFER_LIMIT, "%s: over 2 GiB", name);
    if (!utf8_valid(s, n)) return error_set(err, INFER_FORMAT, "%s: not UTF-8", name);
    tj *v = arena_zero(a, 1, sizeof *v);
    if (!v) return error_set(err, INFER_NOMEM, "%s", name);
    TRY(value(&p, v, 0, true));
    space(&p);
    if (p.p < p.end) return fail(&p, "text after the value");
    *out = v;
    return INFER_OK;
}

const tj *tj_get(const tj *o, const char *key)
{
    const tj *found = NULL;
    size_t n = strlen(key);
    if (!o || o->type != TJ_OBJECT || o->raw) return NULL;
    for (const tj *m = o->child; m; m = m->next)
        if (m->key.n == n && !memcmp(m->key.s, key, n)) found = m;
    return found && found->type != TJ_NULL ? found : NULL;
}

const char *tj_type_name(tj_type t)
{
    static const char *const names[] = { "null",     "a boolean", "a number",
                                         "a string", "an array",  "an object" };
    return names[t];
}

void tj_walk_start(tj_walk *w, const tj *table, infer_error *err)
{
    memset(w, 0, sizeof *w);
    w->p = table->s.s + 1;
    w->end = table->s.s + table->s.n;
    w->object = table->type == TJ_OBJECT;
    w->err = err;
}

static infer_status walk_string(tj_walk *w, parser *p, text *s, bytes *b)
{
    bool plain;
    TRY(scan_string(p, s, &plain));
    if (plain) return INFER_OK;
    b->n = 0;
    TRY(bytes_room(b, s->n, w->err));
    *s = (text){ b->p, unescape(b->p, *s) };
    return INFER_OK;
}

infer_status tj_walk_next(tj_walk *w, tj *entry, bool *more)
{
    parser p = {
        w->p, w->end, w->p, "table", NULL, w->err
    }; // checked before: nothing can be wrong
    memset(entry, 0, sizeof *entry);
    space(&p);
    if (p.p < p.end && *p.p == ',') p.p++;
    space(&p);
    *more = p.p < p.end && *p.p != ']' && *p.p != '}';
    if (!*more) return INFER_OK;
    if (w->object) {
        TRY(walk_string(w, &p, &entry->key, &w->key));
        space(&p);
        p.p++;
        space(&p);
    }
    if (*p.p == '"') {
        entry->type = TJ_STRING;
        TRY(walk_string(w, &p, &entry->s, &w->value));
    } else {
        TRY(value(&p, entry, 1, false));
    }
    w->p = p.p;
    return INFER_OK;
}

void tj_walk_end(tj_walk *w)
{
    mem_free(w->key.p);
    mem_free(w->value.p);
}
