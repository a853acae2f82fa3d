/*
 * profile.c: the timing backend: for each operation one function that notes the time, calls the
 * real one and adds what passed to a row of its thread.
 *
 * A row is an operation, for matmul divided by projection and weight format. Its time is the mean
 * of the threads', and waiting at barriers is a row of its own, so that the rows sum to the time
 * that the steps took. Bytes and arithmetic are counted by thread 0 for all of them.
 *
 * An operation that has no function here runs untimed and shows as part of "other".
 */
#include "inference/profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "inference/engine.h"

/* The operations that read no weights by blocks: name, parameters, arguments. */
#define PLAIN_OPS(X)                                                                               \
    X(barrier, (const worker *w), (w))                                                             \
    X(embed,                                                                                       \
      (const worker *w, float *y, size_t stride, const tensor *table, const int32_t *ids,          \
       int n_rows, float scale),                                                                   \
      (w, y, stride, table, ids, n_rows, scale))                                                   \
    X(add_rows,                                                                                    \
      (const worker *w, float *y, size_t stride, const tensor *table, const int32_t *positions,    \
       int n_rows),                                                                                \
      (w, y, stride, table, positions, n_rows))                                                    \
    X(normalise,                                                                                   \
      (const worker *w, float *y, const float *x, size_t stride, int n_rows, int width,            \
       const norm *n),                                                                             \
      (w, y, x, stride, n_rows, width, n))                                                         \
    X(normalise_heads,                                                                             \
      (const worker *w, float *x, size_t stride, int n_rows, int n_heads, int width,               \
       const norm *n, bool per_head_weight),                                                       \
      (w, x, stride, n_rows, n_heads, width, n, per_head_weight))                                  \
    X(prepare, (const worker *w, act *a), (w, a))                                                  \
    X(copy_heads,                                                                                  \
      (const worker *w, float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,    \
       int n_heads, int width),                                                                    \
      (w, y, y_stride, x, x_stride, n_rows, n_heads, width))                                       \
    X(rope,                                                                                        \
      (const worker *w, float *x, size_t stride, int n_rows, int n_heads, int width,               \
       const float *cos, const float *sin, int n_pairs, int gap, rope_pairing pairing),            \
      (w, x, stride, n_rows, n_heads, width, cos, sin, n_pairs, gap, pairing))                     \
    X(kv_append,                                                                                   \
      (const worker *w, const row_span *spans, int n_spans, const float *k, size_t k_stride,       \
       const float *v, size_t v_stride),                                                           \
      (w, spans, n_spans, k, k_stride, v, v_stride))                                               \
    X(glu,                                                                                         \
      (const worker *w, float *y, const float *gate, const float *up, size_t stride, int n_rows,   \
       int width, activation kind),                                                                \
      (w, y, gate, up, stride, n_rows, width, kind))                                               \
    X(add_scaled,                                                                                  \
      (const worker *w, float *y, const float *x, size_t stride, int n_rows, int width,            \
       float scale),                                                                               \
      (w, y, x, stride, n_rows, width, scale))                                                     \
    X(scale, (const worker *w, float *y, size_t stride, int n_rows, int width, float factor),      \
      (w, y, stride, n_rows, width, factor))                                                       \
    X(softcap, (const worker *w, float *y, size_t stride, int n_rows, int width, float cap),       \
      (w, y, stride, n_rows, width, cap))                                                          \
    X(clamp,                                                                                       \
      (const worker *w, float *y, size_t stride, int n_rows, int width, float lo, float hi,        \
       float factor, float shift),                                                                 \
      (w, y, stride, n_rows, width, lo, hi, factor, shift))                                        \
    X(sum_rows,                                                                                    \
      (const worker *w, float *y, size_t y_stride, int width, const tensor *rows, const float *a,  \
       size_t a_stride, int n_rows),                                                               \
      (w, y, y_stride, width, rows, a, a_stride, n_rows))                                          \
    X(route, (const worker *w, const route_args *a), (w, a))                                       \
    X(gather, (const worker *w, act *y, const act *x, const int32_t *index), (w, y, x, index))     \
    X(combine,                                                                                     \
      (const worker *w, float *y, size_t stride, const float *x, const int32_t *slot,              \
       const float *weight, int n_rows, int n_used, int width),                                    \
      (w, y, stride, x, slot, weight, n_rows, n_used, width))                                      \
    X(coarse_pack,                                                                                 \
      (const worker *w, coarse *c, int n, const uint8_t **packed, size_t *size),                   \
      (w, c, n, packed, size))                                                                     \
    X(top, (const worker *w, const top_args *a), (w, a))                                           \
    X(sigmoid_rows,                                                                                \
      (const worker *w, float *y, size_t stride, const float *gate, size_t gate_stride,            \
       int n_rows, int width),                                                                     \
      (w, y, stride, gate, gate_stride, n_rows, width))

#define MAX_ROWS 192

typedef struct row {
    const char *op, *what, *type; // compared as pointers
    uint64_t calls, bytes, ops;
    int64_t ns;
} row;

