/*
 * quantize.c: infer_quantize: a model's tensors, a slice of rows at a time, from their format to
 * another: dequantised to float32, checked, quantised by all threads, written in order.
 */
#include "models/quantize.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"
#include "base/thread.h"
#include "compute/quant_larql.h"
#include "models/imatrix.h"
#include "models/locate.h"

#define TILE ((size_t)4 << 20) // bytes of rows made between two writes
#define LARGE 0x47000000u      // 32768: from here on a format's f16 scales may overflow

const char *infer_quantize_type(int i, const char **summary)
{
    const quant_mix *m = mix_at(i);
    if (!m) return NULL;
    if (summary) *summary = mix_summary(m);
    return mix_name(m);
}

out_tensor *out_add(out_model *m, infer_error *err)
{
    if (mem_reserve((void **)&m->tensors, &m->cap_tensors, m->n_tensors + 1, sizeof(*m->tensors),
                    err) != INFER_OK)
        return NULL;
    out_tensor *t = &m->tensors[m->n_tensors++];
    *t = (out_tensor){ .n_slices = 1 };
    return t;
}

/* ---- a GGUF file as the input ---------------------------------------------------------------- */

static bool is_key(const gguf_value *v, const char *key)
{
    return v->key.n == strlen(key) && !memcmp(v->key.s, key, v->key.n);
}

bool own_key(const gguf_value *v, const quant_mix *mix)
{
    if (is_key(v, "general.alignment")) return true;
    if (v->key.n > 6 && !memcmp(v->key.s, "split.", 6)) return true;
    return mix && (is_key(v, "general.file_type") || is_key(v, "general.quantization_version") ||
                   (v->key.n > 17 && !memcmp(v->key.s, "quantize.imatrix.", 17)));
}

/* A whole number of the architecture; 0: none, or one for each layer. */
static int fact(const out_model *m, const char *family, const char *key)
{
    char full[200];
    int64_t n = 0;
    snprintf(full, sizeof(full), "%s.%s", family, key);
    if (gguf_int(m->g, full, &n, NULL, NULL) != INFER_OK || n < 0 || n > INT32_MAX) return 0;
    return (int)n;
}

static infer_status read_tensors(out_model *m, infer_error *err)
{
    for (int i = 0; i < gguf_n_tensors(m->g); i++) {
        const gguf_tensor *t = gguf_tensor_at(m->g, i);
        out_tensor *to = out_add(m, err);
        if (!to) return INFER_NOMEM;
        to->name = arena_strndup(&m->mem, t->name.s, t->name.n);
        if (!to->name) return error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
        if (t->type < 0)
            return error_set(err, INFER_UNSUPPORTED,
                             "%s: tensor '%s': type %" PRIu32 " is not supported", m->path,
                             to->name, t->ggml_type);
        to->n_dims = t->n_dims;
        memcpy(to->dims, t->dims, sizeof(to->dims));
        to->from = to->to = (dtype)t->type;
        to->data = t->data;
        to->n_cols = t->dims[0];
        to->n_rows = t->dims[1];
        to->n_slices = t->dims[2] * t->dims[3];
    }
    return INFER_OK;
}

static infer_status read_gguf(out_model *m, const quant_mix *mix, infer_error *err)
{
    map_options how = { 0 };
    gguf_text family = { 0 };
    infer_status s = gguf_open(&m->g, m->path, &how, &m->o->log, err);
    if (s == INFER_OK) s = gguf_string(m->g, "general.architecture", &family, NULL, err);
    if (s != INFER_OK) return s;
    char name[100];
    snprintf(name, sizeof(name), "%.*s", (int)(family.n < 99 ? family.n : 99),
             family.n ? family.s : "");
    for (int i = 0; i < gguf_n_values(m->g); i++)
        if (!own_key(gguf_value_at(m->g, i), mix)) gguf_put_value(m->w, gguf_value_at(m->g, i));
    m->facts.n_layers = fact(m, name, "block_count");
    m->facts.n_heads = fact(m, name, "attention.head_count");
    m->facts.n_kv_heads = fact(m, name, "attention.head_count_kv");
    m->facts.n_experts = fact(m, name, "expert_count");
    m->in_bytes = gguf_file_bytes(m->g);
    if (gguf_n_tensors(m->g) == 0)
        return error_set(err, INFER_FORMAT, "%s: the file has no tensors", m->path);
    return read_tensors(m, err);
}

