/*
 * infer.h: open a model, generate text, run the forward pass.
 *
 * Two nouns carry everything: a model (immutable, shared by threads) and an engine with sequences
 * (state; one step at a time). infer_session is an engine with one sequence, for programs that want
 * an answer.
 *
 * Conventions. Every call that can fail takes an infer_error last (NULL is allowed) and returns
 * infer_status; a call that returns a pointer gives NULL on failure, one that returns a count -1.
 * On failure out parameters are NULL or untouched, and nothing needs freeing. Option structs may be
 * NULL; zero-initialised fields are the defaults; struct_size is sizeof the struct or 0, which
 * means the struct of version 1.0. free and close accept NULL. Shapes are row-major, slowest first.
 */
#ifndef INFER_H
#define INFER_H

#include "infer_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct infer_model infer_model;
typedef struct infer_tokenizer infer_tokenizer;
typedef struct infer_engine infer_engine;
typedef struct infer_sequence infer_sequence;
typedef struct infer_session infer_session;
struct infer_vindex; // infer_vindex.h
struct infer_patch;

/* ---- model ---------------------------------------------------------------------------------- */

typedef struct infer_model_options {
    size_t struct_size;
    bool no_mmap; // read the file into memory instead of mapping it
    bool mlock;   // keep the weights in memory (a warning where the system refuses)
    infer_log log;
    const struct infer_vindex *ffn;  // the FFN runs from this index; open as long as the model
    const struct infer_patch *patch; // laid over it, as it is when an engine is made; or NULL
    bool walk_only;                  // the model's own FFN weights are not read, and may be missing
} infer_model_options;

/*
 * Opens a GGUF file (or the first of a split set) or a Hugging Face folder (config.json and
 * safetensors; or exactly one GGUF file). Weights stay in the map: this takes milliseconds.
 * Everything the forward pass will use is checked here; an architecture that is not supported is
 * refused by name. INFER_NOT_FOUND, INFER_FORMAT, INFER_UNSUPPORTED, INFER_IO, INFER_NOMEM.
 */
INFER_API infer_status infer_model_open(infer_model **out, const char *path,
                                        const infer_model_options *options, infer_error *err);
/* Engines and sessions of the model must be freed first. */
INFER_API void infer_model_close(infer_model *model);

typedef struct infer_model_info {
    const char *arch; // "gemma3"
    const char *path;
    const char *name;  // general.name, or the folder's name
    const char *quant; // the type that most weight bytes have, "q4_k"
    int n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, n_vocab, n_ctx_train, window;
    uint64_t n_params, weight_bytes, file_bytes;
    uint64_t repacked_bytes; // of weights held in memory in another order than the file's
    bool has_tokenizer;
    uint64_t bytes_per_token; // weight bytes that one generated token reads
} infer_model_info;
/* Strings live as long as the model. */
INFER_API infer_model_info infer_model_describe(const infer_model *model);

typedef struct infer_tensor_info {
    const char *name;
    const char *type; // "q4_k"
    int n_dims;
    int64_t dims[5]; // slowest first
    uint64_t bytes;
} infer_tensor_info;

/* ---- looking into a file without running it -------------------------------------------------- */

typedef struct infer_file infer_file;
typedef struct infer_meta_info {
    const char *key;
    const char *type;  // "u32", "string", "array of string"
    const char *value; // as text; arrays show the first items and the count
} infer_meta_info;

/* Reads only the directory of a GGUF file or safetensors folder: architectures that cannot be run
 * and files with a vocabulary alone are fine. Strings live as long as the handle. */
INFER_API infer_status infer_file_open(infer_file **out, const char *path, infer_error *err);
INFER_API void infer_file_close(infer_file *file);
INFER_API const char *infer_file_format(const infer_file *file); // "GGUF v3", "safetensors"
INFER_API uint64_t infer_file_bytes(const infer_file *file);
INFER_API int infer_file_n_meta(const infer_file *file);
INFER_API infer_meta_info infer_file_meta(const infer_file *file, int i);
INFER_API int infer_file_n_tensors(const infer_file *file);
INFER_API infer_tensor_info infer_file_tensor(const infer_file *file, int i);

/* ---- tokenizer ------------------------------------------------------------------------------- */

/* From a GGUF file (a vocabulary alone is enough) or a folder with tokenizer.json. */
INFER_API infer_status infer_tokenizer_open(infer_tokenizer **out, const char *path,
                                            infer_error *err);
INFER_API void infer_tokenizer_close(infer_tokenizer *tok);
/* The model's own; lives as long as the model; NULL where the file has no vocabulary. Not closed.
 */
