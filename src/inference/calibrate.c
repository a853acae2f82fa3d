/*
 * calibrate.c: what a sparse walk costs. On one text the sizes of all contributions are counted by
 * layer, in bins; for each share of features to keep, every layer's threshold is read off; and on
 * another text the model with those thresholds is compared with the exact one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "inference/walk.h"

#define CONTEXT 256 // tokens in a piece of text
#define ROWS 16     // of a step whose logits are compared
#define STEPS 63    // single tokens that are timed
#define WARM_UP 24  // and not

typedef struct calibration {
    const infer_model *m;
    const infer_calibrate_options *o;
    infer_error *err;
    walk_counts counts;
    float *keep; // [n_layers]
    double done, total;
} calibration;

/* Engine and sequence for pieces of text. */
typedef struct runner {
    infer_engine *e;
    infer_sequence *s;
} runner;

static void runner_close(runner *r)
{
    infer_sequence_free(r->s);
    infer_engine_free(r->e);
    *r = (runner){ 0 };
}

static infer_status runner_open(calibration *c, runner *r, bool sparse, bool by_gate)
{
    infer_engine_options o = { .n_threads = c->o->n_threads,
                               .n_ctx = CONTEXT + 1 + WARM_UP + STEPS,
                               .max_rows = CONTEXT,
                               .max_sequences = 1,
                               .walk_from = sparse            ? 0
                                            : c->m->walk_only ? 0
                                                              : c->m->n_layers,
                               .walk_keep = sparse ? c->keep : NULL,
                               .walk_by_gate = by_gate };
    *r = (runner){ 0 };
    infer_status st = infer_engine_new(&r->e, c->m, &o, c->err);
    if (!st && !(r->s = infer_sequence_new(r->e, c->err))) st = c->err->code;
    return st;
}

static infer_status feed(calibration *c, runner *r, const int32_t *ids, int n, bool logits)
{
    infer_row rows[CONTEXT];
    for (int i = 0; i < n; i++)
        rows[i] = (infer_row){ .seq = r->s,
                               .token = ids[i],
                               .want = logits ? INFER_WANT_LOGITS : INFER_WANT_NOTHING };
    return infer_step(r->e, rows, n, c->err);
}

/* A piece of text begins as the model's texts do. */
static infer_status begin(calibration *c, runner *r)
{
    int32_t bos = c->m->tok && tok_adds_bos(c->m->tok) ? tok_bos(c->m->tok) : -1;
    infer_status st = infer_sequence_truncate(r->s, 0, c->err);
    return st || bos < 0 ? st : feed(c, r, &bos, 1, false);
}

static infer_status tick(calibration *c, double n)
{
    c->done += n;
    if (c->o->progress && !c->o->progress(c->done / c->total, c->o->user))
        return error_set(c->err, INFER_CANCELLED, "calibration: stopped");
    return INFER_OK;
}

/* ---- thresholds ------------------------------------------------------------------------------ */

static infer_status count(calibration *c, bool by_gate)
{
    runner r;
    size_t threads;
    memset(c->keep, 0, (size_t)c->m->n_layers * sizeof *c->keep);
    infer_status st = runner_open(c, &r, true, by_gate);
    if (st) return st;
    threads = (size_t)r.e->be->n_threads(r.e->dev);
    mem_free(c->counts.bins);
    c->counts.n_layers = c->m->n_layers;
    c->counts.bins = mem_zero(threads * (size_t)c->m->n_layers * WALK_BINS, sizeof(uint64_t));
    if (!c->counts.bins) st = error_set(c->err, INFER_NOMEM, "calibration: out of memory");
    for (int at = 0; at < c->o->n_ids && !st; at += CONTEXT) {
        int n = c->o->n_ids - at < CONTEXT ? c->o->n_ids - at : CONTEXT;
        r.e->walk_counts = NULL; // what begins every text is like nothing in it
        st = begin(c, &r);
        r.e->walk_counts = &c->counts;
        if (!st) st = feed(c, &r, c->o->ids + at, n, false);
        if (!st) st = tick(c, n);
    }
    for (size_t t = 1; t < threads && !st; t++)
        for (size_t i = 0; i < (size_t)c->m->n_layers * WALK_BINS; i++)
            c->counts.bins[i] += c->counts.bins[t * (size_t)c->m->n_layers * WALK_BINS + i];
    runner_close(&r);
    return st;
}

