/* fuzz_patch.c: .vlp files: any bytes give an error, or a patch that can be laid over the index,
 * taken back and saved. */
#include "index_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static infer_vindex *index_open;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    infer_error err;
    index_make();
    if (infer_vindex_open(&index_open, index_folder, NULL, &err)) abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    infer_error err;
    char path[260];
    float x[64 * 16];
    infer_vindex_info info = infer_vindex_describe_index(index_open);
    snprintf(path, sizeof path, "%s/p.vlp", index_root);
    index_write(path, data, size);
    infer_patch *p = infer_patch_new(index_open, &err), *again = infer_patch_new(index_open, &err);
    if (!p || !again) abort();
    if (infer_patch_load(p, path, &err)) {
        if (!err.msg[0] || infer_patch_n_operations(p)) abort();
    } else {
        int n = infer_patch_n_operations(p);
        infer_hit hits[5];
        infer_token_score tokens[3];
        infer_knn_fact fact;
        for (int i = 0; i < 64 * 16; i++)
            x[i] = (float)(i % 7) - 2;
        for (int l = 0; l < info.n_layers; l++) {
            infer_vindex_knn(index_open, p, l, x, hits, 5, &err);
            infer_vindex_feature(index_open, p, l, 0, tokens, 3);
        }
        if (info.n_layers * info.d_model <= 64 * 16)
            infer_vindex_recall(index_open, p, x, 0.1f, &fact, &err);
        for (int i = 0; i < n; i++)
            infer_patch_operation(p, i);
        if (infer_patch_save(p, path, &err) || infer_patch_load(again, path, &err)) abort();
        if (infer_patch_n_operations(again) != n) abort();
        infer_patch_stack(again, p, INFER_CONFLICT_CONFIDENCE, &err);
        infer_patch_truncate(p, n / 2);
    }
    infer_patch_free(again);
    infer_patch_free(p);
    return 0;
}
