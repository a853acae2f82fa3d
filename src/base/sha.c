/* sha.c: both hashes share padding and blocks; only the compression differs. */
#include "base/sha.h"

#include <stdio.h>
#include <string.h>

static const uint32_t k256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void load_words(uint32_t *w, const uint8_t *p)
{
    for (int i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

#define ROUND(a, b, c, d, e, f, g, h, i)                                                           \
    do {                                                                                           \
        uint32_t t =                                                                               \
            h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + (g ^ (e & (f ^ g))) + k256[i] + w[i];   \
        d += t;                                                                                    \
        h = t + (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) | (c & (a | b)));              \
    } while (0)

static void compress_256(uint32_t *h, const uint8_t *block)
{
    uint32_t w[64], v[8];
    load_words(w, block);
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) + w[i - 7] +
               (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    // Eight rounds bring the eight variables back to their places: no copying in between.
    for (int i = 0; i < 64; i += 8) {
        ROUND(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], i);
        ROUND(v[7], v[0], v[1], v[2], v[3], v[4], v[5], v[6], i + 1);
        ROUND(v[6], v[7], v[0], v[1], v[2], v[3], v[4], v[5], i + 2);
        ROUND(v[5], v[6], v[7], v[0], v[1], v[2], v[3], v[4], i + 3);
        ROUND(v[4], v[5], v[6], v[7], v[0], v[1], v[2], v[3], i + 4);
        ROUND(v[3], v[4], v[5], v[6], v[7], v[0], v[1], v[2], i + 5);
        ROUND(v[2], v[3], v[4], v[5], v[6], v[7], v[0], v[1], i + 6);
        ROUND(v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[0], i + 7);
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
}

static void compress_1(uint32_t *h, const uint8_t *block)
{
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    load_words(w, block);
    for (int i = 16; i < 80; i++)
        w[i] = rotr(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 31);
    for (int i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                     : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                     : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                              : (b ^ c ^ d) + 0xca62c1d6;
        uint32_t t = rotr(a, 27) + f + e + w[i];
        e = d, d = c, c = rotr(b, 2), b = a, a = t;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

void sha256_init(sha_state *s)
{
    *s = (sha_state){ .h = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                             0x1f83d9ab, 0x5be0cd19 },
                      .words = 8 };
}

void sha1_init(sha_state *s)
{
    *s = (sha_state){ .h = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0 },
                      .words = 5 };
}

void sha_add(sha_state *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    while (n) {
        size_t at = s->n % 64, k = 64 - at < n ? 64 - at : n;
        const uint8_t *block = p;
        if (k < 64) memcpy(s->block + at, p, k), block = s->block;
        s->n += k, p += k, n -= k;
        if (s->n % 64) return;
        (s->words == 8 ? compress_256 : compress_1)(s->h, block);
    }
}

void sha_end(sha_state *s, char hex[65])
{
    uint64_t bits = s->n * 8;
    uint8_t tail[72] = { 0x80 };
    size_t pad = (s->n % 64 < 56 ? 56 : 120) - s->n % 64;
    for (int i = 0; i < 8; i++)
        tail[pad + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    sha_add(s, tail, pad + 8);
    for (int i = 0; i < s->words; i++)
        snprintf(hex + 8 * i, 9, "%08x", s->h[i]);
}
