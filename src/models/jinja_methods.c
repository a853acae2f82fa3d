/*
 * jinja_methods.c: the methods of strings, dicts, lists and a few others, as Python has them and
 * the sandbox lets them through. Text keeps its provenance: a part of a string is a view of it, and
 * what a method maps character by character stays what it was.
 */
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "models/jinja_impl.h"

/* ---- searching ----------------------------------------------------------------------------- */

int64_t j_str_find(const str *s, const str *sub, size_t from, size_t to)
{
    if (to < from || to - from < sub->n) return -1;
    if (!sub->n) return (int64_t)from;
    const char *p = memmem(s->s + from, to - from, sub->s, sub->n);
    return p ? p - s->s : -1;
}

static int64_t str_rfind(const str *s, const str *sub, size_t from, size_t to)
{
    if (to < from || to - from < sub->n) return -1;
    for (size_t i = to - sub->n + 1; i-- > from;)
        if (!memcmp(s->s + i, sub->s, sub->n)) return (int64_t)i;
    return -1;
}

static int64_t char_index(const str *s, size_t byte)
{
    int64_t n = 0;
    for (size_t i = 0; i < byte; i++)
        n += ((unsigned char)s->s[i] & 0xc0) != 0x80;
    return n;
}

static str *need_str(jrun *r, value v, const char *what)
{
    if (v.type != V_STR)
        RAISE(r, "%s%smust be str, not %s", what ? what : "", what ? " " : "", j_type_name(v));
    return v.u.s;
}

static int64_t int_or(jrun *r, value v, int64_t absent)
{
    return !v_given(v) || v.type == V_NONE ? absent : j_need_int(r, v);
}

/* The byte range that the arguments start and end (in characters, maybe negative) mean; false where
 * the start lies behind the string's end. */
static bool byte_range(jrun *r, str *s, value start, value end, size_t *from, size_t *to)
{
    int64_t n = jinja_len(r, s), a = int_or(r, start, 0), b = int_or(r, end, n);
    if (a < 0 && (a += n) < 0) a = 0;
    if (b < 0 && (b += n) < 0) b = 0;
    *from = j_char_offset(r, s, a);
    *to = j_char_offset(r, s, b);
    return a <= n && *from <= *to;
}

static value find_in(jrun *r, value *a, bool last, bool must)
{
    str *s = a[0].u.s, *sub = need_str(r, a[1], NULL);
    size_t from, to;
    int64_t at = -1;
    jinja_step(r, s->n / (last ? 8 : 64) + 1);
    if (byte_range(r, s, a[2], a[3], &from, &to))
        at = last ? str_rfind(s, sub, from, to) : j_str_find(s, sub, from, to);
    if (at < 0 && must) RAISE(r, "substring not found");
    return v_int(at < 0 ? -1 : char_index(s, (size_t)at));
}

static value m_find(jrun *r, value *a, const args *c)
{
    (void)c;
    return find_in(r, a, false, false);
}
static value m_rfind(jrun *r, value *a, const args *c)
{
    (void)c;
    return find_in(r, a, true, false);
}
static value m_index(jrun *r, value *a, const args *c)
{
    (void)c;
    return find_in(r, a, false, true);
}
static value m_rindex(jrun *r, value *a, const args *c)
{
    (void)c;
    return find_in(r, a, true, true);
}

static value m_count(jrun *r, value *a, const args *c)
{
    (void)c;
    str *s = a[0].u.s, *sub = need_str(r, a[1], NULL);
    size_t from, to;
    if (!byte_range(r, s, a[2], a[3], &from, &to)) return v_int(0);
    if (!sub->n) return v_int(char_index(s, to) - char_index(s, from) + 1);
    int64_t n = 0, at;
    jinja_step(r, s->n / 64);
    for (; (at = j_str_find(s, sub, from, to)) >= 0; n++)
        from = (size_t)at + sub->n;
    return v_int(n);
}

