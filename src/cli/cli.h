/*
 * cli.h: what the commands share: the command row, options as a table, errors and exit codes,
 * output that behaves in pipes, Ctrl-C, and finding a model by name.
 *
 * A command is one file cmd_<name>.c with a `const cli_command cmd_<name>` and one line in
 * CLI_COMMANDS. Its help text, its checks and its messages all come from its option table.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/compiler.h"
#include "infer.h"
#include "infer_tools.h"

/* The one list of commands, in the order of the help. */
#define CLI_COMMANDS(X)                                                                            \
    X(run)                                                                                         \
    X(chat)                                                                                        \
    X(predict)                                                                                     \
    X(tokenize)                                                                                    \
    X(template)                                                                                    \
    X(pull)                                                                                        \
    X(list)                                                                                        \
    X(show)                                                                                        \
    X(rm)                                                                                          \
    X(inspect)                                                                                     \
    X(eval)                                                                                        \
    X(quantize)                                                                                    \
    X(convert)                                                                                     \
    X(extract)                                                                                     \
    X(describe)                                                                                \
    X(walk)                                                                                    \
    X(select)                                                                                  \
    X(relations)                                                                               \
    X(neighbours)                                                                              \
    X(stats)                                                                                   \
    X(hnsw)                                                                                    \
    X(insert)                                                                                  \
    X(delete)                                                                                  \
    X(update)                                                                                  \
    X(patch)                                                                                   \
    X(compile)                                                                                 \
    X(walk_calibrate)                                                                          \
    X(gates_f32)                                                                                   \
    X(down_features)                                                                               \
    X(up_features)                                                                                 \
    X(build_storage)                                                                               \
    X(perplexity)                                                                                  \
    X(bench)                                                                                       \
    X(doctor)

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* ---- options --------------------------------------------------------------------------------- */

typedef enum cli_kind {
    OPT_FLAG,     // bool
    OPT_INT,      // int from min to max
    OPT_U64,      // uint64_t up to 2^63-1, which JSON readers take as an integer
    OPT_FLOAT,    // float from min to max, finite
    OPT_TEXT,     // const char *
    OPT_LIST,     // cli_list, the option may be repeated
    OPT_CHOICE,   // const char *, one of choices "a|b|c"
    OPT_INT_TEXT, // cli_int_text, two values
    OPT_LATER,    // in the plan, not built yet: refused by name
} cli_kind;

#define CLI_LIST_MAX 64
typedef struct cli_list {
    const char *v[CLI_LIST_MAX + 1]; // NULL-terminated
    int n;
} cli_list;

typedef struct cli_int_text {
    bool given;
    int number;
    const char *text;
} cli_int_text;

typedef struct cli_option {
    const char *name;  // "--temp"; NULL ends the table
    const char *value; // what the help calls its value, "T"; NULL for flags
    cli_kind kind;
    size_t at;       // offset of the field in the command's option struct
    double min, max; // of OPT_INT, OPT_FLOAT and OPT_INT_TEXT
    bool above_min;  // min itself is refused
    const char *choices;
    const char *help;
} cli_option;

typedef struct cli_args {
    const char *v[64];
    int n;
} cli_args;

typedef struct cli_command cli_command;
struct cli_command {
    const char *name;
    const char *args;       // "MODEL [PROMPT]"
    int min_args, max_args; // at most 3
    const char *summary;    // one line
    const char *text;       // more for its own help, paragraphs separated by newlines; or NULL
    const cli_option *options;
    int (*run)(int argc, char **argv); // argv[0] is the first argument after the name
};

#define X(name) extern const cli_command cmd_##name;
CLI_COMMANDS(X)
#undef X

/* Fills *options (already holding the defaults) and *args. True where the command shall go on,
 * *code being EXIT_DONE; false after help or a mistake, with *code as the exit code. */
bool cli_parse(const cli_command *c, void *options, cli_args *args, int argc, char **argv,
               int *code);
