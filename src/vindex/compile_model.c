/*
 * compile_model.c: a patch baked into a model file that other programs read. It goes by a vindex
 * with the patch baked in, whose unedited files are links, and which is removed again.
 */
#include <string.h>

#include "base/error.h"
#include "base/folder.h"
#include "base/map.h"
#include "base/mem.h"
#include "models/export.h"
#include "models/quantize.h"
#include "vindex/patch.h"

static bool is_gguf(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf");
}

static infer_status write_gguf(const infer_patch *p, const char *index, const char *out,
                               const infer_compile_options *o, infer_error *err)
{
    infer_quantize_options q = { .struct_size = sizeof q,
                                 .n_threads = o->n_threads,
                                 .log = o->log };
    if (!o->model) return quantize_model(index, out, &q, NULL, NULL, err);
    const infer_vindex *v = p->base;
    map_options how = { 0 };
    out_base base = { 0 };
    bool *edited = mem_zero((size_t)v->n_layers, sizeof *edited);
    if (!edited) return error_set(err, INFER_NOMEM, "%s: out of memory", out);
    for (int l = 0; l < v->n_layers; l++)
        edited[l] = p->layers[l].n > 0;
    base.edited = edited;
    infer_status st = gguf_open(&base.g, o->model, &how, &o->log, err);
    if (!st) st = quantize_model(index, out, &q, &base, NULL, err);
    gguf_close(base.g);
    mem_free(edited);
    return st;
}

infer_status infer_patch_compile_model(const infer_patch *p, const char *out,
                                       const infer_compile_options *options, infer_error *err)
{
    infer_error own;
    infer_compile_options o = { 0 };
    if (!err) err = &own;
    if (!p || !out)
        return error_set(err, INFER_ARGUMENT, "infer_patch_compile_model: NULL argument");
    if (options) o = *options;
    if (o.model && !is_gguf(out))
        return error_set(err, INFER_ARGUMENT, "%s: a base file is for GGUF files", out);
    if (!is_gguf(out) && (dir_exists(out) || file_exists(out)))
        return error_set(err, INFER_ARGUMENT, "%s: is there already", out);
    arena mem = { 0 };
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
        n--;
    char *to = arena_strndup(&mem, out, n);
    char *index = arena_printf(&mem, "%.*s.index", (int)n, out);
    infer_status st =
        to && index ? INFER_OK : error_set(err, INFER_NOMEM, "%s: out of memory", out);
    if (!st && dir_exists(index)) st = folder_remove(index, err); // of one that was stopped
    if (!st) st = infer_patch_compile(p, index, err);
    if (!st) {
        st =
            is_gguf(to) ? write_gguf(p, index, to, &o, err) : export_folder(index, to, &o.log, err);
        folder_remove(index, NULL);
    }
    arena_free(&mem);
    return st ? st : error_clear(err);
}
