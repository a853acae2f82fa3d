/* pack.c: see pack.h. */
#include "inference/pack.h"

#include "base/error.h"
#include "base/mem.h"
#include "inference/engine.h"
#include "models/vindex_dir.h"
#include "vindex/vindex.h"

#define PACK_WAIT 8           // steps: about what packing costs
#define FEW_ROWS 16           // a step of generation
#define WHOLE_HEADS 64        // such steps in a row that wanted more than a search finds
#define PACK_STEP (256 << 20) // bytes that a step packs, and the rest of a layer
#define PACK_CHUNK (8 << 20)  // of which the file's pages are given back at once

static void add(infer_engine *e, linear *l, bool index)
{
    packer *p = &e->pack;
    size_t bytes = tensor_present(&l->w) ? e->be->packed_bytes(e->dev, &l->w) : 0;
    if (!bytes) return;
    p->items[p->first[p->n_layers + 1]++] = (pack_item){ l, p->bytes, index };
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
        layer_plan *f = e->ffn[p->n_layers].plan;
        linear *all[] = { &l->q, &l->k, &l->v, &l->o, &f->gate, &f->up, &f->down };
        p->first[p->n_layers + 1] = p->first[p->n_layers];
        for (int i = 0; i < (f->moe ? 4 : 7); i++)
            add(e, all[i], i >= 4 && f != l);
    }
    p->first[n + 1] = p->first[n];
    add(e, &e->lm_head, false);
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
    if (!p->memory || e->step.n_rows > FEW_ROWS) return;
    p->wholes = e->step.could_search ? 0 : p->wholes + (e->step.n_logits > 0);
    if (p->wholes >= WHOLE_HEADS) head_give_up(e);
    int n_layers = p->n_layers - e->head.possible;
    if (p->done == n_layers) return;
    if (p->wait > 0) {
        p->wait--;
        return;
    }
    while (p->next < n_layers && bytes_before(p, p->next) - p->packed < PACK_STEP)
        p->next++;
}

static void release(infer_engine *e, const pack_item *item, int begin, int end)
{
    const infer_model *m = e->model;
    const tensor *t = &item->l->w;
    const uint8_t *from = t->data + (size_t)begin * t->row_bytes;
    size_t size = (size_t)(end - begin) * t->row_bytes;
    if (item->index)
        vindex_dir_release(m->ffn_index->dir, from, size);
    else
        model_release(m, from, size);
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
        if (w->thread == 0) release(e, item, o, end);
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
}
