/*
 * cmd_edit.c: `infer insert`, `delete`, `update`, `patch` and `compile`: edits of a vindex. They
 * are written to a patch file; the index itself is never changed.
 */
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "infer_vindex.h"

typedef struct edit_options {
    cli_engine engine;
    const char *file, *prompt, *target, *conflict, *out, *format, *model;
    float alpha, confidence;
    const char *layers;
    int layer, feature;
    bool json, key;
} edit_options;

#define FILE_OPTION                                                                                \
    {                                                                                              \
        "--patch", "FILE", OPT_TEXT, offsetof(edit_options, file),                                 \
            .help = "the patch to add to; made where it is not there"                              \
    }
#define JSON_OPTION                                                                                \
    {                                                                                              \
        "--json", NULL, OPT_FLAG, offsetof(edit_options, json), .help = "one JSON object"          \
    }

/* An index and the patch that is being made. */
typedef struct editing {
    infer_vindex *v;
    infer_patch *p;
    int before; // operations that the file had
} editing;

static void edit_close(editing *e)
{
    infer_patch_free(e->p);
    infer_vindex_close(e->v);
}

static int edit_open(editing *e, const cli_command *c, const char *index, const edit_options *o)
{
    infer_error err = { 0 };
    infer_vindex_options vo = { .n_threads = o->engine.threads, .log = cli_log };
    *e = (editing){ 0 };
    if (!o->file) return cli_usage(c, "--patch FILE is missing");
    if (infer_vindex_open(&e->v, index, &vo, &err)) return cli_fail(&err);
    if (!(e->p = infer_patch_new(e->v, &err))) return cli_fail(&err);
    if (file_exists(o->file) && infer_patch_load(e->p, o->file, &err)) return cli_fail(&err);
    e->before = infer_patch_n_operations(e->p);
    return EXIT_DONE;
}

static int edit_save(editing *e, const edit_options *o, const char *what)
{
    infer_error err = { 0 };
    int n = infer_patch_n_operations(e->p);
    if (infer_patch_save(e->p, o->file, &err)) return cli_fail(&err);
    if (o->json)
        return cli_json_print(json_pack("{s:o, s:i, s:i}", "patch",
                                        cli_json_text(o->file, strlen(o->file)), "added",
                                        n - e->before, "operations", n));
    printf("%s: %s, %d operations added, %d in all\n", o->file, what, n - e->before, n);
    return EXIT_DONE;
}

static bool read_layers(const char *text, int *first, int *last)
{
    char end;
    if (sscanf(text, "%d-%d%c", first, last, &end) == 2) return *first >= 0 && *last >= *first;
    if (sscanf(text, "%d%c", first, &end) != 1) return false;
    *last = *first;
    return *first >= 0;
}

/* ---- insert ---------------------------------------------------------------------------------- */

static const cli_option insert_table[] = {
    FILE_OPTION,
    { "--ffn", "VINDEX", OPT_TEXT, offsetof(edit_options, engine.ffn),
      .help = "the index, where MODEL is not one itself" },
    { "--alpha", "X", OPT_FLOAT, offsetof(edit_options, alpha), .min = 0, .max = 1e6f,
      .help = "strength (default: what it takes for the target to come first, from 0.25 up)" },
    { "--layers", "A-B", OPT_TEXT, offsetof(edit_options, layers),
      .help = "layers that get a feature (default: the upper half of the knowledge band)" },
    { "--key", NULL, OPT_FLAG, offsetof(edit_options, key),
      .help = "store the fact beside the model, found by the prompt's state in one layer, and "
              "change no feature; only 'infer predict' asks for such facts" },
    { "--prompt", "TEXT", OPT_TEXT, offsetof(edit_options, prompt),
      .help = "asks for the fact, with {entity} and {relation} (default: 'The {relation} of "
              "{entity} is')" },
    { "--confidence", "X", OPT_FLOAT, offsetof(edit_options, confidence), .min = 0, .max = 1,
      .help = "of the fact (default: 0.9)" },
    MACHINE_OPTIONS(edit_options),
    JSON_OPTION,
    { 0 },
};