/* ---- formats --------------------------------------------------------------------------------- */

static int dims_above_1(const out_tensor *t)
{
    int n = 0;
    for (int i = 0; i < t->n_dims; i++)
        if (t->dims[i] > 1) n = i + 1;
    return n;
}

/* "q4_k → q5_0 (180), q6_k → q8_0 (31)" */
typedef struct fallback_list {
    int n[DT_COUNT][DT_COUNT];
    int all;
    const char *first; // tensor
} fallback_list;

static void tell_fallbacks(const out_model *m, const fallback_list *f)
{
    char text[400] = "";
    size_t at = 0;
    for (int a = 0; a < DT_COUNT; a++)
        for (int b = 0; b < DT_COUNT; b++)
            if (f->n[a][b] && at < sizeof(text))
                at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s -> %s (%d)",
                                       at ? ", " : "", quant_formats[a]->name,
                                       quant_formats[b]->name, f->n[a][b]);
    log_line(&m->o->log, INFER_LOG_WARN,
             "rows that are no multiple of their format's block: %d tensor%s another format: %s; "
             "the first is '%s'",
             f->all, f->all > 1 ? "s get" : " gets", text, f->first);
}

static infer_status choose_formats(out_model *m, const quant_mix *mix, int *n_fallbacks,
                                   infer_error *err)
{
    fallback_list fallen = { 0 };
    int n_requantised = 0;
    dtype requantised = DT_F32;
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (!strcmp(m->tensors[i].name, "output.weight")) m->facts.has_output = true;
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        out_tensor *t = &m->tensors[i];
        dtype wanted = t->to;
        if (mix && !t->fixed && mix_takes(t->name, dims_above_1(t)))
            t->to = mix_choose(mix, &m->facts, &wanted, t->name, t->n_cols, t->n_dims > 2);
        if (t->to != wanted) {
            fallen.n[wanted][t->to]++;
            if (!fallen.all++) fallen.first = t->name;
        }
        bool same_bits = t->from == DT_LARQL_Q6_K && t->to == DT_Q6_K;
        if (t->to != t->from && !same_bits && quant_formats[t->from]->sub &&
            quant_formats[t->to]->sub) {
            n_requantised++;
            requantised = t->from;
        }
        if (t->to != t->from && !quant_formats[t->to]->quantize)
            return error_set(err, INFER_UNSUPPORTED, "tensor '%s': %s can be read and not written",
                             t->name, quant_formats[t->to]->name);
        size_t row = quant_row_bytes(t->to, (size_t)t->n_cols);
        t->bytes = (uint64_t)row * (uint64_t)t->n_rows * (uint64_t)t->n_slices;
        gguf_put_tensor(m->w, t->name, t->to, t->dims, t->n_dims, t->bytes);
    }
    if (n_requantised)
        log_line(&m->o->log, INFER_LOG_WARN,
                 "%s: %d tensors are quantised already (%s): quantising them again loses more than "
                 "starting from F16",
                 m->path, n_requantised, quant_formats[requantised]->name);
    if (fallen.all) tell_fallbacks(m, &fallen);
    *n_fallbacks = fallen.all;
    return INFER_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows [first, first + n) of a tensor, counted through its slices. */
typedef struct tile {
    const out_tensor *t;
    const float *importance; // [n_slices or 1, n_cols] or NULL
    bool importance_by_slice;
    int64_t first;
    int n;
    uint8_t *out;   // [n, row bytes]
    float *scratch; // [threads, 2, n_cols]
    size_t in_row, out_row;
    atomic_int bad;  // rows that are not finite
    atomic_int over; // rows whose numbers do not fit the format
} tile;

/* Where row r of the output lies in the source. Interleaving turns row 2i + j of a head into its
 * row i + j * half. */
static const uint8_t *source_row(const tile *x, int64_t r)
{
    const out_tensor *t = x->t;
    int64_t slice = r / t->n_rows, row = r % t->n_rows;
    const uint8_t *data =
        t->slices ? t->slices[slice] : t->data + (size_t)(slice * t->n_rows) * x->in_row;
    if (t->permute_heads) {
        int64_t width = t->n_rows / t->permute_heads, head = row / width, at = row % width;
        row = head * width + at / 2 + at % 2 * (width / 2);
    }
    return data + (size_t)row * x->in_row;
}