static value affix(jrun *r, value *a, bool end)
{
    str *s = a[0].u.s;
    size_t from, to;
    bool in = byte_range(r, s, a[2], a[3], &from, &to);
    value one[1] = { a[1] };
    list single = { .v = one, .n = 1 };
    const list *l = a[1].type == V_TUPLE ? a[1].u.l : &single;
    for (size_t i = 0; i < l->n; i++) {
        if (l->v[i].type != V_STR)
            RAISE(r, "%s first arg must be str or a tuple of str, not %s",
                  end ? "endswith" : "startswith", j_type_name(l->v[i]));
        const str *x = l->v[i].u.s;
        if (in && to - from >= x->n && !memcmp(s->s + (end ? to - x->n : from), x->s, x->n))
            return v_bool(true);
    }
    return v_bool(false);
}

static value m_startswith(jrun *r, value *a, const args *c)
{
    (void)c;
    return affix(r, a, false);
}
static value m_endswith(jrun *r, value *a, const args *c)
{
    (void)c;
    return affix(r, a, true);
}

static value m_removeprefix(jrun *r, value *a, const args *c)
{
    (void)c;
    str *s = a[0].u.s, *x = need_str(r, a[1], "removeprefix() argument");
    bool has = s->n >= x->n && !memcmp(s->s, x->s, x->n);
    return v_str(j_str_part(r, s, has ? x->n : 0, s->n));
}

static value m_removesuffix(jrun *r, value *a, const args *c)
{
    (void)c;
    str *s = a[0].u.s, *x = need_str(r, a[1], "removesuffix() argument");
    bool has = s->n >= x->n && !memcmp(s->s + s->n - x->n, x->s, x->n);
    return v_str(j_str_part(r, s, 0, has ? s->n - x->n : s->n));
}

/* ---- stripping and splitting --------------------------------------------------------------- */

static bool in_set(const str *set, const char *c, size_t k)
{
    for (size_t i = 0, n; i < set->n; i += n) {
        uint32_t cp;
        n = j_next_char(set->s + i, set->n - i, &cp);
        if (n == k && !memcmp(set->s + i, c, k)) return true;
    }
    return false;
}

static size_t char_before(const str *s, size_t at)
{
    at--;
    while (at && ((unsigned char)s->s[at] & 0xc0) == 0x80)
        at--;
    return at;
}

static bool strips(const str *s, size_t at, size_t k, const str *set)
{
    uint32_t c;
    j_next_char(s->s + at, k, &c);
    return set ? in_set(set, s->s + at, k) : j_is_space(c);
}

value j_str_strip(jrun *r, str *s, value chars, bool left, bool right)
{
    const str *set = NULL;
    if (v_given(chars) && chars.type != V_NONE) {
        if (chars.type != V_STR) RAISE(r, "strip arg must be None or str");
        set = chars.u.s;
    }
    size_t from = 0, to = s->n;
    while (left && from < to) {
        uint32_t c;
        size_t k = j_next_char(s->s + from, to - from, &c);
        if (!strips(s, from, k, set)) break;
        from += k;
    }
    while (right && to > from) {
        size_t at = char_before(s, to);
        if (!strips(s, at, to - at, set)) break;
        to = at;
    }
    jinja_step(r, (s->n - (to - from)) * (set ? set->n + 1 : 1) / 4);
    return v_str(from == 0 && to == s->n ? s : j_str_part(r, s, from, to));
}

static value m_strip(jrun *r, value *a, const args *c)
{
    (void)c;
    return j_str_strip(r, a[0].u.s, a[1], true, true);
}
static value m_lstrip(jrun *r, value *a, const args *c)
{
    (void)c;
    return j_str_strip(r, a[0].u.s, a[1], true, false);
}
static value m_rstrip(jrun *r, value *a, const args *c)
{
    (void)c;
    return j_str_strip(r, a[0].u.s, a[1], false, true);
}

static size_t space_len(const str *s, size_t at)
{
    uint32_t c;
    size_t k = j_next_char(s->s + at, s->n - at, &c);
    return j_is_space(c) ? k : 0;
}

static void split_space(jrun *r, list *out, str *s, int64_t max)
{
    size_t i = 0, k;
    while (true) {
        while (i < s->n && (k = space_len(s, i)))
            i += k;
        if (i >= s->n) return;
        size_t from = i;
        if (max-- == 0) {
            j_list_add(r, out, v_str(j_str_part(r, s, from, s->n))); // with its trailing space
            return;
        }
        // By characters: the last byte of U+4F60 alone would read as a no-break space.
        for (uint32_t c; i < s->n && !space_len(s, i);)
            i += j_next_char(s->s + i, s->n - i, &c);
        jinja_step(r, 1);
        j_list_add(r, out, v_str(j_str_part(r, s, from, i)));
    }
}

