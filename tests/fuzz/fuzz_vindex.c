/* fuzz_vindex.c: a small index of which the input replaces one file: the first byte says which. */
#include "index_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static const char *const names[] = {
    "index.json",          "weight_manifest.json",   "down_meta.bin",         "tokenizer.json",
    "infer_metadata.gguf", "relation_clusters.json", "feature_clusters.jsonl"
};
#define N_NAMES (sizeof names / sizeof *names)
static char whole[N_NAMES][260], away[N_NAMES][270];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    index_make();
    for (size_t i = 0; i < N_NAMES; i++) {
        snprintf(whole[i], sizeof whole[i], "%s/%s", index_folder, names[i]);
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
    size_t which = data[0] % N_NAMES;
    if (rename(whole[which], away[which])) abort();
    index_write(whole[which], data + 1, size - 1);
    if (!infer_vindex_open(&v, index_folder, NULL, &err)) {
        infer_vindex_info info = infer_vindex_describe_index(v);
        infer_token_score best[3];
        infer_relation r[3];
        for (int l = 0; l < info.n_layers && l < 4; l++)
            for (int i = 0; i < infer_vindex_n_features(v, l) && i < 200; i++)
                infer_vindex_feature(v, NULL, l, i, best, 3);
        infer_vindex_relations(v, r, 3, &err);
    }
    infer_vindex_close(v);
    infer_model_open(&m, index_folder, NULL, &err);
    infer_model_close(m);
    if (rename(away[which], whole[which])) abort();
    return 0;
}
