/*
 * infer_tools.h: making model files: safetensors to GGUF, and GGUF to GGUF in another format.
 *
 * The conventions are infer.h's.
 */
#ifndef INFER_TOOLS_H
#define INFER_TOOLS_H

#include "infer_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The target types, "Q4_K_M"; NULL past the last. A type is a choice of format for each tensor: most
 * have the one they are named after, some that matter more have more bits. *summary may be NULL. */
INFER_API const char *infer_quantize_type(int i, const char **summary);

typedef struct infer_quantize_step {
    const char *tensor;  // the one that is written now
    const char *type;    // its format in the output, "q4_k"
    int index, n_tensors;
    uint64_t bytes_done, bytes_total; // of the output
} infer_quantize_step;

typedef struct infer_quantize_options {
    size_t struct_size;
    const char *type;       // a name of infer_quantize_type in any case; NULL: formats as they are
    const char *importance; // importance matrix file (GGUF or the older binary form), or NULL
    int n_threads;          // 0: physical cores within the affinity mask and the CPU quota
    /* Called often, on the calling thread; false ends the work with INFER_CANCELLED. */
    bool (*progress)(const infer_quantize_step *step, void *user);
    void *progress_user;
    infer_log log;
} infer_quantize_options;

typedef struct infer_quantize_result {
    int n_tensors;
    int n_fallbacks;      // tensors whose rows did not fit the format that they should have had
    uint64_t in_bytes, out_bytes; // of the files
    uint64_t n_params;
    double bits_per_weight;
    double seconds;
} infer_quantize_result;

/*
 * Reads a GGUF file (a split set becomes one file) or a Hugging Face folder and writes the GGUF file
 * `out`. It is written under another name in the same folder and renamed when it is whole: whatever
 * happens, `out` is either as it was or complete. Weights are read and written in slices: memory does
 * not grow with the model.
 *
 * Refused: weights that are not finite (INFER_FORMAT, naming the tensor), or too large for the format;
 * an output that is the input; a folder whose family or tokenizer has no faithful GGUF form here
 * (INFER_UNSUPPORTED, naming what). result may be NULL.
 */
INFER_API infer_status infer_quantize(const char *in, const char *out,
                                      const infer_quantize_options *options,
                                      infer_quantize_result *result, infer_error *err);

#ifdef __cplusplus
}
#endif
#endif
