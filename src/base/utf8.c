/*
 * utf8.c: UTF-8 by the table of well-formed byte sequences (Unicode 15, table 3-7): the lead byte
 * gives the length and the range of the second byte; that range is what excludes overlong forms,
 * surrogates and everything above U+10FFFF.
 */
#include "base/utf8.h"

/* Length by lead byte and the second byte's range; 0: no character starts so. */
static int lead(uint8_t b, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80, *hi = 0xbf;
    if (b < 0x80) return 1;
    if (b < 0xc2) return 0;
    if (b < 0xe0) return 2;
    if (b < 0xf0) {
        if (b == 0xe0) *lo = 0xa0;
        if (b == 0xed) *hi = 0x9f;
        return 3;
    }
    if (b > 0xf4) return 0;
    if (b == 0xf0) *lo = 0x90;
    if (b == 0xf4) *hi = 0x8f;
    return 4;
}

/* Bytes at s that belong to one well-formed character, as far as they go; *len is the whole length
 * by the lead byte. */
static int well_formed(const uint8_t *s, size_t n, int *len)
{
    uint8_t lo, hi;
    *len = n ? lead(s[0], &lo, &hi) : 0;
    int k = *len > 0;
    for (; k < *len && (size_t)k < n; k++) {
        if (s[k] < lo || s[k] > hi) break;
        lo = 0x80, hi = 0xbf;
    }
    return k;
}

int utf8_decode(const char *text, size_t n, uint32_t *cp)
{
    const uint8_t *s = (const uint8_t *)text;
    int len, k = well_formed(s, n, &len);
    if (len == 0 || k < len) return 0;
    static const uint8_t lead_bits[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
    *cp = s[0] & lead_bits[len];
    for (int i = 1; i < len; i++)
        *cp = *cp << 6 | (s[i] & 0x3f);
    return len;
}

int utf8_encode(uint32_t cp, char *out)
{
    static const uint8_t lead_mark[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return 0;
    int len = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(lead_mark[len] | cp);
    return len;
}

bool utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_decode(s + i, n - i, &cp);
        if (!len) return false;
        i += (size_t)len;
    }
    return true;
}

size_t utf8_whole(const char *s, size_t n)
{
    // Only the last three bytes can begin a character that is not yet complete.
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        int len, k = well_formed((const uint8_t *)s + n - back, back, &len);
        if (k < len && (size_t)k == back) return n - back;
        if (len) break;
    }
    return n;
}

size_t utf8_replace(const char *s, size_t n, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < n;) {
        int len, k = well_formed((const uint8_t *)s + i, n - i, &len);
        if (len && k == len) {
            for (; k > 0; k--)
                out[used++] = s[i++];
        } else {
            used += (size_t)utf8_encode(0xfffd, out + used);
            i += k ? (size_t)k : 1;
        }
    }
    return used;
}