static int run_insert(int argc, char **argv)
{
    edit_options o = { 0 };
    cli_args args;
    editing e = { 0 };
    infer_error err = { 0 };
    infer_model *model = NULL;
    int code;
    if (!cli_parse(&cmd_insert, &o, &args, argc, argv, &code)) return code;
    infer_insert_options io = {
        .alpha = o.alpha, .confidence = o.confidence, .prompt = o.prompt, .key = o.key
    };
    if (o.layers && !read_layers(o.layers, &io.first_layer, &io.last_layer))
        return cli_usage(&cmd_insert, "--layers: expected A-B, found '%s'", o.layers);
    if (o.layers && !io.last_layer) io.last_layer = -1; // layer 0 alone
    const char *index = o.engine.ffn ? o.engine.ffn : args.v[0];
    infer_fact fact = { args.v[1], args.v[2], args.v[3] };
    if ((code = edit_open(&e, &cmd_insert, index, &o))) goto end;
    infer_model_options mo = { .log = cli_log, .ffn = e.v, .patch = e.p };
    char *path;
    if ((code = cli_model_path(&path, args.v[0]))) goto end;
    if (infer_model_open(&model, path, &mo, &err)) code = cli_fail(&err);
    mem_free(path);
    if (!code && infer_insert(model, e.p, &fact, &io, &err)) code = cli_fail(&err);
    if (!code) code = edit_save(&e, &o, "fact inserted");
end:
    infer_model_close(model);
    edit_close(&e);
    return code;
}

const cli_command cmd_insert = {
    .name = "insert",
    .args = "MODEL ENTITY RELATION TARGET",
    .min_args = 4,
    .max_args = 4,
    .summary = "put a fact into a model, as a patch of its vindex",
    .text =
        "MODEL is a vindex, or a model with --ffn. The model is asked for the fact, and in some "
        "layers a free feature is made to answer with the target. Use the patch with "
        "'infer predict MODEL … --patch FILE'.",
    .options = insert_table,
    .run = run_insert,
};

/* ---- delete, update -------------------------------------------------------------------------- */

static const cli_option delete_table[] = {
    FILE_OPTION,
    { "--layer", "N", OPT_INT, offsetof(edit_options, layer), .max = 1 << 20,
      .help = "this feature alone, with --feature" },
    { "--feature", "N", OPT_INT, offsetof(edit_options, feature), .max = 1 << 28,
      .help = "which feature of the layer" },
    JSON_OPTION,
    { 0 },
};

static int run_delete(int argc, char **argv)
{
    edit_options o = { .layer = -1, .feature = -1 };
    cli_args args;
    editing e = { 0 };
    infer_error err = { 0 };
    int code, n = 1;
    if (!cli_parse(&cmd_delete, &o, &args, argc, argv, &code)) return code;
    bool one = o.layer >= 0 && o.feature >= 0;
    if (one ? args.n != 1 : args.n != 4)
        return cli_usage(&cmd_delete, "expected ENTITY RELATION TARGET, or --layer and --feature");
    if ((code = edit_open(&e, &cmd_delete, args.v[0], &o))) goto end;
    infer_fact fact = { args.v[1], args.n == 4 ? args.v[2] : NULL, args.n == 4 ? args.v[3] : NULL };
    if (one ? infer_patch_delete(e.p, o.layer, o.feature, NULL, &err)
            : infer_delete_fact(e.p, &fact, &n, &err))
        code = cli_fail(&err);
    else if (!n)
        code = cli_error(EXIT_FAILED, "delete: no feature speaks for '%s' where '%s' is asked for",
                         fact.target, fact.entity);
    if (!code) code = edit_save(&e, &o, one ? "feature deleted" : "fact deleted");
end:
    edit_close(&e);
    return code;
}

const cli_command cmd_delete = {
    .name = "delete",
    .args = "VINDEX [ENTITY RELATION TARGET]",
    .min_args = 1,
    .max_args = 4,
    .summary = "take a fact, or a feature, out of a vindex, as a patch",
    .text =
        "What the patch itself inserted is taken back; otherwise the base's features that speak "
        "for TARGET and that ENTITY excites are silenced.",
    .options = delete_table,
    .run = run_delete,
};

static const cli_option update_table[] = {
    FILE_OPTION,
    { "--layer", "N", OPT_INT, offsetof(edit_options, layer), .max = 1 << 20, .help = "the layer" },
    { "--feature", "N", OPT_INT, offsetof(edit_options, feature), .max = 1 << 28,
      .help = "the feature" },
    { "--target", "TEXT", OPT_TEXT, offsetof(edit_options, target),
      .help = "what it speaks for from now on" },
    { "--alpha", "X", OPT_FLOAT, offsetof(edit_options, alpha), .min = 0, .max = 1e6f,
      .help = "and writes: the target's embedding times this; 0: its row stays (default)" },
    JSON_OPTION,
    { 0 },
};

