/*
 * gguf.c: reading the directory of GGUF files.
 *
 *   offset  size  what (little-endian)
 *   0       4     "GGUF"
 *   4       4     version, 2 or 3
 *   8       8     number of tensors
 *   16      8     number of key-value pairs
 *   24      …     pairs: key string, u32 type, value;  string: u64 length, bytes;
 *                 array: u32 item type, u64 count, items
 *           …     tensors: name string, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset
 *           …     padding to general.alignment (32), then the data that offsets count from
 *
 * One pass fills values and tensors. Nothing is sized by a number of the file before that number
 * has been compared with the bytes that are left. A split set is one directory: the keys of its
 * first file, the tensors of all.
 */
#include "models/gguf.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/mem.h"
#include "models/names.h"

#define MAX_KEY 65535 // bytes, by the format
#define MAX_NAME 1024 // bytes of a tensor's name
#define MAX_NESTING 4 // arrays of arrays
#define MIN_PAIR 14   // bytes of the smallest pair: 8 + 1 + 4 + 1
#define MIN_TENSOR 33 // bytes of the smallest tensor entry: 8 + 1 + 4 + 8 + 4 + 8

/* One file of the set. */
typedef struct part {
    file_map map;
    gguf_value *values;
    size_t n_values, cap_values;
    name_index keys;
} part;

struct gguf {
    part *parts; // [n_parts]
    int n_parts;
    int version;
    gguf_tensor *tensors;
    size_t n_tensors, cap_tensors;
    name_index names;
    arena mem; // string views
};

/* Where reading stands in one file. */
typedef struct cursor {
    const char *path;
    const uint8_t *data;
    size_t size, at;
    infer_error *err;
} cursor;

static const char *const type_names[GGUF_TYPE_COUNT] = { "u8",  "i8",  "u16",  "i16",    "u32",
                                                         "i32", "f32", "bool", "string", "array",
                                                         "u64", "i64", "f64" };
