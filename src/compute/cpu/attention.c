/*
 * attention.c: storing K and V, and attention, divided among the threads.
 *
 * A query attends to its positions in chunks of CHUNK_TILES tiles, cut at absolute positions: each
 * chunk is an online softmax of its own, and the chunks are merged in order (attn_merge). So the
 * operations of a query depend on its position alone, whether one thread goes through all of its
 * chunks, or several make chunks at the same time, which are merged after a barrier. The second
 * way is for steps of few rows and few KV heads: all threads have work, and each byte of the cache
 * is read once.
 */
#include <math.h>
#include <string.h>

#include "base/compiler.h"
#include "compute/cpu/device.h"

#define CHUNK_TILES 4

/* KV head h of a tile: K and V of one head follow each other for all heads. */
static kv_tile tile_of(const kv_view *v, int tile, int h)
{
    size_t k_bytes = kv_tile_bytes(v->k_type, v->head_dim);
    size_t v_bytes = kv_tile_bytes(v->v_type, kv_v_stride(v->head_dim_v));
    return (kv_tile){ (uint8_t *)v->k_tiles[tile] + (size_t)h * k_bytes,
                      (uint8_t *)v->v_tiles[tile] + (size_t)h * v_bytes,
                      v->k_type,
                      v->v_type,
                      v->head_dim,
                      v->head_dim_v };
}

void cpu_kv_append(const worker *w, const row_span *spans, int n_spans, const float *k,
                   size_t k_stride, const float *v, size_t v_stride)
{
    int n_rows = spans[n_spans - 1].first + spans[n_spans - 1].n, begin, end;
    int n_heads = spans[0].kv.n_kv_heads;
    thread_share(n_rows * n_heads, 1, w->thread, w->n_threads, &begin, &end);
    const row_span *s = spans;
    for (int i = begin; i < end; i++) {
        int r = i / n_heads, h = i % n_heads;
        while (r >= s->first + s->n)
            s++;
        int pos = s->pos + r - s->first;
        kv_tile tile = tile_of(&s->kv, pos / KV_TILE, h);
        w->dev->k->kv_store(&tile, pos % KV_TILE,
                            k + (size_t)r * k_stride + (size_t)h * s->kv.head_dim,
                            v + (size_t)r * v_stride + (size_t)h * s->kv.head_dim_v);
    }
}

/* ---- blocks ---- */

/* Rows [row, row + n_rows) of a span, query heads [head, head + n_heads) of one KV head: its
 * queries are numbered by row, then head. */
typedef struct attn_block {
    const row_span *span;
    int row, n_rows, head, n_heads;
} attn_block;

static int kv_head(const attention_args *a, const attn_block *b)
{
    return b->head / (a->n_heads / b->span->kv.n_kv_heads);
}

static int position(const row_span *s, int row) { return s->pos + row - s->first; }

/* First position that the row at pos sees. */
static int first_visible(const attention_args *a, int pos)
{
    return a->window && pos - a->window + 1 > 0 ? pos - a->window + 1 : 0;
}

static void set_visible(attn_query *q, const attention_args *a, int pos, int tile)
{
    int lo = first_visible(a, pos) - tile * KV_TILE, hi = pos + 1 - tile * KV_TILE;
    q->lo = lo > 0 ? lo : 0;
    q->hi = hi < KV_TILE ? hi : KV_TILE;
}

/* Query i of the block, nothing seen yet; acc [v_stride] is cleared. */
static attn_query query(const attention_args *a, const attn_block *b, int i, float *acc)
{
    const kv_view *kv = &b->span->kv;
    int r = b->row + i / b->n_heads, head = b->head + i % b->n_heads;
    memset(acc, 0, (size_t)kv_v_stride(kv->head_dim_v) * sizeof(float));
    return (attn_query){ .q = a->q + (size_t)r * a->q_stride + (size_t)head * kv->head_dim,
                         .acc = acc,
                         .max = -INFINITY };
}

/* A sink is seen before all positions. */
static void see_sink(const attention_args *a, int head, attn_query *q)
{
    if (!a->sinks) return;
    q->max = a->sinks[head];
    q->sum = 1.0f;
}

static void write_out(const attention_args *a, const kv_view *kv, int row, int head,
                      const attn_query *q)
{
    float *out = a->out + (size_t)row * a->out_stride + (size_t)head * kv->head_dim_v;
    for (int c = 0; c < kv->head_dim_v; c++)
        out[c] = q->acc[c] / q->sum;
}

/* The block's queries through one chunk. */
static void attend_chunk(const device *d, const attention_args *a, const attn_block *b, int chunk,
                         attn_query *q)
{
    int first = first_visible(a, position(b->span, b->row)) / KV_TILE;
    int last = position(b->span, b->row + b->n_rows - 1) / KV_TILE;
    int t = chunk * CHUNK_TILES, end = t + CHUNK_TILES;
    for (t = t < first ? first : t; t < end && t <= last; t++) {
        kv_tile tile = tile_of(&b->span->kv, t, kv_head(a, b));
        for (int i = 0; i < b->n_rows * b->n_heads; i++)
            set_visible(&q[i], a, position(b->span, b->row + i / b->n_heads), t);
        d->k->attn_tile(q, b->n_rows * b->n_heads, &tile, a->scale, a->softcap);
    }
}