void cli_help(FILE *f, const cli_command *c);
/* Wraps text to 80 columns; the first line starts at column `at`, the others are indented. */
void cli_wrap(FILE *f, int at, int indent, const char *text);

/* ---- errors ---------------------------------------------------------------------------------- */

/* "infer: message" as one line on standard error; returns code. */
int cli_error(int code, const char *fmt, ...) ATTR_PRINTF(2, 3);
/* "infer: run: message"; returns EXIT_USAGE. */
int cli_usage(const cli_command *c, const char *fmt, ...) ATTR_PRINTF(2, 3);
/* The library's error as one line (nothing after Ctrl-C); returns its exit code. */
int cli_fail(const infer_error *err);
void cli_warn(const char *fmt, ...) ATTR_PRINTF(1, 2);
/* Receives the library's log: warnings become lines on standard error. */
extern const infer_log cli_log;
/* Of names, the one that is nearest to word, or NULL where none is near. */
const char *cli_nearest(const char *word, const char *const *names, int n);

/* ---- input and output ------------------------------------------------------------------------ */

/* Standard input whole, at least one byte; *text is the caller's (mem_free). Returns an exit code.
 */
int cli_read_input(char **text, size_t *n, const char *what);
/* Flushes standard output; where writing failed, says so and returns EXIT_FAILED, else code. */
int cli_flush(int code);
/* Escape sequences for a bold line where f is a terminal and NO_COLOR is not set, else "". */
const char *cli_bold(FILE *f);
const char *cli_plain(FILE *f);
/* At most max columns of s (0: all), control characters written as escapes, "…" where it is cut. */
void cli_put_text(FILE *f, const char *s, size_t n, int max);
/* A line for each id: the id, its piece, whether it is special. */
void cli_put_ids(const infer_tokenizer *tok, const int32_t *ids, size_t n);
/* "241.4 MB". The buffer is the caller's. */
const char *cli_bytes(char out[32], uint64_t bytes);
/* One line of progress on standard error, replaced by the next; silent where it is no terminal. */
void cli_progress(const char *fmt, ...) ATTR_PRINTF(1, 2);
void cli_progress_end(void);
double cli_now(void); // seconds
/* Bytes resident at most so far: VmHWM of /proc, 0 where there is none. */
uint64_t cli_peak_memory(void);
/* The bytes of a line "KEY: 123 kB" of a file of /proc; 0 where there is none. */
uint64_t cli_proc_bytes(const char *path, const char *key);
/* A JSON string of any bytes: what is not UTF-8 becomes U+FFFD. */
json_t *cli_json_text(const char *s, size_t n);
json_t *cli_json_ids(const int32_t *ids, size_t n);
/* Prints and frees root as one line. Returns an exit code. */
int cli_json_print(json_t *root);
/* The answer to a line of input, n bytes that are the JSON value `in`; NULL with err set. */
typedef json_t *cli_answer(json_t *in, const char *line, size_t n, const void *user,
                           infer_error *err);
/* Each line of standard input answered by one of standard output: the answer, or {"error": …}.
 * Returns an exit code. */
int cli_json_lines(cli_answer *answer, const void *user);

/* ---- interrupts ------------------------------------------------------------------------------ */

/* Before anything else: SIGINT ends the program with 130, SIGPIPE ends it quietly, SIGXFSZ is a
 * failed write, and the three standard streams are taken, open or not. */
void cli_start(void);
/* From here on the first Ctrl-C only cancels this work (NULL: back to the start); the second
 * ends. */
void cli_interrupt_engine(infer_engine *engine);
void cli_interrupt_session(infer_session *session);
/* For work that asks cli_interrupted itself. */
void cli_interrupt_later(bool on);
bool cli_interrupted(void);
/* Where the program goes on after a Ctrl-C: forgets it. */
void cli_interrupt_over(void);

/* ---- generation ------------------------------------------------------------------------------ */

