/*
 * panels.h: matrices stored anew, for kernels whose lanes are outputs. A panel is PANEL rows. Of
 * float formats it has the elements [n_cols, PANEL]; of each block of a quantised one
 *
 *   dwords [n, PANEL, 4]   the rows' bytes by fours, those of all rows side by side
 *   halves [PANEL, 2]      of formats whose block has two bytes more: the scale, which is first or
 *                          last in the file's block
 *
 * so that one load brings a dword of each row, which takes shuffles where rows lie one after the
 * other, and so that a product reads memory in order. The size is that of the rows, the last panel
 * filled up with rows of zeros.
 */
#ifndef COMPUTE_PANELS_H
#define COMPUTE_PANELS_H

#include "compute/tensor.h"

#define PANEL 16 // outputs that a matmul kernel makes at once: one vector of lanes

/* What a matrix of this type is in panels: the type itself, or one that has the same numbers in
 * another order of bits, which kernels read by vectors (cpu/int8_units.h). */
static inline dtype panels_type(dtype type)
{
    return type == DT_LARQL_Q6_K ? DT_Q6_K : type == DT_LARQL_Q4_0 ? DT_Q4_0 : type;
}
static inline bool panels_float(dtype type)
{
    return type == DT_F32 || type == DT_F16 || type == DT_BF16;
}
/* Whether panels take w: by its format, and not narrow, as the activations of such rows are no case
 * for every kernel (quant.h) and nothing is gained. */
bool panels_take(const tensor *w);
static inline bool panel_half_first(dtype type)
{
    return type == DT_Q8_0 || type == DT_Q4_0 || type == DT_Q5_0 || type == DT_IQ4_NL;
}
/* Of a whole matrix. */
static inline size_t panels_bytes(const tensor *w)
{
    return ((size_t)w->n_rows + PANEL - 1) / PANEL * PANEL * w->row_bytes;
}
/* Panels of rows [begin, end) of w, begin a multiple of PANEL; `to` is where that of row 0 lies or
 * will. */
void panels_pack(uint8_t *to, const tensor *w, int begin, int end);

#endif
