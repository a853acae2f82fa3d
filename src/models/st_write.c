/* st_write.c: the header, padded to 8 bytes, then the data in the order of the list. */
#include "models/st_write.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/mem.h"

#define TILE 64 // rows and columns of a matrix that are turned at once

static const char *type_name(dtype t)
{
    return t == DT_F32 ? "F32" : t == DT_F16 ? "F16" : t == DT_BF16 ? "BF16" : NULL;
}

static infer_status no_memory(const char *path, infer_error *err)
{
    return error_set(err, INFER_NOMEM, "%s: out of memory", path);
}

static infer_status make_header(char **text, const char *path, const st_out *t, size_t n,
                                infer_error *err)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t at = 0;
    infer_status st = root ? INFER_OK : no_memory(path, err);
    for (size_t i = 0; i < n && !st; i++, t++) {
        uint64_t bytes = t->bytes[0] + t->bytes[1];
        json_t *shape = json_array();
        if (!type_name(t->type))
            st = error_set(err, INFER_UNSUPPORTED, "%s: tensor '%s': safetensors have no type %s",
                           path, t->name, quant_formats[t->type]->name);
        for (int d = 0; d < t->n_dims && shape; d++)
            json_array_append_new(shape, json_integer(t->dims[d]));
        json_t *o = json_pack("{s:s?, s:o, s:[I, I]}", "dtype", type_name(t->type), "shape", shape,
                              "data_offsets", (json_int_t)at, (json_int_t)(at + bytes));
        if (json_object_set_new(root, t->name, o) && !st) st = no_memory(path, err);
        at += bytes;
    }
    *text = st ? NULL : json_dumps(root, JSON_COMPACT);
    if (!st && !*text) st = no_memory(path, err);
    json_decref(root);
    return st;
}

static infer_status write_exchanged(FILE *f, const st_out *t, infer_error *err)
{
    size_t size = quant_row_bytes(t->type, 1), rows = (size_t)t->dims[0];
    size_t cols = (size_t)t->dims[1];
    uint8_t *out = mem_alloc(TILE * cols, size);
    if (!out) return error_set(err, INFER_NOMEM, "tensor '%s': out of memory", t->name);
    for (size_t first = 0; first < rows; first += TILE) {
        size_t n = rows - first < TILE ? rows - first : TILE;
        for (size_t c = 0; c < cols; c++)
            for (size_t r = 0; r < n; r++)
                memcpy(out + (r * cols + c) * size, t->parts[0] + (c * rows + first + r) * size,
                       size);
        fwrite(out, size, n * cols, f);
    }
    mem_free(out);
    return INFER_OK;
}

infer_status st_write(const char *path, const st_out *t, size_t n, infer_error *err)
{
    char *header;
    atomic_file f;
    infer_status st = make_header(&header, path, t, n, err);
    if (st) return st;
    st = atomic_open(&f, path, err);
    if (st) {
        free(header);
        return st;
    }
    uint64_t size = strlen(header), padded = (size + 7) / 8 * 8;
    for (int i = 0; i < 8; i++)
        fputc((int)(padded >> 8 * i & 255), f.f);
    fwrite(header, 1, size, f.f);
    for (; size < padded; size++)
        fputc(' ', f.f);
    free(header);
    for (size_t i = 0; i < n && !st; i++) {
        if (t[i].exchanged)
            st = write_exchanged(f.f, &t[i], err);
        else
            for (int k = 0; k < 2; k++)
                if (t[i].parts[k]) fwrite(t[i].parts[k], 1, (size_t)t[i].bytes[k], f.f);
    }
    if (!st) return atomic_commit(&f, err);
    atomic_abandon(&f);
    return st;
}