/* The largest bit pattern without sign: from infinity's on something is not finite. */
static uint32_t largest(const float *v, size_t n)
{
    uint32_t top = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = f32_bits(v[i]) & 0x7fffffff;
        top = u > top ? u : top;
    }
    return top;
}

static void make_row(tile *x, int i, float *v)
{
    const out_tensor *t = x->t;
    size_t n = (size_t)t->n_cols;
    const uint8_t *from = source_row(x, x->first + i);
    uint8_t *to = x->out + (size_t)i * x->out_row;
    quant_formats[t->from]->dequant(v, from, n);
    uint32_t top = largest(v, n);
    if (top >= 0x7f800000u) {
        atomic_fetch_add(&x->bad, 1);
        return;
    }
    if (t->to == t->from && t->add == 0) {
        memcpy(to, from, x->out_row);
        return;
    }
    if (t->from == DT_LARQL_Q6_K && t->to == DT_Q6_K && t->add == 0) {
        larql_q6_k_to_gguf(to, from, n);
        return;
    }
    for (size_t k = 0; t->add != 0 && k < n; k++)
        v[k] += t->add;
    const float *w = x->importance;
    if (w && x->importance_by_slice) w += (size_t)((x->first + i) / t->n_rows) * n;
    quant_formats[t->to]->quantize(to, v, w, n);
    if (top < LARGE) return;
    quant_formats[t->to]->dequant(v + n, to, n);
    if (largest(v + n, n) >= 0x7f800000u) atomic_fetch_add(&x->over, 1);
}

static void make_rows(void *arg, int thread, int n_threads)
{
    tile *x = arg;
    int begin, end;
    thread_share(x->n, 1, thread, n_threads, &begin, &end);
    float *v = x->scratch + 2 * (size_t)thread * (size_t)x->t->n_cols;
    for (int i = begin; i < end; i++)
        make_row(x, i, v);
}

/* What the loop over tensors works with. */
typedef struct work {
    out_model *m;
    thread_pool *pool;
    imatrix *importance;
    uint8_t *out;
    size_t cap_out;
    float *scratch;
    size_t cap_scratch;
    uint64_t done; // bytes of data written
} work;

static void release(const out_model *m, const tile *x)
{
    const out_tensor *t = x->t;
    for (int64_t r = x->first, end = x->first + x->n; r < end;) {
        // a permuted head is read all over: its pages go when the slice is done with
        int64_t slice = r / t->n_rows,
                stop = (slice + 1) * t->n_rows < end ? (slice + 1) * t->n_rows : end;
        const uint8_t *data =
            t->slices ? t->slices[slice] : t->data + (size_t)(slice * t->n_rows) * x->in_row;
        size_t from = t->permute_heads ? 0 : (size_t)(r % t->n_rows) * x->in_row;
        size_t to = (size_t)(stop - slice * t->n_rows) * x->in_row;
        if (m->g) gguf_release(m->g, data + from, to - from);
        if (m->model && m->model->st) st_release(m->model->st, data + from, to - from);
        r = stop;
    }
}

static infer_status find_importance(work *w, tile *x, infer_error *err)
{
    const out_tensor *t = x->t;
    size_t n = 0, cols = (size_t)t->n_cols;
    x->importance = NULL;
    if (!w->importance || t->to == t->from || !quant_formats[t->to]->sub) return INFER_OK;
    x->importance = imatrix_find(w->importance, t->name, &n);
    if (!x->importance) return INFER_OK;
    if (n != cols && n != cols * (size_t)t->n_slices)
        return error_set(err, INFER_FORMAT,
                         "%s: tensor '%s': %zu values, expected %zu: the importance matrix is of "
                         "another model",
                         w->m->o->importance, t->name, n, cols * (size_t)t->n_slices);
    x->importance_by_slice = n != cols;
    return INFER_OK;
}

static infer_status make_room(work *w, const out_tensor *t, size_t rows, size_t out_row,
                              infer_error *err)
{
    size_t bytes = rows * out_row, floats = 2 * (size_t)pool_size(w->pool) * (size_t)t->n_cols;
    if (bytes > w->cap_out) {
        mem_free(w->out);
        w->out = mem_alloc(bytes, 1);
        w->cap_out = w->out ? bytes : 0;
    }
    if (floats > w->cap_scratch) {
        mem_free(w->scratch);
        w->scratch = mem_alloc(floats, sizeof(float));
        w->cap_scratch = w->scratch ? floats : 0;
    }
    if (w->out && w->scratch) return INFER_OK;
    return error_set(err, INFER_NOMEM, "tensor '%s': out of memory", t->name);
}

