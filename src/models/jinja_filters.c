/*
 * jinja_filters.c: the filters that work on one value, mostly text; those on sequences are in
 * jinja_sequence.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/jinja_impl.h"

#define FILTER(name) static value name(jrun *r, value *a, const args *c)
#define UNUSED                                                                                     \
    (void)r;                                                                                       \
    (void)a;                                                                                       \
    (void)c

static value markup(jrun *r, str *s)
{
    str *out = jinja_alloc(r, 1, sizeof *out);
    *out = *s;
    out->markup = true;
    return v_str(out);
}

/* ---- HTML ---------------------------------------------------------------------------------- */

str *j_escape_html(jrun *r, value v)
{
    str *s = j_to_str(r, v);
    if (s->markup) return s;
    builder b;
    j_sb_init(&b, r);
    size_t from = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *e = s->s[i] == '&'    ? "&amp;"
                        : s->s[i] == '<'  ? "&lt;"
                        : s->s[i] == '>'  ? "&gt;"
                        : s->s[i] == '"'  ? "&#34;"
                        : s->s[i] == '\'' ? "&#39;"
                                          : NULL;
        if (!e) continue;
        j_sb_part(&b, s, from, i);
        j_sb_raw(&b, e, strlen(e), foreign_at(s, i));
        from = i + 1;
    }
    j_sb_part(&b, s, from, s->n);
    str *out = j_sb_done(&b);
    out->markup = true;
    return out;
}

FILTER(f_escape)
{
    UNUSED;
    return v_str(j_escape_html(r, a[0]));
}
FILTER(f_forceescape)
{
    UNUSED;
    return v_str(j_escape_html(r, v_str(j_str_plain(r, j_to_str(r, a[0])))));
}
FILTER(f_safe)
{
    UNUSED;
    return markup(r, j_to_str(r, a[0]));
}

static const struct {
    const char *name, *text;
} entities[] = {
    { "amp;", "&" },  { "lt;", "<" },  { "gt;", ">" },   { "quot;", "\"" },
    { "#34;", "\"" }, { "#39;", "'" }, { "apos;", "'" }, { "nbsp;", "\xc2\xa0" },
};

/* Cuts out what stands between open and close, again and again. */
static str *cut_between(jrun *r, str *s, const char *open, const char *close)
{
    builder b;
    j_sb_init(&b, r);
    str o = { .s = open, .n = strlen(open) }, e = { .s = close, .n = strlen(close) };
    size_t from = 0;
    while (true) {
        int64_t start = j_str_find(s, &o, from, s->n);
        int64_t end = start < 0 ? -1 : j_str_find(s, &e, (size_t)start, s->n);
        if (end < 0) break;
        j_sb_part(&b, s, from, (size_t)start);
        from = (size_t)end + e.n;
        jinja_step(r, 1);
    }
    j_sb_part(&b, s, from, s->n);
    return j_sb_done(&b);
}

/* Adds the character at i, or what the entity there means; returns its length. */
static size_t unescape_one(jrun *r, builder *b, const str *s, size_t i)
{
    for (int k = 0; s->s[i] == '&' && k < COUNT_OF(entities); k++) {
        size_t n = strlen(entities[k].name);
        if (s->n - i - 1 < n || memcmp(s->s + i + 1, entities[k].name, n)) continue;
        j_sb_raw(b, entities[k].text, strlen(entities[k].text), foreign_at(s, i));
        return n + 1;
    }
    bool maybe = s->s[i] == '&' && i + 1 < s->n &&
                 (j_is_kind((uint8_t)s->s[i + 1], 'a') || s->s[i + 1] == '#');
    if (maybe && memchr(s->s + i, ';', s->n - i < 12 ? s->n - i : 12))
        jinja_fail(r, INFER_UNSUPPORTED, "striptags: only the common HTML entities are known");
    j_sb_part(b, s, i, i + 1);
    return 1;
}

FILTER(f_striptags)
{
    UNUSED;
    str *s =
        cut_between(r, cut_between(r, j_str_plain(r, j_to_str(r, a[0])), "<!--", "-->"), "<", ">");
    args split_args = { 0 };
    value self[3] = { v_str(s) };
    value words = j_find_method(self[0], j_str_lit(r, "split"))->fn(r, self, &split_args);
    s = j_str_join(r, j_str_lit(r, " "), words).u.s;
    builder b;
    j_sb_init(&b, r);
    for (size_t i = 0; i < s->n;)
        i += unescape_one(r, &b, s, i);
    return v_str(j_sb_done(&b));
}

