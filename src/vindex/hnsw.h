/*
 * hnsw.h: a graph over the rows of a matrix that leads to the rows r with the largest |r . x|: a
 * hierarchical navigable small world (Malkov & Yashunin 2016) on vectors of bytes, with exact
 * scores for what it finds.
 *
 * v and -v are one point: nearness is |inner product|, between rows too, so that one walk finds the
 * largest products of either sign.
 *
 * The graph is a function of the matrix and the parameters, whatever the threads. Immutable once
 * built or mapped; each thread searches with a graph_search of its own.
 */
#ifndef VINDEX_HNSW_H
#define VINDEX_HNSW_H

#include "base/map.h"
#include "base/thread.h"
#include "vindex/knn.h"

#define GRAPH_LEVELS 13
#define GRAPH_M_MAX 64
#define GRAPH_NONE 0xffffffffu // an unused link; the others of its node come before it

/* A level: the rows that are in it, ascending (level 0: NULL, all of them), and their links, which
 * are places in this level. */
typedef struct graph_level {
    int n, width;
    const uint32_t *rows;  // [n]
    const uint32_t *links; // [n, width]
} graph_level;

typedef struct vindex_graph {
    int n_rows, n_cols, m, n_levels;
    uint32_t entry;        // place in the highest level
    size_t stride;         // bytes of a vector, a multiple of 64
    const float *scale;    // [n_rows]: row = scale * vector; 0: a row of zeros, or not finite
    const int8_t *vectors; // [n_rows, stride]
    graph_level levels[GRAPH_LEVELS];
    void *memory; // what it owns, of memory_bytes; NULL: a view into a file's map
    size_t memory_bytes;
} vindex_graph;

typedef struct graph_params {
    int m;        // links of a new row; level 0 keeps 2m; 0: 16
    int ef_build; // candidates that are looked at for them; 0: 100
    uint64_t seed;
} graph_params;

/* INFER_UNSUPPORTED over 2^26 rows or DOTS_MAX columns. */
infer_status graph_build(vindex_graph **out, const tensor *rows, const graph_params *p,
                         thread_pool *pool, infer_error *err);
void graph_free(vindex_graph *g);

/* ---- a file of graphs ------------------------------------------------------------------------ */

/* Everything little-endian; offsets are multiples of 64.
 *    0  "IHNW"   u32 version (1)   u32 n_graphs   u32 0   u64 bytes of the file
 *   24  u64 checksum of the table   32 bytes of 0
 *   64  n_graphs entries of 128 bytes:
 *         u32 layer, part, n_rows, n_cols, m, n_levels, entry, dtype of the matrix (its GGUF id)
 *         u32 n[13] rows of the levels   u32 0
 *         u64 fingerprint of the matrix, offset, checksum of all but the vectors, of the vectors
 *         8 bytes of 0
 *   then each graph as graph_layout has it: vectors, scales, and of each level links and rows. */
typedef struct graph_entry {
    int layer, part;
    const vindex_graph *graph;
    const tensor *rows;
} graph_entry;
infer_status graph_file_write(const char *path, const graph_entry *entries, int n,
                              infer_error *err);

typedef struct graph_file graph_file;
/* Maps and checks all but the vectors, of which any bytes are legal. */
infer_status graph_file_open(graph_file **out, const char *path, infer_error *err);
/* The same of bytes in memory, which stay the caller's; 64-byte aligned. */
infer_status graph_file_parse(graph_file **out, const char *name, const uint8_t *data, size_t size,
                              infer_error *err);
void graph_file_close(graph_file *f);
int graph_file_n(const graph_file *f);
const vindex_graph *graph_file_graph(const graph_file *f, int i);
/* For the fuzzer: writes right checksums into the bytes of a file, as far as they lead. */
void graph_file_mend(uint8_t *data, size_t size);
/* The graph of a matrix, which lives as long as f. INFER_NOT_FOUND: none of this layer and part;
 * INFER_FORMAT: it was made of another matrix. */
infer_status graph_file_find(const graph_file *f, const vindex_graph **out, int layer, int part,
                             const tensor *rows, infer_error *err);
/* Compares the vectors with their checksums. */
infer_status graph_file_check(const graph_file *f, infer_error *err);

/* Sets g's pointers to its parts at base; the bytes that they take. n_rows, stride and the levels'
 * n and width are set. */
size_t graph_layout(vindex_graph *g, const uint8_t *base);

/* ---- searching ------------------------------------------------------------------------------- */

typedef struct graph_search graph_search;
/* Memory for searches of graphs of at most n_rows rows of n_cols, row_bytes each, with a beam of at
 * most ef. */
graph_search *graph_search_new(int n_rows, int n_cols, size_t row_bytes, int ef);
void graph_search_free(graph_search *s);
/* The n best rows, best first, with the scores that a scan gives; the count. A beam of max(ef, n).
 * Rows are the matrix that the graph was made of; n is at most the search's ef. x [n_x], zeros
 * follow. */
int graph_find(const vindex_graph *g, graph_search *s, knn_hit *hits, int n, const tensor *rows,
               const float *x, int n_x, int ef);
/* Vectors that the search has compared since it was made. */
int graph_search_ef(const graph_search *s);
uint64_t graph_search_compared(const graph_search *s);

#endif