static infer_status check_tile(const work *w, const tile *x, infer_error *err)
{
    const out_model *m = w->m;
    if (m->g ? gguf_broken(m->g) : model_broken(m->model))
        return error_set(err, INFER_IO, "%s: the file became shorter while it was read", m->path);
    if (x->bad)
        return error_set(
            err, INFER_FORMAT,
            "%s: tensor '%s': it holds numbers that are not finite (%d of rows %" PRId64
            " to %" PRId64 ")",
            m->path, x->t->name, (int)x->bad, x->first, x->first + x->n - 1);
    if (x->over)
        return error_set(err, INFER_FORMAT,
                         "%s: tensor '%s': it holds numbers that are too large for %s", m->path,
                         x->t->name, quant_formats[x->t->to]->name);
    return INFER_OK;
}

static bool go_on(const work *w, const out_tensor *t, size_t index, uint64_t total)
{
    infer_quantize_step step = { .tensor = t->name,
                                 .type = quant_formats[t->to]->name,
                                 .index = (int)index,
                                 .n_tensors = (int)w->m->n_tensors,
                                 .bytes_done = w->done,
                                 .bytes_total = total };
    return !w->m->o->progress || w->m->o->progress(&step, w->m->o->progress_user);
}

static infer_status write_tensor(work *w, size_t index, uint64_t total, infer_error *err)
{
    const out_tensor *t = &w->m->tensors[index];
    tile x = { .t = t,
               .in_row = quant_row_bytes(t->from, (size_t)t->n_cols),
               .out_row = quant_row_bytes(t->to, (size_t)t->n_cols) };
    size_t larger = x.in_row > x.out_row ? x.in_row : x.out_row;
    size_t rows = TILE / larger;
    int64_t n_rows = t->n_rows * t->n_slices;
    if (rows < (size_t)pool_size(w->pool)) rows = (size_t)pool_size(w->pool);
    if ((uint64_t)rows > (uint64_t)n_rows) rows = (size_t)n_rows;
    infer_status s = make_room(w, t, rows, x.out_row, err);
    if (s == INFER_OK) s = find_importance(w, &x, err);
    x.out = w->out;
    x.scratch = w->scratch;
    for (x.first = 0; s == INFER_OK && x.first < n_rows; x.first += x.n) {
        x.n = (int)(n_rows - x.first < (int64_t)rows ? n_rows - x.first : (int64_t)rows);
        if (!go_on(w, t, index, total)) return error_set(err, INFER_CANCELLED, "cancelled");
        pool_run(w->pool, make_rows, &x);
        s = check_tile(w, &x, err);
        if (s == INFER_OK) s = gguf_write(w->m->w, x.out, (size_t)x.n * x.out_row, err);
        release(w->m, &x);
        w->done += (uint64_t)x.n * x.out_row;
    }
    return s;
}

