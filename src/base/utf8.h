/*
 * utf8.h: decoding, checking and cutting UTF-8 (RFC 3629: no surrogates, no overlong forms, at most
 * U+10FFFF).
 */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at s (1 to 4) and its code point; 0 where no valid one starts there. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Writes cp (at most 4 bytes, no NUL); returns the count, 0 for a surrogate or over U+10FFFF. */
int utf8_encode(uint32_t cp, char *out);
bool utf8_valid(const char *s, size_t n);
/* Length of the longest prefix that ends with a whole character; an invalid byte counts as whole,
 * only a character that may still be completed is held back. */
size_t utf8_whole(const char *s, size_t n);
/* Copies s to out (room for 3n bytes), replacing each invalid part by U+FFFD as the Unicode
 * standard recommends (maximal subparts: what Python's errors="replace" does). Returns the length.
 */
size_t utf8_replace(const char *s, size_t n, char *out);

#endif
