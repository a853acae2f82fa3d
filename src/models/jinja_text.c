/*
 * jinja_text.c: building text with its provenance, and Python's text of values: str, repr, the
 * shortest float, int and float from text, and JSON as json.dumps writes it.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "models/jinja_impl.h"

/* ---- the builder --------------------------------------------------------------------------- */

void j_sb_init(builder *b, jrun *r)
{
    *b = (builder){ .r = r, .b = jinja_alloc(r, 1, sizeof(strbuf)), .limit = r->max_text };
}

static void buf_mask(jrun *r, strbuf *b)
{
    b->foreign = jinja_alloc(r, b->cap, 1);
    memset(b->foreign, b->all_foreign, b->n);
}

/* Room for n more bytes; strings that point into the old place stay valid. */
static void buf_room(jrun *r, strbuf *b, size_t n)
{
    if (n > r->max_text || b->n + n > r->max_text)
        jinja_fail(r, INFER_LIMIT, "the template makes text of more than %zu bytes", r->max_text);
    if (b->n + n <= b->cap) return;
    size_t cap = b->cap + b->cap / 2 > b->n + n + 32 ? b->cap + b->cap / 2 : b->n + n + 32;
    char *s = jinja_alloc(r, cap, 1);
    if (b->n) memcpy(s, b->s, b->n);
    b->s = s;
    b->cap = cap;
    if (b->foreign) {
        uint8_t *old = b->foreign;
        b->foreign = jinja_alloc(r, cap, 1);
        memcpy(b->foreign, old, b->n);
    }
}

static void buf_add(jrun *r, strbuf *b, const char *s, size_t n, const uint8_t *mask, bool foreign)
{
    if (!n) return;
    jinja_step(r, n / 128);
    buf_room(r, b, n);
    if (!b->n && !b->foreign) b->all_foreign = mask ? mask[0] : foreign;
    if (!b->foreign && (mask || b->all_foreign != foreign)) buf_mask(r, b);
    memcpy(b->s + b->n, s, n);
    if (b->foreign) {
        if (mask)
            memcpy(b->foreign + b->n, mask, n);
        else
            memset(b->foreign + b->n, foreign, n);
    }
    b->n += n;
}

void j_sb_raw(builder *b, const char *s, size_t n, bool foreign)
{
    buf_add(b->r, b->b, s, n, NULL, foreign);
}

void j_sb_lit(builder *b, const char *s) { j_sb_raw(b, s, strlen(s), false); }

void j_sb_part(builder *b, const str *s, size_t from, size_t to)
{
    buf_add(b->r, b->b, s->s + from, to - from, s->foreign ? s->foreign + from : NULL,
            s->all_foreign);
}

void j_sb_str(builder *b, const str *s) { j_sb_part(b, s, 0, s->n); }

void j_sb_char(builder *b, uint32_t c, bool foreign)
{
    char out[4];
    j_sb_raw(b, out, (size_t)utf8_encode(c, out), foreign);
}

void j_sb_fmt(builder *b, const char *fmt, ...)
{
    char out[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, sizeof out, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof out) n = sizeof out - 1;
    j_sb_raw(b, out, n > 0 ? (size_t)n : 0, false);
}

static str *buf_str(jrun *r, strbuf *b)
{
    buf_room(r, b, 1);
    b->s[b->n] = 0; // messages print strings with %s
    str *s = jinja_alloc(r, 1, sizeof *s);
    *s = (str){ .s = b->s,
                .n = b->n,
                .foreign = b->foreign,
                .buf = b,
                .n_chars = -1,
                .all_foreign = b->all_foreign };
    return s;
}

str *j_sb_done(builder *b) { return buf_str(b->r, b->b); }

str *j_str_concat(jrun *r, str *a, str *b)
{
    strbuf *buf = a->buf;
    if (!buf || buf->s != a->s || buf->n != a->n || (a->foreign && a->foreign != buf->foreign)) {
        buf = jinja_alloc(r, 1, sizeof *buf);
        buf_room(r, buf, a->n + b->n);
        buf_add(r, buf, a->s, a->n, a->foreign, a->all_foreign);
    }
    bool counted = a->n_chars >= 0 && b->n_chars >= 0;
    int64_t n_chars = a->n_chars + b->n_chars;
    buf_add(r, buf, b->s, b->n, b->foreign, b->all_foreign);
    str *out = buf_str(r, buf);
    if (counted) out->n_chars = n_chars;
    return out;
}

/* ---- characters ---------------------------------------------------------------------------- */

