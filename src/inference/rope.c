/*
 * rope.c: cos and sin for the rows of a step (Su et al. 2021), with the frequencies that depend on
 * length: dynamic NTK scaling and longrope.
 *
 * As in transformers, frequencies and angles are float32 (angle = (float)position * inv_freq);
 * their cosine is computed in double.
 */
#include <math.h>

#include "inference/engine.h"

/* Frequency of pair i for a sequence of `len` positions. */
static float frequency(const rope_plan *r, int i, int len)
{
    if (r->scaling == ROPE_DYNAMIC && len > r->original_len) {
        double stretch = r->factor * len / r->original_len - (r->factor - 1);
        double base = r->base * pow(stretch, (double)r->dim / (r->dim - 2));
        return 1.0f / (float)pow(base, 2.0 * i / r->dim);
    }
    if (r->scaling == ROPE_LONGROPE && len > r->original_len) return r->inv_freq_long[i];
    return r->inv_freq[i];
}

void rope_fill(const worker *w, const infer_engine *e)
{
    const infer_model *m = e->model;
    const step *s = &e->step;
    int begin, end;
    thread_share(s->n_rows, 1, w->thread, w->n_threads, &begin, &end);
    for (int p = 0; p < m->n_ropes; p++) {
        const rope_plan *r = &m->ropes[p];
        float *cos_p = e->ws.cos + (size_t)p * e->max_rows * e->ws.rope_stride;
        float *sin_p = e->ws.sin + (size_t)p * e->max_rows * e->ws.rope_stride;
        for (int row = begin; row < end; row++)
            for (int i = 0; i < r->n_pairs; i++) {
                float angle = (float)s->pos[row] * frequency(r, i, s->rope_len[row]);
                size_t at = (size_t)row * r->n_pairs + i;
                cos_p[at] = (float)cos((double)angle) * r->attention_factor;
                sin_p[at] = (float)sin((double)angle) * r->attention_factor;
            }
    }
}