static const uint8_t type_sizes[GGUF_TYPE_COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

const char *gguf_type_name(gguf_type t)
{
    return (unsigned)t < GGUF_TYPE_COUNT ? type_names[t] : "unknown";
}

/* For "%.*s" in messages: long names are cut. */
static int shown(gguf_text t) { return t.n > 100 ? 100 : (int)t.n; }

/* ---- reading --------------------------------------------------------------------------------- */

static uint16_t load16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static uint32_t load32(const uint8_t *p) { return load16(p) | (uint32_t)load16(p + 2) << 16; }
static uint64_t load64(const uint8_t *p) { return load32(p) | (uint64_t)load32(p + 4) << 32; }

static size_t left(const cursor *c) { return c->size - c->at; }

static infer_status ends_in(const cursor *c, const char *what)
{
    return error_set(c->err, INFER_FORMAT, "%s: file ends in %s (at byte %zu)", c->path, what,
                     c->size);
}

static infer_status read32(cursor *c, uint32_t *out, const char *what)
{
    if (left(c) < 4) return ends_in(c, what);
    *out = load32(c->data + c->at);
    c->at += 4;
    return INFER_OK;
}

static infer_status read64(cursor *c, uint64_t *out, const char *what)
{
    if (left(c) < 8) return ends_in(c, what);
    *out = load64(c->data + c->at);
    c->at += 8;
    return INFER_OK;
}

/* A name: u64 length, bytes; what is "key" or "tensor". */
static infer_status read_name(cursor *c, gguf_text *out, size_t limit, const char *what,
                              uint64_t index)
{
    uint64_t n;
    if (left(c) < 8)
        return error_set(c->err, INFER_FORMAT, "%s: file ends in the name of %s %" PRIu64, c->path,
                         what, index);
    read64(c, &n, what);
    if (n == 0)
        return error_set(c->err, INFER_FORMAT, "%s: the name of %s %" PRIu64 " is empty", c->path,
                         what, index);
    if (n > left(c) || n > limit)
        return error_set(c->err, INFER_FORMAT,
                         "%s: the name of %s %" PRIu64 " has %" PRIu64
                         " bytes, expected at most %zu (%zu are left in the file)",
                         c->path, what, index, n, limit, left(c));
    *out = (gguf_text){ (const char *)c->data + c->at, (size_t)n };
    c->at += (size_t)n;
    return INFER_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static infer_status value_ends(const cursor *c, gguf_text key, const char *what, uint64_t n,
                               size_t have)
{
    return error_set(c->err, INFER_FORMAT,
                     "%s: key '%.*s': %s of %" PRIu64 " runs past the end of the file "
                     "(%zu bytes are left)",
                     c->path, shown(key), key.s, what, n, have);
}

static infer_status bad_type(const cursor *c, gguf_text key, uint32_t type)
{
    return error_set(c->err, INFER_FORMAT,
                     "%s: key '%.*s': value type %" PRIu32 ", expected 0 to %d", c->path,
                     shown(key), key.s, type, GGUF_TYPE_COUNT - 1);
}

static infer_status read_text(cursor *c, gguf_text key, gguf_text *out)
{
    if (left(c) < 8) return value_ends(c, key, "a string length", 8, left(c));
    uint64_t n = load64(c->data + c->at);
    if (n > left(c) - 8) return value_ends(c, key, "a string", n, left(c) - 8);
    *out = (gguf_text){ (const char *)c->data + c->at + 8, (size_t)n };
    c->at += 8 + (size_t)n;
    return INFER_OK;
}

/* Array header and items. views receives the strings of an outermost array of strings; NULL inside
 * other arrays, whose items are only stepped over. */
static infer_status read_array(cursor *c, gguf_text key, gguf_value *v, arena *views, int depth)
{
    uint32_t item;
    uint64_t count;
    if (left(c) < 12) return value_ends(c, key, "an array header", 12, left(c));
    read32(c, &item, "an array");
    read64(c, &count, "an array");
    if (item >= GGUF_TYPE_COUNT) return bad_type(c, key, item);
    v->item = (gguf_type)item;
    v->count = count;
    v->data = c->data + c->at;

    size_t smallest = item == GGUF_STRING ? 8 : item == GGUF_ARRAY ? 12 : type_sizes[item];
    if (count > left(c) / smallest) return value_ends(c, key, "an array", count, left(c));
    if (item == GGUF_STRING) {
        gguf_text *t = NULL, skipped;
        if (views && count) {
            t = arena_alloc(views, (size_t)count, sizeof(*t));
            if (!t) return error_set(c->err, INFER_NOMEM, "%s: out of memory", c->path);
        }
        for (uint64_t i = 0; i < count; i++)
            if (read_text(c, key, t ? &t[i] : &skipped) != INFER_OK) return INFER_FORMAT;
        v->strings = t;
    } else if (item == GGUF_ARRAY) {
        if (depth >= MAX_NESTING)
            return error_set(c->err, INFER_FORMAT, "%s: key '%.*s': arrays nested deeper than %d",
                             c->path, shown(key), key.s, MAX_NESTING);
        for (uint64_t i = 0; i < count; i++) {
            gguf_value inner = { 0 };
            infer_status s = read_array(c, key, &inner, NULL, depth + 1);
            if (s != INFER_OK) return s;
        }
    } else {
        c->at += (size_t)count * type_sizes[item];
    }
    return INFER_OK;
}

static infer_status read_value(gguf *g, cursor *c, gguf_value *v)
{
    uint32_t type;
    if (read32(c, &type, "a value's type") != INFER_OK) return INFER_FORMAT;
    if (type >= GGUF_TYPE_COUNT) return bad_type(c, v->key, type);
    v->type = v->item = (gguf_type)type;
    v->count = 1;
    v->data = c->data + c->at;
    if (type == GGUF_ARRAY) return read_array(c, v->key, v, &g->mem, 0);
    if (type == GGUF_STRING) {
        gguf_text ignored;
        return read_text(c, v->key, &ignored);
    }
    if (left(c) < type_sizes[type])
        return value_ends(c, v->key, "a value", type_sizes[type], left(c));
    c->at += type_sizes[type];
    return INFER_OK;
}

static infer_status read_values(gguf *g, part *p, cursor *c, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        infer_status s = mem_reserve((void **)&p->values, &p->cap_values, p->n_values + 1,
                                     sizeof(*p->values), c->err);
        if (s != INFER_OK) return s;
        gguf_value v = { 0 };
        int old;
        if ((s = read_name(c, &v.key, MAX_KEY, "key", i)) != INFER_OK) return s;
        if ((s = read_value(g, c, &v)) != INFER_OK) return s;
        v.size = (size_t)(c->data + c->at - v.data);
        s = names_add(&p->keys, v.key.s, v.key.n, (int)p->n_values, &old);
        if (s == INFER_FORMAT)
            return error_set(c->err, s, "%s: key '%.*s' occurs twice", c->path, shown(v.key),
                             v.key.s);
        if (s != INFER_OK) return error_set(c->err, s, "%s: out of memory", c->path);
        p->values[p->n_values++] = v;
    }
    return INFER_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Bytes of the tensor from its dims; 0 in *bytes for an unknown type. */
static infer_status tensor_size(const cursor *c, gguf_tensor *t)
{
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(n, (uint64_t)t->dims[i], &n) || n > INT64_MAX)
            return error_set(c->err, INFER_FORMAT,
                             "%s: tensor '%.*s': the product of its dimensions exceeds 2^63",
                             c->path, shown(t->name), t->name.s);
    t->type = quant_find_ggml(t->ggml_type);
    t->bytes = 0;
    if (t->type < 0) return INFER_OK;
    const quant_format *f = quant_formats[t->type];
    if (t->dims[0] % f->block_size)
        return error_set(c->err, INFER_FORMAT,
                         "%s: tensor '%.*s': rows of %" PRId64 " elements, expected a multiple of "
                         "%d for %s",
                         c->path, shown(t->name), t->name.s, t->dims[0], f->block_size, f->name);
    if (__builtin_mul_overflow(n / (uint64_t)f->block_size, (uint64_t)f->block_bytes, &t->bytes))
        return error_set(c->err, INFER_FORMAT, "%s: tensor '%.*s': its bytes exceed 2^64", c->path,
                         shown(t->name), t->name.s);
    return INFER_OK;
}

/* One directory entry; t->data holds the offset until the data's start is known. */
static infer_status read_tensor(cursor *c, gguf_tensor *t, uint64_t *offset, uint64_t index)
{
    infer_status s = read_name(c, &t->name, MAX_NAME, "tensor", index);
    if (s != INFER_OK) return s;
    uint32_t n_dims = 0;
    if ((s = read32(c, &n_dims, "the tensor list")) != INFER_OK) return s;
    if (n_dims < 1 || n_dims > 4)
        return error_set(c->err, INFER_FORMAT,
                         "%s: tensor '%.*s': %" PRIu32 " dimensions, expected 1 to 4", c->path,
                         shown(t->name), t->name.s, n_dims);
    t->n_dims = (int)n_dims;
    for (int i = 0; i < 4; i++)
        t->dims[i] = 1;
    for (int i = 0; i < t->n_dims; i++) {
        uint64_t d = 0;
        if ((s = read64(c, &d, "the tensor list")) != INFER_OK) return s;
        if (d == 0 || d > INT64_MAX)
            return error_set(c->err, INFER_FORMAT,
                             "%s: tensor '%.*s': dimension %d is %" PRIu64
                             ", expected 1 to 2^63 - 1",
                             c->path, shown(t->name), t->name.s, i, d);
        t->dims[i] = (int64_t)d;
    }
    if ((s = read32(c, &t->ggml_type, "the tensor list")) != INFER_OK) return s;
    if ((s = read64(c, offset, "the tensor list")) != INFER_OK) return s;
    return tensor_size(c, t);
}

/* Turns offsets into pointers; from is the first tensor of this file. */
static infer_status place_tensors(gguf *g, const cursor *c, size_t from, const uint64_t *offsets,
                                  uint64_t alignment)
{
    // without tensors the padding may be left out
    uint64_t start = ((uint64_t)c->at + alignment - 1) / alignment * alignment;
    for (size_t i = from; i < g->n_tensors; i++) {
        gguf_tensor *t = &g->tensors[i];
        uint64_t at = offsets[i - from], end;
        if (at % alignment)
            return error_set(c->err, INFER_FORMAT,
                             "%s: tensor '%.*s': offset %" PRIu64
                             ", expected a multiple of the alignment %" PRIu64,
                             c->path, shown(t->name), t->name.s, at, alignment);
        if (__builtin_add_overflow(start, at, &at) || __builtin_add_overflow(at, t->bytes, &end))
            return error_set(c->err, INFER_FORMAT,
                             "%s: tensor '%.*s': offset %" PRIu64 " is outside the file", c->path,
                             shown(t->name), t->name.s, offsets[i - from]);
        if (at > c->size)
            return error_set(c->err, INFER_FORMAT,
                             "%s: file ends %" PRIu64
                             " bytes before tensor '%.*s' (%zu bytes, it starts at %" PRIu64 ")",
                             c->path, at - c->size, shown(t->name), t->name.s, c->size, at);
        if (end > c->size)
            return error_set(c->err, INFER_FORMAT,
                             "%s: file ends %" PRIu64
                             " bytes before the end of tensor '%.*s' (%zu bytes, expected at "
                             "least %" PRIu64 ")",
                             c->path, end - c->size, shown(t->name), t->name.s, c->size, end);
        t->data = c->data + at;
    }
    return INFER_OK;
}

static infer_status read_tensors(gguf *g, cursor *c, uint64_t n, uint64_t alignment)
{
    uint64_t *offsets = NULL;
    size_t cap = 0, from = g->n_tensors;
    infer_status s = INFER_OK;
    for (uint64_t i = 0; i < n; i++) {
        s = mem_reserve((void **)&g->tensors, &g->cap_tensors, g->n_tensors + 1,
                        sizeof(*g->tensors), c->err);
        if (s == INFER_OK)
            s = mem_reserve((void **)&offsets, &cap, (size_t)i + 1, sizeof(*offsets), c->err);
        if (s != INFER_OK) goto done;
        gguf_tensor t = { 0 };
        int old;
        if ((s = read_tensor(c, &t, &offsets[i], i)) != INFER_OK) goto done;
        s = names_add(&g->names, t.name.s, t.name.n, (int)g->n_tensors, &old);
        if (s != INFER_OK) {
            if (s == INFER_FORMAT)
                error_set(c->err, s, "%s: tensor '%.*s' occurs twice", c->path, shown(t.name),
                          t.name.s);
            else
                error_set(c->err, s, "%s: out of memory", c->path);
            goto done;
        }
        g->tensors[g->n_tensors++] = t;
    }
    s = place_tensors(g, c, from, offsets, alignment);
done:
    mem_free(offsets);
    return s;
}

/* ---- one file -------------------------------------------------------------------------------- */

static bool value_is_integer(const gguf_value *v, int64_t *out);

static infer_status part_int(const part *p, const char *key, int64_t *out, bool *found,
                             infer_error *err)
{
    int at = names_find(&p->keys, key, strlen(key));
    *found = at >= 0;
    if (at < 0) return INFER_OK;
    const gguf_value *v = &p->values[at];
    if (!value_is_integer(v, out))
        return error_set(err, INFER_FORMAT, "%s: key '%s': expected an integer, found %s",
                         p->map.path, key, gguf_type_name(v->type));
    return INFER_OK;
}

static infer_status read_header(cursor *c, int *version, uint64_t *n_tensors, uint64_t *n_values)
{
    if (c->size == 0) return error_set(c->err, INFER_FORMAT, "%s: the file is empty", c->path);
    if (c->size < 4 || memcmp(c->data, "GGUF", 4) != 0)
        return error_set(c->err, INFER_FORMAT,
                         "%s: not a GGUF file (it does not begin with the magic 'GGUF')", c->path);
    c->at = 4;
    uint32_t v;
    if (read32(c, &v, "the header") != INFER_OK) return INFER_FORMAT;
    if (v != 0 && (v & 0xffff) == 0)
        return error_set(c->err, INFER_UNSUPPORTED, "%s: big-endian GGUF files are not supported",
                         c->path);
    if (v != 2 && v != 3)
        return error_set(c->err, INFER_UNSUPPORTED, "%s: GGUF version %" PRIu32 ", expected 2 or 3",
                         c->path, v);
    *version = (int)v;
    if (read64(c, n_tensors, "the header") != INFER_OK) return INFER_FORMAT;
    if (read64(c, n_values, "the header") != INFER_OK) return INFER_FORMAT;
    if (*n_values > left(c) / MIN_PAIR || *n_values > INT_MAX)
        return error_set(c->err, INFER_FORMAT,
                         "%s: header counts %" PRIu64 " keys, %zu bytes are left", c->path,
                         *n_values, left(c));
    if (*n_tensors > left(c) / MIN_TENSOR || *n_tensors > INT_MAX / 2)
        return error_set(c->err, INFER_FORMAT,
                         "%s: header counts %" PRIu64 " tensors, %zu bytes are left", c->path,
                         *n_tensors, left(c));
    return INFER_OK;
}

static infer_status read_part(gguf *g, part *p, const char *path, const map_options *o,
                              const infer_log *log, infer_error *err)
{
    infer_status s = map_open(&p->map, path, o, log, err);
    if (s != INFER_OK) return s;
    cursor c = { p->map.path, p->map.data, p->map.size, 0, err };
    uint64_t n_tensors, n_values;
    if ((s = read_header(&c, &g->version, &n_tensors, &n_values)) != INFER_OK) return s;
    if ((s = read_values(g, p, &c, n_values)) != INFER_OK) return s;

    int64_t alignment = 32;
    bool found;
    if ((s = part_int(p, "general.alignment", &alignment, &found, err)) != INFER_OK) return s;
    if (alignment < 1 || alignment > 1 << 30 || (alignment & (alignment - 1)))
        return error_set(err, INFER_FORMAT,
                         "%s: key 'general.alignment': expected a power of two, "
                         "found %" PRId64,
                         path, alignment);
    return read_tensors(g, &c, n_tensors, (uint64_t)alignment);
}

/* ---- split sets ------------------------------------------------------------------------------ */

/* The length of path without "-00001-of-0000N.gguf"; 0 where it does not end so. */
static size_t split_prefix(const char *path, int n)
{
    char tail[32];
    int len = snprintf(tail, sizeof(tail), "-00001-of-%05d.gguf", n);
    size_t have = strlen(path);
    if (have <= (size_t)len || strcmp(path + have - len, tail) != 0) return 0;
    return have - (size_t)len;
}

static infer_status check_split_keys(const part *p, int no, int n, infer_error *err)
{
    int64_t found_no = 0, found_n = 1;
    bool found;
    infer_status s = part_int(p, "split.no", &found_no, &found, err);
    if (s == INFER_OK) s = part_int(p, "split.count", &found_n, &found, err);
    if (s != INFER_OK) return s;
    if (found_no != no || found_n != n)
        return error_set(err, INFER_FORMAT,
                         "%s: expected file %d of a split set of %d, found file "
                         "%" PRId64 " of %" PRId64,
                         p->map.path, no + 1, n, found_no + 1, found_n);
    return INFER_OK;
}

/* Opens the siblings of parts[0]. */
static infer_status read_siblings(gguf *g, int n, const map_options *o, const infer_log *log,
                                  infer_error *err)
{
    const char *first = g->parts[0].map.path;
    size_t prefix = split_prefix(first, n);
    if (!prefix)
        return error_set(err, INFER_FORMAT,
                         "%s: first file of a split set of %d: expected a name "
                         "that ends in -00001-of-%05d.gguf",
                         first, n, n);
    part *parts = mem_zero((size_t)n, sizeof(*parts));
    if (!parts) return error_set(err, INFER_NOMEM, "%s: out of memory", first);
    parts[0] = g->parts[0];
    mem_free(g->parts);
    g->parts = parts;
    first = parts[0].map.path;

    size_t size = prefix + 32;
    char *path = mem_alloc(size, 1);
    if (!path) return error_set(err, INFER_NOMEM, "%s: out of memory", first);
    infer_status s = INFER_OK;
    for (int i = 1; i < n && s == INFER_OK; i++) {
        snprintf(path, size, "%.*s-%05d-of-%05d.gguf", (int)prefix, first, i + 1, n);
        g->n_parts = i + 1;
        s = read_part(g, &g->parts[i], path, o, log, err);
        if (s == INFER_OK) s = check_split_keys(&g->parts[i], i, n, err);
        if (s != INFER_OK && s != INFER_FORMAT) error_prefix(err, "file %d of a split set", i + 1);
    }
    mem_free(path);
    if (s != INFER_OK) return s;

    int64_t total = (int64_t)g->n_tensors;
    bool found;
    s = part_int(&g->parts[0], "split.tensors.count", &total, &found, err);
    if (s == INFER_OK && total != (int64_t)g->n_tensors)
        return error_set(err, INFER_FORMAT,
                         "%s: key 'split.tensors.count': %" PRId64
                         " tensors expected in the split set, %zu found",
                         first, total, g->n_tensors);
    return s;
}

infer_status gguf_open(gguf **out, const char *path, const map_options *o, const infer_log *log,
                       infer_error *err)
{
    *out = NULL;
    gguf *g = mem_zero(1, sizeof(*g));
    if (g) g->parts = mem_zero(1, sizeof(*g->parts));
    if (!g || !g->parts) {
        mem_free(g);
        return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    }
    g->n_parts = 1;
    infer_status s = read_part(g, &g->parts[0], path, o, log, err);
    if (s != INFER_OK) goto fail;

    int64_t n = 1, no = 0;
    bool found;
    if ((s = part_int(&g->parts[0], "split.count", &n, &found, err)) != INFER_OK) goto fail;
    if (found && (n < 0 || n > 99999)) {
        s = error_set(err, INFER_FORMAT,
                      "%s: key 'split.count': expected 0 to 99999, found %" PRId64, path, n);
        goto fail;
    }
    if ((s = part_int(&g->parts[0], "split.no", &no, &found, err)) != INFER_OK) goto fail;
    if (n > 1 && no != 0) {
        s = error_set(err, INFER_FORMAT,
                      "%s: file %" PRId64 " of a split set of %" PRId64
                      ": open its first file (-00001-of-%05d.gguf)",
                      path, no + 1, n, (int)n);
        goto fail;
    }
    if (n > 1 && (s = read_siblings(g, (int)n, o, log, err)) != INFER_OK) goto fail;
    *out = g;
    return error_clear(err);
fail:
    gguf_close(g);
    return s;
}

void gguf_close(gguf *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_parts; i++) {
        map_close(&g->parts[i].map);
        mem_free(g->parts[i].values);
        names_free(&g->parts[i].keys);
    }
    mem_free(g->parts);
    mem_free(g->tensors);
    names_free(&g->names);
    arena_free(&g->mem);
    mem_free(g);
}

