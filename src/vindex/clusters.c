/*
 * clusters.c: from gates and labels to clusters. Steps are written to a file as they are made, so
 * that k-means reads them through a map and memory stays bounded; the same bits whatever the
 * threads, so nothing of this stage is kept when it is stopped.
 */
#include "vindex/clusters.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/mem.h"
#include "vindex/kmeans.h"
#include "vindex/labels.h"

#define STEPS ".cluster_steps"
#define MAX_ITERATIONS 50
#define FIRST_ID 3 // below: special tokens mostly
#define NO_STEP 1e-8

typedef struct member {
    int layer, feature;
} member;

typedef struct clustering {
    extraction *x;
    file_map meta, steps;
    FILE *out;          // of steps
    float *word, *step; // [d_model]
    member *members;
    const uint8_t **records; // of members
    size_t n, cap_members, cap_records;
    double done;
} clustering;

static infer_status no_memory(const extraction *x)
{
    return error_set(x->err, INFER_NOMEM, "clusters: out of memory");
}

/* Layers of the knowledge band. */
static void band(const extraction *x, int *first, int *last)
{
    int bands[3][2];
    *first = 0;
    *last = x->m->n_layers - 1;
    if (!extract_bands(bands, x)) return;
    *first = bands[1][0];
    *last = bands[1][1];
}

int extract_clustered(const extraction *x)
{
    int first, last, n = 0;
    band(x, &first, &last);
    for (int l = first; l <= last; l++)
        n += x->features[l];
    return n;
}

/* The mean embedding [d_model] of a text's n_ids tokens, none added and the first ids left out. */
static infer_status mean_embedding(float *y, int *n_ids, const infer_model *m, const char *text,
                                   infer_error *err)
{
    tok_options plain = { .no_special = true, .plain_text = true };
    int32_t *ids;
    size_t n, d = (size_t)m->d_model;
    *n_ids = 0;
    infer_status st = tok_encode(m->tok, &ids, &n, text, strlen(text), &plain, err);
    if (st) return st;
    double *sum = mem_zero(d, sizeof *sum);
    float *row = mem_alloc(d, sizeof *row);
    for (size_t i = 0; i < n && sum && row; i++) {
        if (ids[i] < FIRST_ID || ids[i] >= m->n_vocab) continue;
        tensor_row(row, &m->embed, ids[i]);
        for (size_t j = 0; j < d; j++)
            sum[j] += (double)row[j];
        ++*n_ids;
    }
    for (size_t j = 0; j < d && sum && *n_ids; j++)
        y[j] = (float)(sum[j] / *n_ids);
    st = sum && row ? INFER_OK : error_set(err, INFER_NOMEM, "clusters: out of memory");
    mem_free(sum);
    mem_free(row);
    mem_free(ids);
    return st;
}

/* A feature whose gate answers to the word and that speaks for its record's first token. */
static infer_status add_member(clustering *c, int layer, int feature, int32_t word,
                               const uint8_t *record)
{
    extraction *x = c->x;
    const infer_model *m = x->m;
    int32_t token = (int32_t)u32_at(record);
    int n_ids;
    if (token < FIRST_ID || token >= m->n_vocab) return INFER_OK;
    char *text;
    infer_status st = label_text(&text, m->tok, word, x->err);
    if (!st) st = mean_embedding(c->word, &n_ids, m, text, x->err);
    mem_free(text);
    if (st || !n_ids) return st;
    tensor_row(c->step, &m->embed, token);
    double size = 0;
    for (int i = 0; i < m->d_model; i++) {
        double d = (double)c->step[i] - (double)c->word[i];
        size += d * d;
    }
    size = sqrt(size);
    if (!(size > NO_STEP) || !isfinite(size)) return INFER_OK;
    for (int i = 0; i < m->d_model; i++)
        c->step[i] = (float)(((double)c->step[i] - (double)c->word[i]) / size);
    fwrite(c->step, sizeof *c->step, (size_t)m->d_model, c->out);
    st = mem_reserve((void **)&c->members, &c->cap_members, c->n + 1, sizeof *c->members, x->err);
    if (!st)
        st = mem_reserve((void **)&c->records, &c->cap_records, c->n + 1, sizeof *c->records,
                         x->err);
    if (st) return st;
    c->members[c->n] = (member){ layer, feature };
    c->records[c->n++] = record;
    return INFER_OK;
}