static void reverse(list *l)
{
    for (size_t i = 0; i + i + 1 < l->n; i++) {
        value t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}

static void rsplit_space(jrun *r, list *out, str *s, int64_t max)
{
    size_t to = s->n;
    while (true) {
        while (to && space_len(s, char_before(s, to)))
            to = char_before(s, to);
        if (!to) break;
        if (max-- == 0) {
            j_list_add(r, out, v_str(j_str_part(r, s, 0, to))); // with its leading space
            break;
        }
        size_t from = to;
        while (from && !space_len(s, char_before(s, from)))
            from = char_before(s, from);
        jinja_step(r, 1);
        j_list_add(r, out, v_str(j_str_part(r, s, from, to)));
        to = from;
    }
    reverse(out);
}

static value split(jrun *r, value *a, bool right)
{
    str *s = a[0].u.s;
    int64_t max = int_or(r, a[2], -1);
    list *out = j_list_new(r, 0);
    jinja_step(r, s->n / 64);
    if (!v_given(a[1]) || a[1].type == V_NONE) {
        if (right)
            rsplit_space(r, out, s, max);
        else
            split_space(r, out, s, max);
        return v_list(out);
    }
    if (a[1].type != V_STR) RAISE(r, "must be str or None, not %s", j_type_name(a[1]));
    str *sep = a[1].u.s;
    if (!sep->n) RAISE(r, "empty separator");
    size_t from = 0, to = s->n;
    int64_t at;
    for (; max != 0; max--) {
        at = right ? str_rfind(s, sep, 0, to) : j_str_find(s, sep, from, s->n);
        if (at < 0) break;
        jinja_step(r, 1);
        if (right) {
            j_list_add(r, out, v_str(j_str_part(r, s, (size_t)at + sep->n, to)));
            to = (size_t)at;
        } else {
            j_list_add(r, out, v_str(j_str_part(r, s, from, (size_t)at)));
            from = (size_t)at + sep->n;
        }
    }
    j_list_add(r, out, v_str(j_str_part(r, s, right ? 0 : from, right ? to : s->n)));
    if (right) reverse(out);
    return v_list(out);
}

static value m_split(jrun *r, value *a, const args *c)
{
    (void)c;
    return split(r, a, false);
}
static value m_rsplit(jrun *r, value *a, const args *c)
{
    (void)c;
    return split(r, a, true);
}

static bool is_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

value j_str_split_lines(jrun *r, str *s, bool keep)
{
    list *out = j_list_new(r, 0);
    size_t from = 0;
    jinja_step(r, s->n / 64);
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c;
        k = j_next_char(s->s + i, s->n - i, &c);
        if (!is_line_end(c)) continue;
        if (c == '\r' && i + 1 < s->n && s->s[i + 1] == '\n') k = 2;
        jinja_step(r, 1);
        j_list_add(r, out, v_str(j_str_part(r, s, from, keep ? i + k : i)));
        from = i + k;
    }
    if (from < s->n) j_list_add(r, out, v_str(j_str_part(r, s, from, s->n)));
    return v_list(out);
}

static value m_splitlines(jrun *r, value *a, const args *c)
{
    (void)c;
    return j_str_split_lines(r, a[0].u.s, v_given(a[1]) && j_truth(r, a[1]));
}

static value partition(jrun *r, value *a, bool last)
{
    str *s = a[0].u.s, *sep = need_str(r, a[1], "separator");
    if (!sep->n) RAISE(r, "empty separator");
    jinja_step(r, s->n / 64);
    int64_t at = last ? str_rfind(s, sep, 0, s->n) : j_str_find(s, sep, 0, s->n);
    list *l = j_list_new(r, 3);
    size_t i = at < 0 ? (last ? 0 : s->n) : (size_t)at, end = at < 0 ? i : i + sep->n;
    j_list_add(r, l, v_str(j_str_part(r, s, 0, i)));
    j_list_add(r, l, v_str(j_str_part(r, s, i, end)));
    j_list_add(r, l, v_str(j_str_part(r, s, end, s->n)));
    return v_tuple(l);
}

