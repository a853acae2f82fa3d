/* panels.c: rows to panels. */
#include "compute/panels.h"

#include <string.h>

bool panels_take(dtype type)
{
    switch (type) {
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

/* Row `lane` of a panel. */
static void pack_row(uint8_t *to, int lane, const uint8_t *row, const quant_format *f,
                     size_t n_blocks, bool half_first)
{
    size_t bytes = (size_t)f->block_bytes, n = bytes / 4;
    to += 4 * lane;
    for (size_t b = 0; b < n_blocks; b++, row += bytes, to += bytes * PANEL) {
        const uint8_t *p = row + (half_first ? 2 : 0);
        for (size_t i = 0; i < n; i++)
            memcpy(to + i * PANEL * 4, p + i * 4, 4);
        if (bytes % 4) memcpy(to + n * PANEL * 4 - 2 * lane, half_first ? row : row + n * 4, 2);
    }
}

void panels_pack(uint8_t *to, const tensor *w, int begin, int end)
{
    const quant_format *f = quant_formats[w->type];
    size_t n_blocks = w->row_bytes / (size_t)f->block_bytes;
    for (int o = begin; o < end; o += PANEL) {
        uint8_t *panel = to + (size_t)o * w->row_bytes;
        if (w->n_rows - o < PANEL) memset(panel, 0, PANEL * w->row_bytes);
        for (int lane = 0; lane < PANEL && o + lane < w->n_rows; lane++)
            pack_row(panel, lane, w->data + (size_t)(o + lane) * w->row_bytes, f, n_blocks,
                     panel_half_first(w->type));
    }
}
