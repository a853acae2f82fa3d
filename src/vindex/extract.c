/*
 * extract.c: a model to a vindex. What goes where is a list made first (extract_plan.c): each item
 * is a tensor of the source and a place in a file of the index. Writing is then a walk along the
 * list, a few rows at a time in all threads, and a checkpoint is the number of items that are done.
 *
 * The work lies in OUT.partial, which becomes OUT by one rename when it is whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/folder.h"
#include "base/mem.h"
#include "base/sha.h"
#include "compute/quant_larql.h"
#include "vindex/clusters.h"
#include "vindex/encode.h"
#include "vindex/extract.h"
#include "vindex/labels.h"

#define CHECKPOINT ".extract_checkpoint.json"
#define BATCH (4 << 20) // bytes of float32 that a thread converts at once

static infer_status no_memory(const extraction *x)
{
    return error_set(x->err, INFER_NOMEM, "extract: out of memory");
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- progress -------------------------------------------------------------------------------- */

void extract_tell(extraction *x, double done, double total)
{
    if (!x->o.progress) return;
    double t = now();
    if (t - x->told < 0.1 && done < total) return;
    x->told = t;
    double all = x->work_done + done, share = x->work_total > 0 ? all / x->work_total : 0;
    double left = -1;
    if (all > x->work_start && t - x->began > 0.5)
        left = (t - x->began) / (all - x->work_start) * (x->work_total - all);
    infer_progress p = { .stage = x->stage,
                         .step = x->step,
                         .n_steps = x->n_steps,
                         .done = (uint64_t)done,
                         .total = (uint64_t)total,
                         .seconds_left = share > 0 ? left : -1 };
    x->stopped |= !x->o.progress(&p, x->o.user);
}

infer_status extract_cancelled(const extraction *x)
{
    return error_set(x->err, INFER_CANCELLED, "extract: stopped; --resume goes on from %s",
                     x->work);
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

char *extract_path(extraction *x, const char *name)
{
    return arena_printf(&x->mem, "%s/%s", x->work, name);
}

static infer_status write_json(extraction *x, const char *path, const json_t *json)
{
    atomic_file f;
    infer_status st = atomic_open(&f, path, x->err);
    if (st) return st;
    if (json_dumpf(json, f.f, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) || fputc('\n', f.f) < 0) {
        atomic_abandon(&f);
        return error_set(x->err, INFER_IO, "%s: writing failed", path);
    }
    return atomic_commit(&f, x->err);
}

/* What an extraction must have in common with the one that it continues. */
static json_t *describe(const extraction *x)
{
    struct stat s = { 0 };
    stat(x->m->path, &s);
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:I}", "version", 1, "model",
                     x->m->path, "level", x->level, "dtype", x->type == DT_F32 ? "f32" : "f16",
                     "quant", x->o.quant, "top_k", x->top_k, "clusters", x->o.n_clusters, "bytes",
                     (json_int_t)x->m->file_bytes, "mtime", (json_int_t)s.st_mtim.tv_sec);
}

static infer_status checkpoint(extraction *x)
{
    json_t *o =
        json_pack("{s:O, s:s, s:I, s:i, s:b, s:I}", "of", x->description, "extracted_at",
                  x->extracted_at, "items", (json_int_t)x->n_done, "label_layers", x->labels_done,
                  "clusters_done", x->clusters_done, "n_items", (json_int_t)x->n_items);
    if (!o) return no_memory(x);
    char *path = extract_path(x, CHECKPOINT);
    infer_status st = path ? write_json(x, path, o) : no_memory(x);
    json_decref(o);
    x->saved = now();
    return st;
}