static value m_partition(jrun *r, value *a, const args *c)
{
    (void)c;
    return partition(r, a, false);
}
static value m_rpartition(jrun *r, value *a, const args *c)
{
    (void)c;
    return partition(r, a, true);
}

/* ---- joining, replacing, filling ----------------------------------------------------------- */

value j_str_join(jrun *r, str *sep, value items)
{
    builder b;
    j_sb_init(&b, r);
    cursor c = j_iterate(r, items);
    value v;
    for (int64_t i = 0; j_cursor_next(r, &c, &v); i++) {
        if (v.type != V_STR)
            RAISE(r, "sequence item %lld: expected str instance, %s found", (long long)i,
                  j_type_name(v));
        if (i) j_sb_str(&b, sep);
        j_sb_str(&b, sep->markup ? j_escape_html(r, v) : v.u.s);
    }
    str *s = j_sb_done(&b);
    s->markup = sep->markup;
    return v_str(s);
}

static value m_join(jrun *r, value *a, const args *c)
{
    (void)c;
    if (!j_is_iterable(a[1])) RAISE(r, "can only join an iterable");
    return j_str_join(r, a[0].u.s, a[1]);
}

str *j_str_replace(jrun *r, str *s, str *old, str *new_text, int64_t count)
{
    builder b;
    j_sb_init(&b, r);
    size_t from = 0;
    jinja_step(r, s->n / 64);
    for (; count != 0; count--) {
        int64_t at = j_str_find(s, old, from, s->n);
        if (at < 0) break;
        jinja_step(r, 1);
        if (old->n) {
            j_sb_part(&b, s, from, (size_t)at);
            j_sb_str(&b, new_text);
            from = (size_t)at + old->n;
            continue;
        }
        // An empty pattern matches before each character and at the end.
        j_sb_str(&b, new_text);
        if (from >= s->n) break;
        uint32_t c;
        size_t k = j_next_char(s->s + from, s->n - from, &c);
        j_sb_part(&b, s, from, from + k);
        from += k;
    }
    j_sb_part(&b, s, from, s->n);
    str *out = j_sb_done(&b);
    out->markup = s->markup;
    return out;
}

static value m_replace(jrun *r, value *a, const args *c)
{
    (void)c;
    str *old = need_str(r, a[1], "replace() argument 1");
    str *new_text = need_str(r, a[2], "replace() argument 2");
    if (a[0].u.s->markup) new_text = j_escape_html(r, a[2]);
    return v_str(j_str_replace(r, a[0].u.s, old, new_text, int_or(r, a[3], -1)));
}

static void fill(jrun *r, builder *b, const str *with, int64_t n)
{
    if (n > (int64_t)r->max_text)
        jinja_fail(r, INFER_LIMIT, "the template makes text of more than %zu bytes", r->max_text);
    for (int64_t i = 0; i < n; i++)
        j_sb_str(b, with);
    if (n > 0) jinja_step(r, (uint64_t)n / 16);
}

static value justify(jrun *r, value *a, int how)
{
    str *s = a[0].u.s,
        *with = v_given(a[2]) ? need_str(r, a[2], "The fill character") : j_str_lit(r, " ");
    if (jinja_len(r, with) != 1) RAISE(r, "The fill character must be exactly one character long");
    int64_t width = j_need_int(r, a[1]), pad = width - jinja_len(r, s);
    if (pad <= 0) return v_str(s);
    int64_t left = how < 0 ? 0 : how > 0 ? pad : pad / 2 + (pad & width & 1);
    builder b;
    j_sb_init(&b, r);
    fill(r, &b, with, left);
    j_sb_str(&b, s);
    fill(r, &b, with, pad - left);
    str *out = j_sb_done(&b);
    out->markup = s->markup;
    return v_str(out);
}

static value m_ljust(jrun *r, value *a, const args *c)
{
    (void)c;
    return justify(r, a, -1);
}
static value m_rjust(jrun *r, value *a, const args *c)
{
    (void)c;
    return justify(r, a, 1);
}
static value m_center(jrun *r, value *a, const args *c)
{
    (void)c;
    return justify(r, a, 0);
}