static infer_status write_all(out_model *m, imatrix *importance, infer_error *err)
{
    work w = { .m = m, .importance = importance };
    uint64_t total = 0;
    for (size_t i = 0; i < m->n_tensors; i++)
        total += m->tensors[i].bytes;
    infer_status s = pool_new(&w.pool, m->o->n_threads, err);
    if (s == INFER_OK) s = gguf_begin(m->w, err);
    for (size_t i = 0; s == INFER_OK && i < m->n_tensors; i++)
        s = write_tensor(&w, i, total, err);
    pool_free(w.pool);
    mem_free(w.out);
    mem_free(w.scratch);
    return s;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static infer_status check_paths(const char *in, const char *out, infer_error *err)
{
    struct stat a, b;
    if (stat(in, &a) == 0 && stat(out, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        return error_set(err, INFER_ARGUMENT, "%s: the output is the input", out);
    return INFER_OK;
}

static infer_status find_mix(const quant_mix **mix, const char *type, infer_error *err)
{
    char known[400] = "";
    size_t at = 0;
    *mix = NULL;
    if (!type || (*mix = mix_find(type))) return INFER_OK;
    for (int i = 0; mix_at(i) && at < sizeof(known); i++)
        at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", i ? ", " : "",
                               mix_name(mix_at(i)));
    return error_set(err, INFER_ARGUMENT, "'%.40s' is no type to quantise to, expected one of %s",
                     type, known);
}

/* Keys that tell how the file was made. */
static void put_origin(out_model *m, const quant_mix *mix, const imatrix *importance)
{
    if (mix) {
        gguf_put_u32(m->w, "general.quantization_version", 2);
        gguf_put_u32(m->w, "general.file_type", (uint32_t)mix_file_type(mix));
    }
    if (!importance) return;
    const char *path = m->o->importance;
    gguf_put_string(m->w, "quantize.imatrix.file", path, strlen(path));
    gguf_put_u32(m->w, "quantize.imatrix.entries_count", (uint32_t)imatrix_n_entries(importance));
    if (imatrix_n_chunks(importance))
        gguf_put_u32(m->w, "quantize.imatrix.chunks_count", (uint32_t)imatrix_n_chunks(importance));
}

static void fill_result(infer_quantize_result *r, const out_model *m, int n_fallbacks, double start)
{
    uint64_t bytes = 0;
    *r = (infer_quantize_result){ .n_tensors = (int)m->n_tensors,
                                  .n_fallbacks = n_fallbacks,
                                  .in_bytes = m->in_bytes,
                                  .out_bytes = gguf_writer_bytes(m->w),
                                  .seconds = clock_seconds() - start };
    for (size_t i = 0; i < m->n_tensors; i++) {
        const out_tensor *t = &m->tensors[i];
        bytes += t->bytes;
        r->n_params += (uint64_t)t->n_cols * (uint64_t)t->n_rows * (uint64_t)t->n_slices;
    }
    if (r->n_params) r->bits_per_weight = 8.0 * (double)bytes / (double)r->n_params;
}

static infer_status run(out_model *m, const char *in, const char *out,
                        infer_quantize_result *result, infer_error *err)
{
    const quant_mix *mix;
    imatrix *importance = NULL;
    bool is_folder;
    int n_fallbacks = 0;
    double start = clock_seconds();
    infer_status s = find_mix(&mix, m->o->type, err);
    if (s == INFER_OK) s = model_locate(&m->path, &is_folder, in, err);
    if (s == INFER_OK) s = check_paths(m->path, out, err);
    if (s == INFER_OK && m->o->importance) s = imatrix_open(&importance, m->o->importance, err);
    m->facts.has_importance = importance != NULL;
    if (s == INFER_OK) s = gguf_writer_new(&m->w, out, err);
    if (s == INFER_OK) s = is_folder ? convert_folder(m, err) : read_gguf(m, mix, err);
    if (s == INFER_OK && m->base) s = out_take_base(m, err);
    if (s == INFER_OK) put_origin(m, mix, importance);
    if (s == INFER_OK) s = choose_formats(m, mix, &n_fallbacks, err);
    if (s == INFER_OK) s = write_all(m, importance, err);
    if (s == INFER_OK && is_folder) {
        const char *written;
        s = gguf_flush(m->w, &written, err);
        if (s == INFER_OK) s = convert_check(m, written, err);
    }
    if (s == INFER_OK) s = gguf_finish(m->w, err);
    if (s == INFER_OK && result) fill_result(result, m, n_fallbacks, start);
    imatrix_close(importance);
    return s;
}

infer_status infer_quantize(const char *in, const char *out, const infer_quantize_options *options,
                            infer_quantize_result *result, infer_error *err)
{
    return quantize_model(in, out, options, NULL, result, err);
}

infer_status quantize_model(const char *in, const char *out, const infer_quantize_options *options,
                            out_base *base, infer_quantize_result *result, infer_error *err)
{
    if (!in || !out) return error_set(err, INFER_ARGUMENT, "infer_quantize: NULL argument");
    infer_quantize_options o = { 0 };
    if (options) o = *options;
    if (o.n_threads < 0 || o.n_threads > MAX_THREADS)
        return error_set(err, INFER_ARGUMENT, "n_threads: expected 0 to %d, found %d", MAX_THREADS,
                         o.n_threads);
    out_model m = { .o = &o, .base = base };
    infer_status s = run(&m, in, out, result, err);
    gguf_writer_free(m.w);
    gguf_close(m.g);
    infer_model_close(m.model);
    mem_free(m.tensors);
    mem_free(m.path);
    arena_free(&m.mem);
    return s == INFER_OK ? error_clear(err) : s;
}
