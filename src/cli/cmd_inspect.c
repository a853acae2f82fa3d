/*
 * cmd_inspect.c: `infer inspect`: what is in a model file: metadata, tensors, types, sizes, and the
 * memory that running it will need. Architectures that cannot be run are shown too.
 */
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "infer_vindex.h"

#define MAX_TYPES 64

typedef struct inspect_options {
    bool json, all, verify;
} inspect_options;

static const cli_option options[] = {
    { "--all", NULL, OPT_FLAG, offsetof(inspect_options, all),
      .help = "whole values (default: long ones are cut)" },
    { "--verify", NULL, OPT_FLAG, offsetof(inspect_options, verify),
      .help = "read every file of a vindex and compare its checksum" },
    { "--json", NULL, OPT_FLAG, offsetof(inspect_options, json), .help = "one JSON object" },
    { 0 },
};

typedef struct type_sum {
    const char *type;
    int n;
    uint64_t bytes, elements;
} type_sum;

/* What is known of the file. The model is NULL where it cannot be run; `why` says it. */
typedef struct findings {
    const infer_file *file;
    infer_model *model;
    infer_model_info info;
    infer_error why;
    type_sum types[MAX_TYPES];
    int n_types;
    uint64_t tensor_bytes, elements, kv_bytes;
} findings;

static uint64_t element_count(const infer_tensor_info *t)
{
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= (uint64_t)t->dims[i];
    return n;
}

static void sum_types(findings *f)
{
    for (int i = 0; i < infer_file_n_tensors(f->file); i++) {
        infer_tensor_info t = infer_file_tensor(f->file, i);
        int k = 0;
        while (k < f->n_types && strcmp(f->types[k].type, t.type))
            k++;
        if (k == MAX_TYPES) continue;
        if (k == f->n_types) f->types[f->n_types++] = (type_sum){ .type = t.type };
        f->types[k].n++;
        f->types[k].bytes += t.bytes;
        f->types[k].elements += element_count(&t);
        f->tensor_bytes += t.bytes;
        f->elements += element_count(&t);
    }
}

// Opens the model for its shape, and an engine of one sequence for the size of its KV cache: both
// only reserve memory, so this costs milliseconds.
static void ask_model(findings *f, const char *path)
{
    if (infer_model_open(&f->model, path, NULL, &f->why)) {
        f->model = NULL;
        return;
    }
    f->info = infer_model_describe(f->model);
    infer_engine_options eo = { .n_threads = 1, .n_ctx = f->info.n_ctx_train, .max_sequences = 1 };
    infer_engine *engine;
    if (infer_engine_new(&engine, f->model, &eo, NULL)) return;
    f->kv_bytes = infer_engine_describe(engine).kv_bytes;
    infer_engine_free(engine);
}

/* ---- for people ------------------------------------------------------------------------------ */

static void print_count(char out[32], uint64_t n)
{
    if (n >= 1000000000)
        snprintf(out, 32, "%.2f B", (double)n / 1e9);
    else if (n >= 1000000)
        snprintf(out, 32, "%.1f M", (double)n / 1e6);
    else
        snprintf(out, 32, "%llu", (unsigned long long)n);
}