static value m_zfill(jrun *r, value *a, const args *c)
{
    (void)c;
    str *s = a[0].u.s;
    int64_t pad = j_need_int(r, a[1]) - jinja_len(r, s);
    if (pad <= 0) return v_str(s);
    bool sign = s->n && (s->s[0] == '+' || s->s[0] == '-');
    builder b;
    j_sb_init(&b, r);
    j_sb_part(&b, s, 0, sign);
    fill(r, &b, j_str_lit(r, "0"), pad);
    j_sb_part(&b, s, sign, s->n);
    return v_str(j_sb_done(&b));
}

static value m_expandtabs(jrun *r, value *a, const args *c)
{
    (void)c;
    str *s = a[0].u.s, *space = j_str_lit(r, " ");
    int64_t size = int_or(r, a[1], 8), column = 0;
    builder b;
    j_sb_init(&b, r);
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t cp;
        k = j_next_char(s->s + i, s->n - i, &cp);
        jinja_step(r, 1);
        if (cp == '\t') {
            if (size <= 0) continue;
            int64_t n = size - column % size;
            fill(r, &b, space, n);
            column += n;
            continue;
        }
        j_sb_part(&b, s, i, i + k);
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
    }
    return v_str(j_sb_done(&b));
}

/* ---- the other methods of str -------------------------------------------------------------- */

static value cased(jrun *r, value v, char how)
{
    str *s = j_str_case(r, v.u.s, how);
    s->markup = v.u.s->markup;
    return v_str(s);
}

static value m_upper(jrun *r, value *a, const args *c)
{
    (void)c;
    return cased(r, a[0], 'u');
}
static value m_lower(jrun *r, value *a, const args *c)
{
    (void)c;
    return cased(r, a[0], 'l');
}
static value m_title(jrun *r, value *a, const args *c)
{
    (void)c;
    return cased(r, a[0], 't');
}
static value m_capitalize(jrun *r, value *a, const args *c)
{
    (void)c;
    return cased(r, a[0], 'c');
}
static value m_swapcase(jrun *r, value *a, const args *c)
{
    (void)c;
    return cased(r, a[0], 's');
}
static value m_casefold(jrun *r, value *a, const args *c)
{
    (void)c;
    return cased(r, a[0], 'f');
}

bool j_is_kind(uint32_t c, char kind)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    bool alpha = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
    bool decimal = k == UTF8PROC_CATEGORY_ND;
    // Digits that are no decimals: superscripts, subscripts and circled ones.
    bool digit = decimal || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
                 (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
                 (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247c) ||
                 (c >= 0x2488 && c <= 0x2490) || c == 0x24ea || (c >= 0x2776 && c <= 0x277e);
    bool numeric = decimal || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
    switch (kind) {
    case 'a': return alpha;
    case 'd': return digit;
    case 'D': return decimal;
    case 'n': return numeric;
    case 's': return j_is_space(c);
    case 'p': return c == ' ' || !(k == UTF8PROC_CATEGORY_CN || k >= UTF8PROC_CATEGORY_ZS);
    default: return alpha || numeric;
    }
}

static value all_kind(jrun *r, const str *s, char kind)
{
    jinja_step(r, s->n / 8);
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c;
        k = j_next_char(s->s + i, s->n - i, &c);
        if (!j_is_kind(c, kind)) return v_bool(false);
    }
    return v_bool(s->n > 0 || kind == 'p');
}

static value m_isalpha(jrun *r, value *a, const args *c)
{
    (void)c;
    return all_kind(r, a[0].u.s, 'a');
}
static value m_isdigit(jrun *r, value *a, const args *c)
{
    (void)c;
    return all_kind(r, a[0].u.s, 'd');
}
static value m_isdecimal(jrun *r, value *a, const args *c)
{
    (void)c;
    return all_kind(r, a[0].u.s, 'D');
}
static value m_isnumeric(jrun *r, value *a, const args *c)
{
    (void)c;
    return all_kind(r, a[0].u.s, 'n');
}
static value m_isalnum(jrun *r, value *a, const args *c)
{
    (void)c;
    return all_kind(r, a[0].u.s, 'x');
}
static value m_isspace(jrun *r, value *a, const args *c)
{
    (void)c;
    return all_kind(r, a[0].u.s, 's');
}
static value m_isprintable(jrun *r, value *a, const args *c)
{
    (void)c;
    return all_kind(r, a[0].u.s, 'p');
}
static value m_isupper(jrun *r, value *a, const args *c)
{
    (void)r;
    (void)c;
    return v_bool(j_is_upper_lower(r, a[0].u.s, true));
}
static value m_islower(jrun *r, value *a, const args *c)
{
    (void)r;
    (void)c;
    return v_bool(j_is_upper_lower(r, a[0].u.s, false));
}

