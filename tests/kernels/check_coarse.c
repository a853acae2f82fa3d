/* check_coarse.c: coarse copies of a matrix: every level packs ref's panels and has ref's scores and
 * bounds, up to the rounding of their sums. That the bounds hold is tests/unit/test_top.c's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "compute/coarse.h"

static void check_copy(checker *c, dtype type, int n_rows, int n_cols)
{
    int n_panels = (n_rows + PANEL - 1) / PANEL, n_blocks = n_cols / 32;
    size_t panel_bytes = coarse_panel_bytes(n_cols), rest_bytes = (size_t)n_blocks * COARSE_REST;
    fence weights, scratch = fence_new(COARSE_PACK_SCRATCH(n_cols) / 64 * 64);
    fence mine = fence_new(panel_bytes * n_panels), theirs = fence_new(panel_bytes * n_panels);
    fence rest = fence_new(rest_bytes * n_rows), their_rest = fence_new(rest_bytes * n_rows);
    float direction[512], offset[16], norm[16], got[2][64], want[2][64], most = 0;
    fill(direction, (size_t)n_cols, RANDOM);
    for (int i = 0; i < n_cols; i++) direction[i] /= sqrtf((float)n_cols);
    coarse copy = {.w = random_weights(&weights, type, n_rows, n_cols), .panels = mine.data,
                   .rests = type == DT_Q8_0 ? rest.data : NULL, .panel_bytes = panel_bytes,
                   .rest_bytes = rest_bytes, .middle = type == DT_Q8_0 ? 7.5f : 8.0f,
                   .n_panels = n_panels, .direction = direction};
    char what[64];
    snprintf(what, sizeof what, "%s %d x %d", quant_formats[type]->name, n_rows, n_cols);
    c->op = "coarse_pack";
    for (int i = 0; i < n_panels; i++) c->k->coarse_pack(&copy, i, scratch.data);
    copy.panels = theirs.data;
    if (copy.rests) copy.rests = their_rest.data;
    for (int i = 0; i < n_panels; i++) c->ref->coarse_pack(&copy, i, scratch.data);
    check_true(c, !memcmp(mine.data, theirs.data, (size_t)n_blocks * COARSE_BLOCK), "%s", what);
    check_true(c, !memcmp(rest.data, their_rest.data, rest.n), "%s: rests", what);
    check_true(c, fence_intact(&mine) && fence_intact(&rest) && fence_intact(&scratch),
               "%s: wrote elsewhere", what);

    act_memory m;
    act a = random_act(&m, 1, n_cols, RANDOM);
    for (int b = 0; b < n_blocks; b++) {
        offset[b] = random_normal();
        norm[b] = fabsf(random_normal());
    }
    coarse_act x = {a.q, a.scale, offset, norm, 0.3f, 1e-7f};
    c->op = "coarse_scores";
    c->k->coarse_scores(got[0], got[1], theirs.data, n_panels, n_blocks, &x);
    c->ref->coarse_scores(want[0], want[1], theirs.data, n_panels, n_blocks, &x);
    for (int i = 0; i < n_rows; i++) most = fmaxf(most, fabsf(want[1][i]) + fabsf(want[0][i]));
    double far = 0;
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < n_rows; i++) far = fmax(far, fabs((double)got[j][i] - want[j][i]));
    check_true(c, far <= 1e-5 * most, "%s: %g off, of %g", what, far, (double)most);
    fence *all[] = {&weights, &scratch, &mine, &theirs, &rest, &their_rest};
    for (int i = 0; i < COUNT_OF(all); i++) fence_free(all[i]);
    act_memory_free(&m);
}

void check_coarse(checker *c)
{
    static const dtype types[] = {DT_Q8_0, DT_F16, DT_BF16, DT_Q6_K};
    for (int t = 0; t < COUNT_OF(types); t++)
        for (int n_rows = 1; n_rows < 64; n_rows += 15) {
            check_copy(c, types[t], n_rows, 256);
            check_copy(c, types[t], n_rows, types[t] == DT_Q6_K ? 512 : 96);
        }
}