static void print_summary(const findings *f, const char *path)
{
    char a[32], b[32], c[32];
    const infer_model_info *m = &f->info;
    printf("file      ");
    cli_put_text(stdout, path, strlen(path), 0);
    printf("\nformat    %s, %s\n", infer_file_format(f->file),
           cli_bytes(a, infer_file_bytes(f->file)));
    if (!f->model) {
        printf("runs      no: ");
        cli_put_text(stdout, f->why.msg, strlen(f->why.msg), 0);
        putchar('\n');
        return;
    }
    print_count(a, m->n_params);
    printf("model     %s, ", m->arch);
    if (m->name && *m->name) cli_put_text(stdout, m->name, strlen(m->name), 40), printf(", ");
    printf("%s parameters, mostly %s\n", a, m->quant);
    printf("shape     %d layers of width %d, FFN %d, vocabulary %d\n", m->n_layers, m->d_model,
           m->d_ff, m->n_vocab);
    printf("attention %d heads, %d for K and V, of %d", m->n_heads, m->n_kv_heads, m->head_dim);
    if (m->window) printf(", window %d", m->window);
    printf("\ncontext   %d tokens trained\n", m->n_ctx_train);
    printf("memory    weights %s", cli_bytes(a, m->weight_bytes));
    if (f->kv_bytes)
        printf(" + KV cache %s for %d tokens (f16) = %s", cli_bytes(b, f->kv_bytes), m->n_ctx_train,
               cli_bytes(c, m->weight_bytes + f->kv_bytes));
    putchar('\n');
    if (m->repacked_bytes)
        printf("copied    %s of the weights, in another order\n", cli_bytes(a, m->repacked_bytes));
}

static void print_types(const findings *f)
{
    char size[32];
    printf("\n%stype        tensors         size   bits per weight%s\n", cli_bold(stdout),
           cli_plain(stdout));
    for (int i = 0; i < f->n_types; i++) {
        const type_sum *t = &f->types[i];
        double bits = t->elements ? 8.0 * (double)t->bytes / (double)t->elements : 0;
        printf("%-10s %8d %12s %17.2f\n", t->type, t->n, cli_bytes(size, t->bytes), bits);
    }
    double bits = f->elements ? 8.0 * (double)f->tensor_bytes / (double)f->elements : 0;
    printf("%-10s %8d %12s %17.2f\n", "all", infer_file_n_tensors(f->file),
           cli_bytes(size, f->tensor_bytes), bits);
}

static void print_metadata(const findings *f, bool all)
{
    int n = infer_file_n_meta(f->file), width = 0;
    for (int i = 0; i < n; i++) {
        int w = (int)strlen(infer_file_meta(f->file, i).key);
        if (w > width && w <= 44) width = w;
    }
    printf("\n%smetadata%s\n", cli_bold(stdout), cli_plain(stdout));
    for (int i = 0; i < n; i++) {
        infer_meta_info m = infer_file_meta(f->file, i);
        cli_put_text(stdout, m.key, strlen(m.key), all ? 0 : 72);
        int pad = width - (int)strlen(m.key);
        printf("%*s  ", pad > 0 ? pad : 0, "");
        int room = 78 - width;
        cli_put_text(stdout, m.value, strlen(m.value), all ? 0 : room > 30 ? room : 30);
        putchar('\n');
    }
}

static void shape_text(char *out, size_t size, const infer_tensor_info *t)
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < t->n_dims && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? " x " : "", (long long)t->dims[i]);
}

