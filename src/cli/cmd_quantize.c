/*
 * cmd_quantize.c: `infer quantize` and `infer convert`: a model's file in another format. Both are
 * infer_quantize: quantize is told a type, convert keeps the types unless it is told one.
 */
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "infer_tools.h"

typedef struct quantize_options {
    int threads;
    const char *importance, *type;
    bool json;
} quantize_options;

#define COMMON_OPTIONS                                                                             \
    { "--imatrix", "FILE", OPT_TEXT, offsetof(quantize_options, importance),                       \
      .help = "importance matrix: errors are weighed by how much each input matters" },            \
        { "--threads",                                                                             \
          "N",                                                                                     \
          OPT_INT,                                                                                 \
          offsetof(quantize_options, threads),                                                     \
          .min = 1,                                                                                \
          .max = 256,                                                                              \
          .help = "threads (default: physical cores that this process may use)" },                 \
        { "--json", NULL, OPT_FLAG, offsetof(quantize_options, json), .help = "one JSON object" }, \
    {                                                                                              \
        0                                                                                          \
    }

static const cli_option quantize_table[] = { COMMON_OPTIONS };
static const cli_option convert_table[] = {
    { "--type", "TYPE", OPT_TEXT, offsetof(quantize_options, type),
      .help = "as in 'infer quantize' (default: the types of the input)" },
    COMMON_OPTIONS,
};

static bool show(const infer_quantize_step *s, void *user)
{
    (void)user;
    double part = s->bytes_total ? (double)s->bytes_done / (double)s->bytes_total : 1;
    cli_progress("%3.0f%%  %d of %d  %-7s %s", 100 * part, s->index + 1, s->n_tensors, s->type,
                 s->tensor);
    return !cli_interrupted();
}

static int print_result(const infer_quantize_result *r, const char *out, const quantize_options *o)
{
    char in_size[32], out_size[32];
    if (o->json)
        return cli_json_print(
            json_pack("{s:o,s:s?,s:i,s:i,s:I,s:I,s:I,s:f,s:f}", "out",
                      cli_json_text(out, strlen(out)), "type", o->type, "tensors", r->n_tensors,
                      "fallbacks", r->n_fallbacks, "params", (json_int_t)r->n_params, "in_bytes",
                      (json_int_t)r->in_bytes, "out_bytes", (json_int_t)r->out_bytes,
                      "bits_per_weight", r->bits_per_weight, "seconds", r->seconds));
    printf("%s: %d tensors, %s -> %s, %.2f bits a weight, %.1f s\n", out, r->n_tensors,
           cli_bytes(in_size, r->in_bytes), cli_bytes(out_size, r->out_bytes), r->bits_per_weight,
           r->seconds);
    return EXIT_DONE;
}

static int work(const char *in, const char *out, const quantize_options *o)
{
    infer_error err = { 0 };
    char *path;
    int code = cli_model_path(&path, in);
    if (code) return code;
    infer_quantize_options q = { .struct_size = sizeof q,
                                 .type = o->type,
                                 .importance = o->importance,
                                 .n_threads = o->threads,
                                 .progress = show,
                                 .log = cli_log };
    infer_quantize_result result;
    cli_interrupt_later(true);
    infer_status st = infer_quantize(path, out, &q, &result, &err);
    cli_interrupt_later(false);
    cli_progress_end();
    code = st ? cli_fail(&err) : print_result(&result, out, o);
    mem_free(path);
    return code;
}

static int run_quantize(int argc, char **argv)
{
    quantize_options o = { 0 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_quantize, &o, &args, argc, argv, &code)) return code;
    o.type = args.v[2];
    return work(args.v[0], args.v[1], &o);
}

static int run_convert(int argc, char **argv)
{
    quantize_options o = { 0 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_convert, &o, &args, argc, argv, &code)) return code;
    return work(args.v[0], args.v[1], &o);
}

const cli_command cmd_quantize = {
    .name = "quantize",
    .args = "IN OUT TYPE",
    .min_args = 3,
    .max_args = 3,
    .summary = "write a GGUF file with weights of fewer bits",
    .text =
        "IN is a GGUF file or a Hugging Face folder, OUT the GGUF file to write. It gets its name "
        "when "
        "it is whole.\n"
        "TYPE, bits a weight in brackets: F32, F16, BF16, Q8_0 (8.5), Q6_K (6.6), Q5_K_M (5.7), "
        "Q5_K_S (5.5), Q4_K_M (4.8), Q4_K_S (4.6), Q3_K_L (4.3), Q3_K_M (3.9), Q3_K_S (3.5), Q2_K "
        "(3), Q2_K_S (2.8), IQ4_NL (4.5), IQ4_XS (4.3), Q5_1 (6), Q5_0 (5.5), Q4_1 (5), Q4_0 "
        "(4.5), "
        "MXFP4 (experts), TQ2_0, TQ1_0.",
    .options = quantize_table,
    .run = run_quantize,
};

const cli_command cmd_convert = {
    .name = "convert",
    .args = "IN OUT",
    .min_args = 2,
    .max_args = 2,
    .summary = "write a Hugging Face folder, a vindex or a GGUF file as one GGUF file",
    .text =
        "OUT gets its name when it is whole, and when it says the same as IN: configuration and "
        "vocabulary are read back and compared.",
    .options = convert_table,
    .run = run_convert,
};