/* ---- asking ---------------------------------------------------------------------------------- */

const char *gguf_path(const gguf *g) { return g->parts[0].map.path; }
int gguf_version(const gguf *g) { return g->version; }

uint64_t gguf_file_bytes(const gguf *g)
{
    uint64_t n = 0;
    for (int i = 0; i < g->n_parts; i++)
        n += g->parts[i].map.size;
    return n;
}

bool gguf_broken(const gguf *g)
{
    for (int i = 0; i < g->n_parts; i++)
        if (map_broken(&g->parts[i].map)) return true;
    return false;
}

void gguf_release(const gguf *g, const void *from, size_t size)
{
    for (int i = 0; i < g->n_parts; i++) {
        const file_map *m = &g->parts[i].map;
        uintptr_t at = (uintptr_t)from, lo = (uintptr_t)m->data;
        if (at >= lo && at < lo + m->size) map_release(m, from, size);
    }
}

int gguf_n_values(const gguf *g) { return (int)g->parts[0].n_values; }
const gguf_value *gguf_value_at(const gguf *g, int i) { return &g->parts[0].values[i]; }
int gguf_n_tensors(const gguf *g) { return (int)g->n_tensors; }
const gguf_tensor *gguf_tensor_at(const gguf *g, int i) { return &g->tensors[i]; }