static bool on_word(double share, void *user)
{
    const clustering *c = user;
    extract_tell(c->x, c->done + share, 1);
    return !c->x->stopped;
}

/* Steps of a layer's features; records are its own in down_meta.bin. */
static infer_status add_layer(clustering *c, labeller *lab, int layer, const uint8_t *records)
{
    extraction *x = c->x;
    int parts = extract_n_parts(x, layer), n = x->features[layer];
    size_t size = 8 + 8 * (size_t)x->top_k;
    uint8_t *words = mem_alloc((size_t)n + 1, 16);
    infer_status st = words ? INFER_OK : no_memory(x);
    for (int e = 0, at = 0; e < parts && !st && n; e++) {
        const tensor *gate = extract_gate(x, layer, e);
        st = labeller_run(lab, words + 16 * (size_t)at, gate, true, NULL, NULL, x->err);
        at += gate->n_rows;
        if (!st && !on_word(0, c)) st = extract_cancelled(x);
    }
    for (int f = 0; f < n && !st; f++) {
        const uint8_t *w = words + 16 * (size_t)f;
        if (u32_at(w) || u32_at(w + 4)) // all zero: no word
            st = add_member(c, layer, f, (int32_t)u32_at(w), records + (size_t)f * size);
    }
    mem_free(words);
    return st;
}

static infer_status make_steps(clustering *c)
{
    extraction *x = c->x;
    labeller *lab;
    int first, last;
    band(x, &first, &last);
    infer_status st = labeller_new(&lab, &x->m->embed, x->m->tok, true, 1, x->n_threads, x->err);
    if (st) return st;
    const uint8_t *at = c->meta.data + 16;
    for (int l = 0; l <= last && !st; l++) {
        if (l >= first) {
            st = add_layer(c, lab, l, at + 4);
            c->done = 0.5 * (l - first + 1) / (last - first + 1);
        }
        at += 4 + (size_t)x->features[l] * (8 + 8 * (size_t)x->top_k);
    }
    labeller_free(lab);
    return st;
}

/* ---- the files ------------------------------------------------------------------------------- */

static void put_text(FILE *f, const char *s)
{
    json_t *text = json_stringn_nocheck(s, strlen(s));
    if (!text || json_dumpf(text, f, JSON_ENCODE_ANY)) fputs("\"\"", f);
    json_decref(text);
}

/* Centres are many numbers: written one by one. */
static void put_clusters(FILE *f, const float *centres, const int *counts,
                         const cluster_name *names, int k, int d)
{
    fprintf(f, "{\n  \"k\": %d,\n  \"labels\": [", k);
    for (int i = 0; i < k; i++) {
        if (i) fputs(", ", f);
        put_text(f, names[i].label);
    }
    fputs("],\n  \"counts\": [", f);
    for (int i = 0; i < k; i++)
        fprintf(f, i ? ", %d" : "%d", counts[i]);
    fputs("],\n  \"top_tokens\": [", f);
    for (int i = 0; i < k; i++) {
        fputs(i ? ", [" : "[", f);
        for (int t = 0; t < names[i].n_top; t++) {
            if (t) fputs(", ", f);
            put_text(f, names[i].top[t]);
        }
        fputc(']', f);
    }
    fputs("],\n  \"centres\": [", f);
    for (int i = 0; i < k; i++) {
        fputs(i ? ",\n    [" : "\n    [", f);
        for (int j = 0; j < d; j++)
            fprintf(f, j ? ",%.9g" : "%.9g", (double)centres[(size_t)i * (size_t)d + (size_t)j]);
        fputc(']', f);
    }
    fputs("\n  ]\n}\n", f);
}