typedef struct thread_rows {
    row v[MAX_ROWS]; // past the last: counted in "other", since nobody adds it
    int n;
    int64_t ns; // in the function that was run
} thread_rows;

/* Which projection a linear of the model is. */
typedef struct role {
    const linear *l;
    const char *name;
} role;

struct profile {
    backend table;
    const backend *inner;
    role *roles; // by address
    size_t n_roles, roles_cap;
    int n_threads;
    thread_rows *threads; // [n_threads]
    uint64_t runs;
    int64_t ns; // of all runs
    worker_fn *fn;
    void *arg;
};

/* What operations get in place of the backend's worker. */
typedef struct timed_worker {
    worker w; // first: a timed operation is given its address
    profile *p;
} timed_worker;

static profile *profile_of(const worker *w) { return ((const timed_worker *)(const void *)w)->p; }

static void note(profile *p, const worker *w, const char *op, const char *what, const char *type,
                 int64_t ns, uint64_t bytes, uint64_t ops)
{
    thread_rows *t = &p->threads[w->thread];
    row *r = t->v, *end = t->v + t->n;
    while (r < end && (r->op != op || r->what != what || r->type != type))
        r++;
    if (r == end) {
        if (t->n == MAX_ROWS) return;
        *r = (row){ .op = op, .what = what, .type = type };
        t->n++;
    }
    r->calls++;
    r->ns += ns;
    if (w->thread) return;
    r->bytes += bytes;
    r->ops += ops;
}

/* ---- operations ------------------------------------------------------------------------------ */

#define NAME_OF(op, params, args) static const char op##_name[] = #op;
PLAIN_OPS(NAME_OF)
#undef NAME_OF
static const char matmul_name[] = "matmul", attention_name[] = "attention", none[] = "";

