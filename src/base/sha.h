/*
 * sha.h: SHA-256 and SHA-1 (FIPS 180-4) over data that comes in pieces. SHA-1 only names git
 * objects here, as hubs do for small files; it proves nothing against an attacker.
 */
#ifndef BASE_SHA_H
#define BASE_SHA_H

#include <stddef.h>
#include <stdint.h>

typedef struct sha_state {
    uint32_t h[8];
    uint64_t n;        // bytes so far
    uint8_t block[64]; // the last n % 64 of them
    int words;         // of the result: 8 for SHA-256, 5 for SHA-1
} sha_state;

void sha256_init(sha_state *s);
void sha1_init(sha_state *s);
void sha_add(sha_state *s, const void *data, size_t n);
/* Lower-case hex digits, 64 or 40 and a NUL. The state is spent. */
void sha_end(sha_state *s, char hex[65]);

#endif