size_t j_next_char(const char *s, size_t n, uint32_t *c)
{
    int k = utf8_decode(s, n, c);
    if (k > 0) return (size_t)k;
    *c = (unsigned char)*s; // not reached: all text is valid
    return 1;
}

bool j_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* str.isprintable of one character: all but "other" and separators, the space excepted. */
static bool is_printable(uint32_t c)
{
    if (c < 128) return c >= 32 && c < 127;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return !(k == UTF8PROC_CATEGORY_CN || k >= UTF8PROC_CATEGORY_ZS);
}

/* ---- numbers ------------------------------------------------------------------------------- */

/* The fewest digits that read back as the same number, as Python's repr lays them out. */
size_t j_float_repr(char out[40], double f)
{
    if (isnan(f)) return (size_t)sprintf(out, "nan");
    if (isinf(f)) return (size_t)sprintf(out, f < 0 ? "-inf" : "inf");
    char e[40];
    int digits = 1;
    for (; digits <= 17; digits++) {
        snprintf(e, sizeof e, "%.*e", digits - 1, f);
        if (strtod(e, NULL) == f) break;
    }
    if (digits > 17) digits = 17;
    char *mark = strchr(e, 'e');
    int exp = atoi(mark + 1);
    char d[20];
    int n = 0;
    for (char *p = e; p < mark; p++)
        if (*p >= '0' && *p <= '9') d[n++] = *p;
    char *o = out;
    if (signbit(f)) *o++ = '-';
    if (exp < -4 || exp >= 16) {
        *o++ = d[0];
        if (n > 1) *o++ = '.';
        for (int i = 1; i < n; i++)
            *o++ = d[i];
        o += sprintf(o, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
        return (size_t)(o - out);
    }
    if (exp < 0) {
        *o++ = '0';
        *o++ = '.';
        for (int i = -1; i > exp; i--)
            *o++ = '0';
        for (int i = 0; i < n; i++)
            *o++ = d[i];
    } else {
        for (int i = 0; i <= exp || i < n; i++) {
            if (i == exp + 1) *o++ = '.';
            *o++ = i < n ? d[i] : '0';
        }
        if (n <= exp + 1) {
            *o++ = '.';
            *o++ = '0';
        }
    }
    *o = 0;
    return (size_t)(o - out);
}

/* The text without surrounding space and with underscores between digits taken out; -1: not
 * number-like or too long. */
static int number_text(const str *s, char *out, int room)
{
    size_t from = 0, to = s->n;
    uint32_t c;
    while (from < to) {
        size_t k = j_next_char(s->s + from, to - from, &c);
        if (!j_is_space(c)) break;
        from += k;
    }
    while (to > from) {
        size_t back = to - 1;
        while (back > from && ((unsigned char)s->s[back] & 0xc0) == 0x80)
            back--;
        j_next_char(s->s + back, to - back, &c);
        if (!j_is_space(c)) break;
        to = back;
    }
    int n = 0;
    for (size_t i = from; i < to; i++) {
        char x = s->s[i];
        if (x == '_') {
            // Only single ones, between two characters that can be digits.
            bool before = i > from && s->s[i - 1] != '_' && strchr("+-.", s->s[i - 1]) == NULL;
            bool after = i + 1 < to && s->s[i + 1] != '_' && strchr("+-.", s->s[i + 1]) == NULL;
            if (!before || !after) return -1;
            continue;
        }
        if ((unsigned char)x >= 128 || n >= room - 1) return -1;
        out[n++] = x;
    }
    out[n] = 0;
    return n;
}

bool j_parse_int(jrun *r, const str *s, int base, int64_t *out)
{
    char t[80];
    jinja_step(r, s->n / 8);
    int n = number_text(s, t, sizeof t);
    if (n <= 0) return false;
    char *p = t;
    bool minus = *p == '-';
    if (*p == '+' || *p == '-') p++;
    if (p[0] == '0' && p[1]) {
        int prefix = p[1] == 'x' || p[1] == 'X'   ? 16
                     : p[1] == 'o' || p[1] == 'O' ? 8
                     : p[1] == 'b' || p[1] == 'B' ? 2
                                                  : 0;
        if (prefix && (base == prefix || base == 0)) {
            p += 2;
            base = prefix;
        } else if (base == 0 && strspn(p, "0") != strlen(p)) {
            return false;
        }
    }
    if (base == 0) base = 10;
    uint64_t u = 0;
    bool over = false, any = false;
    for (; *p; p++) {
        int d = *p >= '0' && *p <= '9'   ? *p - '0'
                : *p >= 'a' && *p <= 'z' ? *p - 'a' + 10
                : *p >= 'A' && *p <= 'Z' ? *p - 'A' + 10
                                         : 99;
        if (d >= base) return false;
        any = true;
        over |= __builtin_mul_overflow(u, (uint64_t)base, &u) ||
                __builtin_add_overflow(u, (uint64_t)d, &u);
    }
    if (!any) return false;
    if (over || u > (uint64_t)INT64_MAX + minus) RAISE(r, "integer '%s' does not fit 64 bits", t);
    *out = minus ? (int64_t)(0 - u) : (int64_t)u;
    return true;
}

bool j_parse_float(jrun *r, const str *s, double *out)
{
    jinja_step(r, s->n / 8);
    char t[400];
    int n = number_text(s, t, sizeof t);
    if (n <= 0) return false;
    const char *p = t + (*t == '+' || *t == '-');
    // strtod also reads hexadecimal and nan(...), which Python does not.
    bool word = !strcasecmp(p, "inf") || !strcasecmp(p, "infinity") || !strcasecmp(p, "nan");
    if (!word && strspn(p, "0123456789.eE+-") != strlen(p)) return false;
    if (!word && !(*p == '.' || (*p >= '0' && *p <= '9'))) return false;
    char *end;
    *out = strtod(t, &end);
    return end != t && !*end;
}

/* ---- str and repr -------------------------------------------------------------------------- */

static void repr_str(builder *b, const str *s)
{
    bool one = memchr(s->s, '\'', s->n) != NULL, two = memchr(s->s, '"', s->n) != NULL;
    char q = one && !two ? '"' : '\'';
    if (s->markup) j_sb_lit(b, "Markup(");
    j_sb_raw(b, &q, 1, false);
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c;
        k = j_next_char(s->s + i, s->n - i, &c);
        bool foreign = foreign_at(s, i);
        char esc[12];
        int n = 0;
        if (c == (uint32_t)q || c == '\\')
            n = sprintf(esc, "\\%c", (char)c);
        else if (c == '\n')
            n = sprintf(esc, "\\n");
        else if (c == '\r')
            n = sprintf(esc, "\\r");
        else if (c == '\t')
            n = sprintf(esc, "\\t");
        else if (is_printable(c))
            n = 0;
        else if (c < 256)
            n = sprintf(esc, "\\x%02x", c);
        else if (c < 0x10000)
            n = sprintf(esc, "\\u%04x", c);
        else
            n = sprintf(esc, "\\U%08x", c);
        if (n)
            j_sb_raw(b, esc, (size_t)n, foreign);
        else
            j_sb_part(b, s, i, i + k);
    }
    j_sb_raw(b, &q, 1, false);
    if (s->markup) j_sb_lit(b, ")");
}