FILTER(f_xmlattr)
{
    UNUSED;
    if (a[0].type == V_UNDEFINED) j_fail_undefined(r, a[0]);
    if (a[0].type != V_DICT) RAISE(r, "'%s' object has no attribute 'items'", j_type_name(a[0]));
    builder b;
    j_sb_init(&b, r);
    bool space = !v_given(a[1]) || j_truth(r, a[1]), any = false;
    for (size_t i = 0; i < a[0].u.d->n; i++) {
        value key = a[0].u.d->e[i].key, v = a[0].u.d->e[i].val;
        if (v.type == V_NONE || v.type == V_UNDEFINED) continue;
        if (key.type != V_STR)
            RAISE(r, "expected string or bytes-like object, got '%s'", j_type_name(key));
        for (size_t k = 0; k < key.u.s->n; k++)
            if (key.u.s->s[k] && strchr(" \t\n\r\f\v/>=", key.u.s->s[k]))
                RAISE(r, "Invalid character in attribute name: %s", j_repr(r, key)->s);
        if (any || space) j_sb_lit(&b, " ");
        any = true;
        j_sb_str(&b, j_escape_html(r, key));
        j_sb_lit(&b, "=\"");
        j_sb_str(&b, j_escape_html(r, v));
        j_sb_lit(&b, "\"");
    }
    return v_str(j_sb_done(&b));
}

static void quote(builder *b, value v, bool query)
{
    const str *s = j_to_str(b->r, v);
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->s[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !query);
        char out[4];
        if (plain)
            j_sb_part(b, s, i, i + 1);
        else if (c == ' ' && query)
            j_sb_raw(b, "+", 1, foreign_at(s, i));
        else
            j_sb_raw(b, out, (size_t)sprintf(out, "%%%02X", c), foreign_at(s, i));
    }
    jinja_step(b->r, s->n / 16);
}

FILTER(f_urlencode)
{
    UNUSED;
    builder b;
    j_sb_init(&b, r);
    if (a[0].type == V_STR || !j_is_iterable(a[0])) {
        quote(&b, a[0], false);
        return v_str(j_sb_done(&b));
    }
    value of = a[0];
    view items = { .d = of.u.d, .kind = VIEW_ITEMS };
    if (of.type == V_DICT) of = (value){ .type = V_VIEW, .u.w = &items };
    cursor it = j_iterate(r, of);
    value pair;
    for (bool first = true; j_cursor_next(r, &it, &pair); first = false) {
        list *l = j_to_list(r, pair);
        if (l->n != 2) RAISE(r, "not enough values to unpack (expected 2, got %zu)", l->n);
        if (!first) j_sb_lit(&b, "&");
        quote(&b, l->v[0], true);
        j_sb_lit(&b, "=");
        quote(&b, l->v[1], true);
    }
    return v_str(j_sb_done(&b));
}

/* ---- text ---------------------------------------------------------------------------------- */

static value keep_markup(value of, str *s)
{
    s->markup = of.type == V_STR && of.u.s->markup;
    return v_str(s);
}

FILTER(f_upper)
{
    UNUSED;
    return keep_markup(a[0], j_str_case(r, j_to_str(r, a[0]), 'u'));
}
FILTER(f_lower)
{
    UNUSED;
    return keep_markup(a[0], j_str_case(r, j_to_str(r, a[0]), 'l'));
}
FILTER(f_capitalize)
{
    UNUSED;
    return keep_markup(a[0], j_str_case(r, j_to_str(r, a[0]), 'c'));
}
FILTER(f_string)
{
    UNUSED;
    return v_str(j_to_str(r, a[0]));
}
FILTER(f_trim)
{
    UNUSED;
    return j_str_strip(r, j_to_str(r, a[0]), a[1], true, true);
}

