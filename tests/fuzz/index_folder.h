/* index_folder.h: a small index in a folder of its own, removed at exit. */
#ifndef FUZZ_INDEX_FOLDER_H
#define FUZZ_INDEX_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "infer_vindex.h"

static char index_root[200], index_folder[220];

static void index_remove(void)
{
    char command[240];
    snprintf(command, sizeof command, "rm -rf '%s'", index_root);
    if (system(command)) fprintf(stderr, "%s stays\n", index_root);
}

static void index_make(void)
{
    infer_error err;
    snprintf(index_root, sizeof index_root, "/dev/shm/infer-fuzz-XXXXXX");
    if (!mkdtemp(index_root)) abort();
    snprintf(index_folder, sizeof index_folder, "%s/v", index_root);
    infer_extract_options o = {
        .struct_size = sizeof o, .dtype = "f32", .n_threads = 1, .n_clusters = 3
    };
    if (infer_extract("tests/golden/tiny/control_gguf_bpe_f32.gguf", index_folder, &o, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    atexit(index_remove);
}

static void index_write(const char *path, const uint8_t *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f) abort();
    fwrite(data, 1, size, f);
    fclose(f);
}

#endif