#define TIMED(op, params, args)                                                                    \
    static void timed_##op params                                                                  \
    {                                                                                              \
        profile *p = profile_of(w);                                                                \
        int64_t from = clock_ns();                                                                 \
        p->inner->op args;                                                                         \
        note(p, w, op##_name, none, none, clock_ns() - from, 0, 0);                                \
    }
PLAIN_OPS(TIMED)
#undef TIMED

static const char *role_of(const profile *p, const linear *l)
{
    size_t lo = 0, hi = p->n_roles;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (p->roles[mid].l < l)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < p->n_roles && p->roles[lo].l == l ? p->roles[lo].name : none;
}

static void timed_matmul(const worker *w, float *y, size_t y_stride, const linear *l, const act *x,
                         bool exact)
{
    profile *p = profile_of(w);
    int64_t from = clock_ns();
    p->inner->matmul(w, y, y_stride, l, x, exact);
    int64_t ns = clock_ns() - from;
    note(p, w, matmul_name, role_of(p, l), quant_formats[l->w.type]->name, ns, tensor_bytes(&l->w),
         2 * (uint64_t)l->w.n_rows * (uint64_t)l->w.n_cols * (uint64_t)x->n_rows);
}

static void timed_attention(const worker *w, const attention_args *a)
{
    profile *p = profile_of(w);
    int64_t from = clock_ns();
    p->inner->attention(w, a);
    int64_t ns = clock_ns() - from;
    uint64_t bytes = 0, ops = 0;
    for (int i = 0; i < a->n_spans && w->thread == 0; i++) {
        const row_span *s = &a->spans[i];
        uint64_t widths = (uint64_t)(s->kv.head_dim + s->kv.head_dim_v), pairs = 0;
        int first = a->window && s->pos + 1 > a->window ? s->pos + 1 - a->window : 0;
        bytes += (uint64_t)(s->pos + s->n - first) * s->kv.position_bytes;
        for (int r = 0; r < s->n; r++) {
            int seen = s->pos + r + 1;
            pairs += (uint64_t)(a->window && seen > a->window ? a->window : seen);
        }
        ops += 2 * pairs * (uint64_t)a->n_heads * widths;
    }
    const kv_view *kv = &a->spans[0].kv; // the type is K's
    note(p, w, attention_name, none, kv_type_name(kv->k_type), ns, bytes, ops);
}

/* ---- the model's projections ----------------------------------------------------------------- */

static bool add_roles(profile *p, const linear *l, int n, const char *name)
{
    if (!l) return true;
    if (mem_reserve((void **)&p->roles, &p->roles_cap, p->n_roles + (size_t)n, sizeof(role), NULL))
        return false;
    for (int i = 0; i < n; i++)
        if (tensor_present(&l[i].w)) p->roles[p->n_roles++] = (role){ &l[i], name };
    return true;
}

static bool add_layer(profile *p, const layer_plan *l)
{
    bool ok = add_roles(p, &l->q, 1, "q") && add_roles(p, &l->k, 1, "k") &&
              add_roles(p, &l->v, 1, "v") && add_roles(p, &l->o, 1, "o") &&
              add_roles(p, &l->gate, 1, "gate") && add_roles(p, &l->up, 1, "up") &&
              add_roles(p, &l->down, 1, "down");
    const moe_plan *m = l->moe;
    if (ok && m)
        ok = add_roles(p, &m->router, 1, "router") &&
             add_roles(p, m->gate, m->n_experts, "expert gate") &&
             add_roles(p, m->up, m->n_experts, "expert up") &&
             add_roles(p, m->down, m->n_experts, "expert down") &&
             add_roles(p, &m->shared_router, 1, "shared router");
    if (ok && l->mla)
        ok = add_roles(p, &l->mla->q_a, 1, "q down") && add_roles(p, &l->mla->kv_a, 1, "kv down") &&
             add_roles(p, l->mla->k_up, l->n_heads, "k up") &&
             add_roles(p, l->mla->v_up, l->n_heads, "v up");
    if (ok && l->ple)
        ok = add_roles(p, &l->ple->gate, 1, "layer embedding") &&
             add_roles(p, &l->ple->project, 1, "layer embedding");
    return ok;
}

static int by_address(const void *a, const void *b)
{
    const linear *x = ((const role *)a)->l, *y = ((const role *)b)->l;
    return (x > y) - (x < y);
}

/* ---- the profile ----------------------------------------------------------------------------- */

infer_status profile_new(profile **out, const backend *be, const infer_engine *e, infer_error *err)
{
    *out = NULL;
    profile *p = mem_zero(1, sizeof *p);
    if (!p) return error_set(err, INFER_NOMEM, "profile: out of memory");
    p->inner = be;
    p->n_threads = be->n_threads(e->dev);
    p->threads = mem_zero((size_t)p->n_threads, sizeof *p->threads);
    bool ok = p->threads != NULL && add_roles(p, &e->lm_head, 1, "head") &&
              add_roles(p, &e->model->ple_project, 1, "layer embedding");
    for (int l = 0; ok && l < e->model->n_layers; l++)
        ok = add_layer(p, &e->layers[l]) &&
             (e->ffn[l].plan == &e->layers[l] || add_layer(p, e->ffn[l].plan));
    if (!ok) {
        profile_free(p);
        return error_set(err, INFER_NOMEM, "profile: out of memory");
    }
    qsort(p->roles, p->n_roles, sizeof *p->roles, by_address);
    p->table = *be;
#define INSTALL(op, params, args)                                                                  \
    if (be->op) p->table.op = timed_##op;
    PLAIN_OPS(INSTALL)
#undef INSTALL
    p->table.matmul = timed_matmul;
    p->table.attention = timed_attention;
    *out = p;
    return error_clear(err);
}

void profile_free(profile *p)
{
    if (!p) return;
    mem_free(p->roles);
    mem_free(p->threads);
    mem_free(p);
}

static void run_timed(const worker *w, void *arg)
{
    profile *p = arg;
    timed_worker t = { *w, p };
    int64_t from = clock_ns();
    p->fn(&t.w, p->arg);
    p->threads[w->thread].ns += clock_ns() - from;
}

void profile_run(profile *p, device *dev, worker_fn *fn, void *arg)
{
    int64_t from = clock_ns();
    p->fn = fn;
    p->arg = arg;
    p->inner->run(dev, run_timed, p);
    p->runs++;
    p->ns += clock_ns() - from;
}

const backend *profile_backend(const profile *p) { return &p->table; }

void profile_reset(profile *p)
{
    for (int t = 0; t < p->n_threads; t++)
        p->threads[t] = (thread_rows){ .n = 0 };
    p->runs = 0;
    p->ns = 0;
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const infer_profile_row *)a)->seconds, y = ((const infer_profile_row *)b)->seconds;
    return (x < y) - (x > y);
}

int profile_rows(const profile *p, infer_profile_row *rows, int max)
{
    infer_profile_row all[MAX_ROWS + 1];
    const thread_rows *first = &p->threads[0];
    int n = 0;
    double rest = (double)p->ns * 1e-9;
    for (int i = 0; i < first->n; i++) { // every thread calls every operation
        const row *r = &first->v[i];
        int64_t ns = 0;
        for (int t = 0; t < p->n_threads; t++)
            for (int k = 0; k < p->threads[t].n; k++) {
                const row *s = &p->threads[t].v[k];
                if (s->op == r->op && s->what == r->what && s->type == r->type) ns += s->ns;
            }
        // Waiting for the others to begin and to end is waiting too.
        for (int t = 0; t < p->n_threads && r->op == barrier_name; t++)
            ns += p->ns - p->threads[t].ns;
        all[n] = (infer_profile_row){ r->op, r->what, r->type, r->calls, 0, r->bytes, r->ops };
        all[n].seconds = (double)ns * 1e-9 / p->n_threads;
        rest -= all[n++].seconds;
    }
    if (p->runs)
        all[n++] = (infer_profile_row){ "other", none, none, p->runs, rest > 0 ? rest : 0, 0, 0 };
    qsort(all, (size_t)n, sizeof *all, by_seconds);
    if (n > max) n = max;
    memcpy(rows, all, (size_t)n * sizeof *rows);
    return n;
}
