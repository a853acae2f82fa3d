/* cmd_vindex.c: what is done to a finished vindex: `infer convert-gates-f32`,
 * `build-down-features`, `build-up-features`. */
#include "cli/cli.h"
#include "infer_vindex.h"

typedef struct no_options {
    int none;
} no_options;
static const cli_option table[] = { { 0 } };

static int done(infer_status st, const infer_error *err, const char *path, const char *what)
{
    if (st) return cli_fail(err);
    printf("%s: %s\n", path, what);
    return EXIT_DONE;
}

static int run_gates(int argc, char **argv)
{
    no_options o;
    cli_args args;
    int code;
    infer_error err = { 0 };
    if (!cli_parse(&cmd_gates_f32, &o, &args, argc, argv, &code)) return code;
    return done(infer_vindex_gates_to_f32(args.v[0], &err), &err, args.v[0], "gates are float32");
}

typedef struct feature_options {
    const char *dtype;
} feature_options;
static const cli_option feature_table[] = {
    { "--dtype", NULL, OPT_CHOICE, offsetof(feature_options, dtype), .choices = "f32|f16",
      .help = "of the rows (default: f32, which every reader of the format knows)" },
    { 0 },
};

static int build(const cli_command *c, bool down, int argc, char **argv)
{
    feature_options o = { 0 };
    cli_args args;
    int code;
    infer_error err = { 0 };
    if (!cli_parse(c, &o, &args, argc, argv, &code)) return code;
    return done(infer_vindex_build_features(args.v[0], down, o.dtype, &err), &err, args.v[0],
                down ? "down_features.bin" : "up_features.bin");
}

static int run_down(int argc, char **argv) { return build(&cmd_down_features, true, argc, argv); }
static int run_up(int argc, char **argv) { return build(&cmd_up_features, false, argc, argv); }

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