static value m_isascii(jrun *r, value *a, const args *c)
{
    (void)c;
    const str *s = a[0].u.s;
    jinja_step(r, s->n / 64);
    for (size_t i = 0; i < s->n; i++)
        if ((unsigned char)s->s[i] >= 128) return v_bool(false);
    return v_bool(true);
}

static value m_istitle(jrun *r, value *a, const args *c)
{
    (void)c;
    const str *s = a[0].u.s;
    bool any = false, after_cased = false;
    jinja_step(r, s->n / 64);
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t cp;
        k = j_next_char(s->s + i, s->n - i, &cp);
        utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)cp);
        bool upper = cat == UTF8PROC_CATEGORY_LU || cat == UTF8PROC_CATEGORY_LT;
        bool lower = cat == UTF8PROC_CATEGORY_LL;
        if ((upper && after_cased) || (lower && !after_cased)) return v_bool(false);
        any |= upper || lower;
        after_cased = upper || lower;
    }
    return v_bool(any);
}

static value m_isidentifier(jrun *r, value *a, const args *c)
{
    (void)r;
    (void)c;
    const str *s = a[0].u.s;
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t cp;
        k = j_next_char(s->s + i, s->n - i, &cp);
        if (!(cp == '_' || j_is_kind(cp, 'a') || (i && j_is_kind(cp, 'D')))) return v_bool(false);
    }
    return v_bool(s->n > 0);
}

static value m_format(jrun *r, value *a, const args *c)
{
    args rest = { .v = c->v + 1, .n = c->n - 1, .kw = c->kw, .n_kw = c->n_kw };
    return j_format_braces(r, a[0].u.s, &rest);
}

static const builtin str_methods[] = {
    { "capitalize", m_capitalize, "/s" },
    { "casefold", m_casefold, "/s" },
    { "center", m_center, "/s width ?fillchar" },
    { "count", m_count, "/s sub ?start ?end" },
    { "endswith", m_endswith, "/s suffix ?start ?end" },
    { "expandtabs", m_expandtabs, "s ?tabsize" },
    { "find", m_find, "/s sub ?start ?end" },
    { "format", m_format, "*" },
    { "index", m_index, "/s sub ?start ?end" },
    { "isalnum", m_isalnum, "/s" },
    { "isalpha", m_isalpha, "/s" },
    { "isascii", m_isascii, "/s" },
    { "isdecimal", m_isdecimal, "/s" },
    { "isdigit", m_isdigit, "/s" },
    { "isidentifier", m_isidentifier, "/s" },
    { "islower", m_islower, "/s" },
    { "isnumeric", m_isnumeric, "/s" },
    { "isprintable", m_isprintable, "/s" },
    { "isspace", m_isspace, "/s" },
    { "istitle", m_istitle, "/s" },
    { "isupper", m_isupper, "/s" },
    { "join", m_join, "/s iterable" },
    { "ljust", m_ljust, "/s width ?fillchar" },
    { "lower", m_lower, "/s" },
    { "lstrip", m_lstrip, "/s ?chars" },
    { "partition", m_partition, "/s sep" },
    { "removeprefix", m_removeprefix, "/s prefix" },
    { "removesuffix", m_removesuffix, "/s suffix" },
    { "replace", m_replace, "/s old new ?count" },
    { "rfind", m_rfind, "/s sub ?start ?end" },
    { "rindex", m_rindex, "/s sub ?start ?end" },
    { "rjust", m_rjust, "/s width ?fillchar" },
    { "rpartition", m_rpartition, "/s sep" },
    { "rsplit", m_rsplit, "s ?sep ?maxsplit" },
    { "rstrip", m_rstrip, "/s ?chars" },
    { "split", m_split, "s ?sep ?maxsplit" },
    { "splitlines", m_splitlines, "s ?keepends" },
    { "startswith", m_startswith, "/s prefix ?start ?end" },
    { "strip", m_strip, "/s ?chars" },
    { "swapcase", m_swapcase, "/s" },
    { "title", m_title, "/s" },
    { "upper", m_upper, "/s" },
    { "zfill", m_zfill, "/s width" },
    { NULL, NULL, NULL },
};

