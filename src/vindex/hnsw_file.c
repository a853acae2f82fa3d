/*
 * hnsw_file.c: graphs in a file, as they lie in memory, so that a map of it is searched as it is.
 * Nothing in it is believed: whatever a search uses as an index is checked when it is mapped.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"
#include "vindex/hnsw.h"

#define VERSION 1u
#define HEAD 64
#define ENTRY 128
#define GRAPHS_MAX (1 << 20)
#define REBUILD "; delete the file, and it is built again"

struct graph_file {
    file_map map;
    const uint8_t *data;
    char *name;
    int n;
    struct graph_slot {
        int layer, part, ggml_type;
        uint64_t fingerprint, vectors_sum;
        vindex_graph graph;
    } * slots;
};

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t get64(const uint8_t *p) { return get32(p) | (uint64_t)get32(p + 4) << 32; }
static void put32(uint8_t *p, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> 8 * i);
}
static void put64(uint8_t *p, uint64_t x)
{
    put32(p, (uint32_t)x);
    put32(p + 4, (uint32_t)(x >> 32));
}

/* Against decay, not against malice: four streams of words, multiplied and folded. */
static uint64_t checksum(const uint8_t *p, size_t n)
{
    uint64_t h[4] = { 1, 2, 3, 4 }, k = 0x9e3779b97f4a7c15u;
    uint8_t last[32] = { 0 };
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) {
            uint64_t x = (h[j] ^ get64(p + i + 8 * j)) * k;
            h[j] = x ^ x >> 29;
        }
    if (i < n) memcpy(last, p + i, n - i);
    uint64_t sum = n;
    for (int j = 0; j < 4; j++) {
        uint64_t x = (h[j] ^ get64(last + 8 * j)) * k;
        sum = (sum ^ x ^ x >> 29) * k;
    }
    return sum ^ sum >> 32;
}

/* Shape, type and up to 64 rows of a matrix. */
static uint64_t fingerprint(const tensor *t)
{
    uint64_t sum = (uint64_t)t->n_rows << 32 | (uint32_t)t->n_cols;
    int step = t->n_rows / 64 + 1;
    for (int r = 0; r < t->n_rows; r += step)
        sum =
            sum * 0x9e3779b97f4a7c15u + checksum(t->data + (size_t)r * t->row_bytes, t->row_bytes);
    return sum;
}

/* ---- writing --------------------------------------------------------------------------------- */

static size_t vector_bytes(const vindex_graph *g) { return (size_t)g->n_rows * g->stride; }