/* The thresholds that keep this share of each layer's features. */
static void set_keep(calibration *c, double share)
{
    for (int l = 0; l < c->m->n_layers; l++) {
        const uint64_t *bins = c->counts.bins + (size_t)l * WALK_BINS;
        uint64_t all = 0, kept = 0;
        for (int b = 0; b < WALK_BINS; b++)
            all += bins[b];
        int b = WALK_BINS;
        while (b > 0 && (double)kept < share * (double)all)
            kept += bins[--b];
        c->keep[l] = share >= 1 ? 0 : walk_bin_floor(b);
    }
}

/* ---- measuring ------------------------------------------------------------------------------- */

static int argmax(const float *z, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (z[i] > z[best]) best = i;
    return best;
}

/* KL(p || q) of two rows of logits. */
static double divergence(const float *p, const float *q, int n)
{
    double sum_p = 0, sum_q = 0, kl = 0;
    float max_p = p[argmax(p, n)], max_q = q[argmax(q, n)];
    for (int i = 0; i < n; i++) {
        sum_p += exp((double)(p[i] - max_p));
        sum_q += exp((double)(q[i] - max_q));
    }
    double shift = log(sum_q) - log(sum_p) + (double)(max_q - max_p);
    for (int i = 0; i < n; i++)
        kl += exp((double)(p[i] - max_p)) * ((double)(p[i] - q[i]) + shift);
    return kl / sum_p;
}

static infer_status compare(calibration *c, runner *dense, runner *sparse, infer_walk_point *p)
{
    int n_scored = 0, same = 0;
    infer_status st = INFER_OK;
    for (int at = 0; at < c->o->n_held && !st; at += CONTEXT) {
        int n = c->o->n_held - at < CONTEXT ? c->o->n_held - at : CONTEXT;
        st = begin(c, dense);
        if (!st) st = begin(c, sparse);
        for (int i = 0; i < n && !st; i += ROWS) {
            int k = n - i < ROWS ? n - i : ROWS;
            st = feed(c, dense, c->o->held + at + i, k, true);
            if (!st) st = feed(c, sparse, c->o->held + at + i, k, true);
            for (int r = 0; r < k && !st; r++) {
                const float *a = infer_logits(dense->e, r), *b = infer_logits(sparse->e, r);
                double kl = divergence(a, b, c->m->n_vocab);
                p->kl += kl;
                if (kl > p->max_kl) p->max_kl = kl;
                same += argmax(a, c->m->n_vocab) == argmax(b, c->m->n_vocab);
                n_scored++;
            }
            if (!st) st = tick(c, k);
        }
    }
    p->kl /= n_scored;
    p->top1 = (double)same / n_scored;
    return st;
}

static bool is_ffn(const infer_profile_row *r)
{
    if (!strcmp(r->op, "sum_rows") || !strcmp(r->op, "glu")) return true;
    return !strcmp(r->op, "matmul") && (!r->what[0] || !strcmp(r->what, "gate") ||
                                        !strcmp(r->what, "up") || !strcmp(r->what, "down"));
}

