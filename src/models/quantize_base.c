/*
 * quantize_base.c: an index holds a GGUF file's weights in its own precision; the file itself has
 * them as they were. What was not edited is taken from there, byte for byte, once some rows have
 * shown that it is the file that the index was made from.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "models/quantize.h"

#define ROWS 8 // of a tensor that are compared

static bool is_edited(const out_model *m, const char *name)
{
    int layer, n = 0;
    return sscanf(name, "blk.%d.%n", &layer, &n) == 1 && n && layer < m->facts.n_layers &&
           m->base->edited[layer] && !strncmp(name + n, "ffn_", 4) && !strstr(name + n, "norm");
}

/* The index's row r as the output would have it. */
static void own_row(float *y, const out_tensor *t, int64_t r)
{
    int64_t slice = r / t->n_rows, row = r % t->n_rows;
    size_t size = quant_row_bytes(t->from, (size_t)t->n_cols);
    if (t->permute_heads) {
        int64_t width = t->n_rows / t->permute_heads, head = row / width, at = row % width;
        row = head * width + at / 2 + at % 2 * (width / 2);
    }
    const uint8_t *data =
        t->slices ? t->slices[slice] : t->data + (size_t)(slice * t->n_rows) * size;
    quant_formats[t->from]->dequant(y, data + (size_t)row * size, (size_t)t->n_cols);
    for (int64_t i = 0; i < t->n_cols && t->add != 0; i++)
        y[i] += t->add;
}

/* As close as half precision, with what it takes for zero; blocks of the index are coarser. */
static bool near(const out_tensor *t, const gguf_tensor *g, float *a, float *b)
{
    int64_t rows = t->n_rows * t->n_slices;
    double loss = quant_formats[t->from]->sub ? 0.15 : 0x1p-9;
    size_t size = quant_row_bytes((dtype)g->type, (size_t)t->n_cols);
    for (int64_t k = 0; k < ROWS && k < rows; k++) {
        int64_t r = k * (rows - 1) / (ROWS - 1);
        double off = 0, length = 0;
        own_row(a, t, r);
        quant_formats[g->type]->dequant(b, g->data + (size_t)r * size, (size_t)t->n_cols);
        for (int64_t i = 0; i < t->n_cols; i++) {
            double d = (double)a[i] - (double)b[i];
            off += d * d;
            length += (double)b[i] * (double)b[i];
        }
        if (!(sqrt(off) <= loss * sqrt(length) + 0x1p-13 * sqrt((double)t->n_cols))) return false;
    }
    return true;
}

static infer_status take(out_model *m, out_tensor *t, const gguf_tensor *g, infer_error *err)
{
    size_t cols = (size_t)t->n_cols;
    bool same = g->type >= 0 && g->n_dims == t->n_dims;
    for (int d = 0; d < t->n_dims && same; d++)
        same = g->dims[d] == t->dims[d];
    float *rows = mem_alloc(2 * cols, sizeof *rows);
    if (!rows) return error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    if (same && t->permute_heads && t->n_cols == 1) same = false; // a bias by heads: as it is
    bool mine = same && near(t, g, rows, rows + cols);
    mem_free(rows);
    if (!mine && !same) return INFER_OK;
    if (!mine)
        return error_set(err, INFER_ARGUMENT,
                         "%s: tensor '%s' is not the index's: it was made from another file",
                         gguf_path(m->base->g), t->name);
    t->from = t->to = (dtype)g->type;
    t->data = g->data;
    t->slices = NULL;
    t->n_slices = t->dims[2] * t->dims[3];
    t->n_rows = t->dims[1];
    t->permute_heads = 0;
    t->add = 0;
    t->fixed = true;
    m->base->n_taken++;
    return INFER_OK;
}

infer_status out_take_base(out_model *m, infer_error *err)
{
    infer_status st = INFER_OK;
    for (size_t i = 0; i < m->n_tensors && !st; i++) {
        out_tensor *t = &m->tensors[i];
        const gguf_tensor *g = gguf_find_tensor(m->base->g, t->name);
        if (g && !is_edited(m, t->name)) st = take(m, t, g, err);
    }
    if (!st && !m->base->n_taken)
        st = error_set(err, INFER_ARGUMENT, "%s: it has no tensor of the index",
                       gguf_path(m->base->g));
    return st;
}