/* The command line's zeros differ from the library's, where zero means "default". usual: the
 * command's own defaults, which are not warned of. A missing seed is drawn. */
void cli_settle_sampling(infer_sampling *s, const infer_sampling *usual);
const char *cli_finish_name(infer_finish f);
double cli_prompt_rate(const infer_stats *s); // tokens per second
double cli_generation_rate(const infer_stats *s);
void cli_print_stats(FILE *f, const infer_stats *s, const infer_engine_info *e, float temperature);
/* A table of operations, `name` at its head. */
void cli_print_profile(FILE *f, const char *name, const infer_profile_row *rows, int n);
#define CLI_PROFILE_ROWS 256 // more than there are

/* ---- models and engines ---------------------------------------------------------------------- */

typedef struct cli_engine {
    int threads;
    const char *cpu, *backend, *kv_type, *kv_type_k, *kv_type_v;
    bool exact, mlock, no_mmap;
    const char *ffn; // a vindex that the FFN runs from
    cli_list patches;
    bool walk_only;
    int walk_from;
    bool needs_index;           // also where none is named: the model itself, a vindex
    bool facts;                 // and where that has facts stored by key
    const char *sparse; // a file of thresholds
    float sparse_kl;
    float *keep;                // [n_layers] of them, read by cli_model_open
    struct infer_vindex *index; // opened by cli_model_open, closed by cli_model_close
    struct infer_patch *patch;
} cli_engine;

/* The rows that every command with an engine has; T is its option struct, with `cli_engine
 * engine`. */
// clang-format off
#define MACHINE_OPTIONS(T)                                                                         \
    { "--threads", "N", OPT_INT, offsetof(T, engine.threads), .min = 1, .max = 256,                \
      .help = "threads (default: physical cores that this process may use)" },                     \
    { "--cpu", "LEVEL", OPT_TEXT, offsetof(T, engine.cpu),                                         \
      .help = "instruction set level, see 'infer doctor' (default: the best; also INFER_CPU)" }
#define KV_CHOICES "f32|f16|bf16|q8_0|q4_0"
#define ENGINE_OPTIONS(T)                                                                          \
    MACHINE_OPTIONS(T),                                                                            \
    { "--backend", "NAME", OPT_TEXT, offsetof(T, engine.backend),                                  \
      .help = "where to compute: auto (default) or one that 'infer doctor' lists" },               \
    { "--kv-type", "TYPE", OPT_CHOICE, offsetof(T, engine.kv_type), .choices = KV_CHOICES,         \
      .help = "type of the KV cache (default: f16; f32 with --exact); q4_0: of V alone" },         \
    { "--cache-type-k", "TYPE", OPT_CHOICE, offsetof(T, engine.kv_type_k), .choices = KV_CHOICES,  \
      .help = "of K alone" },                                                                      \
    { "--cache-type-v", "TYPE", OPT_CHOICE, offsetof(T, engine.kv_type_v), .choices = KV_CHOICES,  \
      .help = "of V alone" },                                                                      \
    { "--exact", NULL, OPT_FLAG, offsetof(T, engine.exact),                                        \
      .help = "float32 activations, cache and sums: no rounding beyond the file's own" },          \
    { "--ffn", "VINDEX", OPT_TEXT, offsetof(T, engine.ffn),                                        \
      .help = "run the FFN from this index (default for a vindex with --patch: itself)" },         \
    { "--patch", "FILE", OPT_LIST, offsetof(T, engine.patches),                                    \
      .help = "edits of the index, a .vlp file; may be repeated, later ones win" },                \
    { "--walk-only", NULL, OPT_FLAG, offsetof(T, engine.walk_only),                                \
      .help = "do not read the model's own FFN weights" },                                         \
    { "--walk-from", "LAYER", OPT_INT, offsetof(T, engine.walk_from), .max = 1 << 20,              \
      .help = "first layer whose FFN runs from the index (default: 0)" },                          \
    { "--sparse", "FILE", OPT_TEXT, offsetof(T, engine.sparse),                                    \
      .help = "approximate: leave out weak features, by walk-calibrate's thresholds" },            \
    { "--sparse-kl", "X", OPT_FLOAT, offsetof(T, engine.sparse_kl), .max = 100,                    \
      .help = "with --sparse: the largest mean KL to put up with (default: 0.01)" },               \
    { "--mlock", NULL, OPT_FLAG, offsetof(T, engine.mlock), .help = "keep the weights in memory" },\
    { "--no-mmap", NULL, OPT_FLAG, offsetof(T, engine.no_mmap),                                    \
      .help = "read the file into memory instead of mapping it" }

