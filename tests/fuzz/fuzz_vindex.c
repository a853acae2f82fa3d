/* fuzz_vindex.c: a small index of which the input replaces one file: the first byte says which. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "infer_vindex.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static const char *const names[] = { "index.json", "weight_manifest.json", "down_meta.bin",
                                     "tokenizer.json", "infer_metadata.gguf" };
static char folder[200], whole[5][260], away[5][260];

static void clean(void)
{
    char command[240];
    snprintf(command, sizeof command, "rm -rf '%.*s'", (int)strlen(folder) - 2, folder);
    if (system(command)) fprintf(stderr, "%s stays\n", folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    char out[220];
    infer_error err;
    snprintf(folder, sizeof folder, "/dev/shm/infer-fuzz-XXXXXX");
    if (!mkdtemp(folder)) abort();
    snprintf(out, sizeof out, "%s/v", folder);
    infer_extract_options o = { .struct_size = sizeof o, .dtype = "f32", .n_threads = 1 };
    if (infer_extract("tests/golden/tiny/control_gguf_bpe_f32.gguf", out, &o, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    strcat(folder, "/v");
    atexit(clean);
    for (int i = 0; i < 5; i++) {
        snprintf(whole[i], sizeof whole[i], "%s/%s", folder, names[i]);
        snprintf(away[i], sizeof away[i], "%s.whole", whole[i]);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    infer_error err;
    infer_vindex *v = NULL;
    infer_model *m = NULL;
    if (!size) return 0;
    int which = data[0] % 5;
    if (rename(whole[which], away[which])) abort();
    FILE *f = fopen(whole[which], "wb");
    if (!f) abort();
    fwrite(data + 1, 1, size - 1, f);
    fclose(f);
    if (!infer_vindex_open(&v, folder, NULL, &err)) {
        infer_vindex_info info = infer_vindex_describe_index(v);
        infer_token_score best[3];
        for (int l = 0; l < info.n_layers && l < 4; l++)
            for (int i = 0; i < infer_vindex_n_features(v, l) && i < 200; i++)
                infer_vindex_feature(v, NULL, l, i, best, 3);
    }
    infer_vindex_close(v);
    infer_model_open(&m, folder, NULL, &err);
    infer_model_close(m);
    if (rename(away[which], whole[which])) abort();
    return 0;
}
