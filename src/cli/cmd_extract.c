/* cmd_extract.c: `infer extract`: a model's FFN as an index that can be searched, edited and run.
 */
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "infer_vindex.h"

typedef struct extract_options {
    const char *out, *level, *dtype, *quant;
    bool resume, force;
    int threads, top_k, clusters;
} extract_options;

static const cli_option extract_table[] = {
    { "-o", "DIR", OPT_TEXT, offsetof(extract_options, out), .help = "the folder to make" },
    { "--out", "DIR", OPT_TEXT, offsetof(extract_options, out), .help = "the same" },
    { "--level", NULL, OPT_CHOICE, offsetof(extract_options, level),
      .choices = "browse|attention|inference|all",
      .help = "browse: gates, embedding and labels; attention: what else a client needs; inference "
              "(default) or all: a model that runs from the folder alone" },
    { "--dtype", NULL, OPT_CHOICE, offsetof(extract_options, dtype), .choices = "f16|f32",
      .help = "f16 (default) or f32" },
    { "--quant", NULL, OPT_CHOICE, offsetof(extract_options, quant), .choices = "none|q4k",
      .help = "none (default) or q4k" },
    { "--top-k", "N", OPT_INT, offsetof(extract_options, top_k), .min = 1, .max = 1000,
      .help = "tokens kept for a feature (default: 10)" },
    { "--clusters", "N", OPT_INT, offsetof(extract_options, clusters), .min = 1, .max = 1 << 16,
      .help = "join the knowledge layers' features to N relations (512 is usual; default: none), "
              "which 'infer relations' shows" },
    { "--resume", NULL, OPT_FLAG, offsetof(extract_options, resume),
      .help = "go on where this extraction was stopped" },
    { "--force", NULL, OPT_FLAG, offsetof(extract_options, force),
      .help = "replace a vindex that is there" },
    { "--threads", "N", OPT_INT, offsetof(extract_options, threads), .min = 1, .max = 256,
      .help = "threads (default: physical cores that this process may use)" },
    { 0 },
};

static bool show(const infer_progress *p, void *user)
{
    (void)user;
    double share = p->total ? (double)p->done / (double)p->total : 0;
    char left[48] = "";
    if (p->seconds_left >= 90)
        snprintf(left, sizeof left, ", %.0f min left", p->seconds_left / 60);
    else if (p->seconds_left >= 0)
        snprintf(left, sizeof left, ", %.0f s left", p->seconds_left);
    cli_progress("step %d of %d: %s %3.0f%%%s", p->step, p->n_steps, p->stage, 100 * share, left);
    return !cli_interrupted();
}

static int run_extract(int argc, char **argv)
{
    extract_options o = { 0 };
    cli_args args;
    int code;
    char *path;
    if (!cli_parse(&cmd_extract, &o, &args, argc, argv, &code)) return code;
    if (!o.out) return cli_usage(&cmd_extract, "-o DIR is missing");
    if ((code = cli_model_path(&path, args.v[0]))) return code;
    infer_error err = { 0 };
    infer_extract_options x = { .struct_size = sizeof x,
                                .level = o.level,
                                .dtype = o.dtype,
                                .quant = o.quant,
                                .resume = o.resume,
                                .force = o.force,
                                .n_threads = o.threads,
                                .top_k = o.top_k,
                                .n_clusters = o.clusters,
                                .progress = show,
                                .log = cli_log };
    cli_interrupt_later(true);
    infer_status st = infer_extract(path, o.out, &x, &err);
    cli_interrupt_later(false);
    cli_progress_end();
    mem_free(path);
    if (st) return cli_fail(&err);
    infer_vindex *v;
    if (infer_vindex_open(&v, o.out, NULL, &err)) return cli_fail(&err);
    infer_vindex_info info = infer_vindex_describe_index(v);
    char size[32];
    printf("%s: %d layers, %llu features, %llu of them labelled, level %s, %s, %s\n", o.out,
           info.n_layers, (unsigned long long)info.n_features, (unsigned long long)info.n_labelled,
           info.level, strcmp(info.quant, "none") ? info.quant : info.dtype,
           cli_bytes(size, info.bytes));
    infer_vindex_close(v);
    return EXIT_DONE;
}

const cli_command cmd_extract = {
    .name = "extract",
    .args = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "make a vindex: the model's FFN as an index on disk",
    .text = "DIR appears when it is whole; until then the work lies in DIR.partial, from which "
            "--resume goes on.",
    .options = extract_table,
    .run = run_extract,
};