INFER_API const infer_tokenizer *infer_model_tokenizer(const infer_model *model);

typedef struct infer_tokenize_options {
    size_t struct_size;
    bool no_special; // add no BOS or EOS
    bool plain_text; // special tokens written in the text are plain text
} infer_tokenize_options;

/* n bytes of UTF-8 (NUL is legal) to ids. *ids is the caller's, freed with infer_free. */
INFER_API infer_status infer_tokenize(const infer_tokenizer *tok, int32_t **ids, size_t *n_ids,
                                      const char *text, size_t n,
                                      const infer_tokenize_options *options, infer_error *err);
/* *text is NUL-terminated UTF-8 of *n bytes, the caller's, freed with infer_free. */
INFER_API infer_status infer_detokenize(const infer_tokenizer *tok, char **text, size_t *n,
                                        const int32_t *ids, size_t n_ids, bool skip_special,
                                        infer_error *err);
INFER_API int infer_tokenizer_n_vocab(const infer_tokenizer *tok);
/* The vocabulary's entry, NULL outside; borrowed. */
INFER_API const char *infer_token_text(const infer_tokenizer *tok, int32_t id);
INFER_API bool infer_token_is_special(const infer_tokenizer *tok, int32_t id);
INFER_API int32_t infer_token_bos(const infer_tokenizer *tok); // -1: none
INFER_API int32_t infer_token_eos(const infer_tokenizer *tok); // -1: none
INFER_API void infer_free(void *p);

/* ---- engine and sequences -------------------------------------------------------------------- */

typedef struct infer_engine_options {
    size_t struct_size;
    int n_threads;         // 0: physical cores within the affinity mask and the CPU quota
    int n_kv_tokens;       // room in the KV cache, all sequences together; 0: one context of n_ctx
    int n_ctx;             // longest sequence; 0: the model's trained context, at most 8192
    int max_sequences;     // 0: 8
    int max_rows;          // most rows in a step; 0: 256
    const char *backend;   // "cpu"; NULL: the default
    const char *cpu_level; // "ref", "avx2" …, see infer_cpu_level; NULL: the best this machine has
    bool exact; // float32 activations, KV cache and sums: no rounding to 8 bits or float16
    const char *kv_type; // "f32", "f16", "bf16", "q8_0"; NULL: f16, or f32 with exact
    infer_log log;
    /* With infer_model_options.ffn: */
    int walk_from;          // first layer that runs from the index; those before from the model
    const float *walk_keep; // [n_layers] approximate: features that add less than this share of the
                            // mean of the row's features are left out
    bool walk_by_gate;      // with walk_keep: judged by |act(gate)| alone, to show what that costs
    const char *kv_type_k, *kv_type_v; // of K, of V, which takes "q4_0" too; NULL: kv_type.
                                       // Quantised types need heads of a multiple of 32
} infer_engine_options;

/* Sizes and allocates all that steps need: nothing is allocated afterwards. */
INFER_API infer_status infer_engine_new(infer_engine **out, const infer_model *model,
                                        const infer_engine_options *options, infer_error *err);
/* Its sequences must be freed first. */
INFER_API void infer_engine_free(infer_engine *engine);

typedef struct infer_engine_info {
    const char *backend;   // "cpu"
    const char *cpu_level; // "avx512vnni"
    const char *device;    // one line
    int n_threads, n_ctx, n_kv_tokens, max_rows;
    uint64_t kv_bytes, work_bytes;
    uint64_t repacked_bytes; // of weights in another order, and the head's copy
    uint64_t unread_bytes;   // of the head, that the last step's search for the largest spared
    const char *kv_type_k, *kv_type_v; // "f16"
} infer_engine_info;
INFER_API infer_engine_info infer_engine_describe(const infer_engine *engine);
/* Where the layer's FFN comes from: "weights", "experts", or the index's storage ("walk f16");
 * lives as long as the engine; NULL: no such layer. */
INFER_API const char *infer_engine_ffn(const infer_engine *engine, int layer);

/* An empty sequence. */
INFER_API infer_sequence *infer_sequence_new(infer_engine *engine, infer_error *err);
/* A copy that shares the past and copies on write. */
INFER_API infer_sequence *infer_sequence_fork(infer_sequence *seq, infer_error *err);
INFER_API void infer_sequence_free(infer_sequence *seq);
INFER_API int infer_sequence_length(const infer_sequence *seq);
/* Bytes of the KV cache that its next row will read. */
INFER_API uint64_t infer_sequence_read_bytes(const infer_sequence *seq);
/* Forgets positions from n on. Refused (the sequence unchanged) where a sliding window has already
 * dropped what position n would see; never for the last 16 positions. */