/* Seconds of the FFN, and of everything, for one token. */
static infer_status time_step(calibration *c, runner *r, int32_t id, double *ffn, double *all)
{
    infer_profile_row rows[192];
    *ffn = *all = 0;
    infer_status st = infer_engine_profile(r->e, true, c->err); // from zero
    if (!st) st = feed(c, r, &id, 1, false);
    int n = st ? 0 : infer_profile(r->e, rows, COUNT_OF(rows));
    for (int i = 0; i < n; i++) {
        *all += rows[i].seconds;
        if (is_ffn(&rows[i])) *ffn += rows[i].seconds;
    }
    return st;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians of steps that take turns, so that what else the machine does meets both; the first ones,
 * in which weights are laid anew, do not count. */
static infer_status time_steps(calibration *c, runner *dense, runner *sparse, infer_walk_point *p)
{
    double ffn[2][STEPS], all[2][STEPS];
    infer_status st = begin(c, dense);
    if (!st) st = begin(c, sparse);
    for (int i = -WARM_UP; i < STEPS && !st; i++) {
        int at = i < 0 ? 0 : i;
        int32_t id = c->o->held[(i + WARM_UP) % c->o->n_held];
        st = time_step(c, dense, id, &ffn[0][at], &all[0][at]);
        if (!st) st = time_step(c, sparse, id, &ffn[1][at], &all[1][at]);
    }
    if (st) return st;
    for (int i = 0; i < 2; i++) {
        qsort(ffn[i], STEPS, sizeof(double), ascending);
        qsort(all[i], STEPS, sizeof(double), ascending);
    }
    p->dense_ffn_seconds = ffn[0][STEPS / 2];
    p->ffn_seconds = ffn[1][STEPS / 2];
    p->token_seconds = all[1][STEPS / 2];
    st = infer_engine_profile(dense->e, false, c->err);
    return st ? st : infer_engine_profile(sparse->e, false, c->err);
}

/* Of the bytes that the exact FFN reads, what is read when this share of the features is kept: all
 * of gate and up, which decide, and rows of down. */
static double bytes_share(const calibration *c, double kept)
{
    const infer_vindex *v = c->m->ffn_index;
    double all = 0, read = 0;
    for (int l = 0; l < v->n_layers; l++) {
        const vindex_layer *x = &v->layers[l];
        double gate = (double)tensor_bytes(&x->gate);
        double up = v->gated ? (double)tensor_bytes(&x->up) : 0;
        double down = (double)tensor_bytes(&x->down_rows);
        all += gate + up + (tensor_present(&x->down) ? (double)tensor_bytes(&x->down) : down);
        read += gate + up + kept * down;
    }
    return all > 0 ? read / all : 0;
}

/* Of the contributions of the calibration text, those at or above the thresholds. */
static double kept_share(const calibration *c)
{
    double all = 0, kept = 0;
    for (int l = 0; l < c->m->n_layers; l++)
        for (int b = 0; b < WALK_BINS; b++) {
            double n = (double)c->counts.bins[(size_t)l * WALK_BINS + (size_t)b];
            all += n;
            if (walk_bin_floor(b) >= c->keep[l]) kept += n;
        }
    return all > 0 ? kept / all : 1;
}

static infer_status measure(calibration *c, double share, bool by_gate, infer_walk_point *p,
                            float *thresholds)
{
    runner dense = { 0 }, sparse = { 0 };
    set_keep(c, share);
    if (thresholds) memcpy(thresholds, c->keep, (size_t)c->m->n_layers * sizeof *thresholds);
    *p = (infer_walk_point){ .by_gate = by_gate, .kept = kept_share(c) };
    p->bytes = bytes_share(c, p->kept);
    infer_status st = runner_open(c, &dense, false, false);
    if (!st) st = runner_open(c, &sparse, true, by_gate);
    if (!st) st = compare(c, &dense, &sparse, p);
    if (!st) st = time_steps(c, &dense, &sparse, p);
    runner_close(&dense);
    runner_close(&sparse);
    return st;
}

infer_status infer_walk_calibrate(const infer_model *model, const infer_calibrate_options *o,
                                  infer_walk_point *points, float *thresholds, infer_error *err)
{
    infer_error own;
    if (!err) err = &own;
    if (!model || !o || !points || !o->shares)
        return error_set(err, INFER_ARGUMENT, "infer_walk_calibrate: NULL argument");
    if (!model->ffn_index)
        return error_set(err, INFER_ARGUMENT, "calibration: the model was opened without an index");
    if (o->n_ids < 1 || o->n_held < 1)
        return error_set(err, INFER_ARGUMENT,
                         "calibration: needs two texts, found %d and %d tokens", o->n_ids,
                         o->n_held);
    calibration c = { .m = model, .o = o, .err = err };
    c.total = (o->with_gate ? 2 : 1) * ((double)o->n_ids + (double)o->n_held * o->n_shares);
    c.keep = mem_zero((size_t)model->n_layers, sizeof *c.keep);
    infer_status st = c.keep ? INFER_OK : error_set(err, INFER_NOMEM, "calibration: out of memory");
    for (int g = 0; g <= o->with_gate && !st; g++) {
        st = count(&c, g);
        for (int i = 0; i < o->n_shares && !st; i++) {
            size_t at = (size_t)i * (size_t)model->n_layers;
            st = measure(&c, o->shares[i], g, &points[g * o->n_shares + i],
                         g || !thresholds ? NULL : thresholds + at);
        }
    }
    mem_free(c.counts.bins);
    mem_free(c.keep);
    return st ? st : error_clear(err);
}
