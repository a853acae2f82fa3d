/*
 * quant_iq.h: what the IQ1, IQ2 and IQ3 formats share: their grids and signs.
 *
 * These formats store runs of eight (IQ3: four) elements as an index into a grid of the most useful
 * runs. A grid is kept as one 16-bit word a run, element 0 lowest: two bits an element for IQ1 and
 * IQ2, four for IQ3. A run is spread into the bytes of a word and turned into its values there, all
 * eight at once.
 */
#ifndef COMPUTE_QUANT_IQ_H
#define COMPUTE_QUANT_IQ_H

#include "compute/quant_block.h"

extern const uint16_t iq1_grid[2048];
extern const uint16_t iq2_xxs_grid[256], iq2_xs_grid[512], iq2_s_grid[1024];
extern const uint16_t iq3_xxs_grid[256], iq3_s_grid[512];

// Eight fields of two bits to eight bytes.
static inline uint64_t spread2(uint16_t run)
{
    uint64_t t = run;
    t = (t | t << 24) & 0x000000ff000000ffu;
    t = (t | t << 12) & 0x000f000f000f000fu;
    return (t | t << 6) & BYTES(3);
}

// Four fields of four bits to four bytes.
static inline uint32_t spread4(uint16_t run)
{
    uint32_t t = run;
    t = (t | t << 8) & 0x00ff00ffu;
    return (t | t << 4) & 0x0f0f0f0fu;
}

// Negates the bytes i whose bit i of signs is set. No byte may be 0 (the carry would leave it).
static inline uint64_t apply_signs(uint64_t bytes, uint8_t signs)
{
    uint64_t one = spread_bits(signs);
    return (bytes ^ one * 0xff) + one;
}

// Seven stored signs to eight: the last one makes the number of minus signs even.
static inline uint8_t even_signs(uint32_t seven)
{
    uint32_t parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return (uint8_t)((seven & 127) | (parity & 1) << 7);
}

#endif