static int update(editing *e, const edit_options *o)
{
    infer_error err = { 0 };
    infer_vindex_info info = infer_vindex_describe_index(e->v);
    const infer_tokenizer *tok = infer_vindex_tokenizer(e->v);
    int32_t *ids = NULL;
    size_t n = 0;
    infer_tokenize_options plain = { .no_special = true };
    if (!tok) return cli_error(EXIT_FAILED, "%s: has no tokenizer", info.path);
    if (infer_tokenize(tok, &ids, &n, o->target, strlen(o->target), &plain, &err))
        return cli_fail(&err);
    float *down = NULL;
    int code = EXIT_DONE;
    if (!n) code = cli_error(EXIT_USAGE, "update: --target is empty");
    if (!code && o->alpha > 0) {
        down = mem_alloc((size_t)info.d_model, sizeof *down);
        if (!down || infer_vindex_embedding(e->v, ids[0], down, &err))
            code = down ? cli_fail(&err) : cli_error(EXIT_FAILED, "update: out of memory");
        for (int i = 0; !code && i < info.d_model; i++)
            down[i] *= o->alpha;
    }
    infer_feature_edit edit = { .layer = o->layer,
                                .feature = o->feature,
                                .down = down,
                                .target = o->target,
                                .token = code ? 0 : ids[0] };
    if (!code && infer_patch_update(e->p, &edit, &err)) code = cli_fail(&err);
    mem_free(down);
    infer_free(ids);
    return code;
}

static int run_update(int argc, char **argv)
{
    edit_options o = { .layer = -1, .feature = -1 };
    cli_args args;
    editing e = { 0 };
    int code;
    if (!cli_parse(&cmd_update, &o, &args, argc, argv, &code)) return code;
    if (o.layer < 0 || o.feature < 0 || !o.target)
        return cli_usage(&cmd_update, "--layer, --feature and --target are needed");
    if (!(code = edit_open(&e, &cmd_update, args.v[0], &o))) code = update(&e, &o);
    if (!code) code = edit_save(&e, &o, "feature updated");
    edit_close(&e);
    return code;
}

const cli_command cmd_update = {
    .name = "update",
    .args = "VINDEX",
    .min_args = 1,
    .max_args = 1,
    .summary = "change what a feature of a vindex speaks for, as a patch",
    .options = update_table,
    .run = run_update,
};

/* ---- patch, compile -------------------------------------------------------------------------- */

static int load(infer_patch **p, const infer_vindex *v, const char *file)
{
    infer_error err = { 0 };
    if (!(*p = infer_patch_new(v, &err))) return cli_fail(&err);
    return infer_patch_load(*p, file, &err) ? cli_fail(&err) : EXIT_DONE;
}

static const char *const kind_names[] = { "insert", "update", "delete", "insert_knn",
                                          "delete_knn" };

static int print_operations(const infer_patch *p, const edit_options *o)
{
    json_t *list = json_array();
    for (int i = 0; i < infer_patch_n_operations(p); i++) {
        infer_operation op = infer_patch_operation(p, i);
        const char *kind = kind_names[op.kind];
        if (o->json)
            json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:s?, s:s?, s:s?}", "op", kind,
                                                  "layer", op.layer, "feature", op.feature,
                                                  "entity", op.entity, "relation", op.relation,
                                                  "target", op.target));
        else
            printf("%4d  %-10s  layer %2d  feature %6d  %s%s%s%s%s\n", i, kind, op.layer,
                   op.feature, op.entity ? op.entity : "", op.relation ? " " : "",
                   op.relation ? op.relation : "", op.target ? " → " : "",
                   op.target ? op.target : "");
    }
    if (o->json) return cli_json_print(list);
    json_decref(list);
    return EXIT_DONE;
}

static const cli_option patch_table[] = {
    { "-o", "FILE", OPT_TEXT, offsetof(edit_options, out),
      .help = "write all patches, later ones over earlier ones, as one" },
    { "--conflict", NULL, OPT_CHOICE, offsetof(edit_options, conflict),
      .choices = "last|confidence|fail",
      .help = "where two patches edit one feature: the later wins (default), the more confident, "
              "an error" },
    JSON_OPTION,
    { 0 },
};

static infer_conflict conflict_of(const edit_options *o)
{
    if (!o->conflict || !strcmp(o->conflict, "last")) return INFER_CONFLICT_LAST;
    return strcmp(o->conflict, "fail") ? INFER_CONFLICT_CONFIDENCE : INFER_CONFLICT_FAIL;
}

