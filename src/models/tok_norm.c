/*
 * tok_norm.c: normalizers, each a rewriting of the whole segment.
 *
 * A step reads one buffer and writes another. What the pre-tokenizers need to know of it is only
 * whether the first character still comes from the text's first (Metaspace with prepend_scheme
 * "first" asks): a step that drops or replaces what stood there says so.
 */
#include <utf8proc.h>

#include "models/tok.h"

bool cp_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 32 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}

static utf8proc_category_t category(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp); }

static bool cp_is_mark(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

bool cp_is_numeric(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool cp_is_punct(uint32_t cp)
{
    if (cp < 128)
        return (cp > 32 && cp < 48) || (cp > 57 && cp < 65) || (cp > 90 && cp < 97) ||
               (cp > 122 && cp < 127);
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool cp_is_word(uint32_t cp)
{
    utf8proc_category_t c = category(cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO) ||
           (c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME) || c == UTF8PROC_CATEGORY_ND ||
           c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_PC || cp == 0x200C ||
           cp == 0x200D ||                   // join controls
           (cp >= 0x24B6 && cp <= 0x24E9) || // symbols that are alphabetic
           (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
           (cp >= 0x1F170 && cp <= 0x1F189);
}

uint32_t byte_to_cp(unsigned char b)
{
    // Printable bytes stand for themselves, the others follow from U+0100 on, in order.
    if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174) return b;
    if (b <= 32) return 256u + b;
    return b <= 160 ? 256u + 33 + (b - 127u) : 256u + 67;
}

int cp_to_byte(uint32_t cp)
{
    if (cp < 256) return byte_to_cp((unsigned char)cp) == cp ? (int)cp : -1;
    if (cp <= 256 + 32) return (int)(cp - 256);
    if (cp <= 256 + 66) return (int)(cp - 256 - 33 + 127);
    return cp == 256 + 67 ? 173 : -1;
}

// ---- Unicode normalization forms ------------------------------------------------------------

// Sorts a run of combining characters by class, stably, in n log n: utf8proc's own exchange sort is
// quadratic, and a text may be one long run.
typedef struct mark {
    uint16_t ccc;
    int32_t cp;
} mark;
static void sort_marks(mark *v, mark *tmp, size_t n)
{
    for (size_t w = 1; w < n; w *= 2) {
        for (size_t i = 0; i < n; i += 2 * w) {
            size_t m = i + w < n ? i + w : n, e = i + 2 * w < n ? i + 2 * w : n, a = i, b = m;
            for (size_t k = i; k < e; k++)
                tmp[k] = a < m && (b >= e || v[a].ccc <= v[b].ccc) ? v[a++] : v[b++];
        }
        memcpy(v, tmp, n * sizeof *v);
    }
}

static infer_status order_marks(int32_t *cps, size_t n, infer_error *err)
{
    mark *v = NULL;
    size_t cap = 0;
    infer_status st = INFER_OK;
    for (size_t i = 0; i < n && !st;) {
        uint16_t c = (uint16_t)utf8proc_get_property(cps[i])->combining_class;
        if (!c) {
            i++;
            continue;
        }
        size_t k = 0;
        bool sorted = true;
        uint16_t last = c;
        while (i + k < n && (c = (uint16_t)utf8proc_get_property(cps[i + k])->combining_class)) {
            sorted &= c >= last;
            last = c;
            k++;
        }
        if (!sorted) {
            GROW(st, v, cap, 2 * k, err);
            if (st) break;
            for (size_t j = 0; j < k; j++)
                v[j] = (mark){ (uint16_t)utf8proc_get_property(cps[i + j])->combining_class,
                               cps[i + j] };
            sort_marks(v, v + k, k);
            for (size_t j = 0; j < k; j++)
                cps[i + j] = v[j].cp;
        }
        i += k;
    }
    mem_free(v);
    return st;
}

static bool all_ascii(const bytes *b)
{
    for (size_t i = 0; i < b->n; i++)
        if ((unsigned char)b->p[i] >= 0x80) return false;
    return true;
}

static infer_status put_cp(tok_work *w, bytes *out, uint32_t cp)
{
    char c[4];
    return bytes_add(out, c, (size_t)utf8_encode(cp, c), w->err);
}

// Compatibility forms that are younger than the reference's tables (Unicode 12.0), which leave
// these characters as they are. Canonical forms do not change.
static bool compat_is_younger(uint32_t cp)
{
    static const struct {
        uint32_t from, to;
    } young[] = { { 0x32FF, 0x32FF },   { 0xA7F2, 0xA7F4 },   { 0xAB69, 0xAB69 },
                  { 0x10781, 0x107BA }, { 0x1E030, 0x1E06D }, { 0x1F16C, 0x1F16C },
                  { 0x1FBF0, 0x1FBF9 } };
    for (int i = 0; i < COUNT_OF(young); i++)
        if (cp >= young[i].from && cp <= young[i].to) return true;
    return false;
}

static infer_status unicode_form(tok_work *w, const bytes *in, bytes *out, bool compose,
                                 bool compat)
{
    if (all_ascii(in)) return bytes_add(out, in->p, in->n, w->err);
    utf8proc_option_t o = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                          (compat ? UTF8PROC_COMPAT : 0);
    size_t n = 0;
    infer_status st;
    for (size_t i = 0; i < in->n;) {
        uint32_t cp = 0;
        i += (size_t)utf8_decode(in->p + i, in->n - i, &cp);
        GROW(st, w->cps, w->cps_cap, n + 32, w->err); // the longest decomposition is 18
        if (st) return st;
        if (compat && compat_is_younger(cp)) {
            w->cps[n++] = (int32_t)cp;
            continue;
        }
        utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)cp, w->cps + n, 32, o, NULL);
        if (k < 0 || k > 32) w->cps[n] = (int32_t)cp, k = 1;
        n += (size_t)k;
    }
    TRY(order_marks(w->cps, n, w->err));
    if (compose) {
        utf8proc_ssize_t k = utf8proc_normalize_utf32(w->cps, (utf8proc_ssize_t)n, o);
        if (k < 0)
            return error_set(w->err, INFER_INTERNAL, "normalization: %s", utf8proc_errmsg(k));
        n = (size_t)k;
    }
    TRY(bytes_room(out, n, w->err));
    for (size_t i = 0; i < n; i++)
        TRY(put_cp(w, out, (uint32_t)w->cps[i]));
    return INFER_OK;
}

// ---- character by character -----------------------------------------------------------------

static infer_status put_lower(tok_work *w, bytes *out, uint32_t cp)
{
    if (cp < 128) {
        char c = (char)(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp);
        return bytes_add(out, &c, 1, w->err);
    }
    if (cp == 0x130) return bytes_add(out, "i\xCC\x87", 3, w->err); // the one that grows
    return put_cp(w, out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
}

static bool nmt_drops(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 11 || (c >= 14 && c <= 31) || c == 127 || c == 0x8F ||
           c == 0x9F;
}
static bool nmt_space(uint32_t c)
{
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

typedef infer_status char_fn(tok_work *w, const tok_step *s, bytes *out, uint32_t cp);

static infer_status each_char(tok_work *w, const tok_step *s, const bytes *in, bytes *out,
                              char_fn *fn, bool *kept)
{
    for (size_t i = 0; i < in->n;) {
        uint32_t cp = 0;
        size_t before = out->n, at = i;
        i += (size_t)utf8_decode(in->p + i, in->n - i, &cp);
        TRY(fn(w, s, out, cp));
        if (!at && out->n == before) *kept = false;
    }
    return INFER_OK;
}

static infer_status char_lower(tok_work *w, const tok_step *s, bytes *out, uint32_t cp)
{
    (void)s;
    return put_lower(w, out, cp);
}
static infer_status char_unmarked(tok_work *w, const tok_step *s, bytes *out, uint32_t cp)
{
    bool drop = s->type == NORM_BERT ? category(cp) == UTF8PROC_CATEGORY_MN : cp_is_mark(cp);
    return drop ? INFER_OK : put_cp(w, out, cp);
}
static infer_status char_nmt(tok_work *w, const tok_step *s, bytes *out, uint32_t cp)
{
    (void)s;
    return nmt_drops(cp) ? INFER_OK : put_cp(w, out, nmt_space(cp) ? ' ' : cp);
}
static infer_status char_bert(tok_work *w, const tok_step *s, bytes *out, uint32_t cp)
{
    if (s->clean) {
        utf8proc_category_t c = category(cp);
        bool blank = cp == 9 || cp == 10 || cp == 13;
        if (cp == 0 || cp == 0xFFFD) return INFER_OK;
        if (!blank && c >= UTF8PROC_CATEGORY_CC) return INFER_OK; // unassigned ones stay
        if (blank || cp_is_space(cp)) cp = ' ';
    }
    if (!s->chinese || !is_chinese(cp)) return put_cp(w, out, cp);
    TRY(bytes_add(out, " ", 1, w->err));
    TRY(put_cp(w, out, cp));
    return bytes_add(out, " ", 1, w->err);
}
static infer_status char_byte_level(tok_work *w, const tok_step *s, bytes *out, uint32_t cp)
{
    char c[4];
    (void)s;
    int n = utf8_encode(cp, c);
    for (int i = 0; i < n; i++)
        TRY(put_cp(w, out, byte_to_cp((unsigned char)c[i])));
    return INFER_OK;
}

// ---- the others -----------------------------------------------------------------------------

// Whether STRIP takes cp: white space, or the one character that it names.
static bool stripped(const tok_step *s, uint32_t cp)
{
    uint32_t only = 0;
    if (!s->s.n) return cp_is_space(cp);
    utf8_decode(s->s.s, s->s.n, &only);
    return cp == only;
}

static infer_status strip(tok_work *w, const tok_step *s, const bytes *in, bytes *out, bool *kept)
{
    size_t b = 0, e = in->n;
    uint32_t cp = 0;
    while (s->left && b < e) {
        int k = utf8_decode(in->p + b, e - b, &cp);
        if (!stripped(s, cp)) break;
        b += (size_t)k;
    }
    while (s->right && e > b) {
        size_t at = e - 1;
        while (at > b && ((unsigned char)in->p[at] & 0xC0) == 0x80)
            at--;
        utf8_decode(in->p + at, e - at, &cp);
        if (!stripped(s, cp)) break;
        e = at;
    }
    if (b) *kept = false;
    return bytes_add(out, in->p + b, e - b, w->err);
}

static infer_status replace(tok_work *w, const tok_step *s, const bytes *in, bytes *out, bool *kept)
{
    regex_iter it = { 0 };
    size_t done = 0, b, e;
    bool found;
    for (;;) {
        TRY(regex_next(s->re, w->regex, in->p, in->n, &it, &b, &e, &found, w->err));
        if (!found) break;
        TRY(bytes_add(out, in->p + done, b - done, w->err));
        TRY(bytes_add(out, s->s.s, s->s.n, w->err));
        if (!b && e) { // what replaces several characters counts as the last of them
            uint32_t cp;
            if (!s->s.n || (size_t)utf8_decode(in->p, in->n, &cp) < e) *kept = false;
        }
        done = e;
    }
    return bytes_add(out, in->p + done, in->n - done, w->err);
}

infer_status charsmap_read(tok_step *s, arena *a, const uint8_t *raw, size_t n, infer_error *err)
{
    uint32_t bytes_of_array = 0;
    if (n >= 4)
        bytes_of_array =
            raw[0] | (uint32_t)raw[1] << 8 | (uint32_t)raw[2] << 16 | (uint32_t)raw[3] << 24;
    if (n < 8 || bytes_of_array % 4 || !bytes_of_array || bytes_of_array > n - 4)
        return error_set(err, INFER_FORMAT, "%u bytes of double array in %zu bytes", bytes_of_array,
                         n);
    uint32_t *units = arena_alloc(a, bytes_of_array / 4, 4);
    if (!units) return error_set(err, INFER_NOMEM, "normalization table");
    for (size_t i = 0; i < bytes_of_array / 4; i++) {
        const uint8_t *b = raw + 4 + 4 * i;
        units[i] = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    s->units = units;
    s->n_units = bytes_of_array / 4;
    s->s = (text){ (const char *)raw + 4 + bytes_of_array, n - 4 - bytes_of_array };
    if (!utf8_valid(s->s.s, s->s.n))
        return error_set(err, INFER_FORMAT, "replacements are not UTF-8");
    return INFER_OK;
}

// The replacement of the shortest prefix of s that the double array (darts-clone) knows.
static bool charsmap_find(const tok_step *st, const char *s, size_t n, text *to)
{
    uint32_t pos = 0, unit = st->units[0];
    pos ^= unit >> 10 << ((unit & 1u << 9) >> 6);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (!c) return false;
        pos ^= c;
        if (pos >= st->n_units) return false;
        unit = st->units[pos];
        if ((unit & (1u << 31 | 0xff)) != c) return false;
        pos ^= unit >> 10 << ((unit & 1u << 9) >> 6);
        if (pos >= st->n_units) return false;
        if (unit >> 8 & 1) {
            size_t at = st->units[pos] & ((1u << 31) - 1);
            if (at >= st->s.n || ((unsigned char)st->s.s[at] & 0xC0) == 0x80) return false;
            const char *end = memchr(st->s.s + at, 0, st->s.n - at);
            to->s = st->s.s + at;
            to->n = end ? (size_t)(end - to->s) : st->s.n - at;
            return true;
        }
    }
    return false;
}

static infer_status precompiled(tok_work *w, const tok_step *s, const bytes *in, bytes *out,
                                bool *kept)
{
    text to;
    for (size_t i = 0; i < in->n;) { // a grapheme of up to 5 bytes is looked up whole first
        utf8proc_int32_t state = 0;
        uint32_t cp = 0, next = 0;
        size_t e = i + (size_t)utf8_decode(in->p + i, in->n - i, &cp);
        while (e < in->n) {
            size_t k = (size_t)utf8_decode(in->p + e, in->n - e, &next);
            if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next,
                                                 &state))
                break;
            e += k;
            cp = next;
        }
        size_t before = out->n;
        if (e - i < 6 && charsmap_find(s, in->p + i, e - i, &to)) {
            TRY(bytes_add(out, to.s, to.n, w->err));
        } else {
            for (size_t j = i; j < e;) {
                size_t k = (size_t)utf8_decode(in->p + j, e - j, &cp);
                if (charsmap_find(s, in->p + j, k, &to))
                    TRY(bytes_add(out, to.s, to.n, w->err));
                else
                    TRY(bytes_add(out, in->p + j, k, w->err));
                j += k;
            }
        }
        if (!i && out->n == before) *kept = false;
        i = e;
    }
    return INFER_OK;
}

static infer_status bert(tok_work *w, const tok_step *s, bytes *b, bool *kept)
{
    bytes *other = b == &w->norm[0] ? &w->norm[1] : &w->norm[0];
    if (s->clean || s->chinese) {
        other->n = 0;
        TRY(each_char(w, s, b, other, char_bert, kept));
        bytes t = *b;
        *b = *other;
        *other = t;
    }
    if (s->accents) {
        other->n = 0;
        TRY(unicode_form(w, b, other, false, false));
        b->n = 0;
        TRY(each_char(w, s, other, b, char_unmarked, kept));
    }
    if (!s->lower) return INFER_OK;
    other->n = 0;
    TRY(each_char(w, s, b, other, char_lower, kept));
    bytes t = *b;
    *b = *other;
    *other = t;
    return INFER_OK;
}

static infer_status norm_step(tok_work *w, const tok_step *s, const bytes *in, bytes *out,
                              bool *kept)
{
    switch (s->type) {
    case NORM_NFC: return unicode_form(w, in, out, true, false);
    case NORM_NFD: return unicode_form(w, in, out, false, false);
    case NORM_NFKC: return unicode_form(w, in, out, true, true);
    case NORM_NFKD: return unicode_form(w, in, out, false, true);
    case NORM_LOWERCASE: return each_char(w, s, in, out, char_lower, kept);
    case NORM_STRIP_ACCENTS: return each_char(w, s, in, out, char_unmarked, kept);
    case NORM_NMT: return each_char(w, s, in, out, char_nmt, kept);
    case NORM_BYTE_LEVEL: return each_char(w, s, in, out, char_byte_level, kept);
    case NORM_STRIP: return strip(w, s, in, out, kept);
    case NORM_REPLACE: return replace(w, s, in, out, kept);
    case NORM_PRECOMPILED: return precompiled(w, s, in, out, kept);
    case NORM_PREPEND:
        if (in->n) TRY(bytes_add(out, s->s.s, s->s.n, w->err));
        return bytes_add(out, in->p, in->n, w->err);
    default: return error_set(w->err, INFER_INTERNAL, "normalizer %d", (int)s->type);
    }
}

// b is w->norm[0].
infer_status norm_run(tok_work *w, const step_list *steps, bytes *b, bool *head_kept)
{
    for (size_t i = 0; i < steps->n && b->n; i++) {
        const tok_step *s = &steps->v[i];
        if (s->type == NORM_BERT) {
            TRY(bert(w, s, b, head_kept));
            continue;
        }
        bytes *out = &w->norm[1];
        out->n = 0;
        TRY(norm_step(w, s, b, out, head_kept));
        bytes t = *b;
        *b = *out;
        *out = t;
    }
    return INFER_OK;
}