static void repr_list(builder *b, const list *l, char open, char close)
{
    j_sb_raw(b, &open, 1, false);
    for (size_t i = 0; i < l->n; i++) {
        if (i) j_sb_lit(b, ", ");
        j_sb_repr(b, l->v[i]);
    }
    if (open == '(' && l->n == 1) j_sb_lit(b, ",");
    j_sb_raw(b, &close, 1, false);
}

static void repr_dict(builder *b, const dict *d)
{
    j_sb_lit(b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) j_sb_lit(b, ", ");
        j_sb_repr(b, d->e[i].key);
        j_sb_lit(b, ": ");
        j_sb_repr(b, d->e[i].val);
    }
    j_sb_lit(b, "}");
}

static void repr_macro(builder *b, const macro *m)
{
    if (m->def->kind == N_CALLBLOCK) {
        j_sb_lit(b, "<Macro anonymous>");
        return;
    }
    j_sb_lit(b, "<Macro ");
    repr_str(b, m->def->name);
    j_sb_lit(b, ">");
}

static void repr_builtin(builder *b, const builtin *fn)
{
    static const char *const classes[][2] = { { "range", "<function safe_range>" },
                                              { "dict", "<class 'dict'>" },
                                              { "namespace", "<class 'jinja2.utils.Namespace'>" },
                                              { "cycler", "<class 'jinja2.utils.Cycler'>" },
                                              { "joiner", "<class 'jinja2.utils.Joiner'>" } };
    for (int i = 0; i < COUNT_OF(classes); i++) {
        if (!strcmp(fn->name, classes[i][0])) {
            j_sb_lit(b, classes[i][1]);
            return;
        }
    }
    j_sb_fmt(b, "<function %s>", fn->name);
}

