/* The older binary importance matrices: any bytes give a table or an error. */
#include "base/error.h"
#include "models/imatrix.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    imatrix *m;
    infer_error err;
    size_t n = 0;
    if (imatrix_parse(&m, data, size, "fuzz", &err) != INFER_OK) return 0;
    const float *v = imatrix_find(m, "blk.0.attn_q.weight", &n);
    if (v && n && !(v[n - 1] >= 0)) __builtin_trap();
    imatrix_close(m);
    return 0;
}