static int first_chunk(const attention_args *a, const row_span *s, int row)
{
    return first_visible(a, position(s, row)) / KV_TILE / CHUNK_TILES;
}
static int last_chunk(const row_span *s, int row)
{
    return position(s, row) / KV_TILE / CHUNK_TILES;
}

/* Probabilities of the block's queries into the caller's [n_heads, n, n]; needs final max and sum.
 */
static void capture_block(const device *d, const attention_args *a, const attn_block *b,
                          attn_query *q)
{
    int n = a->spans[0].n, i = 0;
    float scores[KV_TILE] ATTR_ALIGNED(64), p[KV_TILE] ATTR_ALIGNED(64);
    for (int r = b->row; r < b->row + b->n_rows; r++)
        for (int head = b->head; head < b->head + b->n_heads; head++, i++) {
            int pos = position(b->span, r);
            float *out = a->capture + ((size_t)head * n + (size_t)(r - b->span->first)) * n;
            memset(out, 0, (size_t)n * sizeof(float));
            for (int t = first_visible(a, pos) / KV_TILE; t <= pos / KV_TILE; t++) {
                kv_tile tile = tile_of(&b->span->kv, t, kv_head(a, b));
                set_visible(&q[i], a, pos, t);
                d->k->attn_scores(scores, &q[i], &tile, a->scale, a->softcap);
                d->k->exp_sum(p, scores, q[i].max, KV_TILE);
                for (int c = q[i].lo; c < q[i].hi; c++)
                    out[t * KV_TILE + c] = p[c] / q[i].sum;
            }
        }
}

static void attend_block(const worker *w, const attention_args *a, const attn_block *b)
{
    device *d = w->dev;
    thread_scratch *s = &d->scratch[w->thread];
    int v_stride = kv_v_stride(b->span->kv.head_dim_v), n = b->n_rows * b->n_heads;
    float *chunk_acc = s->acc + (size_t)ATTN_QUERIES * (size_t)v_stride;
    for (int i = 0; i < n; i++) {
        s->queries[i] = query(a, b, i, s->acc + (size_t)i * (size_t)v_stride);
        see_sink(a, b->head + i % b->n_heads, &s->queries[i]);
    }
    int last = last_chunk(b->span, b->row + b->n_rows - 1);
    for (int c = first_chunk(a, b->span, b->row); c <= last; c++) {
        for (int i = 0; i < n; i++)
            s->chunk[i] = query(a, b, i, chunk_acc + (size_t)i * (size_t)v_stride);
        attend_chunk(d, a, b, c, s->chunk);
        for (int i = 0; i < n; i++)
            d->k->attn_merge(&s->queries[i], &s->chunk[i], v_stride);
    }
    for (int i = 0; i < n; i++)
        write_out(a, &b->span->kv, b->row + i / b->n_heads, b->head + i % b->n_heads,
                  &s->queries[i]);
    if (a->capture && b->span == a->spans) capture_block(d, a, b, s->queries);
}

/* The step cut into blocks of the given number of heads of a group. */
typedef struct cut {
    int group, heads, rows, per_group, per_row;
} cut;

static cut cut_by(const attention_args *a, int heads)
{
    int group = a->n_heads / a->spans[0].kv.n_kv_heads;
    if (heads > ATTN_QUERIES) heads = ATTN_QUERIES;
    int per_group = (group + heads - 1) / heads;
    return (cut){ group, heads, ATTN_QUERIES / heads, per_group, a->n_heads / group * per_group };
}

/* Block i of those that begin at row r of the span. */
static attn_block block_at(const cut *c, const row_span *s, int r, int i)
{
    int first = i % c->per_group * c->heads;
    return (attn_block){ s, s->first + r, s->n - r < c->rows ? s->n - r : c->rows,
                         i / c->per_group * c->group + first,
                         c->group - first < c->heads ? c->group - first : c->heads };
}

/* ---- chunks at the same time ---- */

/* A part is acc [v_stride], max, sum, up to a multiple of 16 floats. device.parts holds, span by
 * span, [n rows, n_heads, chunks of the span] of them. */
static int span_chunks(const attention_args *a, const row_span *s)
{
    return last_chunk(s, s->first + s->n - 1) - first_chunk(a, s, s->first) + 1;
}

static size_t part_floats(const attention_args *a)
{
    return (size_t)kv_v_stride(a->spans[0].kv.head_dim_v) + 16;
}

