/*
 * infer_tools.h: what surrounds running a model: making model files (safetensors to GGUF, GGUF to
 * GGUF in another format), and the local store with the hub that it is filled from.
 *
 * The conventions are infer.h's.
 */
#ifndef INFER_TOOLS_H
#define INFER_TOOLS_H

#include "infer_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- making files ---------------------------------------------------------------------------- */

/* The target types, "Q4_K_M"; NULL past the last. A type is a choice of format for each tensor:
 * most have the one they are named after, some that matter more have more bits. *summary may be
 * NULL. */
INFER_API const char *infer_quantize_type(int i, const char **summary);

typedef struct infer_quantize_step {
    const char *tensor; // the one that is written now
    const char *type;   // its format in the output, "q4_k"
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
    int n_fallbacks; // tensors whose rows did not fit the format that they should have had
    uint64_t in_bytes, out_bytes; // of the files
    uint64_t n_params;
    double bits_per_weight;
    double seconds;
} infer_quantize_result;

/*
 * Reads a GGUF file (a split set becomes one file), a Hugging Face folder or a vindex and writes
 * the GGUF file `out`. It is written under another name in the same folder and renamed when it is
 * whole: whatever happens, `out` is either as it was or complete. Weights are read and written in
 * slices: memory does not grow with the model.
 *
 * Refused: weights that are not finite (INFER_FORMAT, naming the tensor), or too large for the
 * format; an output that is the input; a folder whose family or tokenizer has no faithful GGUF form
 * here (INFER_UNSUPPORTED, naming what). result may be NULL.
 */
INFER_API infer_status infer_quantize(const char *in, const char *out,
                                      const infer_quantize_options *options,
                                      infer_quantize_result *result, infer_error *err);

/* ---- the store and the hub ---------------------------------------------------------------------
 *
 * Names are owner/name[@revision][:file], with or without hf:// in front; `file` is a file's path
 * in the repository or a part of its name that only one model has ("Q4_K_M").
 */

typedef enum infer_pull_phase {
    INFER_PULL_WAIT, // another pull of the same repository, or a server that asked for patience
    INFER_PULL_FETCH,
    INFER_PULL_CHECK, // computing checksums of what has arrived
} infer_pull_phase;

typedef struct infer_pull_progress {
    infer_pull_phase phase;
    const char *file; // that is worked on, or NULL
    int n_files;
    uint64_t total, done; // bytes of all files
    uint64_t resumed;     // of done: were there at the start
} infer_pull_progress;
/* Called several times a second on the caller's thread. False ends the pull: INFER_CANCELLED. */
typedef bool infer_pull_progress_fn(const infer_pull_progress *progress, void *user);

typedef struct infer_hub_options {
    size_t struct_size;
    const char *store;    // the store's folder
    const char *cache;    // a Hugging Face cache ("~/.cache/huggingface/hub"), read only; or NULL
    const char *endpoint; // NULL: https://huggingface.co
    const char *token;    // sent to the endpoint alone; or NULL
    int n_connections;    // at once, 1 to 16; 0: 4
    int timeout;          // seconds without a byte until a transfer is tried again; 0: 30
    infer_pull_progress_fn *progress;
    void *user;
    infer_log log;
} infer_hub_options;

/* Whether a word has the form of a name on the hub. */
INFER_API bool infer_hub_is_name(const char *name);

/*
 * Fetches a model into the store: a GGUF file with all parts of its split set, or a folder of
 * safetensors with configuration and tokenizer. What an earlier pull left is gone on with; what is
 * whole is not fetched again; sizes and checksums are the hub's. *path is the file or folder, freed
 * with infer_free. After a failure or a cancelled pull, what has arrived stays for the next one,
 * but a file whose checksum is wrong is deleted. The store must be given.
 */
INFER_API infer_status infer_pull(char **path, const char *name, const infer_hub_options *options,
                                  infer_error *err);

/*
 * Where a name leads in the store, else in the cache: *path is freed with infer_free. Also takes
 * the name of a file alone where only one pulled model has it. INFER_NOT_FOUND; INFER_ARGUMENT
 * where several fit, listing them.
 */
INFER_API infer_status infer_store_find(char **path, const char *name,
                                        const infer_hub_options *options, infer_error *err);

typedef struct infer_store infer_store;
typedef struct infer_store_entry {
    const char *name;     // as commands take it: "owner/name", "owner/name:file"
    const char *path;     // the file or folder
    const char *revision; // that was asked for, "main"
    const char *commit;
    uint64_t bytes; // when whole
    int64_t when;   // it was pulled, seconds since 1970
    bool complete;  // false: a pull that was interrupted
} infer_store_entry;
/* The models of the store as they are now, by name. Strings live as long as the handle. */
INFER_API infer_status infer_store_open(infer_store **out, const infer_hub_options *options,
                                        infer_error *err);
INFER_API void infer_store_close(infer_store *store);
INFER_API int infer_store_count(const infer_store *store);
INFER_API infer_store_entry infer_store_get(const infer_store *store, int i);

/* Deletes a model, or all of owner/name where no file is named; *freed in bytes may be NULL.
 * Refused while it is being pulled. */
INFER_API infer_status infer_store_remove(uint64_t *freed, const char *name,
                                          const infer_hub_options *options, infer_error *err);

#ifdef __cplusplus
}
#endif
#endif