INFER_API infer_status infer_sequence_truncate(infer_sequence *seq, int n, infer_error *err);
/* For rope that depends on length (dynamic NTK, longrope): the length that rows from now on are
 * rotated for, given before the first row; 0: the sequence's own growing length. */
INFER_API infer_status infer_sequence_rope_length(infer_sequence *seq, int n, infer_error *err);

enum {
    INFER_WANT_NOTHING = 0,
    INFER_WANT_LOGITS = 1, // infer_logits of this row
    INFER_WANT_HIDDEN = 2, // infer_hidden: the last layer's output before the final norm
    INFER_WANT_TOP = 4,    // infer_top of this row: only the largest logits, which can be cheaper
};

typedef struct infer_row {
    infer_sequence *seq;
    int32_t token;
    const float *embedding; // [d_model] in place of a token, or NULL
    unsigned want;
    int top;             // INFER_WANT_TOP: how many of the largest, 1 or more
    const int32_t *also; // [n_also] ids whose logits are wanted too, and which do not count among
    int n_also;          // the largest; NULL: none
} infer_row;

/*
 * One pass over the weights for any mixture of rows: prefill chunks and single tokens of any number
 * of sequences. Rows of one sequence are consecutive and take its next positions in order. A row's
 * result depends on its sequence alone, to the bit. On failure (an id outside the vocabulary, no
 * room in the context or the cache: INFER_LIMIT) no sequence has changed.
 */
INFER_API infer_status infer_step(infer_engine *engine, const infer_row *rows, int n_rows,
                                  infer_error *err);
/* [n_vocab] of row i of the last step, valid until the next; NULL where it did not want them. */
INFER_API const float *infer_logits(const infer_engine *engine, int row);
/* Of a row that wanted the largest logits: their number, with ids ascending and the logits at those
 * ids, the same bits as infer_logits would have. All of the largest and all of `also` are there,
 * mostly with others; *ids NULL: all of the vocabulary. 0 where the row did not want them. Valid
 * until the next step. */
INFER_API int infer_top(const infer_engine *engine, int row, const int32_t **ids,
                        const float **logits);
/* [d_model] likewise. */
INFER_API const float *infer_hidden(const infer_engine *engine, int row);

/* Buffers of the caller that the next step fills. */
typedef struct infer_capture {
    float *hidden;    // [n_layers + 1, n_rows, d_model] of the next step, or NULL
    float *attention; // [n_heads, n_rows, n_rows] of `layer`; only where all rows of the step
                      // belong to one sequence that was empty; or NULL
    int layer;
    float *ffn_in; // [n_layers, n_rows, d_model] the FFNs' inputs, normed, or NULL
} infer_capture;
/* The next step writes what it computes into the caller's buffers; NULL ends it. */
INFER_API infer_status infer_engine_capture(infer_engine *engine, const infer_capture *capture,
                                            infer_error *err);

/* Where the time of steps goes. */
typedef struct infer_profile_row {
    const char *op;   // "matmul", "attention", …; "barrier": waiting for other threads; "other"
    const char *what; // of a matmul the projection, "down"; else ""
    const char *type; // of the weights or the cache, "q4_k"; else ""
    uint64_t calls;
    double seconds;      // the mean of the threads: rows sum to the time of the steps
    uint64_t bytes, ops; // weights or cache read; arithmetic, 2 a multiply-add
} infer_profile_row;
/* true: from now on steps are profiled, from zero. false: no longer; what was counted stays. */
INFER_API infer_status infer_engine_profile(infer_engine *engine, bool on, infer_error *err);
/* The longest first, at most max. Returns the count; 0 without a profile. Strings live as long as
 * the library. */
INFER_API int infer_profile(const infer_engine *engine, infer_profile_row *rows, int max);

/* A step in progress ends with INFER_CANCELLED at its next layer. Any thread or signal handler. */
INFER_API void infer_engine_cancel(infer_engine *engine);

/* ---- sampling -------------------------------------------------------------------------------- */

/* Zero means off. Order: repetition, frequency and presence penalties, temperature, top_k, top_p,
 * min_p, draw. temperature 0 (or below 1e-6) is greedy: the largest logit, ties to the lowest id.
 */