/* jinja2's title differs from Python's: words begin after spaces, hyphens and opening brackets. */
FILTER(f_title)
{
    UNUSED;
    str *s = j_to_str(r, a[0]);
    builder b;
    j_sb_init(&b, r);
    for (size_t i = 0; i < s->n;) {
        uint32_t ch;
        size_t from = i, k = j_next_char(s->s + i, s->n - i, &ch);
        bool sep = j_is_space(ch) || (ch < 128 && ch && strchr("-({[<", (int)ch));
        if (sep) {
            j_sb_part(&b, s, i, i + k);
            i += k;
            continue;
        }
        size_t first = i + k;
        while (i < s->n) {
            k = j_next_char(s->s + i, s->n - i, &ch);
            if (j_is_space(ch) || (ch < 128 && ch && strchr("-({[<", (int)ch))) break;
            i += k;
        }
        j_sb_str(&b, j_str_case(r, j_str_part(r, s, from, first), 'u'));
        j_sb_str(&b, j_str_case(r, j_str_part(r, s, first, i), 'l'));
    }
    return v_str(j_sb_done(&b));
}

FILTER(f_center)
{
    UNUSED;
    value args_in[3] = { v_str(j_to_str(r, a[0])), v_given(a[1]) ? a[1] : v_int(80) };
    return j_find_method(args_in[0], j_str_lit(r, "center"))->fn(r, args_in, c);
}

FILTER(f_replace)
{
    UNUSED;
    int64_t count = v_given(a[3]) && a[3].type != V_NONE ? j_need_int(r, a[3]) : -1;
    str *s = j_str_plain(r, j_to_str(r, a[0])), *old = j_to_str(r, a[1]);
    return v_str(j_str_replace(r, s, old, j_to_str(r, a[2]), count));
}

FILTER(f_format)
{
    UNUSED;
    str *s = j_to_str(r, a[0]);
    if (c->n > 1 && c->n_kw)
        RAISE(r, "can't handle positional and keyword arguments at the same time");
    if (c->n_kw) {
        dict *d = j_dict_new(r);
        for (int i = 0; i < c->n_kw; i++)
            j_dict_set(r, d, v_str(c->kw[i].name), c->kw[i].v);
        return j_format_percent(r, s, v_dict(d));
    }
    list *l = j_list_new(r, (size_t)c->n);
    for (int i = 1; i < c->n; i++)
        j_list_add(r, l, c->v[i]);
    return j_format_percent(r, s, v_tuple(l));
}

FILTER(f_indent)
{
    UNUSED;
    builder b, pad;
    j_sb_init(&b, r);
    j_sb_init(&pad, r);
    value s = a[0];
    if (s.type == V_UNDEFINED) j_fail_undefined(r, s);
    if (s.type == V_LIST) RAISE(r, "'list' object has no attribute 'splitlines'");
    if (s.type == V_TUPLE) RAISE(r, "can only concatenate tuple (not \"str\") to tuple");
    if (s.type != V_STR)
        RAISE(r, "unsupported operand type(s) for +=: '%s' and 'str'", j_type_name(s));
    bool is_markup = s.u.s->markup;
    if (v_given(a[1]) && a[1].type == V_STR) {
        j_sb_str(&pad, is_markup ? j_escape_html(r, a[1]) : a[1].u.s);
    } else {
        int64_t n = v_given(a[1]) ? j_need_int(r, a[1]) : 4;
        if (n > 0) j_sb_str(&pad, j_binary(r, OP_MUL, j_v_text(r, " "), v_int(n)).u.s);
    }
    str *indent = j_sb_done(&pad);
    bool first = v_given(a[2]) && j_truth(r, a[2]), blank = v_given(a[3]) && j_truth(r, a[3]);
    s = j_binary(r, OP_ADD, s, j_v_text(r, "\n"));
    const list *lines = j_str_split_lines(r, s.u.s, false).u.l;
    for (size_t i = 0; i < lines->n; i++) {
        if (i) j_sb_lit(&b, "\n");
        if (i ? blank || lines->v[i].u.s->n : first) j_sb_str(&b, indent);
        j_sb_str(&b, lines->v[i].u.s);
    }
    str *out = j_sb_done(&b);
    out->markup = is_markup;
    return v_str(out);
}

