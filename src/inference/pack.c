/* pack.c: see pack.h. */
#include "inference/pack.h"

#include "base/error.h"
#include "base/mem.h"
#include "inference/engine.h"

#define PACK_WAIT 8             // steps: about what packing costs
#define FEW_ROWS 16             // a step of generation
#define PACK_STEP (256 << 20)   // bytes that a step packs, and the rest of a layer
#define PACK_CHUNK (8 << 20)    // of which the file's pages are given back at once
#define RELEASE_TOUCHED 256     // pages around them are mapped with the rows

static void add(infer_engine *e, linear *l)
{
    packer *p = &e->pack;
    size_t bytes = tensor_present(&l->w) ? e->be->packed_bytes(e->dev, &l->w) : 0;
    if (!bytes) return;
    p->items[p->first[p->n_layers + 1]++] = (pack_item){ l, p->bytes };
    p->bytes += (bytes + 63) / 64 * 64;
}

infer_status pack_open(infer_engine *e, infer_error *err)
{
    packer *p = &e->pack;
    const infer_model *m = e->model;
    if (!e->be->packed_bytes || e->exact || m->pages_stay) return INFER_OK;
    int n = m->n_layers;
    p->items = mem_zero((size_t)n * 7 + 1, sizeof *p->items);
    p->first = mem_zero((size_t)n + 2, sizeof *p->first);
    if (!p->items || !p->first) return error_set(err, INFER_NOMEM, "engine: out of memory");
    for (; p->n_layers < n; p->n_layers++) {
        layer_plan *l = &e->layers[p->n_layers];
        linear *all[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        bool dense = e->ffn[p->n_layers].plan == l && !l->moe;
        p->first[p->n_layers + 1] = p->first[p->n_layers];
        for (int i = 0; i < (dense ? 7 : 4); i++)
            add(e, all[i]);
    }
    p->first[n + 1] = p->first[n];
    if (!e->head.possible) add(e, &e->lm_head);
    p->n_layers++;
    p->wait = PACK_WAIT;
    if (!p->bytes) return INFER_OK;
    p->memory = mem_pages_large(p->bytes);
    return p->memory ? INFER_OK : error_set(err, INFER_NOMEM, "engine: out of memory");
}

void pack_close(infer_engine *e)
{
    packer *p = &e->pack;
    mem_free_pages(p->memory, p->bytes);
    mem_free(p->items);
    mem_free(p->first);
}

/* Of the layers before this one. */
static size_t bytes_before(const packer *p, int layer)
{
    int i = p->first[layer];
    return i < p->first[p->n_layers] ? p->items[i].at : p->bytes;
}

void pack_plan(infer_engine *e)
{
    packer *p = &e->pack;
    p->next = p->done;
    if (!p->memory || p->done == p->n_layers || e->step.n_rows > FEW_ROWS) return;
    if (p->wait > 0) {
        p->wait--;
        return;
    }
    while (p->next < p->n_layers && bytes_before(p, p->next) - p->packed < PACK_STEP)
        p->next++;
}

/* One matrix, chunk by chunk; ends at a barrier. */
static void pack(const worker *w, infer_engine *e, const pack_item *item)
{
    const tensor *t = &item->l->w;
    int rows = (int)(PACK_CHUNK / t->row_bytes / PANEL + 1) * PANEL;
    for (int o = 0; o < t->n_rows; o += rows) {
        int end = t->n_rows - o < rows ? t->n_rows : o + rows;
        e->be->pack(w, e->pack.memory + item->at, t, o, end);
        e->be->barrier(w);
        if (w->thread == 0)
            model_release(e->model, t->data + (size_t)o * t->row_bytes,
                          (size_t)(end - o) * t->row_bytes);
    }
}

void pack_layer(const worker *w, infer_engine *e, int layer)
{
    packer *p = &e->pack;
    if (layer < p->done || layer >= p->next) return;
    for (int i = p->first[layer]; i < p->first[layer + 1]; i++)
        pack(w, e, &p->items[i]);
    if (w->thread == 0)
        for (int i = p->first[layer]; i < p->first[layer + 1]; i++)
            p->items[i].l->w.panels = p->memory + p->items[i].at;
    e->be->barrier(w);
}

void pack_settle(infer_engine *e)
{
    packer *p = &e->pack;
    if (!p->memory) return;
    for (int i = p->first[p->done]; p->done < p->next; p->done++) {
        while (i < p->first[p->done + 1] && p->items[i].l->w.panels)
            i++;
        if (i < p->first[p->done + 1]) break; // the step was cancelled
    }
    p->packed = bytes_before(p, p->done);
    if (!e->lm_head.w.panels || e->model->embed.data != e->lm_head.w.data) return;
    p->touched += e->step.n_rows;
    if (p->touched < RELEASE_TOUCHED) return;
    model_release(e->model, e->lm_head.w.data, tensor_bytes(&e->lm_head.w));
    p->touched = 0;
}