typedef struct infer_sampling {
    float temperature;
    int top_k;
    float top_p;          // nucleus (Holtzman et al. 2020); 0 and 1: off
    float min_p;          // of the largest probability
    float repeat_penalty; // Keskar et al. 2019; 0 and 1: off
    int repeat_window;    // the last tokens that penalties see; 0: 64; -1: all
    float frequency_penalty, presence_penalty;
    uint64_t seed; // 0: a fresh one each time, told in the stats
} infer_sampling;

typedef struct infer_sampler infer_sampler;
/* NULL with INFER_ARGUMENT where a value is out of range, naming it. */
INFER_API infer_sampler *infer_sampler_new(const infer_sampling *sampling, int n_vocab, int n_ctx,
                                           infer_error *err);
INFER_API void infer_sampler_free(infer_sampler *sampler);
/* The next id; logits [n_vocab] are left as they are. NaN is never chosen; all NaN gives -1. No
 * heap allocation. */
INFER_API int32_t infer_sample(infer_sampler *sampler, const float *logits);
/* How many of the largest logits the next choice depends on, with *also as in infer_row (valid
 * until the next infer_sampler_top or infer_sample); 0: on all of the vocabulary. */
INFER_API int infer_sampler_top(infer_sampler *sampler, const int32_t **also, int *n_also);
/* infer_sample on what infer_top gave. */
INFER_API int32_t infer_sample_top(infer_sampler *sampler, const int32_t *ids, const float *logits,
                                   int n);
/* Tells the sampler of a token that is now part of the text (prompt tokens too). */
INFER_API void infer_sampler_accept(infer_sampler *sampler, int32_t id);
INFER_API uint64_t infer_sampler_seed(const infer_sampler *sampler);
/* The penalties alone, in place: what infer_sample applies first. */
INFER_API void infer_penalise(const infer_sampling *sampling, float *logits, int n_vocab,
                              const int32_t *seen, int n_seen);

/* ---- session: the simple face ---------------------------------------------------------------- */

typedef struct infer_session_options {
    size_t struct_size;
    int n_ctx; // 0: as infer_engine_options
    int n_threads;
    int max_tokens; // most generated tokens; 0: until the end or the context
    const char *backend, *cpu_level, *kv_type;
    bool exact, ignore_eos;
    infer_sampling sampling;
    const char *const *stop; // NULL-terminated list; generation ends before the string
    infer_log log;
    /* Progress of prompt processing: rows done of n; NULL: none. */
    void (*progress)(int done, int n, void *user);
    void *progress_user;
    /* Tokens guessed from the text's own repetitions and computed together with the last one; the
     * output is the same to the bit. 0: as many as pay, -1: none, n > 0: at most n wherever
     * something repeats. */
    int draft;
    int walk_from; // as infer_engine_options
    const float *walk_keep;
    const char *kv_type_k, *kv_type_v; // NULL: kv_type
} infer_session_options;

typedef enum infer_finish {
    INFER_FINISH_NONE,
    INFER_FINISH_STOP,
    INFER_FINISH_LENGTH,
    INFER_FINISH_CANCELLED
} infer_finish;

INFER_API infer_status infer_session_new(infer_session **out, const infer_model *model,
                                         const infer_session_options *options, infer_error *err);
INFER_API void infer_session_free(infer_session *session);
/* Tokenises text (with the model's BOS rule) and feeds it; after earlier text it continues it,
 * without another BOS. A prompt that does not fit is INFER_LIMIT and changes nothing. */
INFER_API infer_status infer_session_prompt(infer_session *session, const char *text,
                                            infer_error *err);
INFER_API infer_status infer_session_prompt_ids(infer_session *session, const int32_t *ids,
                                                size_t n, infer_error *err);
/* Generates until there is text to show: whole UTF-8, NUL-terminated, valid until the next call.
 * NULL at the end or on failure (err->code tells which). No heap allocation. */
INFER_API const char *infer_session_next(infer_session *session, infer_error *err);
/* The next id alone, -1 at the end or on failure; not to be mixed with infer_session_next. */
INFER_API int32_t infer_session_next_id(infer_session *session, infer_error *err);
INFER_API infer_finish infer_session_finish(const infer_session *session);
INFER_API infer_engine *infer_session_engine(infer_session *session);
/* While generating it may hold drafted tokens after the text: asking takes them out. */
INFER_API infer_sequence *infer_session_sequence(infer_session *session);
/* Ends generation soon; any thread or signal handler. */
INFER_API void infer_session_cancel(infer_session *session);