static bool read_checkpoint(extraction *x)
{
    char *path = extract_path(x, CHECKPOINT), *text = NULL;
    size_t n;
    json_t *o = NULL;
    bool ok = path && !file_read(path, 1 << 20, &text, &n, NULL) &&
              (o = json_loadb(text, n, 0, NULL)) &&
              json_equal(json_object_get(o, "of"), x->description);
    const char *at = json_string_value(json_object_get(o, "extracted_at"));
    json_int_t items = json_integer_value(json_object_get(o, "items"));
    json_int_t layers = json_integer_value(json_object_get(o, "label_layers"));
    ok = ok && at && items >= 0 && items <= (json_int_t)x->n_items && layers >= 0 &&
         layers <= x->m->n_layers &&
         json_integer_value(json_object_get(o, "n_items")) == (json_int_t)x->n_items;
    if (ok) {
        snprintf(x->extracted_at, sizeof x->extracted_at, "%s", at);
        x->n_done = (size_t)items;
        x->labels_done = (int)layers;
        x->label_bytes = 16;
        for (int l = 0; l < x->labels_done; l++)
            x->label_bytes += 4 + (uint64_t)x->features[l] * (8 + 8 * (uint64_t)x->top_k);
        x->clusters_done = json_is_true(json_object_get(o, "clusters_done"));
    }
    json_decref(o);
    mem_free(text);
    return ok;
}

/* ---- items ----------------------------------------------------------------------------------- */

typedef struct item_job {
    extraction *x;
    const item *it;
    int fd;
    int first, n;      // rows
    _Atomic int error; // errno
} item_job;

/* Row r of the item as float32. */
static void item_row(float *y, const item *it, int r)
{
    if (it->floats) {
        memcpy(y, it->floats, (size_t)it->n_cols * sizeof *y);
    } else {
        int from = r;
        if (it->head_dim) { // rotated pairs lie side by side in the source, in halves in the index
            int h = r / it->head_dim, i = r % it->head_dim, half = it->head_dim / 2;
            from = h * it->head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
        }
        tensor_row(y, &it->src, from);
    }
    for (int i = 0; i < it->n_cols && it->add != 0; i++)
        y[i] += it->add;
}

static void store_row(uint8_t *to, const float *row, const item *it)
{
    if (it->type == DT_F32) {
        memcpy(to, row, (size_t)it->n_cols * 4);
    } else if (it->type == DT_F16) {
        for (int i = 0; i < it->n_cols; i++) {
            uint16_t h = vindex_half(row[i]);
            memcpy(to + 2 * i, &h, 2);
        }
    } else if (it->type == DT_Q4_K) {
        larql_quantize_q4_k(to, row, (size_t)it->n_padded);
    } else {
        quant_formats[it->type]->quantize(to, row, NULL, (size_t)it->n_padded);
    }
}

static void write_rows(void *arg, int thread, int n_threads)
{
    item_job *j = arg;
    extraction *x = j->x;
    const item *it = j->it;
    int begin, end;
    thread_share(j->n, 1, thread, n_threads, &begin, &end);
    size_t row_bytes = quant_row_bytes(it->type, (size_t)it->n_padded);
    uint8_t *out = x->buffers[thread];
    float *row = x->rows[thread];
    size_t used = 0;
    uint64_t at = it->offset + (uint64_t)(j->first + begin) * row_bytes;
    for (int r = begin; r < end; r++) {
        memset(row + it->n_cols, 0, (size_t)(it->n_padded - it->n_cols) * sizeof *row);
        item_row(row, it, j->first + r);
        store_row(out + used, row, it);
        used += row_bytes;
        if (used + row_bytes <= BATCH && r + 1 < end) continue;
        for (size_t done = 0; done < used;) {
            ssize_t n = pwrite(j->fd, out + done, used - done, (off_t)(at + done));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
                j->error = n ? errno : EIO;
                return;
            }
            done += (size_t)n;
        }
        at += used;
        used = 0;
    }
}

static void release(const extraction *x, const item *it)
{
    if (it->floats || !it->src.data) return;
    size_t n = (size_t)it->src.n_rows * it->src.row_bytes;
    if (x->m->gguf)
        gguf_release(x->m->gguf, it->src.data, n);
    else
        st_release(x->m->st, it->src.data, n);
}