infer_status graph_file_write(const char *path, const graph_entry *entries, int n, infer_error *err)
{
    size_t table_bytes = (size_t)n * ENTRY, offset = HEAD + table_bytes;
    uint8_t head[HEAD] = "IHNW", *table = mem_zero((size_t)n + 1, ENTRY);
    if (!table) return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    for (int i = 0; i < n; i++) {
        const vindex_graph *g = entries[i].graph;
        const uint8_t *data = (const uint8_t *)g->vectors;
        vindex_graph at = *g;
        size_t bytes = graph_layout(&at, NULL), vectors = vector_bytes(g);
        uint8_t *e = table + (size_t)i * ENTRY;
        uint32_t words[8] = { (uint32_t)entries[i].layer,
                              (uint32_t)entries[i].part,
                              (uint32_t)g->n_rows,
                              (uint32_t)g->n_cols,
                              (uint32_t)g->m,
                              (uint32_t)g->n_levels,
                              g->entry,
                              (uint32_t)quant_formats[entries[i].rows->type]->ggml_type };
        for (int j = 0; j < 8; j++)
            put32(e + 4 * j, words[j]);
        for (int l = 0; l < g->n_levels; l++)
            put32(e + 32 + 4 * l, (uint32_t)g->levels[l].n);
        put64(e + 88, fingerprint(entries[i].rows));
        put64(e + 96, offset);
        put64(e + 104, checksum(data + vectors, bytes - vectors));
        put64(e + 112, checksum(data, vectors));
        offset += bytes;
    }
    put32(head + 4, VERSION);
    put32(head + 8, (uint32_t)n);
    put64(head + 16, offset);
    put64(head + 24, checksum(table, table_bytes));
    atomic_file a = { 0 };
    infer_status st = atomic_open(&a, path, err);
    if (st == INFER_OK) {
        fwrite(head, 1, HEAD, a.f);
        fwrite(table, 1, table_bytes, a.f);
        for (int i = 0; i < n; i++) {
            vindex_graph at = *entries[i].graph;
            fwrite(entries[i].graph->vectors, 1, graph_layout(&at, NULL), a.f);
        }
        st = atomic_commit(&a, err);
    }
    mem_free(table);
    return st;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Rows of level l ascend and are in the level below; its links lead to places of it. */
static bool level_sound(const vindex_graph *g, int l)
{
    const graph_level *v = &g->levels[l], *below = l ? v - 1 : NULL;
    for (int i = 0, j = 0; l && i < v->n; i++, j++) {
        uint32_t row = v->rows[i];
        if (below->rows) {
            while (j < below->n && below->rows[j] < row)
                j++;
            if (j == below->n || below->rows[j] != row) return false;
        }
        if (row >= (uint32_t)g->n_rows || (i && row <= v->rows[i - 1])) return false;
    }
    for (int i = 0; i < v->n; i++) {
        const uint32_t *links = v->links + (size_t)i * (size_t)v->width;
        for (int j = 0; j < v->width; j++)
            if (links[j] == GRAPH_NONE ? j + 1 < v->width && links[j + 1] != GRAPH_NONE
                                       : links[j] >= (uint32_t)v->n)
                return false;
    }
    return true;
}

static bool shape_sound(vindex_graph *g, const uint8_t *e)
{
    uint32_t n_rows = get32(e + 8), n_cols = get32(e + 12), m = get32(e + 16);
    uint32_t n_levels = get32(e + 20);
    if (n_rows > 1u << 26 || !n_cols || n_cols > DOTS_MAX || m < 2 || m > GRAPH_M_MAX ||
        n_levels > GRAPH_LEVELS || !n_levels != !n_rows)
        return false;
    g->n_rows = (int)n_rows;
    g->n_cols = (int)n_cols;
    g->m = (int)m;
    g->n_levels = (int)n_levels;
    g->entry = get32(e + 24);
    g->stride = ((size_t)n_cols + 63) / 64 * 64;
    uint32_t above = n_rows;
    for (uint32_t l = 0; l < n_levels; l++) {
        uint32_t n = get32(e + 32 + 4 * l);
        if (!n || n > above || (!l && n != n_rows)) return false;
        g->levels[l] = (graph_level){ .n = (int)n, .width = (int)(l ? m : 2 * m) };
        above = n;
    }
    return !n_rows || g->entry < above;
}

static infer_status read_graph(graph_file *f, int i, size_t size, infer_error *err)
{
    const uint8_t *e = f->data + HEAD + (size_t)i * ENTRY;
    struct graph_slot *s = &f->slots[i];
    vindex_graph *g = &s->graph;
    s->layer = (int)(get32(e) & INT32_MAX);
    s->part = (int)(get32(e + 4) & INT32_MAX);
    s->ggml_type = (int)(get32(e + 28) & INT32_MAX);
    s->fingerprint = get64(e + 88);
    s->vectors_sum = get64(e + 112);
    uint64_t offset = get64(e + 96);
    if (!shape_sound(g, e))
        return error_set(err, INFER_FORMAT, "%s: graph %d: shape out of range" REBUILD, f->name, i);
    size_t bytes = graph_layout(g, NULL);
    if (offset % 64 || offset < HEAD || offset > size || bytes > size - offset)
        return error_set(err, INFER_FORMAT,
                         "%s: graph %d: %zu bytes at %" PRIu64 " of a file of %zu" REBUILD, f->name,
                         i, bytes, offset, size);
    graph_layout(g, f->data + offset);
    size_t vectors = vector_bytes(g);
    if (checksum(f->data + offset + vectors, bytes - vectors) != get64(e + 104))
        return error_set(err, INFER_FORMAT, "%s: graph %d: checksum differs" REBUILD, f->name, i);
    for (int r = 0; r < g->n_rows; r++)
        if (!(g->scale[r] >= 0 && g->scale[r] <= 3.4028235e38f))
            return error_set(err, INFER_FORMAT, "%s: graph %d: scale of row %d" REBUILD, f->name, i,
                             r);
    for (int l = 0; l < g->n_levels; l++)
        if (!level_sound(g, l))
            return error_set(err, INFER_FORMAT, "%s: graph %d: level %d leads nowhere" REBUILD,
                             f->name, i, l);
    return INFER_OK;
}

static infer_status read_file(graph_file *f, size_t size, infer_error *err)
{
    const uint8_t *p = f->data;
    if (size < HEAD || memcmp(p, "IHNW", 4) != 0)
        return error_set(err, INFER_FORMAT, "%s: no graph file" REBUILD, f->name);
    if (get32(p + 4) != VERSION)
        return error_set(err, INFER_FORMAT, "%s: version %" PRIu32 ", expected %u" REBUILD, f->name,
                         get32(p + 4), VERSION);
    uint32_t n = get32(p + 8);
    if (get64(p + 16) != size || n > GRAPHS_MAX || n > (size - HEAD) / ENTRY)
        return error_set(err, INFER_FORMAT,
                         "%s: %zu bytes with %" PRIu32 " graphs, expected %" PRIu64
                         " bytes" REBUILD,
                         f->name, size, n, get64(p + 16));
    if (checksum(p + HEAD, (size_t)n * ENTRY) != get64(p + 24))
        return error_set(err, INFER_FORMAT, "%s: table: checksum differs" REBUILD, f->name);
    f->slots = mem_zero((size_t)n + 1, sizeof *f->slots);
    if (!f->slots) return error_set(err, INFER_NOMEM, "%s: out of memory", f->name);
    f->n = (int)n;
    for (int i = 0; i < f->n; i++) {
        infer_status st = read_graph(f, i, size, err);
        if (st != INFER_OK) return st;
    }
    return error_clear(err);
}

infer_status graph_file_parse(graph_file **out, const char *name, const uint8_t *data, size_t size,
                              infer_error *err)
{
    *out = NULL;
    graph_file *f = mem_zero(1, sizeof *f);
    if (!f || !(f->name = mem_strdup(name))) {
        mem_free(f);
        return error_set(err, INFER_NOMEM, "%s: out of memory", name);
    }
    f->data = data;
    infer_status st = read_file(f, size, err);
    if (st == INFER_OK)
        *out = f;
    else
        graph_file_close(f);
    return st;
}

infer_status graph_file_open(graph_file **out, const char *path, infer_error *err)
{
    file_map map;
    *out = NULL;
    infer_status st = map_open(&map, path, NULL, NULL, err);
    if (st != INFER_OK) return st;
    st = graph_file_parse(out, path, map.data, map.size, err);
    if (st == INFER_OK)
        (*out)->map = map;
    else
        map_close(&map);
    return st;
}

void graph_file_close(graph_file *f)
{
    if (!f) return;
    map_close(&f->map);
    mem_free(f->slots);
    mem_free(f->name);
    mem_free(f);
}

int graph_file_n(const graph_file *f) { return f->n; }
const vindex_graph *graph_file_graph(const graph_file *f, int i) { return &f->slots[i].graph; }

void graph_file_mend(uint8_t *data, size_t size)
{
    if (size < HEAD) return;
    uint32_t n = get32(data + 8);
    if (n > (size - HEAD) / ENTRY) return;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *e = data + HEAD + (size_t)i * ENTRY;
        vindex_graph g = { 0 };
        uint64_t offset = get64(e + 96);
        if (!shape_sound(&g, e)) continue;
        size_t bytes = graph_layout(&g, NULL), vectors = vector_bytes(&g);
        if (offset > size || bytes > size - offset) continue;
        put64(e + 104, checksum(data + offset + vectors, bytes - vectors));
    }
    put64(data + 16, size);
    put64(data + 24, checksum(data + HEAD, (size_t)n * ENTRY));
}