/* ---- dict, list and others ----------------------------------------------------------------- */

static value dict_view(jrun *r, dict *d, int kind)
{
    view *w = jinja_alloc(r, 1, sizeof *w);
    *w = (view){ d, kind };
    return (value){ .type = V_VIEW, .u.w = w };
}

static value m_keys(jrun *r, value *a, const args *c)
{
    (void)c;
    return dict_view(r, a[0].u.d, VIEW_KEYS);
}
static value m_values(jrun *r, value *a, const args *c)
{
    (void)c;
    return dict_view(r, a[0].u.d, VIEW_VALUES);
}
static value m_items(jrun *r, value *a, const args *c)
{
    (void)c;
    return dict_view(r, a[0].u.d, VIEW_ITEMS);
}

static value m_get(jrun *r, value *a, const args *c)
{
    (void)c;
    value *v = j_dict_find(r, a[0].u.d, a[1]);
    return v ? *v : v_given(a[2]) ? a[2] : v_none();
}

static value m_dict_copy(jrun *r, value *a, const args *c)
{
    (void)c;
    dict *d = j_dict_new(r);
    for (size_t i = 0; i < a[0].u.d->n; i++) {
        jinja_step(r, 1);
        j_dict_set(r, d, a[0].u.d->e[i].key, a[0].u.d->e[i].val);
    }
    return v_dict(d);
}

static value m_fromkeys(jrun *r, value *a, const args *c)
{
    (void)c;
    dict *d = j_dict_new(r);
    cursor it = j_iterate(r, a[1]);
    for (value key; j_cursor_next(r, &it, &key);)
        j_dict_set(r, d, key, v_given(a[2]) ? a[2] : v_none());
    return v_dict(d);
}

static const builtin dict_methods[] = {
    { "copy", m_dict_copy, "/d" },
    { "fromkeys", m_fromkeys, "/d iterable ?value" },
    { "get", m_get, "/d key ?default" },
    { "items", m_items, "/d" },
    { "keys", m_keys, "/d" },
    { "values", m_values, "/d" },
    { NULL, NULL, NULL },
};

static value m_list_copy(jrun *r, value *a, const args *c)
{
    (void)c;
    return v_list(j_to_list(r, a[0]));
}

static value m_list_count(jrun *r, value *a, const args *c)
{
    (void)c;
    int64_t n = 0;
    cursor it = j_iterate(r, a[0]);
    for (value v; j_cursor_next(r, &it, &v);)
        n += j_equal(r, v, a[1]);
    return v_int(n);
}

static value m_list_index(jrun *r, value *a, const args *c)
{
    (void)c;
    int64_t n = j_length(r, a[0]), from = int_or(r, a[2], 0), to = int_or(r, a[3], n), i = 0;
    if (from < 0 && (from += n) < 0) from = 0;
    if (to < 0) to += n;
    cursor it = j_iterate(r, a[0]);
    for (value v; j_cursor_next(r, &it, &v) && i < to; i++)
        if (i >= from && j_equal(r, v, a[1])) return v_int(i);
    if (a[0].type == V_TUPLE) RAISE(r, "tuple.index(x): x not in tuple");
    if (a[0].type == V_RANGE && a[1].type != V_INT)
        RAISE(r, "sequence.index(x): x not in sequence");
    RAISE(r, "%s is not in %s", j_repr(r, a[1])->s, j_type_name(a[0]));
}

static const builtin list_methods[] = {
    { "copy", m_list_copy, "/l" },
    { "count", m_list_count, "/l value" },
    { "index", m_list_index, "/l value ?start ?stop" },
    { NULL, NULL, NULL },
};

