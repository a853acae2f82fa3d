/* coarse_ref.c: scores and bounds from a coarse copy in plain C. */
#include "compute/cpu/ref/vec_ref.h"

#include "compute/cpu/coarse_pack.h"
#include "compute/cpu/levels.h"

static void row_score(float *score, float *upper, const uint8_t *panel, int lane, int n_blocks,
                      const coarse_act *x)
{
    float s = 0, e = 0;
    for (int b = 0; b < n_blocks; b++) {
        const uint8_t *p = panel + (size_t)b * COARSE_BLOCK;
        int dot = 0;
        for (int k = 0; k < 16; k++) {
            int codes = p[64 * (lane % 4) + 16 * (lane / 4) + k];
            dot += (codes & 15) * act_value(x->q, (size_t)(b * 32 + k));
            dot += (codes >> 4) * act_value(x->q, (size_t)(b * 32 + 16 + k));
        }
        s = fmaf(p[256 + lane], fmaf(x->scale[b], (float)dot, x->offset[b]), s);
        e = fmaf(p[272 + lane], x->norm[b], e);
    }
    const uint8_t *end = panel + (size_t)n_blocks * COARSE_BLOCK;
    const float *row = (const float *)(const void *)end + lane;
    *score = fmaf(row[0], s, row[2 * PANEL] * x->along);
    *upper = *score + fmaf(row[PANEL], e, row[3 * PANEL] * x->slack);
}

static void coarse_scores(float *score, float *upper, const uint8_t *panels, int n_panels,
                          int n_blocks, const coarse_act *x)
{
    size_t bytes = coarse_panel_bytes(n_blocks * 32);
    for (int i = 0; i < n_panels * PANEL; i++)
        row_score(&score[i], &upper[i], panels + (size_t)(i / PANEL) * bytes, i % PANEL, n_blocks,
                  x);
}

void init_ref_coarse(cpu_kernels *k)
{
    k->coarse_scores = coarse_scores;
    k->coarse_pack = coarse_pack;
}
