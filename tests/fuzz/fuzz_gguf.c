/* fuzz_gguf.c: any bytes as a GGUF file: opened as a model, and looked into. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "infer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    if (fd < 0) fd = memfd_create("fuzz", 0);
    if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);

    infer_model *m;
    infer_file *f;
    infer_error err;
    if (infer_model_open(&m, path, NULL, &err) == INFER_OK) {
        infer_model_info info = infer_model_describe(m);
        if (info.n_vocab < 1 || !info.quant) __builtin_trap();
        infer_model_close(m);
    }
    if (infer_file_open(&f, path, &err) == INFER_OK) {
        for (int i = 0; i < infer_file_n_meta(f); i++)
            if (!infer_file_meta(f, i).value) __builtin_trap();
        infer_file_close(f);
    }
    return 0;
}
