/* fuzz_storage.c: files that stand in for others of an index: the input replaces one of them, the
 * first byte says which. Any bytes give an error, or an index and a model whose rows can be read.
 */
#include "index_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static const char *const names[] = { "layers/layer_00.weights", "attn_weights_q8_manifest.json",
                                     "attn_weights_q4_manifest.json", "down_meta.jsonl",
                                     "gate_vectors_q4.bin" };
#define N_NAMES (sizeof names / sizeof *names)
static uint8_t *whole[N_NAMES];
static size_t sizes[N_NAMES];

static void in_folder(char path[300], const char *name)
{
    snprintf(path, 300, "%s/%s", index_folder, name);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    static const char *const kinds[] = { "gates-q4", "attention-q8", "attention-q4", "layers-f32" };
    static const char *const gone[] = { "gate_vectors.bin", "attn_weights.bin", "up_weights.bin",
                                        "down_weights.bin", "down_meta.bin" };
    infer_error err;
    char path[300];
    index_make();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (infer_vindex_build(index_folder, kinds[i], &err)) {
            fprintf(stderr, "%s\n", err.msg);
            abort();
        }
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        in_folder(path, gone[i]);
        unlink(path);
    }
    in_folder(path, "down_meta.jsonl");
    index_write(path, (const uint8_t *)"{\"l\":0,\"f\":1,\"i\":2,\"c\":3}\n", 26);
    for (size_t i = 0; i < N_NAMES; i++) {
        in_folder(path, names[i]);
        FILE *f = fopen(path, "rb");
        if (!f) abort();
        whole[i] = malloc(1 << 20);
        sizes[i] = fread(whole[i], 1, 1 << 20, f);
        fclose(f);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    infer_error err;
    infer_vindex *v = NULL;
    infer_model *m = NULL;
    float x[1024] = { 1 };
    infer_hit hits[3];
    char path[300];
    if (!size) return 0;
    size_t which = data[0] % N_NAMES;
    in_folder(path, names[which]);
    index_write(path, data + 1, size - 1);
    if (!infer_vindex_open(&v, index_folder, NULL, &err)) {
        infer_vindex_info info = infer_vindex_describe_index(v);
        infer_token_score best[3];
        for (int l = 0; l < info.n_layers && info.d_model <= 1024; l++) {
            infer_vindex_knn(v, NULL, l, x, hits, 3, &err);
            infer_vindex_knn_contribution(v, l, x, hits, 3, &err);
            infer_vindex_feature(v, NULL, l, 1, best, 3);
        }
    }
    infer_vindex_close(v);
    infer_model_open(&m, index_folder, NULL, &err);
    infer_model_close(m);
    index_write(path, whole[which], sizes[which]);
    return 0;
}