static infer_status write_item(extraction *x, const item *it, int fd)
{
    size_t row_bytes = quant_row_bytes(it->type, (size_t)it->n_padded);
    int step = (int)(8 * (size_t)BATCH / (row_bytes ? row_bytes : 1)) + 1;
    for (int r = 0; r < it->n_rows; r += step) {
        item_job j = { x, it, fd, r, it->n_rows - r < step ? it->n_rows - r : step, 0 };
        pool_run(x->pool, write_rows, &j);
        if (j.error)
            return error_set(x->err, INFER_IO, "%s/%s: writing failed: %s", x->work, it->file,
                             strerror(j.error));
        extract_tell(x, (double)(r + j.n) * (double)row_bytes, (double)it->bytes);
        if (x->stopped) return extract_cancelled(x);
    }
    release(x, it);
    x->work_done += (double)it->bytes;
    return INFER_OK;
}

static infer_status open_file(extraction *x, const char *name, uint64_t keep, int *fd)
{
    char *path = extract_path(x, name);
    if (!path) return no_memory(x);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0 || ftruncate(*fd, (off_t)keep)) {
        infer_status st =
            error_set(x->err, INFER_IO, "%s: cannot be written: %s", path, strerror(errno));
        if (*fd >= 0) close(*fd);
        *fd = -1;
        return st;
    }
    return INFER_OK;
}

static infer_status close_file(extraction *x, int fd)
{
    bool ok = fd < 0 || fsync(fd) == 0;
    if (fd >= 0) close(fd);
    return ok ? INFER_OK
              : error_set(x->err, INFER_IO, "%s: writing failed: %s", x->work, strerror(errno));
}

/* Items [first, last) of the list, those that are not done. */
static infer_status write_items(extraction *x, size_t first, size_t last)
{
    int fd = -1;
    const char *file = "";
    infer_status st = INFER_OK;
    for (size_t i = first; i < last && !st; i++) {
        const item *it = &x->items[i];
        if (i < x->n_done) {
            x->work_done += (double)it->bytes;
            continue;
        }
        if (strcmp(file, it->file)) {
            st = close_file(x, fd);
            fd = -1;
            if (!st) st = open_file(x, it->file, it->offset, &fd);
            file = it->file;
        }
        if (!st) st = write_item(x, it, fd);
        if (!st) x->n_done = i + 1;
        if (!st && now() - x->saved > 1) {
            if (fsync(fd)) st = error_set(x->err, INFER_IO, "%s: %s", x->work, strerror(errno));
            if (!st) st = checkpoint(x);
        }
    }
    infer_status closed = close_file(x, fd);
    if (!st) st = closed;
    if (st && st != INFER_CANCELLED) return st;
    infer_status saved = checkpoint(x);
    return st ? extract_cancelled(x) : saved;
}

/* ---- labels ---------------------------------------------------------------------------------- */

typedef struct label_tick {
    extraction *x;
    double base, size;
} label_tick;

static bool on_label(double share, void *user)
{
    const label_tick *t = user;
    extract_tell(t->x, t->base + t->size * share, t->x->label_work);
    return !t->x->stopped;
}

static infer_status write_at(extraction *x, int fd, const void *data, size_t n, uint64_t at)
{
    const uint8_t *p = data;
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return error_set(x->err, INFER_IO, "%s/down_meta.bin: writing failed: %s", x->work,
                             strerror(k ? errno : EIO));
        p += k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return INFER_OK;
}

static infer_status label_layer(extraction *x, labeller *lab, int layer, int fd)
{
    size_t size = 8 + 8 * (size_t)x->top_k;
    const layer_plan *p = &x->m->layers[layer];
    int n = x->features[layer], parts = extract_n_parts(x, layer), per = n / parts;
    uint32_t count = (uint32_t)n;
    uint8_t *records = mem_alloc((size_t)n ? (size_t)n : 1, size);
    if (!records) return no_memory(x);
    label_tick tick = { x, 0, 0 };
    infer_status st = INFER_OK;
    for (int e = 0; n && e < parts && !st; e++) {
        tick.size = (double)per;
        const moe_plan *m = extract_experts(x, layer);
        const tensor *down = m ? &m->down[e].w : &p->down.w;
        st = labeller_run(lab, records + (size_t)e * (size_t)per * size, down, false, on_label,
                          &tick, x->err);
        tick.base += tick.size;
    }
    if (!st) st = write_at(x, fd, &count, 4, x->label_bytes);
    if (!st) st = write_at(x, fd, records, (size_t)n * size, x->label_bytes + 4);
    mem_free(records);
    if (st) return st;
    x->label_bytes += 4 + (uint64_t)n * size;
    x->labels_done = layer + 1;
    return INFER_OK;
}

