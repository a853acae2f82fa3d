/* convert.c: Hugging Face folders as GGUF. */
#include "base/error.h"
#include "models/quantize.h"

infer_status convert_folder(out_model *m, infer_error *err)
{
    return error_set(err, INFER_UNSUPPORTED, "%s: a folder cannot be converted by this version",
                     m->path);
}

infer_status convert_check(const out_model *m, const char *written, infer_error *err)
{
    (void)m;
    (void)written;
    return error_clear(err);
}
