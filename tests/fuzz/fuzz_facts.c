/* fuzz_facts.c: knn_store.bin: any bytes give an error, or facts that can be asked and written. */
#include "index_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    index_make();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    infer_error err;
    infer_vindex *v = NULL;
    char path[260], out[260], command[300];
    snprintf(path, sizeof path, "%s/knn_store.bin", index_folder);
    snprintf(out, sizeof out, "%s/out", index_root);
    index_write(path, data, size);
    if (infer_vindex_open(&v, index_folder, NULL, &err)) {
        if (!err.msg[0]) abort();
        return 0;
    }
    infer_vindex_info info = infer_vindex_describe_index(v);
    float *x = calloc((size_t)info.n_layers * (size_t)info.d_model, sizeof *x);
    infer_knn_fact fact;
    for (int i = 0; i < info.n_layers * info.d_model; i++)
        x[i] = (float)(i % 5) - 1;
    int found = infer_vindex_recall(v, NULL, x, 1e-6f, &fact, &err);
    if (found > 0 && (fact.token < 0 || fact.token >= info.n_vocab)) abort();
    infer_patch *p = infer_patch_new(v, &err);
    if (infer_vindex_n_facts(v, NULL) && (infer_patch_compile(p, out, &err))) abort();
    infer_patch_free(p);
    infer_vindex_close(v);
    free(x);
    snprintf(command, sizeof command, "%s/knn_store.bin", out);
    if (!access(command, F_OK)) { // what was written is read
        if (infer_vindex_open(&v, out, NULL, &err)) abort();
        infer_vindex_close(v);
    }
    snprintf(command, sizeof command, "rm -rf '%s'", out);
    if (!access(out, F_OK) && system(command)) abort();
    return 0;
}