infer_status graph_file_find(const graph_file *f, const vindex_graph **out, int layer, int part,
                             const tensor *rows, infer_error *err)
{
    *out = NULL;
    for (int i = 0; i < f->n; i++) {
        const struct graph_slot *s = &f->slots[i];
        if (s->layer != layer || s->part != part) continue;
        if (s->graph.n_rows != rows->n_rows || s->graph.n_cols != rows->n_cols ||
            s->ggml_type != quant_formats[rows->type]->ggml_type ||
            s->fingerprint != fingerprint(rows))
            return error_set(err, INFER_FORMAT,
                             "%s: layer %d: made of other gates than the index has" REBUILD,
                             f->name, layer);
        *out = &s->graph;
        return INFER_OK;
    }
    return error_set(err, INFER_NOT_FOUND, "%s: no graph of layer %d", f->name, layer);
}

infer_status graph_file_check(const graph_file *f, infer_error *err)
{
    for (int i = 0; i < f->n; i++) {
        const vindex_graph *g = &f->slots[i].graph;
        if (checksum((const uint8_t *)g->vectors, vector_bytes(g)) != f->slots[i].vectors_sum)
            return error_set(err, INFER_FORMAT, "%s: vectors of layer %d: checksum differs" REBUILD,
                             f->name, f->slots[i].layer);
    }
    return error_clear(err);
}
