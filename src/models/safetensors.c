/*
 * safetensors.c: the tensors of a Hugging Face folder.
 *
 *   offset  size  what
 *   0       8     header length n, little-endian
 *   8       n     JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]},
 * …,
 *                 "__metadata__": {…}}; offsets count from the end of the header
 *   8 + n   …     data
 *
 * model.safetensors.index.json has a "weight_map" of tensor name → file. Its files must lie in the
 * folder itself, each listed tensor must be in the file that the index names.
 */
#include "models/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/mem.h"
#include "models/names.h"

#define MAX_INDEX (64 << 20)    // bytes of an index file
#define MAX_HEADER (100u << 20) // bytes of a header, by the format
#define MAX_SHARDS 10000

struct safetensors {
    const char *folder; // in mem
    file_map *maps;     // [n_maps]
    size_t n_maps, cap_maps;
    st_tensor *tensors;
    size_t n_tensors, cap_tensors;
    name_index names;
    arena mem;
};

/* The element types of the format. Those we have no dtype for can be stepped over. */
static const struct {
    const char *name;
    int type; // dtype or -1
    int bits;
} dtypes[] = {
    { "F32", DT_F32, 32 }, { "F16", DT_F16, 16 }, { "BF16", DT_BF16, 16 }, { "F64", -1, 64 },
    { "I64", -1, 64 },     { "U64", -1, 64 },     { "I32", -1, 32 },       { "U32", -1, 32 },
    { "I16", -1, 16 },     { "U16", -1, 16 },     { "I8", -1, 8 },         { "U8", -1, 8 },
    { "BOOL", -1, 8 },     { "F8_E4M3", -1, 8 },  { "F8_E5M2", -1, 8 },    { "F8_E8M0", -1, 8 },
    { "F6_E2M3", -1, 6 },  { "F6_E3M2", -1, 6 },  { "F4", -1, 4 },         { "C64", -1, 64 },
};

static infer_status no_memory(const char *path, infer_error *err)
{
    return error_set(err, INFER_NOMEM, "%s: out of memory", path);
}

/* ---- one file -------------------------------------------------------------------------------- */

static infer_status read_shape(st_tensor *t, const json_t *shape, const char *path,
                               infer_error *err)
{
    size_t n = json_array_size(shape); // 0 also where it is no array
    if (!json_is_array(shape) || n > COUNT_OF(t->dims))
        return error_set(err, INFER_FORMAT,
                         "%s: tensor '%.100s': expected a shape of at most %d "
                         "dimensions",
                         path, t->name, COUNT_OF(t->dims));
    t->n_dims = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return error_set(err, INFER_FORMAT,
                             "%s: tensor '%.100s': dimension %zu of its shape "
                             "is not a count",
                             path, t->name, i);
        t->dims[i] = json_integer_value(d);
    }
    return INFER_OK;
}

/* Checks one member of the header. data has n bytes after the header. */
static infer_status read_entry(st_tensor *t, const json_t *entry, const uint8_t *data, size_t n,
                               const char *path, infer_error *err)
{
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (!type || json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return error_set(err, INFER_FORMAT,
                         "%s: tensor '%.100s': expected dtype, shape and two "
                         "data_offsets",
                         path, t->name);
    infer_status s = read_shape(t, json_object_get(entry, "shape"), path, err);
    if (s != INFER_OK) return s;

    int k = 0;
    while (k < COUNT_OF(dtypes) && strcmp(dtypes[k].name, type) != 0)
        k++;
    if (k == COUNT_OF(dtypes))
        return error_set(err, INFER_FORMAT, "%s: tensor '%.100s': unknown dtype '%.40s'", path,
                         t->name, type);
    t->dtype_name = dtypes[k].name;
    t->type = dtypes[k].type;

    json_int_t from = json_integer_value(begin), to = json_integer_value(end);
    if (from < 0 || to < from)
        return error_set(err, INFER_FORMAT,
                         "%s: tensor '%.100s': data_offsets [%" PRId64 ", %" PRId64
                         "] go backwards",
                         path, t->name, (int64_t)from, (int64_t)to);
    if ((uint64_t)to > n)
        return error_set(err, INFER_FORMAT,
                         "%s: file ends %" PRIu64 " bytes before the end of "
                         "tensor '%.100s'",
                         path, (uint64_t)to - n, t->name);
    uint64_t bits = (uint64_t)dtypes[k].bits;
    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(bits, (uint64_t)t->dims[i], &bits))
            return error_set(err, INFER_FORMAT, "%s: tensor '%.100s': its shape overflows", path,
                             t->name);
    if (bits % 8 || bits / 8 != (uint64_t)(to - from))
        return error_set(err, INFER_FORMAT,
                         "%s: tensor '%.100s': its shape in %s takes %" PRIu64
                         " bytes, its data_offsets span %" PRId64,
                         path, t->name, t->dtype_name, bits / 8, (int64_t)(to - from));
    t->data = data + from;
    t->bytes = (uint64_t)(to - from);
    return INFER_OK;
}