typedef struct infer_stats {
    int n_prompt, n_generated;   // tokens
    double prompt_s, generate_s; // seconds
    double first_token_s;        // from the prompt's start to the first token
    uint64_t bytes_per_token;    // weight bytes that one generated token reads
    uint64_t mapped_bytes, kv_bytes, work_bytes;
    uint64_t seed;
    infer_finish finish;
    int n_drafted, n_accepted; // tokens guessed ahead, and of them right
    uint64_t repacked_bytes;   // of weights in another order, and the head's copy
    double load_s;             // seconds that opening the model and the session took
} infer_stats;
INFER_API infer_stats infer_session_stats(const infer_session *session);

/* ---- chat ------------------------------------------------------------------------------------ */

/* A chat template: Jinja, as Hugging Face transformers sets it up, sandboxed and bounded.
 * Immutable: any number of threads may render one. */
typedef struct infer_template infer_template;

/* Compiles `source` (NUL-terminated), or the tokenizer's own template where it is NULL
 * (INFER_NOT_FOUND: it has none). tok is borrowed and must outlive the template; it gives bos_token
 * and eos_token, and may be NULL for rendering text alone. Errors name the line. */
INFER_API infer_status infer_template_new(infer_template **out, const infer_tokenizer *tok,
                                          const char *source, infer_error *err);
INFER_API void infer_template_free(infer_template *t);

/* context: a JSON object of n bytes with what the template sees (messages, tools,
 * add_generation_prompt, …). now: "2026-07-26T12:00:00", the time that strftime_now formats; NULL:
 * the local time. *text is NUL-terminated, the caller's, freed with infer_free. INFER_ARGUMENT: the
 * template refused, in its own words; INFER_LIMIT: a bound on steps, memory or output. */
INFER_API infer_status infer_template_render(const infer_template *t, char **text, size_t *n_text,
                                             const char *context, size_t n, const char *now,
                                             infer_error *err);
/* Likewise as ids. Special tokens count only where the template wrote them; in messages they are
 * text. */
INFER_API infer_status infer_template_ids(const infer_template *t, int32_t **ids, size_t *n_ids,
                                          const char *context, size_t n, const char *now,
                                          infer_error *err);

typedef struct infer_message {
    const char *role;    // "system", "user", "assistant"
    const char *content; // UTF-8
} infer_message;

/* The whole conversation so far, rendered by t (NULL: the model's template) and fed; what the
 * session already holds of it is not computed again. Then infer_session_next gives the answer. A
 * conversation that does not fit is INFER_LIMIT and changes nothing. */
INFER_API infer_status infer_session_chat(infer_session *session, const infer_message *messages,
                                          size_t n, const infer_template *t, infer_error *err);
/* Forgets all text; the engine and its memory stay. */
INFER_API void infer_session_clear(infer_session *session);

/* ---- next-token probabilities ---------------------------------------------------------------- */

typedef struct infer_prediction {
    int32_t id;
    float logit;
    double probability; // over the whole vocabulary
} infer_prediction;
/* The k best of logits [n_vocab] in order, ties to the lowest id, NaN last. Returns the count
 * (at most n_vocab). */
INFER_API int infer_top_k(const float *logits, int n_vocab, int k, infer_prediction *out);

/* ---- machine --------------------------------------------------------------------------------- */

/* Names of the CPU levels this build knows, from the slowest up, and whether this machine runs
 * them; NULL past the last. */
INFER_API const char *infer_cpu_level(int i, bool *here);
/* The level that is chosen by default. */
INFER_API const char *infer_cpu_best(void);
/* Backends of this build; NULL past the last. */
INFER_API const char *infer_backend_name(int i, bool *here, const char **summary);
/* Threads used by default: physical cores within the affinity mask and the CPU quota. */
INFER_API int infer_default_threads(void);
/* One line on the processor. */
INFER_API void infer_cpu_name(char *text, size_t size);
/* Read bandwidth in bytes per second, measured now over n_threads and 256 MB; takes about 0.3 s. 0
 * without memory. */
INFER_API double infer_measure_bandwidth(int n_threads);
/* The kernel that a matmul with weights of `type` runs on a level (NULL: the best): "int8
 * avx512vnni", "int8 avx2, plain unpack" where the level has no vector code for the format,
 * "float32 avx2"; NULL for an unknown type or level. */
INFER_API const char *infer_kernel_name(const char *cpu_level, const char *type);
/* The programs, not the library, install this: a file that shrinks under its map then ends in an
 * error (infer_step: INFER_IO) and not in a crash. */
INFER_API void infer_guard_install(void);

#ifdef __cplusplus
}
#endif
#endif