/* Whether threads should make chunks at the same time: few blocks, several chunks, room. */
static bool by_chunks(const worker *w, const attention_args *a)
{
    cut c = cut_by(a, a->n_heads / a->spans[0].kv.n_kv_heads);
    long long blocks = 0, items = 0, n_parts = 0;
    for (int i = 0; i < a->n_spans; i++) {
        const row_span *s = &a->spans[i];
        long long mine = (long long)((s->n + c.rows - 1) / c.rows) * c.per_row;
        blocks += mine;
        items += mine * span_chunks(a, s);
        n_parts += (long long)s->n * a->n_heads * span_chunks(a, s);
    }
    if (w->n_threads == 1 || a->capture || blocks >= 4 * w->n_threads) return false;
    return items >= 2 * w->n_threads && items > blocks &&
           (size_t)n_parts <= ATTN_PART_BYTES / sizeof(float) / part_floats(a);
}

static void make_part(const worker *w, const attention_args *a, const attn_block *b, int chunk,
                      float *span_parts)
{
    device *d = w->dev;
    thread_scratch *s = &d->scratch[w->thread];
    const row_span *span = b->span;
    size_t size = part_floats(a), n_chunks = (size_t)span_chunks(a, span);
    int first = first_chunk(a, span, span->first), n = b->n_rows * b->n_heads;
    for (int i = 0; i < n; i++) {
        size_t row = (size_t)(b->row - span->first + i / b->n_heads);
        size_t q = row * (size_t)a->n_heads + (size_t)(b->head + i % b->n_heads);
        s->chunk[i] = query(a, b, i, span_parts + (q * n_chunks + (size_t)(chunk - first)) * size);
    }
    attend_chunk(d, a, b, chunk, s->chunk);
    for (int i = 0; i < n; i++) {
        float *state = s->chunk[i].acc + size - 16;
        state[0] = s->chunk[i].max;
        state[1] = s->chunk[i].sum;
    }
}

/* One query's parts in order. */
static void merge_parts(const worker *w, const attention_args *a, const row_span *s, int row,
                        int head, float *first_part)
{
    device *d = w->dev;
    attn_block one = { s, row, 1, head, 1 };
    attn_query q = query(a, &one, 0, d->scratch[w->thread].acc);
    see_sink(a, head, &q);
    size_t size = part_floats(a);
    for (int c = 0; c < span_chunks(a, s); c++) {
        float *p = first_part + (size_t)c * size;
        attn_query part = { .acc = p, .max = p[size - 16], .sum = p[size - 15] };
        d->k->attn_merge(&q, &part, kv_v_stride(s->kv.head_dim_v));
    }
    write_out(a, &s->kv, row, head, &q);
}

static void attend_by_chunks(const worker *w, const attention_args *a)
{
    cut c = cut_by(a, a->n_heads / a->spans[0].kv.n_kv_heads);
    size_t size = part_floats(a);
    float *mem = w->dev->parts;
    int item = 0;
    for (int i = 0; i < a->n_spans; i++) {
        const row_span *s = &a->spans[i];
        int first = first_chunk(a, s, s->first), n_chunks = span_chunks(a, s);
        for (int r = 0; r < s->n; r += c.rows)
            for (int j = 0; j < c.per_row * n_chunks; j++, item++) {
                if (item % w->n_threads != w->thread) continue;
                attn_block b = block_at(&c, s, r, j / n_chunks);
                make_part(w, a, &b, first + j % n_chunks, mem);
            }
        mem += (size_t)s->n * (size_t)a->n_heads * (size_t)n_chunks * size;
    }
    pool_barrier(w->dev->pool);
    mem = w->dev->parts;
    item = 0;
    for (int i = 0; i < a->n_spans; i++) {
        const row_span *s = &a->spans[i];
        size_t mine = (size_t)span_chunks(a, s) * size;
        for (int j = 0; j < s->n * a->n_heads; j++, item++, mem += mine)
            if (item % w->n_threads == w->thread)
                merge_parts(w, a, s, s->first + j / a->n_heads, j % a->n_heads, mem);
    }
}

void cpu_attention(const worker *w, const attention_args *a)
{
    if (by_chunks(w, a)) {
        attend_by_chunks(w, a);
        return;
    }
    int group = a->n_heads / a->spans[0].kv.n_kv_heads, total = 0, heads = group, item = 0;
    for (int i = 0; i < a->n_spans; i++)
        total += a->spans[i].n;
    // Few rows: heads are divided among threads; more: all heads of a group share the tile's loads.
    while (heads > 1 && total * (a->n_heads / heads) < 2 * w->n_threads)
        heads = (heads + 1) / 2;
    cut c = cut_by(a, heads);
    // Blocks go around the threads: later rows see more, so neighbours in turn keep the shares
    // even.
    for (int i = 0; i < a->n_spans; i++) {
        const row_span *s = &a->spans[i];
        for (int r = 0; r < s->n; r += c.rows)
            for (int j = 0; j < c.per_row; j++, item++) {
                if (item % w->n_threads != w->thread) continue;
                attn_block b = block_at(&c, s, r, j);
                attend_block(w, a, &b);
            }
    }
}
