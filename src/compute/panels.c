/* panels.c: rows to panels. */
#include "compute/panels.h"

#include <string.h>

#include "compute/quant_larql.h"

bool panels_take(const tensor *w)
{
    if (!panels_float(w->type) && w->n_cols < ACT_NARROW) return false;
    switch (panels_type(w->type)) {
    case DT_F32:
    case DT_F16:
    case DT_BF16:
    case DT_Q8_0:
    case DT_Q4_0:
    case DT_Q4_1:
    case DT_Q5_0:
    case DT_Q5_1:
    case DT_IQ4_NL:
    case DT_IQ4_XS:
    case DT_Q2_K:
    case DT_Q3_K:
    case DT_Q4_K:
    case DT_Q5_K:
    case DT_Q6_K: return true;
    default: return false;
    }
}

/* Row `lane` of a panel of floats. */
static void pack_floats(uint8_t *to, int lane, const uint8_t *row, size_t size, size_t n)
{
    to += size * (size_t)lane;
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * PANEL * size, row + i * size, size == 2 ? 2 : 4);
}

/* A block as panels_type has it, in `copy` where that is another type. */
static const uint8_t *block_of(uint8_t *copy, const uint8_t *from, dtype type)
{
    if (type == DT_LARQL_Q6_K)
        larql_q6_k_to_gguf(copy, from, 256);
    else if (type == DT_LARQL_Q4_0)
        larql_q4_0_to_gguf(copy, from, 32);
    else
        return from;
    return copy;
}

/* Row `lane` of a panel of blocks. */
static void pack_blocks(uint8_t *to, int lane, const uint8_t *row, dtype type, size_t n_blocks)
{
    size_t bytes = (size_t)quant_formats[type]->block_bytes, n = bytes / 4;
    bool half_first = panel_half_first(panels_type(type));
    uint8_t copy[256];
    to += 4 * lane;
    for (size_t b = 0; b < n_blocks; b++, to += bytes * PANEL) {
        const uint8_t *block = block_of(copy, row + b * bytes, type);
        const uint8_t *p = block + (half_first ? 2 : 0);
        for (size_t i = 0; i < n; i++)
            memcpy(to + i * PANEL * 4, p + i * 4, 4);
        if (bytes % 4) memcpy(to + n * PANEL * 4 - 2 * lane, half_first ? block : p + n * 4, 2);
    }
}

void panels_pack(uint8_t *to, const tensor *w, int begin, int end)
{
    const quant_format *f = quant_formats[w->type];
    size_t n_blocks = w->row_bytes / (size_t)f->block_bytes;
    for (int o = begin; o < end; o += PANEL) {
        uint8_t *panel = to + (size_t)o * w->row_bytes;
        if (w->n_rows - o < PANEL) memset(panel, 0, PANEL * w->row_bytes);
        for (int lane = 0; lane < PANEL && o + lane < w->n_rows; lane++) {
            const uint8_t *row = w->data + (size_t)(o + lane) * w->row_bytes;
            if (panels_float(w->type))
                pack_floats(panel, lane, row, (size_t)f->block_bytes, n_blocks);
            else
                pack_blocks(panel, lane, row, w->type, n_blocks);
        }
    }
}