static infer_status add_tensor(safetensors *s, st_tensor *t, const char *name, const json_t *entry,
                               const uint8_t *data, size_t n, const char *path, infer_error *err)
{
    infer_status st = mem_reserve((void **)&s->tensors, &s->cap_tensors, s->n_tensors + 1,
                                  sizeof(*s->tensors), err);
    if (st != INFER_OK) return st;
    *t = (st_tensor){ .name = arena_strndup(&s->mem, name, strlen(name)) };
    if (!t->name) return no_memory(path, err);
    if ((st = read_entry(t, entry, data, n, path, err)) != INFER_OK) return st;
    int old;
    st = names_add(&s->names, t->name, strlen(t->name), (int)s->n_tensors, &old);
    if (st == INFER_FORMAT)
        return error_set(err, st, "%s: tensor '%.100s' occurs twice in the folder's files", path,
                         t->name);
    if (st != INFER_OK) return no_memory(path, err);
    s->tensors[s->n_tensors++] = *t;
    return INFER_OK;
}

static infer_status read_header(json_t **out, size_t *size, const file_map *m, infer_error *err)
{
    if (m->size < 8)
        return error_set(err, INFER_FORMAT, "%s: %zu bytes, expected a header length of 8 at least",
                         m->path, m->size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | m->data[i];
    if (n > m->size - 8 || n > MAX_HEADER)
        return error_set(err, INFER_FORMAT,
                         "%s: header length %" PRIu64 " exceeds the file (%zu "
                         "bytes) or 100 MiB",
                         m->path, n, m->size);
    json_error_t why;
    *out = json_loadb((const char *)m->data + 8, (size_t)n, JSON_REJECT_DUPLICATES, &why);
    if (!*out)
        return error_set(err, INFER_FORMAT, "%s: header is not valid JSON: %s (byte %d)", m->path,
                         why.text, why.position);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return error_set(err, INFER_FORMAT, "%s: header: expected a JSON object", m->path);
    }
    *size = 8 + (size_t)n;
    return INFER_OK;
}

static infer_status read_shard(safetensors *s, const char *path, const map_options *o,
                               const infer_log *log, infer_error *err)
{
    infer_status st =
        mem_reserve((void **)&s->maps, &s->cap_maps, s->n_maps + 1, sizeof(*s->maps), err);
    if (st != INFER_OK) return st;
    file_map *m = &s->maps[s->n_maps];
    *m = (file_map){ 0 };
    if ((st = map_open(m, path, o, log, err)) != INFER_OK) return st;
    s->n_maps++;

    json_t *header = NULL;
    size_t start = 0;
    if ((st = read_header(&header, &start, m, err)) != INFER_OK) return st;
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        st_tensor t;
        st = add_tensor(s, &t, name, entry, m->data + start, m->size - start, m->path, err);
        if (st != INFER_OK) break;
    }
    json_decref(header);
    return st;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Opens each file of the index once and checks that it has the tensors that the index says. */
static infer_status read_index(safetensors *s, const char *index_path, const map_options *o,
                               const infer_log *log, infer_error *err)
{
    char *text = NULL;
    size_t n;
    json_t *index = NULL;
    name_index opened = { 0 };
    infer_status st = file_read(index_path, MAX_INDEX, &text, &n, err);
    if (st != INFER_OK) return st;
    json_error_t why;
    index = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!index) {
        st = error_set(err, INFER_FORMAT, "%s: line %d: %s", index_path, why.line, why.text);
        goto done;
    }
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        st = error_set(err, INFER_FORMAT, "%s: expected an object 'weight_map' with entries",
                       index_path);
        goto done;
    }
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)map, name, value)
    {
        const char *file = json_string_value(value);
        int old;
        if (!file || !*file || strchr(file, '/') || strchr(file, '\\') || file[0] == '.') {
            st = error_set(err, INFER_FORMAT,
                           "%s: weight_map: tensor '%.100s' is in '%.100s', "
                           "expected the name of a file in the folder",
                           index_path, name, file ? file : "(no string)");
            goto done;
        }
        if (names_find(&opened, file, strlen(file)) < 0) {
            char *path = arena_printf(&s->mem, "%s/%s", s->folder, file);
            st = path ? names_add(&opened, file, strlen(file), (int)s->n_maps, &old) : INFER_NOMEM;
            if (st != INFER_OK) {
                no_memory(index_path, err);
                goto done;
            }
            if (s->n_maps >= MAX_SHARDS)
                st = error_set(err, INFER_FORMAT, "%s: more than %d files", index_path, MAX_SHARDS);
            else
                st = read_shard(s, path, o, log, err);
            if (st == INFER_NOT_FOUND) error_prefix(err, "%s", index_path);
            if (st != INFER_OK) goto done;
        }
    }
    json_object_foreach((json_t *)map, name, value) if (!st_find(s, name))
    {
        st = error_set(err, INFER_FORMAT, "%s: weight_map: tensor '%.100s' is not in '%.100s'",
                       index_path, name, json_string_value(value));
        break;
    }
