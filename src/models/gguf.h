/*
 * gguf.h: GGUF files, version 2 and 3, single or split. Format: the ggml project's docs/gguf.md.
 *
 * gguf_open checks everything before it is used: every count and length against the bytes left,
 * types, alignment, duplicate keys and tensors, and that each tensor lies inside its file. Strings
 * returned are views into the map (not NUL-terminated) and live as long as the gguf.
 */
#ifndef MODELS_GGUF_H
#define MODELS_GGUF_H

#include "base/map.h"
#include "compute/tensor.h"

typedef struct gguf gguf;

typedef enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
} gguf_type;
const char *gguf_type_name(gguf_type t);

typedef struct gguf_text {
    const char *s;
    size_t n;
} gguf_text;

typedef struct gguf_value {
    gguf_text key;
    gguf_type type;
    gguf_type item;           // of an array
    uint64_t count;           // items of an array, 1 otherwise
    const uint8_t *data;      // little-endian bytes in the map
    size_t size;              // bytes at data
    const gguf_text *strings; // [count] of an array of strings, made at open; else NULL
} gguf_value;

typedef struct gguf_tensor {
    gguf_text name;
    uint32_t ggml_type;
    int type; // dtype, -1: a type we do not know (a load error only if the model needs it)
    int n_dims;
    int64_t dims[4]; // dims[0] is the fastest: columns
    const uint8_t *data;
    uint64_t bytes; // 0 for unknown types
} gguf_tensor;

/* Opens path and, where it is the first of a split set (split.count), its siblings. */
infer_status gguf_open(gguf **out, const char *path, const map_options *o, const infer_log *log,
                       infer_error *err);
void gguf_close(gguf *g);
const char *gguf_path(const gguf *g);
int gguf_version(const gguf *g);
uint64_t gguf_file_bytes(const gguf *g); // all files of the set
bool gguf_broken(const gguf *g);         // a file shrank under its map
/* As map_release, for a part of a tensor. */
void gguf_release(const gguf *g, const void *from, size_t size);

int gguf_n_values(const gguf *g);
const gguf_value *gguf_value_at(const gguf *g, int i);
const gguf_value *gguf_find(const gguf *g, const char *key); // NULL: none
int gguf_n_tensors(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, int i);
const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name);

/* Typed reads. A missing key leaves *out as it is and returns INFER_OK with *found false (found may
 * be NULL); another type, or a number that does not fit, is INFER_FORMAT naming key, type and
 * value. */
infer_status gguf_int(const gguf *g, const char *key, int64_t *out, bool *found, infer_error *err);
infer_status gguf_float(const gguf *g, const char *key, double *out, bool *found, infer_error *err);
infer_status gguf_bool(const gguf *g, const char *key, bool *out, bool *found, infer_error *err);
infer_status gguf_string(const gguf *g, const char *key, gguf_text *out, bool *found,
                         infer_error *err);
/* Array of `item` type (GGUF_STRING arrays have ->strings); *out NULL when missing. */
infer_status gguf_array(const gguf *g, const char *key, gguf_type item, const gguf_value **out,
                        infer_error *err);
/* The text of a value of type GGUF_STRING. */
gguf_text gguf_value_text(const gguf_value *v);
/* Number i of an integer, float or bool array, as double. */
double gguf_array_number(const gguf_value *v, uint64_t i);

#endif