/* The patches of args from v[1] on, laid over each other. */
static int stack(infer_patch **p, const infer_vindex *v, const cli_args *args,
                 const edit_options *o)
{
    infer_error err = { 0 };
    int code = EXIT_DONE;
    if (args->n == 1)
        code = (*p = infer_patch_new(v, &err)) ? EXIT_DONE : cli_fail(&err);
    else
        code = load(p, v, args->v[1]);
    for (int i = 2; i < args->n && !code; i++) {
        infer_patch *top = NULL;
        if (!(code = load(&top, v, args->v[i])) && infer_patch_stack(*p, top, conflict_of(o), &err))
            code = cli_fail(&err);
        infer_patch_free(top);
    }
    return code;
}

static int with_stack(const cli_command *c, int argc, char **argv,
                      int (*use)(infer_patch *p, const edit_options *o))
{
    edit_options o = { 0 };
    cli_args args;
    infer_vindex *v = NULL;
    infer_patch *p = NULL;
    infer_error err = { 0 };
    int code;
    if (!cli_parse(c, &o, &args, argc, argv, &code)) return code;
    if (infer_vindex_open(&v, args.v[0], NULL, &err))
        code = cli_fail(&err);
    else if (!(code = stack(&p, v, &args, &o)))
        code = use(p, &o);
    infer_patch_free(p);
    infer_vindex_close(v);
    return code;
}

static int use_patch(infer_patch *p, const edit_options *o)
{
    infer_error err = { 0 };
    if (!o->out) return print_operations(p, o);
    return infer_patch_save(p, o->out, &err) ? cli_fail(&err) : EXIT_DONE;
}
static int run_patch(int argc, char **argv)
{
    return with_stack(&cmd_patch, argc, argv, use_patch);
}

const cli_command cmd_patch = {
    .name = "patch",
    .args = "VINDEX FILE [FILE ...]",
    .min_args = 2,
    .max_args = 60,
    .summary = "show patches of a vindex, or join them to one",
    .options = patch_table,
    .run = run_patch,
};

static const cli_option compile_table[] = {
    { "-o", "OUT", OPT_TEXT, offsetof(edit_options, out),
      .help = "the vindex to make, or a GGUF file (FILE.gguf)" },
    { "--format", NULL, OPT_CHOICE, offsetof(edit_options, format),
      .choices = "vindex|gguf|safetensors",
      .help = "what to make (default: vindex, or gguf by OUT's name)" },
    { "--model", "FILE", OPT_TEXT, offsetof(edit_options, model),
      .help = "with gguf: the GGUF file that the index was made from, whose tensors are kept byte "
              "for byte where no edit touches them" },
    { "--conflict", NULL, OPT_CHOICE, offsetof(edit_options, conflict),
      .choices = "last|confidence|fail", .help = "as in 'infer patch'" },
    { 0 },
};

static int use_compile(infer_patch *p, const edit_options *o)
{
    infer_error err = { 0 };
    if (!o->out) return cli_usage(&cmd_compile, "-o OUT is missing");
    size_t n = strlen(o->out);
    bool named = n > 5 && !strcmp(o->out + n - 5, ".gguf");
    const char *format = o->format ? o->format : named ? "gguf" : "vindex";
    if (named != !strcmp(format, "gguf"))
        return cli_usage(&cmd_compile, "-o: a GGUF file's name ends in .gguf, found '%s' for %s",
                         o->out, format);
    infer_compile_options co = { .struct_size = sizeof co, .model = o->model, .log = cli_log };
    bool vindex = !strcmp(format, "vindex");
    if (o->model && !named) return cli_usage(&cmd_compile, "--model is for GGUF files");
    if (vindex ? infer_patch_compile(p, o->out, &err)
               : infer_patch_compile_model(p, o->out, &co, &err))
        return cli_fail(&err);
    printf("%s: %d operations baked in\n", o->out, infer_patch_n_operations(p));
    return EXIT_DONE;
}
static int run_compile(int argc, char **argv)
{
    return with_stack(&cmd_compile, argc, argv, use_compile);
}

const cli_command cmd_compile = {
    .name = "compile",
    .args = "VINDEX [FILE ...]",
    .min_args = 1,
    .max_args = 60,
    .summary = "bake patches into a new vindex, a GGUF file or a safetensors folder",
    .text =
        "A vindex's files without edits are hard links to the old ones. Weights of a GGUF file or "
        "of safetensors have the index's types (f16 or f32; blocks of 256 that GGUF knows as "
        "well); with --model those of the source, but for the feed-forward matrices of edited "
        "layers.",
    .options = compile_table,
    .run = run_compile,
};