const gguf_value *gguf_find(const gguf *g, const char *key)
{
    int at = names_find(&g->parts[0].keys, key, strlen(key));
    return at < 0 ? NULL : &g->parts[0].values[at];
}

const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name)
{
    int at = names_find(&g->names, name, strlen(name));
    return at < 0 ? NULL : &g->tensors[at];
}

/* ---- typed reads ----------------------------------------------------------------------------- */

static bool integer_at(gguf_type type, const uint8_t *p, int64_t *out)
{
    switch (type) {
    case GGUF_U8: *out = p[0]; return true;
    case GGUF_I8: *out = (int8_t)p[0]; return true;
    case GGUF_U16: *out = load16(p); return true;
    case GGUF_I16: *out = (int16_t)load16(p); return true;
    case GGUF_U32: *out = load32(p); return true;
    case GGUF_I32: *out = (int32_t)load32(p); return true;
    case GGUF_I64: *out = (int64_t)load64(p); return true;
    case GGUF_U64: *out = (int64_t)load64(p); return *out >= 0;
    default: return false;
    }
}

static bool value_is_integer(const gguf_value *v, int64_t *out)
{
    return integer_at(v->type, v->data, out);
}

static double float_at(gguf_type type, const uint8_t *p)
{
    if (type == GGUF_F32) {
        uint32_t u = load32(p);
        float f;
        memcpy(&f, &u, sizeof(f));
        return f;
    }
    uint64_t u = load64(p);
    double d;
    memcpy(&d, &u, sizeof(d));
    return d;
}