void j_sb_repr(builder *b, value v)
{
    char f[40];
    jinja_enter(b->r);
    switch (v.type) {
    case V_MISSING: j_sb_lit(b, "missing"); break;
    case V_UNDEFINED: j_sb_lit(b, "Undefined"); break;
    case V_NONE: j_sb_lit(b, "None"); break;
    case V_BOOL: j_sb_lit(b, v.u.b ? "True" : "False"); break;
    case V_INT: j_sb_fmt(b, "%lld", (long long)v.u.i); break;
    case V_FLOAT: j_sb_raw(b, f, j_float_repr(f, v.u.f), false); break;
    case V_STR: repr_str(b, v.u.s); break;
    case V_LIST: repr_list(b, v.u.l, '[', ']'); break;
    case V_TUPLE: repr_list(b, v.u.l, '(', ')'); break;
    case V_DICT: repr_dict(b, v.u.d); break;
    case V_RANGE:
        j_sb_fmt(b, "range(%lld, %lld", (long long)v.u.r->start, (long long)v.u.r->stop);
        if (v.u.r->step != 1) j_sb_fmt(b, ", %lld", (long long)v.u.r->step);
        j_sb_lit(b, ")");
        break;
    case V_VIEW:
        j_sb_fmt(b, "%s(", j_type_name(v));
        repr_list(b, j_to_list(b->r, v), '[', ']');
        j_sb_lit(b, ")");
        break;
    case V_NAMESPACE:
        j_sb_lit(b, "<Namespace ");
        repr_dict(b, v.u.d);
        j_sb_lit(b, ">");
        break;
    case V_MACRO: repr_macro(b, v.u.mac); break;
    case V_FUNCTION: repr_builtin(b, v.u.fn); break;
    case V_METHOD:
        j_sb_fmt(b, "<built-in method %s of %s object>", v.u.m->fn->name, j_type_name(v.u.m->self));
        break;
    case V_LOOP:
        j_sb_fmt(b, "<LoopContext %lld/%lld>", (long long)j_loop_index(v.u.loop),
                 (long long)j_loop_length(b->r, v.u.loop));
        break;
    default: j_sb_fmt(b, "<%s object>", j_type_name(v)); break;
    }
    jinja_leave(b->r);
}

void j_sb_value(builder *b, value v)
{
    if (v.type == V_STR)
        j_sb_str(b, v.u.s);
    else if (v.type != V_UNDEFINED)
        j_sb_repr(b, v);
}

str *j_to_str(jrun *r, value v)
{
    if (v.type == V_STR) return v.u.s;
    builder b;
    j_sb_init(&b, r);
    j_sb_value(&b, v);
    return j_sb_done(&b);
}

str *j_repr(jrun *r, value v)
{
    builder b;
    j_sb_init(&b, r);
    j_sb_repr(&b, v);
    return j_sb_done(&b);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

typedef struct json_writer {
    builder b;
    const str *indent; // one level, NULL: all on one line
    const str *item_sep, *key_sep;
    bool ascii, sort;
} json_writer;

static void json_str(json_writer *w, const str *s)
{
    j_sb_lit(&w->b, "\"");
    size_t from = 0;
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c;
        k = j_next_char(s->s + i, s->n - i, &c);
        char esc[16];
        int n = 0;
        if (c == '"' || c == '\\')
            n = sprintf(esc, "\\%c", (char)c);
        else if (c == '\n')
            n = sprintf(esc, "\\n");
        else if (c == '\r')
            n = sprintf(esc, "\\r");
        else if (c == '\t')
            n = sprintf(esc, "\\t");
        else if (c == '\b')
            n = sprintf(esc, "\\b");
        else if (c == '\f')
            n = sprintf(esc, "\\f");
        else if (c < 32 || (w->ascii && c >= 127 && c < 0x10000))
            n = sprintf(esc, "\\u%04x", c);
        else if (w->ascii && c >= 0x10000)
            n = sprintf(esc, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                        0xdc00 + ((c - 0x10000) & 0x3ff));
        if (!n) continue;
        j_sb_part(&w->b, s, from, i);
        j_sb_raw(&w->b, esc, (size_t)n, foreign_at(s, i));
        from = i + k;
    }
    j_sb_part(&w->b, s, from, s->n);
    j_sb_lit(&w->b, "\"");
}

static void json_line(json_writer *w, int level)
{
    if (!w->indent) return;
    j_sb_lit(&w->b, "\n");
    for (int i = 0; i < level; i++)
        j_sb_str(&w->b, w->indent);
}

static void json_float(json_writer *w, double f)
{
    char t[40];
    if (isnan(f))
        j_sb_lit(&w->b, "NaN");
    else if (isinf(f))
        j_sb_lit(&w->b, f < 0 ? "-Infinity" : "Infinity");
    else
        j_sb_raw(&w->b, t, j_float_repr(t, f), false);
}

