/*
 * jinja_case.c: upper, lower and title case as Python's str has them: Unicode's full mappings, with
 * the rule for a sigma at a word's end.
 */
#include <string.h>
#include <utf8proc.h>

#include "models/jinja_case_data.h"
#include "models/jinja_impl.h"

static bool is_cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

static bool is_case_ignorable(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' ||
           c == ':' || c == 0xb7 || c == 0x2018 || c == 0x2019 || c == 0x2024 || c == 0x2027;
}

/* A sigma at byte i is final: a cased letter before it, none after, whatever is ignorable aside. */
static bool is_final_sigma(const str *s, size_t i)
{
    uint32_t c = 0;
    size_t at = i;
    bool before = false;
    while (at) {
        at--;
        while (at && ((unsigned char)s->s[at] & 0xc0) == 0x80)
            at--;
        j_next_char(s->s + at, s->n - at, &c);
        if (is_case_ignorable(c)) continue;
        before = is_cased(c);
        break;
    }
    if (!before) return false;
    for (at = i + 2; at < s->n;) {
        at += j_next_char(s->s + at, s->n - at, &c);
        if (!is_case_ignorable(c)) return !is_cased(c);
    }
    return true;
}

static const char *special(uint32_t c, bool title)
{
    int low = 0, high = COUNT_OF(special_case);
    while (low < high) {
        int mid = (low + high) / 2;
        if (special_case[mid].c < c)
            low = mid + 1;
        else
            high = mid;
    }
    if (low == COUNT_OF(special_case) || special_case[low].c != c) return NULL;
    return title ? special_case[low].title : special_case[low].upper;
}

static void add_upper(builder *b, uint32_t c, bool title, bool foreign)
{
    const char *many = c < 128 ? NULL : special(c, title);
    utf8proc_int32_t u = (utf8proc_int32_t)c;
    if (many)
        j_sb_raw(b, many, strlen(many), foreign);
    else
        j_sb_char(b, (uint32_t)(title ? utf8proc_totitle(u) : utf8proc_toupper(u)), foreign);
}

static void add_lower(builder *b, const str *s, size_t i, uint32_t c, bool foreign)
{
    if (c == 0x3a3 && is_final_sigma(s, i))
        j_sb_char(b, 0x3c2, foreign);
    else if (c == 0x130)
        j_sb_raw(b, "i\xcc\x87", 3, foreign);
    else
        j_sb_char(b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c), foreign);
}

static void add_folded(builder *b, uint32_t c, bool foreign)
{
    utf8proc_int32_t out[8];
    int boundary = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, out, 8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t i = 0; i < n && i < 8; i++)
        j_sb_char(b, (uint32_t)out[i], foreign);
}

str *j_str_case(jrun *r, str *s, char how)
{
    builder b;
    j_sb_init(&b, r);
    bool in_word = false;
    jinja_step(r, s->n / 2);
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c;
        k = j_next_char(s->s + i, s->n - i, &c);
        bool foreign = foreign_at(s, i);
        bool was_upper = utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LU;
        if (how == 'f')
            add_folded(&b, c, foreign);
        else if (how == 'u' || (how == 's' && !was_upper))
            add_upper(&b, c, false, foreign);
        else if ((how == 'c' && !i) || (how == 't' && !in_word))
            add_upper(&b, c, true, foreign);
        else
            add_lower(&b, s, i, c, foreign);
        in_word = is_cased(c);
    }
    return j_sb_done(&b);
}

bool j_is_upper_lower(jrun *r, const str *s, bool upper)
{
    jinja_step(r, s->n / 4);
    bool any = false;
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c;
        k = j_next_char(s->s + i, s->n - i, &c);
        utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
        bool is_up = cat == UTF8PROC_CATEGORY_LU, is_low = cat == UTF8PROC_CATEGORY_LL;
        if (cat == UTF8PROC_CATEGORY_LT || (upper ? is_low : is_up)) return false;
        any |= upper ? is_up : is_low;
    }
    return any;
}