double gguf_array_number(const gguf_value *v, uint64_t i)
{
    const uint8_t *p = v->data + i * type_sizes[v->item];
    int64_t n;
    if (v->item == GGUF_F32 || v->item == GGUF_F64) return float_at(v->item, p);
    if (v->item == GGUF_BOOL) return p[0] != 0;
    if (v->item == GGUF_U64) return (double)load64(p);
    return integer_at(v->item, p, &n) ? (double)n : 0;
}

gguf_text gguf_value_text(const gguf_value *v)
{
    return (gguf_text){ (const char *)v->data + 8, (size_t)load64(v->data) };
}

/* "string 'llama'", "u32 7", "array of u32": what was found, for a message. */
static void describe(const gguf_value *v, char *text, size_t size)
{
    int64_t n;
    if (v->type == GGUF_ARRAY)
        snprintf(text, size, "array of %s", gguf_type_name(v->item));
    else if (v->type == GGUF_STRING)
        snprintf(text, size, "string '%.*s'", shown(gguf_value_text(v)), gguf_value_text(v).s);
    else if (v->type == GGUF_BOOL)
        snprintf(text, size, "bool %s", v->data[0] ? "true" : "false");
    else if (value_is_integer(v, &n))
        snprintf(text, size, "%s %" PRId64, gguf_type_name(v->type), n);
    else if (v->type == GGUF_U64)
        snprintf(text, size, "u64 %" PRIu64, load64(v->data));
    else
        snprintf(text, size, "%s %g", gguf_type_name(v->type), float_at(v->type, v->data));
}