static infer_status write_labels(extraction *x)
{
    int fd;
    labeller *lab;
    if (x->labels_done == x->m->n_layers) return INFER_OK;
    infer_status st =
        labeller_new(&lab, &x->m->embed, x->m->tok, false, x->top_k, x->n_threads, x->err);
    if (st) return st;
    st = open_file(x, "down_meta.bin", x->labels_done ? x->label_bytes : 0, &fd);
    uint32_t header[4] = { 0x444d4554, 1, (uint32_t)x->m->n_layers, (uint32_t)x->top_k };
    if (!st && !x->labels_done) st = write_at(x, fd, header, 16, 0);
    for (int l = x->labels_done; l < x->m->n_layers && !st; l++) {
        x->label_work = (double)x->features[l];
        st = label_layer(x, lab, l, fd);
        x->work_done += (double)x->features[l] * x->label_cost;
        if (st || (l + 1 < x->m->n_layers && now() - x->saved <= 1)) continue;
        if (fsync(fd))
            st = error_set(x->err, INFER_IO, "%s/down_meta.bin: writing failed: %s", x->work,
                           strerror(errno));
        if (!st) st = checkpoint(x);
    }
    infer_status closed = close_file(x, fd);
    labeller_free(lab);
    if (st == INFER_CANCELLED) {
        infer_status saved = checkpoint(x);
        return saved ? saved : extract_cancelled(x);
    }
    return st ? st : closed;
}

/* ---- index.json ------------------------------------------------------------------------------ */

static infer_status checksum(extraction *x, json_t *sums, const char *name)
{
    char *path = extract_path(x, name), hex[65];
    file_map m;
    if (!path) return no_memory(x);
    if (!file_exists(path)) return INFER_OK;
    infer_status st = map_open(&m, path, NULL, NULL, x->err);
    if (st) return st;
    sha_state s;
    sha256_init(&s);
    for (size_t at = 0; at < m.size; at += 64 << 20) {
        size_t n = m.size - at < 64 << 20 ? m.size - at : 64 << 20;
        sha_add(&s, m.data + at, n);
        map_release(&m, m.data + at, n);
    }
    sha_end(&s, hex);
    map_close(&m);
    return json_object_set_new(sums, name, json_string(hex)) ? no_memory(x) : INFER_OK;
}