FILTER(f_truncate)
{
    UNUSED;
    int64_t n = v_given(a[1]) ? j_need_int(r, a[1]) : 255;
    bool kill = v_given(a[2]) && j_truth(r, a[2]);
    str *end = v_given(a[3]) ? j_to_str(r, a[3]) : j_str_lit(r, "...");
    int64_t leeway = v_given(a[4]) && a[4].type != V_NONE ? j_need_int(r, a[4]) : 5;
    if (n < jinja_len(r, end))
        RAISE(r, "expected length >= %lld, got %lld", (long long)jinja_len(r, end), (long long)n);
    if (leeway < 0) RAISE(r, "expected leeway >= 0, got %lld", (long long)leeway);
    if (j_length(r, a[0]) <= n + leeway) return a[0];
    value cut = j_get_slice(r, a[0], (value){ 0 }, v_int(n - jinja_len(r, end)), (value){ 0 });
    if (cut.type != V_STR) return j_binary(r, OP_ADD, cut, v_str(end));
    size_t to = cut.u.s->n;
    while (!kill && to && cut.u.s->s[to - 1] != ' ')
        to--;
    if (!kill && to)
        to--;
    else
        to = cut.u.s->n;
    return j_binary(r, OP_ADD, v_str(j_str_part(r, cut.u.s, 0, to)), v_str(end));
}

FILTER(f_wordcount)
{
    UNUSED;
    str *s = j_to_str(r, a[0]);
    int64_t n = 0;
    bool in = false;
    jinja_step(r, s->n / 8);
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t ch;
        k = j_next_char(s->s + i, s->n - i, &ch);
        bool word = ch == '_' || j_is_kind(ch, 'x');
        n += word && !in;
        in = word;
    }
    return v_int(n);
}

/* ---- wrapping ------------------------------------------------------------------------------ */

static bool is_wrap_space(char c) { return c && strchr("\t\n\v\f\r ", c); }

/* Ends of the pieces that a line may be broken between: runs of blanks, words, and inside a word
 * after a hyphen between letters. */
static size_t piece_end(const str *s, size_t i, bool hyphens)
{
    size_t p = i;
    if (is_wrap_space(s->s[p])) {
        while (p < s->n && is_wrap_space(s->s[p]))
            p++;
        return p;
    }
    while (p < s->n && !is_wrap_space(s->s[p])) {
        p++;
        if (!hyphens || s->s[p - 1] != '-' || p - i < 3 || p + 1 >= s->n) continue;
#define LETTER(c) (((c) | 32) >= 'a' && ((c) | 32) <= 'z')
        bool before =
            LETTER(s->s[p - 2]) && (LETTER(s->s[p - 3]) || (s->s[p - 3] == '-' && p - i > 3));
        bool after = LETTER(s->s[p]) && (LETTER(s->s[p + 1]) || s->s[p + 1] == '-');
        if (before && after) return p;
#undef LETTER
    }
    return p;
}

static void wrap_line(jrun *r, list *out, str *s, int64_t width, bool break_long, bool hyphens)
{
    list *pieces = j_list_new(r, 0);
    for (size_t i = 0; i < s->n;) {
        size_t end = piece_end(s, i, hyphens);
        jinja_step(r, 1);
        j_list_add(r, pieces, v_str(j_str_part(r, s, i, end)));
        i = end;
    }
    size_t p = 0;
    while (p < pieces->n) {
        if (out->n && is_wrap_space(pieces->v[p].u.s->s[0])) p++; // blanks begin no later line
        builder line;
        j_sb_init(&line, r);
        int64_t used = 0;
        while (p < pieces->n) {
            str *x = pieces->v[p].u.s;
            int64_t n = jinja_len(r, x);
            if (used + n <= width) {
                j_sb_str(&line, x);
                used += n;
                p++;
            } else if (n > width && break_long && !is_wrap_space(x->s[0]) &&
                       (width > used || !used)) {
                size_t cut = j_char_offset(r, x, width > used ? width - used : 1);
                j_sb_part(&line, x, 0, cut);
                used = width;
                pieces->v[p] = v_str(j_str_part(r, x, cut, x->n));
                break;
            } else if (n > width && !used) {
                j_sb_str(&line, x);
                p++;
                break;
            } else {
                break;
            }
        }
        str *text = j_sb_done(&line);
        size_t to = text->n;
        while (to && is_wrap_space(text->s[to - 1]))
            to--;
        if (to) j_list_add(r, out, v_str(j_str_part(r, text, 0, to)));
        jinja_step(r, 1);
    }
}

