/* cmd_vindex.c: what is done to a finished vindex: `infer convert-gates-f32`,
 * `build-down-features`, `build-up-features`, `build-storage`. */
#include "cli/cli.h"
#include "infer_vindex.h"

typedef struct tool_options {
    const char *dtype;
} tool_options;
static const cli_option table[] = { { 0 } };
static const cli_option feature_table[] = {
    { "--dtype", NULL, OPT_CHOICE, offsetof(tool_options, dtype), .choices = "f32|f16",
      .help = "of the rows (default: f32, which every reader of the format knows)" },
    { 0 },
};

/* Does one thing to args' index, and says what (NULL: the second argument). */
typedef infer_status tool(const cli_args *args, const tool_options *o, infer_error *err);
static int run(const cli_command *c, tool *fn, const char *what, int argc, char **argv)
{
    tool_options o = { 0 };
    cli_args args;
    int code;
    infer_error err = { 0 };
    if (!cli_parse(c, &o, &args, argc, argv, &code)) return code;
    if (fn(&args, &o, &err)) return cli_fail(&err);
    printf("%s: %s\n", args.v[0], what ? what : args.v[1]);
    return EXIT_DONE;
}

static infer_status gates(const cli_args *a, const tool_options *o, infer_error *err)
{
    (void)o;
    return infer_vindex_gates_to_f32(a->v[0], err);
}
static infer_status down_rows(const cli_args *a, const tool_options *o, infer_error *err)
{
    return infer_vindex_build_features(a->v[0], true, o->dtype, err);
}
static infer_status up_rows(const cli_args *a, const tool_options *o, infer_error *err)
{
    return infer_vindex_build_features(a->v[0], false, o->dtype, err);
}
static infer_status storage(const cli_args *a, const tool_options *o, infer_error *err)
{
    (void)o;
    return infer_vindex_build(a->v[0], a->v[1], err);
}

static int run_gates(int argc, char **argv)
{
    return run(&cmd_gates_f32, gates, "gates are float32", argc, argv);
}
static int run_down(int argc, char **argv)
{
    return run(&cmd_down_features, down_rows, "down_features.bin", argc, argv);
}
static int run_up(int argc, char **argv)
{
    return run(&cmd_up_features, up_rows, "up_features.bin", argc, argv);
}
static int run_storage(int argc, char **argv)
{
    return run(&cmd_build_storage, storage, NULL, argc, argv);
}

const cli_command cmd_build_storage = {
    .name = "build-storage",
    .args = "VINDEX KIND",
    .min_args = 2,
    .max_args = 2,
    .summary = "write a part of a vindex in another form, which can stand in for it",
    .text = "KIND is gates-q4 (gate_vectors_q4.bin for gate_vectors.bin), down-q4k "
            "(down_features_q4k.bin for down_features.bin), attention-q8 or attention-q4 "
            "(attn_weights_q8.bin, attn_weights_q4.bin for attn_weights.bin), layers-f32 or "
            "layers-q4k (layers/layer_LL.weights for up_weights.bin and down_weights.bin). The "
            "file that it is made of stays; where that and its rows of weight_manifest.json are "
            "removed, the new one is used.",
    .options = table,
    .run = run_storage,
};
const cli_command cmd_gates_f32 = {
    .name = "convert-gates-f32",
    .args = "VINDEX",
    .min_args = 1,
    .max_args = 1,
    .summary = "write a vindex's gates as float32",
    .text = "The folder is replaced in one step; its other files stay as they are.",
    .options = table,
    .run = run_gates,
};
const cli_command cmd_down_features = {
    .name = "build-down-features",
    .args = "VINDEX",
    .min_args = 1,
    .max_args = 1,
    .summary = "write a vindex's down matrix by features, for sparse walks",
    .text = "Makes down_features.bin of the matrices that the index has.",
    .options = feature_table,
    .run = run_down,
};
const cli_command cmd_up_features = {
    .name = "build-up-features",
    .args = "VINDEX",
    .min_args = 1,
    .max_args = 1,
    .summary = "write a vindex's up rows by themselves",
    .text = "Makes up_features.bin of the matrices that the index has.",
    .options = feature_table,
    .run = run_up,
};