static infer_status write_files(clustering *c, const float *centres, const int32_t *cluster, int k)
{
    extraction *x = c->x;
    arena mem = { 0 };
    cluster_name *names = arena_zero(&mem, (size_t)k, sizeof *names);
    int *counts = arena_zero(&mem, (size_t)k, sizeof *counts);
    char *about = extract_path(x, "relation_clusters.json");
    char *members = extract_path(x, "feature_clusters.jsonl");
    cluster_members of = { (int)c->n, k, x->top_k, cluster, c->records };
    atomic_file f;
    infer_status st = names && counts && about && members
                          ? cluster_names(names, &of, x->m, &mem, x->err)
                          : no_memory(x);
    if (!st) st = atomic_open(&f, members, x->err);
    if (!st) {
        for (size_t i = 0; i < c->n; i++) {
            counts[cluster[i]]++;
            fprintf(f.f, "{\"c\":%d,\"f\":%d,\"l\":%d}\n", (int)cluster[i], c->members[i].feature,
                    c->members[i].layer);
        }
        st = atomic_commit(&f, x->err);
    }
    if (!st) st = atomic_open(&f, about, x->err);
    if (!st) {
        put_clusters(f.f, centres, counts, names, k, x->m->d_model);
        st = atomic_commit(&f, x->err);
    }
    arena_free(&mem);
    return st;
}

static infer_status cluster_steps(clustering *c)
{
    extraction *x = c->x;
    int k = c->n < (size_t)x->o.n_clusters ? (int)c->n : x->o.n_clusters, d = x->m->d_model;
    float *centres = mem_alloc((size_t)k * (size_t)d, sizeof *centres);
    int32_t *cluster = mem_alloc(c->n, sizeof *cluster);
    char *path = extract_path(x, STEPS);
    infer_status st =
        centres && cluster && path ? map_open(&c->steps, path, NULL, NULL, x->err) : no_memory(x);
    kmeans_run run = { .x = (const float *)(const void *)c->steps.data, // a page's start
                       .n = (int)c->n,
                       .d = d,
                       .k = k,
                       .max_iterations = MAX_ITERATIONS,
                       .n_threads = x->n_threads,
                       .tick = on_word,
                       .user = c };
    c->done = 0.5;
    if (!st) st = kmeans(centres, cluster, &run, x->err);
    if (!st) st = write_files(c, centres, cluster, k);
    mem_free(centres);
    mem_free(cluster);
    return st;
}

infer_status extract_clusters(extraction *x)
{
    clustering c = { .x = x };
    char *meta = extract_path(x, "down_meta.bin"), *steps = extract_path(x, STEPS);
    if (!meta || !steps) return no_memory(x);
    if (!x->m->tok)
        return error_set(x->err, INFER_UNSUPPORTED, "%s: clusters need a tokenizer, found none",
                         x->m->path);
    c.word = mem_alloc((size_t)x->m->d_model, sizeof *c.word);
    c.step = mem_alloc((size_t)x->m->d_model, sizeof *c.step);
    infer_status st = c.word && c.step ? map_open(&c.meta, meta, NULL, NULL, x->err) : no_memory(x);
    if (!st && !(c.out = fopen(steps, "wbe")))
        st = error_set(x->err, INFER_IO, "%s: cannot be written", steps);
    if (!st) st = make_steps(&c);
    if (c.out && (ferror(c.out) | fclose(c.out)) && !st)
        st = error_set(x->err, INFER_IO, "%s: writing failed", steps);
    if (!st && c.n)
        st = cluster_steps(&c);
    else if (!st)
        log_line(&x->o.log, INFER_LOG_WARN,
                 "%s: no clusters: no feature of the knowledge layers goes from a word to a token",
                 x->m->path);
    unlink(steps);
    map_close(&c.steps);
    map_close(&c.meta);
    mem_free(c.word);
    mem_free(c.step);
    mem_free(c.members);
    mem_free(c.records);
    return st == INFER_CANCELLED ? extract_cancelled(x) : st;
}