/* The rows of sampling; T has `infer_sampling sampling`. What the command's own defaults are for
 * --temp and --min-p is said in words. Needs float.h and limits.h. */
#define SAMPLING_OPTIONS(T, temp, min_p_help)                                                      \
    { "--temp", "T", OPT_FLOAT, offsetof(T, sampling.temperature), .max = FLT_MAX,                 \
      .help = "temperature; 0 is greedy, the likeliest token each time (default: " temp ")" },     \
    { "--top-k", "K", OPT_INT, offsetof(T, sampling.top_k), .max = INT_MAX,                        \
      .help = "draw from the K likeliest tokens; 0: off (default)" },                              \
    { "--top-p", "P", OPT_FLOAT, offsetof(T, sampling.top_p), .max = 1,                            \
      .help = "draw from the likeliest that sum to P; 1: off (default); 0: greedy" },              \
    { "--min-p", "P", OPT_FLOAT, offsetof(T, sampling.min_p), .max = 1,                            \
      .help = "drop tokens below P times the likeliest; " min_p_help },                            \
    { "--repeat-penalty", "X", OPT_FLOAT, offsetof(T, sampling.repeat_penalty), .max = FLT_MAX,    \
      .above_min = true, .help = "make seen tokens less likely; 1: off (default)" },               \
    { "--repeat-window", "N", OPT_INT, offsetof(T, sampling.repeat_window), .min = -1,             \
      .max = INT_MAX,                                                                              \
      .help = "tokens that penalties look back at; 0: none, -1: all (default: 64)" },              \
    { "--frequency-penalty", "X", OPT_FLOAT, offsetof(T, sampling.frequency_penalty),              \
      .min = -FLT_MAX, .max = FLT_MAX,                                                             \
      .help = "taken from a logit for each time its token was seen" },                             \
    { "--presence-penalty", "X", OPT_FLOAT, offsetof(T, sampling.presence_penalty),                \
      .min = -FLT_MAX, .max = FLT_MAX, .help = "taken from a logit once its token was seen" },     \
    { "--seed", "N", OPT_U64, offsetof(T, sampling.seed),                                          \
      .help = "of the random draws; 0: a fresh one each time (default), see --stats" }
/* What commands with a session share, the first member of their option struct. */
typedef struct cli_session {
    cli_engine engine;
    infer_sampling sampling;
    int n, ctx; // n: most tokens, -1 without limit
    const char *draft;
    cli_list stop;
    bool ignore_eos, stats;
} cli_session;
#define SESSION_OPTIONS(temp, min_p_help, stats_help)                                              \
    SAMPLING_OPTIONS(cli_session, temp, min_p_help),                                               \
    { "--stop", "TEXT", OPT_LIST, offsetof(cli_session, stop),                                     \
      .help = "end before this text; may be repeated" },                                           \
    { "--ctx", "N", OPT_INT, offsetof(cli_session, ctx), .min = 1, .max = INT_MAX,                 \
      .help = "context in tokens (default: the trained one, at most 8192)" },                      \
    { "--draft", "WHEN", OPT_CHOICE, offsetof(cli_session, draft), .choices = "auto|off|always",   \
      .help = "compute tokens ahead where the text repeats itself; the output is the same: while " \
              "that is faster (auto, default), never, always" },                                   \
    ENGINE_OPTIONS(cli_session),                                                                   \
    { "--stats", NULL, OPT_FLAG, offsetof(cli_session, stats), .help = stats_help }
