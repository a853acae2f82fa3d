/*
 * gguf_write.c: the header is built in memory, then everything goes to the file in order.
 *
 * The file's room is asked for at the start, so that a full disk is told before the work and not
 * after it, where the file system can do that.
 */
#include "models/gguf_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/mem.h"
#include "models/names.h"

#define ALIGNMENT 32
#define TRIES 100 // temporary names

typedef struct bytes {
    uint8_t *p;
    size_t n, cap;
} bytes;

struct gguf_writer {
    char *path, *temporary;
    bytes keys, tensors;
    name_index known; // keys
    arena mem;        // their names
    uint64_t n_keys, n_tensors;
    uint64_t data_bytes; // of all tensors, padded
    uint64_t *sizes;     // [n_tensors]
    size_t cap_sizes;
    infer_status status; // of what was put
    uint64_t total;      // bytes of the file
    int fd;              // -1: none
    uint64_t tensor, at; // the tensor that is being written, and how much of it is
};

/* ---- building the header --------------------------------------------------------------------- */

static void add(gguf_writer *w, bytes *b, const void *p, size_t n)
{
    if (w->status != INFER_OK) return;
    if (b->n + n > b->cap) {
        size_t cap = b->cap ? b->cap : 1 << 16;
        while (cap < b->n + n)
            cap *= 2;
        uint8_t *bigger = mem_resize(b->p, cap, 1);
        if (!bigger) {
            w->status = INFER_NOMEM;
            return;
        }
        b->p = bigger;
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void add32(gguf_writer *w, bytes *b, uint32_t v)
{
    add(w, b, (uint8_t[]){ (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24) },
        4);
}

static void add64(gguf_writer *w, bytes *b, uint64_t v)
{
    add32(w, b, (uint32_t)v);
    add32(w, b, (uint32_t)(v >> 32));
}

static void add_text(gguf_writer *w, bytes *b, const char *s, size_t n)
{
    add64(w, b, n);
    add(w, b, s, n);
}

/* Name and type of a value. False where there is one already, or no memory. */
static bool add_key(gguf_writer *w, const char *key, size_t n, gguf_type type)
{
    int old;
    if (w->status != INFER_OK || names_find(&w->known, key, n) >= 0) return false;
    const char *copy = arena_strndup(&w->mem, key, n);
    if (!copy || names_add(&w->known, copy, n, 0, &old) != INFER_OK) {
        w->status = INFER_NOMEM;
        return false;
    }
    add_text(w, &w->keys, key, n);
    add32(w, &w->keys, (uint32_t)type);
    w->n_keys++;
    return true;
}

void gguf_put_u32(gguf_writer *w, const char *key, uint32_t value)
{
    if (add_key(w, key, strlen(key), GGUF_U32)) add32(w, &w->keys, value);
}

void gguf_put_f32(gguf_writer *w, const char *key, float value)
{
    uint32_t u;
    memcpy(&u, &value, 4);
    if (add_key(w, key, strlen(key), GGUF_F32)) add32(w, &w->keys, u);
}

void gguf_put_bool(gguf_writer *w, const char *key, bool value)
{
    uint8_t b = value;
    if (add_key(w, key, strlen(key), GGUF_BOOL)) add(w, &w->keys, &b, 1);
}

void gguf_put_string(gguf_writer *w, const char *key, const char *s, size_t n)
{
    if (add_key(w, key, strlen(key), GGUF_STRING)) add_text(w, &w->keys, s, n);
}

static size_t item_size(gguf_type t)
{
    switch (t) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL: return 1;
    case GGUF_U16:
    case GGUF_I16: return 2;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64: return 8;
    default: return 4;
    }
}

void gguf_put_array(gguf_writer *w, const char *key, gguf_type item, const void *data,
                    uint64_t count)
{
    if (!add_key(w, key, strlen(key), GGUF_ARRAY)) return;
    add32(w, &w->keys, (uint32_t)item);
    add64(w, &w->keys, count);
    add(w, &w->keys, data, (size_t)count * item_size(item));
}

void gguf_put_strings(gguf_writer *w, const char *key, const gguf_text *s, uint64_t count)
{
    if (!add_key(w, key, strlen(key), GGUF_ARRAY)) return;
    add32(w, &w->keys, GGUF_STRING);
    add64(w, &w->keys, count);
    for (uint64_t i = 0; i < count; i++)
        add_text(w, &w->keys, s[i].s, s[i].n);
}

void gguf_put_value(gguf_writer *w, const gguf_value *v)
{
    if (!add_key(w, v->key.s, v->key.n, v->type)) return;
    if (v->type == GGUF_ARRAY) {
        add32(w, &w->keys, (uint32_t)v->item);
        add64(w, &w->keys, v->count);
    }
    add(w, &w->keys, v->data, v->size);
}

static uint64_t padded(uint64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

void gguf_put_tensor(gguf_writer *w, const char *name, dtype type, const int64_t *dims, int n_dims,
                     uint64_t size)
{
    if (w->status == INFER_OK)
        w->status = mem_reserve((void **)&w->sizes, &w->cap_sizes, (size_t)w->n_tensors + 1,
                                sizeof(*w->sizes), NULL);
    if (w->status != INFER_OK) return;
    add_text(w, &w->tensors, name, strlen(name));
    add32(w, &w->tensors, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++)
        add64(w, &w->tensors, (uint64_t)dims[i]);
    add32(w, &w->tensors, (uint32_t)quant_formats[type]->ggml_type);
    add64(w, &w->tensors, w->data_bytes);
    w->data_bytes += padded(size);
    w->sizes[w->n_tensors++] = size;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* A failed write. A full disk and a reached limit are told in the same words. */
static infer_status failed(const gguf_writer *w, const char *doing, infer_error *err)
{
    int e = errno;
    if (e == ENOSPC)
        return error_set(err, INFER_IO,
                         "%s: No space left on device: the file has %" PRIu64 " bytes", w->path,
                         w->total);
    if (e == EFBIG)
        return error_set(err, INFER_IO,
                         "%s: No space left under this process's limit on file sizes: the file has "
                         "%" PRIu64 " bytes",
                         w->path, w->total);
    return error_set(err, INFER_IO, "%s: %s: %s", w->path, doing, strerror(e));
}

static infer_status write_all(gguf_writer *w, const void *data, size_t n, infer_error *err)
{
    const uint8_t *p = data;
    while (n) {
        ssize_t k = write(w->fd, p, n < 1 << 30 ? n : 1 << 30);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return failed(w, "writing", err);
        p += k;
        n -= (size_t)k;
    }
    return INFER_OK;
}

infer_status gguf_writer_new(gguf_writer **out, const char *path, infer_error *err)
{
    *out = NULL;
    struct stat st;
    size_t n = strlen(path);
    if (n == 0 || path[n - 1] == '/')
        return error_set(err, INFER_ARGUMENT, "'%s': expected the name of a file to write", path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return error_set(err, INFER_ARGUMENT, "%s: exists and is no regular file", path);
    gguf_writer *w = mem_zero(1, sizeof(*w));
    if (w) w->fd = -1;
    if (!w || !(w->path = mem_strdup(path)) || !(w->temporary = mem_alloc(n + 40, 1))) {
        gguf_writer_free(w);
        return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    }
    w->temporary[0] = 0;
    *out = w;
    return INFER_OK;
}

static infer_status create(gguf_writer *w, infer_error *err)
{
    size_t size = strlen(w->path) + 40;
    atomic_clean(w->path); // what a process that was killed has left
    for (int i = 0; i < TRIES; i++) {
        snprintf(w->temporary, size, "%s.%ld.%d.tmp", w->path, (long)getpid(), i);
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0) {
            atomic_mark(w->fd);
            return INFER_OK;
        }
        if (errno != EEXIST) break;
    }
    infer_status s = error_set(err, INFER_IO, "%s: %s", w->path, strerror(errno));
    w->temporary[0] = 0;
    return s;
}

infer_status gguf_begin(gguf_writer *w, infer_error *err)
{
    static const uint8_t zeros[ALIGNMENT];
    bytes head = { 0 };
    add(w, &head, "GGUF", 4);
    add32(w, &head, 3);
    add64(w, &head, w->n_tensors);
    add64(w, &head, w->n_keys);
    size_t header = head.n + w->keys.n + w->tensors.n;
    size_t gap = (size_t)padded(header) - header;
    infer_status s = INFER_OK;
    if (w->status != INFER_OK) s = error_set(err, w->status, "%s: out of memory", w->path);
    w->total = header + gap + w->data_bytes;
    if (s == INFER_OK) s = create(w, err);
    if (s == INFER_OK && fallocate(w->fd, 0, 0, (off_t)w->total) != 0 &&
        (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
        s = failed(w, "making room", err);
    if (s == INFER_OK) s = write_all(w, head.p, head.n, err);
    if (s == INFER_OK) s = write_all(w, w->keys.p, w->keys.n, err);
    if (s == INFER_OK) s = write_all(w, w->tensors.p, w->tensors.n, err);
    if (s == INFER_OK) s = write_all(w, zeros, gap, err);
    mem_free(head.p);
    return s;
}

infer_status gguf_write(gguf_writer *w, const void *data, size_t n, infer_error *err)
{
    static const uint8_t zeros[ALIGNMENT];
    const uint8_t *p = data;
    while (n) {
        if (w->tensor >= w->n_tensors)
            return error_set(err, INFER_INTERNAL, "%s: more data than tensors", w->path);
        uint64_t size = w->sizes[w->tensor], left = size - w->at;
        size_t k = left < n ? (size_t)left : n;
        infer_status s = write_all(w, p, k, err);
        if (s != INFER_OK) return s;
        p += k;
        n -= k;
        w->at += k;
        if (w->at < size) continue;
        s = write_all(w, zeros, (size_t)(padded(size) - size), err);
        if (s != INFER_OK) return s;
        w->tensor++;
        w->at = 0;
    }
    return INFER_OK;
}

infer_status gguf_flush(gguf_writer *w, const char **name, infer_error *err)
{
    if (w->tensor != w->n_tensors)
        return error_set(err, INFER_INTERNAL, "%s: tensor %" PRIu64 " of %" PRIu64 " is not whole",
                         w->path, w->tensor, w->n_tensors);
    if (fsync(w->fd) != 0) return failed(w, "writing", err);
    *name = w->temporary;
    return INFER_OK;
}

infer_status gguf_finish(gguf_writer *w, infer_error *err)
{
    const char *name;
    infer_status s = gguf_flush(w, &name, err);
    if (s != INFER_OK) return s;
    int bad = close(w->fd);
    w->fd = -1;
    if (bad) return failed(w, "closing", err);
    if (rename(w->temporary, w->path) != 0) return failed(w, "renaming the finished file", err);
    w->temporary[0] = 0;
    folder_sync_of(w->path);
    return INFER_OK;
}

void gguf_writer_free(gguf_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    if (w->temporary && w->temporary[0]) unlink(w->temporary);
    mem_free(w->path);
    mem_free(w->temporary);
    mem_free(w->keys.p);
    mem_free(w->tensors.p);
    mem_free(w->sizes);
    names_free(&w->known);
    arena_free(&w->mem);
    mem_free(w);
}

uint64_t gguf_writer_bytes(const gguf_writer *w) { return w->total; }