done:
    names_free(&opened);
    json_decref(index);
    mem_free(text);
    return st;
}

infer_status st_new(safetensors **out, const char *folder, infer_error *err)
{
    *out = NULL;
    safetensors *s = mem_zero(1, sizeof(*s));
    if (!s) return no_memory(folder, err);
    s->folder = arena_strndup(&s->mem, folder, strlen(folder));
    if (!s->folder) {
        st_close(s);
        return no_memory(folder, err);
    }
    *out = s;
    return INFER_OK;
}

infer_status st_add(safetensors *s, const st_tensor *t, infer_error *err)
{
    infer_status st = mem_reserve((void **)&s->tensors, &s->cap_tensors, s->n_tensors + 1,
                                  sizeof(*s->tensors), err);
    if (st != INFER_OK) return st;
    st_tensor *to = &s->tensors[s->n_tensors];
    *to = *t;
    to->name = arena_strndup(&s->mem, t->name, strlen(t->name));
    if (!to->name) return no_memory(s->folder, err);
    int old;
    st = names_add(&s->names, to->name, strlen(to->name), (int)s->n_tensors, &old);
    if (st == INFER_FORMAT)
        return error_set(err, st, "%s: tensor '%.100s' occurs twice", s->folder, t->name);
    if (st != INFER_OK) return no_memory(s->folder, err);
    s->n_tensors++;
    return INFER_OK;
}

infer_status st_open(safetensors **out, const char *folder, const map_options *o,
                     const infer_log *log, infer_error *err)
{
    *out = NULL;
    safetensors *s = mem_zero(1, sizeof(*s));
    if (!s) return no_memory(folder, err);
    s->folder = arena_strndup(&s->mem, folder, strlen(folder));
    char *single = arena_printf(&s->mem, "%s/model.safetensors", folder);
    char *index = arena_printf(&s->mem, "%s/model.safetensors.index.json", folder);
    infer_status st;
    if (!s->folder || !single || !index)
        st = no_memory(folder, err);
    else if (file_exists(index))
        st = read_index(s, index, o, log, err);
    else if (file_exists(single))
        st = read_shard(s, single, o, log, err);
    else
        st = error_set(err, INFER_NOT_FOUND,
                       "%s: neither model.safetensors nor "
                       "model.safetensors.index.json is there",
                       folder);
    if (st != INFER_OK) {
        st_close(s);
        return st;
    }
    *out = s;
    return error_clear(err);
}

void st_close(safetensors *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_maps; i++)
        map_close(&s->maps[i]);
    mem_free(s->maps);
    mem_free(s->tensors);
    names_free(&s->names);
    arena_free(&s->mem);
    mem_free(s);
}

uint64_t st_file_bytes(const safetensors *s)
{
    uint64_t n = 0;
    for (size_t i = 0; i < s->n_maps; i++)
        n += s->maps[i].size;
    return n;
}

bool st_broken(const safetensors *s)
{
    for (size_t i = 0; i < s->n_maps; i++)
        if (map_broken(&s->maps[i])) return true;
    return false;
}

void st_release(const safetensors *s, const void *from, size_t size)
{
    for (size_t i = 0; i < s->n_maps; i++) {
        const file_map *m = &s->maps[i];
        uintptr_t at = (uintptr_t)from, lo = (uintptr_t)m->data;
        if (at >= lo && at < lo + m->size) map_release(m, from, size);
    }
}

int st_n_tensors(const safetensors *s) { return (int)s->n_tensors; }
const st_tensor *st_tensor_at(const safetensors *s, int i) { return &s->tensors[i]; }

const st_tensor *st_find(const safetensors *s, const char *name)
{
    int at = names_find(&s->names, name, strlen(name));
    return at < 0 ? NULL : &s->tensors[at];
}