// clang-format on

/* Checks the values that only the library knows (levels, backends) and takes INFER_CPU where --cpu
 * is absent. Returns an exit code. */
int cli_engine_check(const cli_command *c, cli_engine *e);
/* The library's options with what the user chose; sizes are left to the command. */
infer_engine_options cli_engine_options(const cli_engine *e);
/* Checks and settles s (cli_engine_check, cli_settle_sampling, --stop). Returns an exit code. */
int cli_session_check(const cli_command *c, cli_session *s, const infer_sampling *usual);
/* The library's options with what the user chose. s must outlive the session. */
infer_session_options cli_session_options(const cli_session *s);
/* Where a model's name leads: a path, a name in the store, or `default`. *path is the caller's
 * (mem_free). Returns an exit code, having named the nearest where nothing is found. */
int cli_model_path(char **path, const char *name);
/* The same without fetching anything. */
int cli_model_find(char **path, const char *name);
/* Resolves and opens, with the index and the patches that e names. Returns an exit code. */
int cli_model_open(infer_model **model, const char *name, cli_engine *e);
void cli_model_close(infer_model *model, cli_engine *e);
/* The model's tokenizer; NULL after a message where it has none. */
const infer_tokenizer *cli_tokenizer(const infer_model *model, const char *name);
/* A prompt's ids as infer_tokenize gives them, but with one BOS where the text begins with the one
 * that the tokenizer adds (a warning tells). *ids is the caller's (infer_free). */
infer_status cli_prompt_ids(const infer_tokenizer *tok, int32_t **ids, size_t *n_ids,
                            const char *text, size_t n, infer_error *err);
/* The chat template of --chat-template (`given`: text or file) or, where that is NULL, tok's own.
 * Returns an exit code. */
int cli_template_open(infer_template **out, const infer_tokenizer *tok, const char *given,
                      const char *name);
/* A template file's text; the caller's (mem_free). Returns an exit code. */
int cli_template_source(char **source, const char *path);
/* Feeds ids in steps of at most max_rows. Of the last one it wants INFER_WANT_LOGITS or, with
 * INFER_WANT_TOP, the largest; they are row *last_row of the last step. */
infer_status cli_feed(infer_engine *engine, infer_sequence *seq, const int32_t *ids, size_t n,
                      unsigned want, int *last_row, infer_error *err);

/* ---- the store and the hub ------------------------------------------------------------------- */

/* Models that come as packages of the Python package index. */
typedef struct cli_bundle {
    const char *name, *file, *sha256, *size, *terms;
    uint64_t bytes;
    const char *keep;            // a file of the packages that is kept beside the model, or NULL
    const char *const *packages; // NULL-terminated, "name==version"
} cli_bundle;
const cli_bundle *cli_bundle_find(const char *name);
/* Fetches it unless it is there and whole. *path is the caller's (mem_free). Returns an exit code.
 */
int cli_bundle_pull(char **path, const cli_bundle *b, bool quiet);

/* ${INFER_HOME:-${XDG_DATA_HOME:-~/.local/share}/infer}/sub; the arena's; NULL without memory. */
char *cli_home(arena *a, const char *sub);
/* Store, cache, endpoint and token by the environment; strings are the arena's. */
infer_hub_options cli_hub_options(arena *a);
/* Pulls with progress on standard error. *path is the caller's (infer_free). Returns an exit code.
 */
int cli_pull(char **path, const char *name, infer_hub_options o, bool quiet);
/* The summary of `inspect`, for `show`. Returns an exit code. */
int cli_inspect(const char *path, bool json, bool all, bool brief);

#endif