static value m_next(jrun *r, value *a, const args *c)
{
    (void)r;
    (void)c;
    cycler *y = a[0].u.cyc;
    value v = y->items->v[y->pos];
    y->pos = (y->pos + 1) % y->items->n;
    return v;
}

static value m_reset(jrun *r, value *a, const args *c)
{
    (void)r;
    (void)c;
    a[0].u.cyc->pos = 0;
    return v_none();
}

static value m_cycle(jrun *r, value *a, const args *c) { return j_loop_cycle(r, a[0].u.loop, c); }
static value m_changed(jrun *r, value *a, const args *c)
{
    return v_bool(j_loop_changed(r, a[0].u.loop, c));
}

static value m_is_integer(jrun *r, value *a, const args *c)
{
    (void)r;
    (void)c;
    double f = a[0].u.f;
    return v_bool(f - f == 0 && f == (double)(long double)__builtin_floor(f));
}

static value m_bit_length(jrun *r, value *a, const args *c)
{
    (void)c;
    int64_t i = j_need_int(r, a[0]), n = 0;
    for (uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i; u; u >>= 1)
        n++;
    return v_int(n);
}

static const builtin cycler_methods[] = { { "next", m_next, "/c" },
                                          { "reset", m_reset, "/c" },
                                          { NULL, NULL, NULL } };
static const builtin loop_methods[] = { { "cycle", m_cycle, "*" },
                                        { "changed", m_changed, "*" },
                                        { NULL, NULL, NULL } };
static const builtin float_methods[] = { { "is_integer", m_is_integer, "/f" },
                                         { NULL, NULL, NULL } };
static const builtin int_methods[] = { { "bit_length", m_bit_length, "/i" }, { NULL, NULL, NULL } };

static const builtin *find_in_table(const builtin *table, const str *name)
{
    for (; table->name; table++)
        if (j_str_is(name, table->name)) return table;
    return NULL;
}

const builtin *j_find_method(value of, const str *name)
{
    switch (of.type) {
    case V_STR: return find_in_table(str_methods, name);
    case V_DICT: return find_in_table(dict_methods, name);
    case V_LIST: return find_in_table(list_methods, name);
    case V_TUPLE:
    case V_RANGE: return j_str_is(name, "copy") ? NULL : find_in_table(list_methods, name);
    case V_CYCLER: return find_in_table(cycler_methods, name);
    case V_LOOP: return find_in_table(loop_methods, name);
    case V_FLOAT: return find_in_table(float_methods, name);
    case V_BOOL:
    case V_INT: return find_in_table(int_methods, name);
    default: return NULL;
    }
}

/* Attributes that Python objects have and the sandbox refuses: what would change a list or dict,
 * and what leads into the interpreter. */
bool j_is_unsafe_attribute(value of, const str *name)
{
    static const char *const of_list[] = { "append", "clear",  "pop",    "reverse", "insert",
                                           "sort",   "extend", "remove", NULL };
    static const char *const of_dict[] = {
        "clear", "pop", "popitem", "setdefault", "update", NULL
    };
    static const char *const of_all[] = { "__class__",
                                          "__doc__",
                                          "__init__",
                                          "__new__",
                                          "__repr__",
                                          "__str__",
                                          "__eq__",
                                          "__ne__",
                                          "__lt__",
                                          "__le__",
                                          "__gt__",
                                          "__ge__",
                                          "__hash__",
                                          "__getattribute__",
                                          "__setattr__",
                                          "__delattr__",
                                          "__dir__",
                                          "__format__",
                                          "__reduce__",
                                          "__reduce_ex__",
                                          "__sizeof__",
                                          "__subclasshook__",
                                          "__init_subclass__",
                                          NULL };
    static const char *const of_containers[] = { "__len__", "__iter__", "__contains__",
                                                 "__getitem__", NULL };
    const char *const *lists[3] = { of_all, NULL, NULL };
    if (of.type == V_LIST) lists[1] = of_list;
    if (of.type == V_DICT) lists[1] = of_dict;
    if (of.type >= V_STR && of.type <= V_RANGE) lists[2] = of_containers;
    if (of.type == V_NAMESPACE) return j_str_is(name, "__class__");
    for (int i = 0; i < 3; i++)
        for (const char *const *p = lists[i]; p && *p; p++)
            if (j_str_is(name, *p)) return true;
    return false;
}