static infer_status wrong(const gguf *g, const gguf_value *v, const char *expected,
                          infer_error *err)
{
    char found[128];
    describe(v, found, sizeof(found));
    return error_set(err, INFER_FORMAT, "%s: key '%.*s': expected %s, found %s", gguf_path(g),
                     shown(v->key), v->key.s, expected, found);
}

static const gguf_value *look(const gguf *g, const char *key, bool *found)
{
    const gguf_value *v = gguf_find(g, key);
    if (found) *found = v != NULL;
    return v;
}

infer_status gguf_int(const gguf *g, const char *key, int64_t *out, bool *found, infer_error *err)
{
    const gguf_value *v = look(g, key, found);
    int64_t n;
    if (!v) return INFER_OK;
    if (!value_is_integer(v, &n)) return wrong(g, v, "an integer", err);
    *out = n;
    return INFER_OK;
}

infer_status gguf_float(const gguf *g, const char *key, double *out, bool *found, infer_error *err)
{
    const gguf_value *v = look(g, key, found);
    int64_t n;
    if (!v) return INFER_OK;
    if (v->type == GGUF_F32 || v->type == GGUF_F64)
        *out = float_at(v->type, v->data);
    else if (value_is_integer(v, &n))
        *out = (double)n;
    else
        return wrong(g, v, "a number", err);
    return INFER_OK;
}

infer_status gguf_bool(const gguf *g, const char *key, bool *out, bool *found, infer_error *err)
{
    const gguf_value *v = look(g, key, found);
    if (!v) return INFER_OK;
    if (v->type != GGUF_BOOL) return wrong(g, v, "a bool", err);
    *out = v->data[0] != 0;
    return INFER_OK;
}

infer_status gguf_string(const gguf *g, const char *key, gguf_text *out, bool *found,
                         infer_error *err)
{
    const gguf_value *v = look(g, key, found);
    if (!v) return INFER_OK;
    if (v->type != GGUF_STRING) return wrong(g, v, "a string", err);
    *out = gguf_value_text(v);
    return INFER_OK;
}

infer_status gguf_array(const gguf *g, const char *key, gguf_type item, const gguf_value **out,
                        infer_error *err)
{
    const gguf_value *v = gguf_find(g, key);
    *out = NULL;
    if (!v) return INFER_OK;
    char expected[32];
    snprintf(expected, sizeof(expected), "an array of %s", gguf_type_name(item));
    if (v->type != GGUF_ARRAY || v->item != item) return wrong(g, v, expected, err);
    *out = v;
    return INFER_OK;
}
