/*
 * export.c: the tensors of a vindex under their Hugging Face names, in the forms that the family's
 * files have: gate and up in one where they are fused, matrices turned where they are transposed.
 */
#include "models/export.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/folder.h"
#include "base/mem.h"
#include "models/load_vindex.h"
#include "models/places.h"
#include "models/quantize.h"
#include "models/st_write.h"

#define MAX_COPIED (256u << 20)

typedef struct exporter {
    infer_model *m;
    const arch *a;
    config c;
    config_source s;
    json_t *settings;
    gguf *meta;
    const char *work, *prefix;
    st_out *v;
    size_t n, cap;
    arena mem;
    infer_error *err;
} exporter;

static infer_status no_memory(const exporter *x)
{
    return error_set(x->err, INFER_NOMEM, "%s: out of memory", x->m->path);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Where the family's files have the text model. */
static const char *prefix_of(const arch *a)
{
    if (!strcmp(a->name, "gpt2")) return "transformer.";
    return strcmp(a->name, "gpt_neox") ? "model." : "gpt_neox.";
}

static infer_status check_family(const exporter *x)
{
    static const char usual[] = "layers.#.mlp.experts.gate_up_proj!";
    const char *stack = arch_tensor_name(x->a, ROLE_EXPERTS_GATE_UP)->hf;
    bool stacked = x->c.moe.by_column || !stack || strcmp(stack, usual);
    if (x->c.moe.n_experts && stacked)
        return error_set(x->err, INFER_UNSUPPORTED,
                         "%s: %s: its files hold all experts in one tensor, which is not written: "
                         "make a GGUF file",
                         x->m->path, x->a->name);
    return INFER_OK;
}

static char *name_of(exporter *x, const place *p, tensor_role role)
{
    char key[256];
    bool outside = arch_tensor_name(x->a, role)->hf && arch_tensor_name(x->a, role)->hf[0] == '/';
    if (!place_key(key, sizeof key, x->a, role, p->layer, p->expert, p->suffix)) return NULL;
    return arena_printf(&x->mem, "%s%s", outside ? "" : x->prefix, key);
}

static infer_status add_tensor(exporter *x, const st_tensor *t)
{
    place p;
    if (!place_find_hf(&p, x->a, x->m->prefix, x->m->outer, t->name))
        return error_set(x->err, INFER_UNSUPPORTED, "%s: tensor '%s': its place is not known",
                         x->m->path, t->name);
    bool ffn = p.role == ROLE_GATE || p.role == ROLE_UP || p.role == ROLE_DOWN;
    bool matrix = ffn && t->n_dims == 2;
    const st_tensor *up = NULL;
    if (x->c.fused_gate_up && p.role == ROLE_UP) return INFER_OK; // with the gate
    infer_status st = mem_reserve((void **)&x->v, &x->cap, x->n + 1, sizeof *x->v, x->err);
    if (st) return st;
    if (t->type < 0 || t->n_dims > 4)
        return error_set(x->err, INFER_UNSUPPORTED, "%s: tensor '%s': its type is not supported",
                         x->m->path, t->name);
    st_out o = { .type = (dtype)t->type,
                 .n_dims = t->n_dims,
                 .parts = { t->data },
                 .bytes = { t->bytes },
                 .exchanged = matrix && x->a->hf_transposed };
    memcpy(o.dims, t->dims, sizeof o.dims);
    if (o.exchanged) {
        o.dims[0] = t->dims[1];
        o.dims[1] = t->dims[0];
    }
    tensor_role role = p.role;
    if (x->c.fused_gate_up && p.role == ROLE_GATE) {
        char key[256];
        place_key(key, sizeof key, x->a, ROLE_UP, p.layer, 0, p.suffix);
        up = st_find(x->m->st, key);
        if (!up || up->type != t->type || up->bytes != t->bytes)
            return error_set(x->err, INFER_FORMAT, "%s: %s: expected a matrix like '%s'",
                             x->m->path, key, t->name);
        role = ROLE_GATE_UP;
        o.parts[1] = up->data;
        o.bytes[1] = up->bytes;
        o.dims[0] *= 2;
    }
    if (!(o.name = name_of(x, &p, role))) return no_memory(x);
    x->v[x->n++] = o;
    return INFER_OK;
}

static infer_status write_tensors(exporter *x)
{
    infer_status st = INFER_OK;
    for (int i = 0; i < st_n_tensors(x->m->st) && !st; i++)
        st = add_tensor(x, st_tensor_at(x->m->st, i));
    char *path = arena_printf(&x->mem, "%s/model.safetensors", x->work);
    if (!st && !path) st = no_memory(x);
    return st ? st : st_write(path, x->v, x->n, x->err);
}

/* ---- what stands beside ---------------------------------------------------------------------- */

/* The text model's settings, with what the file says outside them. */
static json_t *own_config(const exporter *x)
{
    static const char *const outside[] = { "tie_word_embeddings", "bos_token_id", "eos_token_id",
                                           "pad_token_id" };
    json_t *o = json_deep_copy(x->s.json);
    for (int i = 0; i < COUNT_OF(outside) && o; i++) {
        json_t *v = json_object_get(x->s.outer, outside[i]);
        if (v && !json_object_get(o, outside[i])) json_object_set(o, outside[i], v);
    }
    json_object_del(o, "quantization_config"); // what was quantised is not so any more
    return o;
}

static infer_status write_config(exporter *x)
{
    json_t *o = x->s.g ? hf_config(x->m, &x->c, &x->s) : own_config(x);
    char *path = arena_printf(&x->mem, "%s/config.json", x->work);
    const char *type = x->m->embed.type == DT_F32 ? "float32" : "float16";
    for (int i = 0; x->a->hf_names[i] && o; i++)
        if (strstr(x->a->hf_names[i], "ForCausalLM"))
            json_object_set_new(o, "architectures", json_pack("[s]", x->a->hf_names[i]));
    if (!o || !path || json_object_set_new(o, "torch_dtype", json_string(type))) {
        json_decref(o);
        return no_memory(x);
    }
    atomic_file f;
    infer_status st = atomic_open(&f, path, x->err);
    if (!st) {
        json_dumpf(o, f.f, JSON_INDENT(2) | JSON_SORT_KEYS);
        fputc('\n', f.f);
        st = atomic_commit(&f, x->err);
    }
    json_decref(o);
    return st;
}

static infer_status copy_file(exporter *x, const char *name)
{
    char *from = arena_printf(&x->mem, "%s/%s", x->m->path, name);
    char *to = arena_printf(&x->mem, "%s/%s", x->work, name);
    return from && to ? atomic_copy(from, to, MAX_COPIED, x->err) : no_memory(x);
}

static infer_status check(exporter *x)
{
    infer_model *other;
    infer_status st = infer_model_open(&other, x->work, NULL, x->err);
    if (st) return error_prefix(x->err, "the written folder is not valid");
    const char *what = model_difference(x->m, other);
    infer_model_close(other);
    if (!what) return INFER_OK;
    return error_set(x->err, INFER_UNSUPPORTED,
                     "%s: %s: its config.json would lose its %s, which is not written", x->m->path,
                     x->a->name, what);
}

static infer_status fill(exporter *x)
{
    static const char *const files[] = { "tokenizer.json",          "tokenizer_config.json",
                                         "special_tokens_map.json", "generation_config.json",
                                         "chat_template.jinja",     "tokenizer.model" };
    infer_status st = write_tensors(x);
    if (!st) st = write_config(x);
    for (int i = 0; i < COUNT_OF(files) && !st; i++)
        st = copy_file(x, files[i]);
    return st ? st : check(x);
}

static infer_status run(exporter *x, const char *out)
{
    cfg_note *notes = arena_zero(&x->mem, MAX_NOTES, sizeof *notes);
    x->s = (config_source){ .path = x->m->path, .mem = &x->mem, .notes = notes };
    if (!notes) return no_memory(x);
    infer_status st = vindex_settings(&x->s, &x->settings, &x->meta, x->m->dir, x->err);
    if (!st) st = config_load(&x->c, &x->a, &x->s, x->err);
    if (!st) st = check_family(x);
    if (st) return st;
    vindex_conventions(&x->c, x->a, x->m->dir);
    x->prefix = prefix_of(x->a);
    x->work = arena_printf(&x->mem, "%s.partial", out);
    if (!x->work) return no_memory(x);
    if (dir_exists(x->work) && (st = folder_remove(x->work, x->err))) return st;
    if (mkdir(x->work, 0755))
        return error_set(x->err, INFER_IO, "%s: %s", x->work, strerror(errno));
    st = fill(x);
    if (!st) st = folder_replace(x->work, out, x->err);
    if (st) folder_remove(x->work, NULL);
    return st;
}

infer_status export_folder(const char *vindex, const char *out, const infer_log *log,
                           infer_error *err)
{
    infer_error own;
    exporter x = { .err = err ? err : &own };
    infer_model_options o = { .log = *log };
    infer_status st = infer_model_open(&x.m, vindex, &o, x.err);
    if (st) return st;
    st =
        x.m->dir ? run(&x, out) : error_set(x.err, INFER_ARGUMENT, "%s: expected a vindex", vindex);
    json_decref(x.settings);
    gguf_close(x.meta);
    mem_free(x.v);
    arena_free(&x.mem);
    infer_model_close(x.m);
    return st;
}