static void print_tensors(const findings *f)
{
    char size[32], shape[120];
    int n = infer_file_n_tensors(f->file), width = 10;
    for (int i = 0; i < n; i++) {
        int w = (int)strlen(infer_file_tensor(f->file, i).name);
        if (w > width) width = w < 60 ? w : 60;
    }
    printf("\n%s%-*s  %-8s %10s  shape%s\n", cli_bold(stdout), width, "tensor", "type", "size",
           cli_plain(stdout));
    for (int i = 0; i < n; i++) {
        infer_tensor_info t = infer_file_tensor(f->file, i);
        shape_text(shape, sizeof shape, &t);
        cli_put_text(stdout, t.name, strlen(t.name), 0);
        int pad = width - (int)strlen(t.name);
        printf("%*s  %-8s %10s  %s\n", pad > 0 ? pad : 0, "", t.type, cli_bytes(size, t.bytes),
               shape);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *text(const char *s) { return cli_json_text(s ? s : "", s ? strlen(s) : 0); }

static json_t *model_json(const findings *f)
{
    const infer_model_info *m = &f->info;
    if (!f->model) return json_null();
    return json_pack(
        "{s:o,s:o,s:o,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:I,s:I,s:I,s:I}", "arch", text(m->arch),
        "name", text(m->name), "quant", text(m->quant), "n_layers", m->n_layers, "d_model",
        m->d_model, "n_heads", m->n_heads, "n_kv_heads", m->n_kv_heads, "head_dim", m->head_dim,
        "d_ff", m->d_ff, "n_vocab", m->n_vocab, "n_ctx_train", m->n_ctx_train, "window", m->window,
        "n_params", (json_int_t)m->n_params, "weight_bytes", (json_int_t)m->weight_bytes,
        "repacked_bytes", (json_int_t)m->repacked_bytes, "kv_bytes", (json_int_t)f->kv_bytes);
}

static int print_json(const findings *f, const char *path)
{
    json_t *meta = json_array(), *tensors = json_array(), *types = json_array();
    for (int i = 0; i < infer_file_n_meta(f->file); i++) {
        infer_meta_info m = infer_file_meta(f->file, i);
        json_array_append_new(meta, json_pack("{s:o,s:o,s:o}", "key", text(m.key), "type",
                                              text(m.type), "value", text(m.value)));
    }
    for (int i = 0; i < infer_file_n_tensors(f->file); i++) {
        infer_tensor_info t = infer_file_tensor(f->file, i);
        json_t *dims = json_array();
        for (int k = 0; k < t.n_dims; k++)
            json_array_append_new(dims, json_integer(t.dims[k]));
        json_array_append_new(tensors,
                              json_pack("{s:o,s:o,s:o,s:I}", "name", text(t.name), "type",
                                        text(t.type), "shape", dims, "bytes", (json_int_t)t.bytes));
    }
    for (int i = 0; i < f->n_types; i++)
        json_array_append_new(types,
                              json_pack("{s:o,s:i,s:I}", "type", text(f->types[i].type), "tensors",
                                        f->types[i].n, "bytes", (json_int_t)f->types[i].bytes));
    json_t *root =
        json_pack("{s:o,s:s,s:I,s:I,s:o,s:o,s:o,s:o}", "file", text(path), "format",
                  infer_file_format(f->file), "file_bytes", (json_int_t)infer_file_bytes(f->file),
                  "tensor_bytes", (json_int_t)f->tensor_bytes, "model", model_json(f), "types",
                  types, "metadata", meta, "tensors", tensors);
    if (!f->model) json_object_set_new(root, "error", text(f->why.msg));
    return cli_json_print(root);
}

int cli_inspect(const char *path, bool json, bool all, bool brief)
{
    infer_file *file;
    infer_error err = { 0 };
    int code = EXIT_DONE;
    if (infer_file_open(&file, path, &err)) return cli_fail(&err);
    findings f = { .file = file };
    sum_types(&f);
    ask_model(&f, path);
    if (json) {
        code = print_json(&f, path);
    } else {
        print_summary(&f, path);
        if (!brief) {
            print_types(&f);
            print_metadata(&f, all);
            print_tensors(&f);
        }
    }
    infer_model_close(f.model);
    infer_file_close(file);
    return code;
}

static int run(int argc, char **argv)
{
    inspect_options o = { 0 };
    cli_args args;
    int code;
    char *path;
    if (!cli_parse(&cmd_inspect, &o, &args, argc, argv, &code)) return code;
    if ((code = cli_model_path(&path, args.v[0]))) return code;
    infer_error err = { 0 };
    if (!o.verify)
        code = cli_inspect(path, o.json, o.all, false);
    else if (infer_vindex_verify(path, &err))
        code = cli_fail(&err);
    else
        printf("%s: every file is as its checksum says\n", path);
    mem_free(path);
    return code;
}

const cli_command cmd_inspect = {
    .name = "inspect",
    .args = "FILE",
    .min_args = 1,
    .max_args = 1,
    .summary = "what is in a model file, and the memory it needs",
    .text =
        "FILE is named as MODEL is. Metadata, tensors, types and sizes are read from the file's "
        "directory alone, so that it also works where the model cannot be run.",
    .options = options,
    .run = run,
};
