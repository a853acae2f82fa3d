/* Files of graphs: any bytes give an error or graphs that every search ends in. The checksums of
 * the table and of the parts are mended first: a file can be wrong and have right ones. */
#include <string.h>

#include "base/mem.h"
#include "vindex/hnsw.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    graph_file *f;
    infer_error err;
    uint8_t *copy = mem_pages(size + 1);
    if (!copy) return 0;
    memcpy(copy, data, size);
    graph_file_mend(copy, size);
    if (graph_file_parse(&f, "fuzz", copy, size, &err) == INFER_OK) {
        for (int i = 0; i < graph_file_n(f); i++) {
            const vindex_graph *g = graph_file_graph(f, i);
            if (g->n_rows > 4096 || g->n_cols > 512) continue;
            float x[512];
            for (int j = 0; j < 512; j++)
                x[j] = (float)(j % 7) - 3;
            tensor t = { .name = "t", .type = DT_F32, .n_rows = g->n_rows, .n_cols = g->n_cols,
                         .n_slices = 1, .row_bytes = (size_t)g->n_cols * 4 };
            t.data = mem_zero((size_t)g->n_rows + 1, t.row_bytes);
            graph_search *s = graph_search_new(g->n_rows, g->n_cols, t.row_bytes, 32);
            knn_hit h[8];
            if (s && t.data && graph_find(g, s, h, 8, &t, x, g->n_cols, 32) > 8) __builtin_trap();
            graph_search_free(s);
            mem_free((void *)(uintptr_t)t.data);
        }
        graph_file_close(f);
    }
    mem_free_pages(copy, size + 1);
    return 0;
}