static infer_status write_index(extraction *x)
{
    static const char *const summed[] = { "gate_vectors.bin",
                                          "embeddings.bin",
                                          "down_meta.bin",
                                          "attn_weights.bin",
                                          "up_weights.bin",
                                          "down_weights.bin",
                                          "norms.bin",
                                          "lm_head.bin",
                                          "infer_extra.bin",
                                          "router_weights.bin",
                                          "attn_weights_q4k.bin",
                                          "interleaved_q4k.bin",
                                          "lm_head_q4.bin",
                                          "relation_clusters.json",
                                          "feature_clusters.jsonl" };
    json_t *sums = json_object(), *index;
    infer_status st = sums ? INFER_OK : no_memory(x);
    for (int i = 0; i < COUNT_OF(summed) && !st; i++)
        st = checksum(x, sums, summed[i]);
    index = st ? NULL : extract_index(x, sums);
    if (!st && !index) st = no_memory(x);
    char *path = extract_path(x, "index.json");
    if (!st) st = path ? write_json(x, path, index) : no_memory(x);
    json_decref(index);
    json_decref(sums);
    return st;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static infer_status open_buffers(extraction *x)
{
    infer_status st = pool_new(&x->pool, x->o.n_threads, x->err);
    if (st) return st;
    x->n_threads = pool_size(x->pool);
    int widest = 0;
    size_t largest = 0;
    for (size_t i = 0; i < x->n_items; i++) {
        size_t n = quant_row_bytes(x->items[i].type, (size_t)x->items[i].n_padded);
        if (x->items[i].n_padded > widest) widest = x->items[i].n_padded;
        if (n > largest) largest = n;
    }
    for (int t = 0; t < x->n_threads; t++) {
        x->buffers[t] = mem_alloc(BATCH + largest, 1);
        x->rows[t] = mem_alloc((size_t)widest, sizeof(float));
        if (!x->buffers[t] || !x->rows[t]) return no_memory(x);
    }
    return INFER_OK;
}

static void stage(extraction *x, const char *name)
{
    x->stage = name;
    x->step++;
    x->told = 0;
    extract_tell(x, 0, 1);
}

static infer_status prepare_folders(extraction *x)
{
    size_t n = strlen(x->out);
    while (n > 1 && x->out[n - 1] == '/')
        x->out[--n] = 0;
    x->work = arena_printf(&x->mem, "%s.partial", x->out);
    if (!x->work) return no_memory(x);
    if (access(x->out, F_OK) == 0) {
        if (!x->o.force)
            return error_set(x->err, INFER_ARGUMENT, "%s: is there already (--force replaces it)",
                             x->out);
        if (!vindex_dir_is(x->out))
            return error_set(x->err, INFER_ARGUMENT,
                             "%s: is there and is no vindex: it is not replaced", x->out);
    }
    return INFER_OK;
}

/* An empty folder to work in: what an extraction of something else left is no part of this one. */
static infer_status begin_folder(extraction *x)
{
    if (dir_exists(x->work)) {
        char *mark = extract_path(x, CHECKPOINT); // first: it vouches for the other files
        if (!mark) return no_memory(x);
        unlink(mark);
        folder_sync_of(mark);
        infer_status st = folder_remove(x->work, x->err);
        if (st) return st;
    }
    if (mkdir(x->work, 0755))
        return error_set(x->err, INFER_IO, "%s: %s", x->work, strerror(errno));
    return INFER_OK;
}

static infer_status run(extraction *x)
{
    infer_status st = open_buffers(x);
    if (st) return st;
    bool going_on = x->o.resume && read_checkpoint(x);
    if (!going_on) {
        if ((st = begin_folder(x))) return st;
        x->n_done = 0;
        x->labels_done = 0;
        x->label_bytes = 16;
        x->clusters_done = false;
        time_t t = time(NULL);
        struct tm utc;
        gmtime_r(&t, &utc);
        strftime(x->extracted_at, sizeof x->extracted_at, "%Y-%m-%dT%H:%M:%SZ", &utc);
        if ((st = checkpoint(x))) return st;
    }
    // Labels cost arithmetic, not bytes: counted as what could be written meanwhile.
    x->label_cost = (double)x->m->n_vocab * x->m->d_model / 400;
    x->work_total = 0;
    for (size_t i = 0; i < x->n_items; i++)
        x->work_total += (double)x->items[i].bytes;
    for (int l = 0; l < x->m->n_layers; l++) {
        x->work_total += (double)x->features[l] * x->label_cost;
        if (l < x->labels_done) x->work_start += (double)x->features[l] * x->label_cost;
    }
    for (size_t i = 0; i < x->n_done; i++)
        x->work_start += (double)x->items[i].bytes;
    // clusters: the same for words, and about as much again for k-means
    double cluster_cost = x->o.n_clusters ? 2 * x->label_cost * extract_clustered(x) : 0;
    x->work_total += cluster_cost;
    if (x->clusters_done) x->work_start += cluster_cost;
    x->work_done = 0;
    for (int l = 0; l < x->labels_done; l++)
        x->work_done += (double)x->features[l] * x->label_cost;
    x->began = now();
    x->n_steps = 4 + (x->o.n_clusters != 0);
    stage(x, "gates and embedding");
    if ((st = write_items(x, 0, x->n_browse))) return st;
    stage(x, "labels");
    if ((st = write_labels(x))) return st;
    if (x->o.n_clusters) {
        stage(x, "clusters");
        if (!x->clusters_done && (st = extract_clusters(x))) return st;
        x->clusters_done = true;
        x->work_done += cluster_cost;
        if ((st = checkpoint(x))) return st;
    }
    stage(x, "weights");
    if ((st = write_items(x, x->n_browse, x->n_items))) return st;
    stage(x, "checksums");
    if ((st = extract_side_files(x))) return st;
    if ((st = write_index(x))) return st;
    extract_tell(x, 1, 1);
    char *path = extract_path(x, CHECKPOINT);
    if (path) unlink(path);
    return folder_replace(x->work, x->out, x->err);
}

static infer_status read_options(extraction *x)
{
    static const char *const levels[] = { "browse", "attention", "inference", "all" };
    x->level = x->o.level ? x->o.level : "inference";
    x->level_no = -1;
    for (int i = 0; i < COUNT_OF(levels); i++)
        if (!strcmp(x->level, levels[i])) x->level_no = i;
    if (x->level_no < 0)
        return error_set(x->err, INFER_ARGUMENT,
                         "level '%s': expected browse, attention, inference or all", x->level);
    const char *dtype_name = x->o.dtype ? x->o.dtype : "f16";
    if (strcmp(dtype_name, "f16") && strcmp(dtype_name, "f32"))
        return error_set(x->err, INFER_ARGUMENT, "dtype '%s': expected f16 or f32", dtype_name);
    x->type = strcmp(dtype_name, "f32") ? DT_F16 : DT_F32;
    if (!x->o.quant) x->o.quant = "none";
    if (strcmp(x->o.quant, "none") && strcmp(x->o.quant, "q4k"))
        return error_set(x->err, INFER_ARGUMENT, "quant '%s': expected none or q4k", x->o.quant);
    if (x->o.n_clusters < 0 || x->o.n_clusters > 1 << 16)
        return error_set(x->err, INFER_ARGUMENT, "clusters: expected 1 to %d, found %d", 1 << 16,
                         x->o.n_clusters);
    x->q4k = !strcmp(x->o.quant, "q4k");
    x->top_k = x->o.top_k ? x->o.top_k : 10;
    if (x->top_k < 1 || x->top_k > 1000)
        return error_set(x->err, INFER_ARGUMENT, "top_k: expected 1 to 1000, found %d", x->top_k);
    return INFER_OK;
}

infer_status infer_extract(const char *path, const char *out, const infer_extract_options *options,
                           infer_error *err)
{
    infer_error own;
    if (!err) err = &own;
    if (!path || !out) return error_set(err, INFER_ARGUMENT, "infer_extract: NULL argument");
    extraction *x = mem_zero(1, sizeof *x);
    if (!x) return error_set(err, INFER_NOMEM, "%s: out of memory", out);
    if (options) x->o = *options;
    x->err = err;
    x->out = arena_strndup(&x->mem, out, strlen(out));
    infer_model_options how = { .log = x->o.log };
    infer_status st = x->out ? read_options(x) : no_memory(x);
    if (!st) st = infer_model_open(&x->m, path, &how, err);
    if (!st) st = extract_plan(x);
    if (!st) st = extract_settings(x);
    if (!st && !(x->description = describe(x))) st = no_memory(x);
    if (!st) st = prepare_folders(x);
    if (!st) st = run(x);
    for (int t = 0; t < x->n_threads; t++) {
        mem_free(x->buffers[t]);
        mem_free(x->rows[t]);
    }
    if (x->pool) pool_free(x->pool);
    json_decref(x->description);
    json_decref(x->own);
    infer_model_close(x->m);
    mem_free(x->items);
    arena_free(&x->mem);
    mem_free(x);
    return st ? st : error_clear(err);
}