FILTER(f_wordwrap)
{
    UNUSED;
    if (a[0].type == V_UNDEFINED) j_fail_undefined(r, a[0]);
    if (a[0].type != V_STR)
        RAISE(r, "'%s' object has no attribute 'splitlines'", j_type_name(a[0]));
    str *s = a[0].u.s;
    int64_t width = v_given(a[1]) ? j_need_int(r, a[1]) : 79;
    if (width <= 0) RAISE(r, "invalid width %lld (must be > 0)", (long long)width);
    bool break_long = !v_given(a[2]) || j_truth(r, a[2]);
    str *with = v_given(a[3]) && a[3].type != V_NONE ? j_to_str(r, a[3]) : j_str_lit(r, "\n");
    bool hyphens = !v_given(a[4]) || j_truth(r, a[4]);
    const list *lines = j_str_split_lines(r, s, false).u.l;
    builder b;
    j_sb_init(&b, r);
    for (size_t i = 0; i < lines->n; i++) {
        list *wrapped = j_list_new(r, 0);
        wrap_line(r, wrapped, lines->v[i].u.s, width, break_long, hyphens);
        if (i) j_sb_str(&b, with);
        j_sb_str(&b, j_str_join(r, with, v_list(wrapped)).u.s);
    }
    return v_str(j_sb_done(&b));
}

/* ---- numbers ------------------------------------------------------------------------------- */

FILTER(f_abs)
{
    UNUSED;
    value v = a[0];
    if (v.type == V_FLOAT) return v_float(fabs(v.u.f));
    if (v.type != V_INT && v.type != V_BOOL)
        RAISE(r, "bad operand type for abs(): '%s'", j_type_name(v));
    int64_t i = j_need_int(r, v);
    if (i == INT64_MIN) RAISE(r, "integer result does not fit 64 bits");
    return v_int(i < 0 ? -i : i);
}

static value float_to_int(jrun *r, double f)
{
    if (!(f > -0x1p63 && f < 0x1p63)) RAISE(r, "integer result does not fit 64 bits");
    return v_int((int64_t)f);
}

FILTER(f_int)
{
    UNUSED;
    value absent = v_given(a[1]) ? a[1] : v_int(0), v = a[0];
    int64_t i;
    double f;
    if (v.type == V_UNDEFINED) j_fail_undefined(r, v);
    if (v.type == V_STR) {
        int64_t base = v_given(a[2]) ? j_need_int(r, a[2]) : 10;
        if (base == 0 || (base >= 2 && base <= 36))
            if (j_parse_int(r, v.u.s, (int)base, &i)) return v_int(i);
        if (!j_parse_float(r, v.u.s, &f) || isnan(f) || isinf(f)) return absent;
        return float_to_int(r, f);
    }
    if (v.type == V_FLOAT) return isnan(v.u.f) || isinf(v.u.f) ? absent : float_to_int(r, v.u.f);
    return j_is_number(v) ? v_int(j_need_int(r, v)) : absent;
}

FILTER(f_float)
{
    UNUSED;
    double f;
    if (a[0].type == V_UNDEFINED) j_fail_undefined(r, a[0]);
    if (j_is_number(a[0])) return v_float(j_as_double(a[0]));
    if (a[0].type == V_STR && j_parse_float(r, a[0].u.s, &f)) return v_float(f);
    return v_given(a[1]) ? a[1] : v_float(0);
}

/* Python's round: to the nearest decimal, the exact halves of the binary value to even. */
static double round_float(double f, int64_t digits)
{
    char t[400];
    if (!isfinite(f)) return f;
    if (digits > 323) return f;
    if (digits < -308) return copysign(0, f);
    if (digits >= 0) {
        snprintf(t, sizeof t, "%.*f", (int)digits, f); // glibc rounds exactly, halves to even
        return strtod(t, NULL);
    }
    double p = pow(10, (double)-digits);
    return nearbyint(f / p) * p;
}

