/* fuzz_safetensors.c: any bytes as model.safetensors, or where they begin with '{' as its index. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "infer.h"
#include "models/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[64] = "/dev/shm/infer-fuzz-XXXXXX", weights[128], index_path[128], config[128];

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (!f) abort();
    fwrite(data, 1, size, f);
    fclose(f);
}

static void clean(void)
{
    unlink(weights);
    unlink(index_path);
    unlink(config);
    rmdir(folder);
}

static void start(void)
{
    static const char text[] =
        "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":4,"
        "\"intermediate_size\":4,\"num_attention_heads\":1,\"max_position_embeddings\":8,"
        "\"tie_word_embeddings\":true}";
    if (!mkdtemp(folder)) abort();
    atexit(clean);
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    write_file(config, text, strlen(text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!weights[0]) start();
    bool is_index = size && data[0] == '{';
    write_file(is_index ? index_path : weights, data, size);
    infer_error err;
    safetensors *s;
    infer_model *m;
    if (st_open(&s, folder, NULL, NULL, &err) == INFER_OK) {
        for (int i = 0; i < st_n_tensors(s); i++) {
            const st_tensor *t = st_tensor_at(s, i);
            volatile uint8_t last = t->bytes ? t->data[t->bytes - 1] : 0;
            (void)last;
        }
        st_close(s);
    }
    if (infer_model_open(&m, folder, NULL, &err) == INFER_OK) infer_model_close(m);
    if (is_index) unlink(index_path);
    return 0;
}
