/*
 * gguf_write.h: writing a GGUF file (version 3, alignment 32; the layout is in gguf.c).
 *
 * Order: gguf_writer_new; gguf_put_… for keys and tensors, in the order of the file; gguf_begin;
 * gguf_write for the tensors' data in the same order, in pieces of any size; gguf_finish. The file
 * has another name in the same folder until gguf_finish, which makes it durable and renames it.
 *
 * What goes wrong while keys are put (no memory) is told by gguf_begin.
 */
#ifndef MODELS_GGUF_WRITE_H
#define MODELS_GGUF_WRITE_H

#include "models/gguf.h"

typedef struct gguf_writer gguf_writer;

/* Nothing is written yet. */
infer_status gguf_writer_new(gguf_writer **out, const char *path, infer_error *err);
/* Removes a file that was not finished. Accepts NULL. */
void gguf_writer_free(gguf_writer *w);

/* A key that is there already keeps its first value. */
void gguf_put_u32(gguf_writer *w, const char *key, uint32_t value);
void gguf_put_f32(gguf_writer *w, const char *key, float value);
void gguf_put_bool(gguf_writer *w, const char *key, bool value);
void gguf_put_string(gguf_writer *w, const char *key, const char *s, size_t n);
/* Items of a fixed size in the machine's order (little-endian). */
void gguf_put_array(gguf_writer *w, const char *key, gguf_type item, const void *data,
                    uint64_t count);
void gguf_put_strings(gguf_writer *w, const char *key, const gguf_text *s, uint64_t count);
/* As another file has it. */
void gguf_put_value(gguf_writer *w, const gguf_value *v);

/* dims[0] is the fastest. bytes is what gguf_write will be given for it. */
void gguf_put_tensor(gguf_writer *w, const char *name, dtype type, const int64_t *dims, int n_dims,
                     uint64_t bytes);

infer_status gguf_begin(gguf_writer *w, infer_error *err);
infer_status gguf_write(gguf_writer *w, const void *data, size_t n, infer_error *err);
/* All data on the disk, under the temporary name still, which is returned: what checks the file
 * before it counts reads it there. */
infer_status gguf_flush(gguf_writer *w, const char **name, infer_error *err);
infer_status gguf_finish(gguf_writer *w, infer_error *err);
uint64_t gguf_writer_bytes(const gguf_writer *w); // of the whole file, after gguf_begin

#endif