FILTER(f_round)
{
    UNUSED;
    value v = a[0];
    int64_t digits = v_given(a[1]) ? j_need_int(r, a[1]) : 0;
    str *how = v_given(a[2]) ? j_to_str(r, a[2]) : j_str_lit(r, "common");
    bool common = j_str_is(how, "common"), up = j_str_is(how, "ceil");
    if (!common && !up && !j_str_is(how, "floor")) RAISE(r, "method must be common, ceil or floor");
    if (common && !j_is_number(v))
        RAISE(r, "type %s doesn't define __round__ method", j_type_name(v));
    if (common) {
        if (v.type == V_FLOAT) return v_float(round_float(v.u.f, digits));
        int64_t i = j_need_int(r, v);
        if (digits >= 0) return v_int(i);
        if (digits < -18) return v_int(0);
        int64_t p = 1;
        for (int64_t k = 0; k > digits; k--)
            p *= 10;
        int64_t low = i - ((i % p) + p) % p, rest = i - low;
        bool to_high = 2 * rest > p || (2 * rest == p && (low / p) % 2 != 0);
        return v_int(to_high ? low + p : low);
    }
    // As written in Python, with what that raises on the way: ceil(value * 10 ** p) / 10 ** p.
    value scale = j_binary(r, OP_POW, v_int(10), v_int(digits)), x = j_binary(r, OP_MUL, v, scale);
    if (!j_is_number(x)) RAISE(r, "must be real number, not %s", j_type_name(x));
    double f = j_as_double(x);
    if (isnan(f)) RAISE(r, "cannot convert float NaN to integer");
    if (isinf(f)) RAISE(r, "cannot convert float infinity to integer");
    return j_binary(r, OP_DIV, float_to_int(r, up ? ceil(f) : floor(f)), scale);
}

