/* bytes.h: little-endian numbers at any address. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdint.h>

static inline uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t u64_at(const uint8_t *p)
{
    return u32_at(p) | (uint64_t)u32_at(p + 4) << 32;
}

#endif