static void json_key(json_writer *w, value k)
{
    switch (k.type) {
    case V_STR: json_str(w, k.u.s); return;
    case V_BOOL: j_sb_lit(&w->b, k.u.b ? "\"true\"" : "\"false\""); return;
    case V_NONE: j_sb_lit(&w->b, "\"null\""); return;
    case V_INT: j_sb_fmt(&w->b, "\"%lld\"", (long long)k.u.i); return;
    case V_FLOAT:
        j_sb_lit(&w->b, "\"");
        json_float(w, k.u.f);
        j_sb_lit(&w->b, "\"");
        return;
    default: RAISE(w->b.r, "keys must be str, int, float, bool or None, not %s", j_type_name(k));
    }
}

static void json_value(json_writer *w, value v, int level);

static void json_items(json_writer *w, const list *l, int level)
{
    if (!l->n) {
        j_sb_lit(&w->b, "[]");
        return;
    }
    j_sb_lit(&w->b, "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i) j_sb_str(&w->b, w->item_sep);
        json_line(w, level + 1);
        json_value(w, l->v[i], level + 1);
    }
    json_line(w, level);
    j_sb_lit(&w->b, "]");
}

/* Entries by key, stable; keys must have an order. */
static dict_entry *sorted_entries(jrun *r, const dict *d)
{
    dict_entry *e = jinja_alloc(r, d->n, sizeof *e), *t = jinja_alloc(r, d->n, sizeof *e);
    if (d->n) memcpy(e, d->e, d->n * sizeof *e);
    for (size_t width = 1; width < d->n; width *= 2) { // merge sort
        for (size_t i = 0; i < d->n; i += 2 * width) {
            size_t mid = i + width < d->n ? i + width : d->n, end = i + 2 * width;
            if (end > d->n) end = d->n;
            for (size_t a = i, b = mid, o = i; o < end; o++) {
                bool right = a == mid || (b < end && j_compare(r, e[b].key, e[a].key, OP_LT));
                t[o] = right ? e[b++] : e[a++];
            }
        }
        dict_entry *swap = e;
        e = t;
        t = swap;
    }
    return e;
}

static void json_object_text(json_writer *w, const dict *d, int level)
{
    if (!d->n) {
        j_sb_lit(&w->b, "{}");
        return;
    }
    const dict_entry *e = w->sort ? sorted_entries(w->b.r, d) : d->e;
    j_sb_lit(&w->b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) j_sb_str(&w->b, w->item_sep);
        json_line(w, level + 1);
        json_key(w, e[i].key);
        j_sb_str(&w->b, w->key_sep);
        json_value(w, e[i].val, level + 1);
    }
    json_line(w, level);
    j_sb_lit(&w->b, "}");
}

static void json_value(json_writer *w, value v, int level)
{
    jinja_enter(w->b.r);
    switch (v.type) {
    case V_NONE: j_sb_lit(&w->b, "null"); break;
    case V_BOOL: j_sb_lit(&w->b, v.u.b ? "true" : "false"); break;
    case V_INT: j_sb_fmt(&w->b, "%lld", (long long)v.u.i); break;
    case V_FLOAT: json_float(w, v.u.f); break;
    case V_STR: json_str(w, v.u.s); break;
    case V_LIST:
    case V_TUPLE: json_items(w, v.u.l, level); break;
    case V_DICT: json_object_text(w, v.u.d, level); break;
    default: RAISE(w->b.r, "Object of type %s is not JSON serializable", j_type_name(v));
    }
    jinja_leave(w->b.r);
}

value j_tojson(jrun *r, value v, int indent, const str *indent_text, bool ascii,
               const str *item_sep, const str *key_sep, bool sort_keys)
{
    json_writer w = { .item_sep = item_sep,
                      .key_sep = key_sep,
                      .ascii = ascii,
                      .sort = sort_keys,
                      .indent = indent_text };
    j_sb_init(&w.b, r);
    if (!indent_text && indent >= 0) {
        if ((size_t)indent > r->max_text)
            jinja_fail(r, INFER_LIMIT, "indent %d is too large", indent);
        builder spaces;
        j_sb_init(&spaces, r);
        for (int i = 0; i < indent; i++)
            j_sb_lit(&spaces, " ");
        w.indent = j_sb_done(&spaces);
    }
    if (!item_sep) w.item_sep = j_str_lit(r, w.indent ? "," : ", ");
    if (!key_sep) w.key_sep = j_str_lit(r, ": ");
    json_value(&w, v, 0);
    return v_str(j_sb_done(&w.b));
}