FILTER(f_filesizeformat)
{
    UNUSED;
    static const char *const decimal[] = { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" };
    static const char *const binary_units[] = { "KiB", "MiB", "GiB", "TiB",
                                                "PiB", "EiB", "ZiB", "YiB" };
    double f;
    if (a[0].type == V_UNDEFINED) j_fail_undefined(r, a[0]);
    if (j_is_number(a[0]))
        f = j_as_double(a[0]);
    else if (a[0].type != V_STR || !j_parse_float(r, a[0].u.s, &f))
        RAISE(r,
              a[0].type == V_STR ? "could not convert string to float: %s"
                                 : "float() argument must be a string or a real number, not '%s'",
              a[0].type == V_STR ? j_repr(r, a[0])->s : j_type_name(a[0]));
    bool two = v_given(a[1]) && j_truth(r, a[1]);
    double base = two ? 1024 : 1000, unit = base;
    char out[80];
    if (f == 1) return j_v_text(r, "1 Byte");
    if (f < base) {
        snprintf(out, sizeof out, "%lld Bytes", (long long)float_to_int(r, f).u.i);
        return v_str(j_str_new(r, out, strlen(out)));
    }
    int i = 0;
    for (; i < 8; i++) {
        unit *= base;
        if (f < unit || i == 7) break;
    }
    snprintf(out, sizeof out, "%.1f %s", base * f / unit, two ? binary_units[i] : decimal[i]);
    return v_str(j_str_new(r, out, strlen(out)));
}

/* ---- any value ----------------------------------------------------------------------------- */

FILTER(f_default)
{
    UNUSED;
    bool absent =
        a[0].type == V_UNDEFINED || (v_given(a[2]) && j_truth(r, a[2]) && !j_truth(r, a[0]));
    if (!absent) return a[0];
    return v_given(a[1]) ? a[1] : j_v_text(r, "");
}

FILTER(f_length)
{
    UNUSED;
    return v_int(j_length(r, a[0]));
}

FILTER(f_attr)
{
    UNUSED;
    if (a[1].type != V_STR) RAISE(r, "attribute name must be string, not '%s'", j_type_name(a[1]));
    if (a[0].type == V_UNDEFINED) j_fail_undefined(r, a[0]);
    if (a[0].type == V_DICT && !j_find_method(a[0], a[1].u.s) &&
        !j_is_unsafe_attribute(a[0], a[1].u.s))
        return j_v_undefined_item(r, a[0], a[1]);
    return j_get_attr(r, a[0], a[1].u.s);
}

FILTER(f_tojson)
{
    UNUSED;
    bool ascii = v_given(a[1]) && j_truth(r, a[1]), sort = v_given(a[4]) && j_truth(r, a[4]);
    int indent = -1;
    const str *indent_text = NULL, *item_sep = NULL, *key_sep = NULL;
    if (v_given(a[2]) && a[2].type == V_STR)
        indent_text = a[2].u.s;
    else if (v_given(a[2]) && a[2].type != V_NONE) {
        int64_t n = j_need_int(r, a[2]);
        if (n > 1000000)
            jinja_fail(r, INFER_LIMIT, "an indent of more than 1000000 is not supported");
        indent = n < 0 ? 0 : (int)n;
    }
    if (v_given(a[3]) && a[3].type != V_NONE) {
        list *l = j_to_list(r, a[3]);
        if (l->n != 2 || l->v[0].type != V_STR || l->v[1].type != V_STR)
            RAISE(r, "separators: expected two strings");
        item_sep = l->v[0].u.s;
        key_sep = l->v[1].u.s;
    }
    return j_tojson(r, a[0], indent, indent_text, ascii, item_sep, key_sep, sort);
}

static value sorted_copy(jrun *r, value v)
{
    jinja_enter(r);
    if (v.type == V_LIST || v.type == V_TUPLE) {
        list *l = j_list_new(r, v.u.l->n);
        for (size_t i = 0; i < v.u.l->n; i++)
            j_list_add(r, l, sorted_copy(r, v.u.l->v[i]));
        v = v.type == V_LIST ? v_list(l) : v_tuple(l);
    } else if (v.type == V_DICT) {
        value arg[4] = { v, v_bool(true) };
        value pairs = j_find_filter(j_str_lit(r, "dictsort"))->fn(r, arg, NULL);
        dict *d = j_dict_new(r);
        for (size_t i = 0; i < pairs.u.l->n; i++)
            j_dict_set(r, d, pairs.u.l->v[i].u.l->v[0], sorted_copy(r, pairs.u.l->v[i].u.l->v[1]));
        v = v_dict(d);
    }
    jinja_leave(r);
    return v;
}

FILTER(f_pprint)
{
    UNUSED;
    str *s = j_repr(r, sorted_copy(r, a[0]));
    if (jinja_len(r, s) > 80)
        jinja_fail(r, INFER_UNSUPPORTED, "pprint of more than one line is not supported");
    return v_str(s);
}

FILTER(f_refused)
{
    UNUSED;
    jinja_fail(r, INFER_UNSUPPORTED, "the filters random and urlize are not supported");
}

const builtin j_text_filters[] = {
    { "abs", f_abs, "/value" },
    { "attr", f_attr, "obj name" },
    { "capitalize", f_capitalize, "s" },
    { "center", f_center, "value ?width" },
    { "count", f_length, "/obj" },
    { "d", f_default, "value ?default_value ?boolean" },
    { "default", f_default, "value ?default_value ?boolean" },
    { "e", f_escape, "/s" },
    { "escape", f_escape, "/s" },
    { "filesizeformat", f_filesizeformat, "value ?binary" },
    { "float", f_float, "value ?default" },
    { "forceescape", f_forceescape, "value" },
    { "format", f_format, "*" },
    { "indent", f_indent, "s ?width ?first ?blank" },
    { "int", f_int, "value ?default ?base" },
    { "length", f_length, "/obj" },
    { "lower", f_lower, "s" },
    { "pprint", f_pprint, "value" },
    { "random", f_refused, "*" },
    { "replace", f_replace, "s old new ?count" },
    { "round", f_round, "value ?precision ?method" },
    { "safe", f_safe, "value" },
    { "string", f_string, "s" },
    { "striptags", f_striptags, "value" },
    { "title", f_title, "s" },
    { "tojson", f_tojson, "x ?ensure_ascii ?indent ?separators ?sort_keys" },
    { "trim", f_trim, "value ?chars" },
    { "truncate", f_truncate, "s ?length ?killwords ?end ?leeway" },
    { "upper", f_upper, "s" },
    { "urlencode", f_urlencode, "value" },
    { "urlize", f_refused, "*" },
    { "wordcount", f_wordcount, "s" },
    { "wordwrap", f_wordwrap, "s ?width ?break_long_words ?wrapstring ?break_on_hyphens" },
    { "xmlattr", f_xmlattr, "d ?autospace" },
    { NULL, NULL, NULL },
};

const builtin *j_find_filter(const str *name)
{
    const builtin *const tables[] = { j_text_filters, j_sequence_filters };
    for (int i = 0; i < 2; i++)
        for (const builtin *f = tables[i]; f->name; f++)
            if (j_str_is(name, f->name)) return f;
    return NULL;
}
