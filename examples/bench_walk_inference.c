/*
 * bench_walk_inference.c: one model's FFN from its weights, and from an index, in turns: tokens a
 * second of a prompt and of what follows it. Then what an index alone can do: the best features of
 * each layer for a vector, by scanning its gates and by a graph (HNSW).
 *
 *     bench_walk_inference MODEL VINDEX [ROUNDS [TOKENS]]
 */
#include <infer_vindex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROMPT 128
#define MAX_ROUNDS 31
#define K 10
#define QUERIES 64

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return x[n / 2];
}

/* Tokens a second of a prompt and of n tokens after it. */
static infer_status measure(infer_session *s, int n, int n_vocab, double *prompt, double *generated,
                            infer_error *err)
{
    int32_t ids[PROMPT];
    infer_session_clear(s);
    for (int i = 0; i < PROMPT; i++)
        ids[i] = (i * 7919 + 13) % n_vocab;
    infer_status st = infer_session_prompt_ids(s, ids, PROMPT, err);
    for (int i = 0; i < n && !st; i++)
        if (infer_session_next_id(s, err) < 0) st = err->code ? err->code : INFER_INTERNAL;
    infer_stats stats = infer_session_stats(s);
    *prompt = stats.n_prompt / stats.prompt_s;
    *generated = stats.n_generated / stats.generate_s;
    return st;
}

static infer_status compare(const infer_model *model, int rounds, int tokens, infer_error *err)
{
    static const char *const names[2] = { "dense", "walk" };
    infer_model_info info = infer_model_describe(model);
    infer_session *s[2] = { NULL, NULL };
    double prompt[2][MAX_ROUNDS], generated[2][MAX_ROUNDS], ratio[2][MAX_ROUNDS], unused;
    infer_status st = INFER_OK;
    for (int i = 0; i < 2 && !st; i++) {
        infer_session_options o = { .n_ctx = PROMPT + tokens + 8,
                                    .max_tokens = tokens,
                                    .ignore_eos = true,
                                    .draft = -1,
                                    .walk_from = i ? 0 : info.n_layers };
        st = infer_session_new(&s[i], model, &o, err);
        if (!st) st = measure(s[i], tokens, info.n_vocab, &unused, &unused, err); // warms up
    }
    for (int r = 0; r < rounds && !st; r++) {
        for (int i = 0; i < 2 && !st; i++)
            st = measure(s[i], tokens, info.n_vocab, &prompt[i][r], &generated[i][r], err);
        ratio[0][r] = prompt[1][r] / prompt[0][r];
        ratio[1][r] = generated[1][r] / generated[0][r];
    }
    if (!st) printf("FFN of layer 0: %s\n", infer_engine_ffn(infer_session_engine(s[1]), 0));
    for (int i = 0; i < 2 && !st; i++)
        printf("%-6s prompt %9.1f tok/s   generation %8.1f tok/s\n", names[i],
               median(prompt[i], rounds), median(generated[i], rounds));
    for (int i = 0; i < 2 && !st; i++) {
        double middle = median(ratio[i], rounds);
        printf("walk / dense, %s: %.3f (%.3f to %.3f)\n", i ? "generation" : "prompt", middle,
               ratio[i][0], ratio[i][rounds - 1]);
    }
    infer_session_free(s[0]);
    infer_session_free(s[1]);
    return st;
}

/* Seconds a query in all layers, and the share of the scan's best that the graph finds. */
static infer_status search(const char *path, infer_error *err)
{
    infer_vindex *index = NULL;
    infer_vindex_options o = { .hnsw = true };
    infer_status st = infer_vindex_open(&index, path, &o, err);
    if (st) return st;
    infer_vindex_info info = infer_vindex_describe_index(index);
    static infer_hit hits[2][QUERIES * K];
    int counts[2][QUERIES], same = 0, all = 0;
    double seconds[2] = { 0 };
    float *x = malloc((size_t)QUERIES * (size_t)info.d_model * sizeof *x);
    if (!x) st = INFER_NOMEM;
    for (int q = 0; q < QUERIES && !st; q++)
        st = infer_vindex_embedding(index, (q * 7919 + 13) % info.n_vocab,
                                    x + (size_t)q * (size_t)info.d_model, err);
    for (int l = 0; l < info.n_layers && !st; l++) {
        if (!infer_vindex_n_features(index, l)) continue;
        for (int graph = 0; graph < 2 && !st; graph++) {
            infer_knn_options how = { .scan = !graph };
            double from = now();
            st = infer_vindex_knn_batch(index, l, x, QUERIES, hits[graph], counts[graph], K, &how,
                                        err);
            seconds[graph] += now() - from;
        }
        for (int q = 0; q < QUERIES && !st; q++)
            for (int i = 0; i < counts[0][q]; i++, all++)
                for (int j = 0; j < counts[1][q]; j++)
                    same += hits[0][q * K + i].feature == hits[1][q * K + j].feature;
    }
    if (!st && all)
        printf("best %d of every layer, %d queries: scan %.1f us a query, graph %.1f us, of the "
               "scan's it finds %.1f%%\n",
               K, QUERIES, seconds[0] / QUERIES * 1e6, seconds[1] / QUERIES * 1e6,
               100.0 * same / all);
    free(x);
    infer_vindex_close(index);
    return st;
}

int main(int argc, char **argv)
{
    infer_error err = { 0 };
    infer_vindex *index = NULL;
    infer_model *model = NULL;
    int rounds = argc > 3 ? atoi(argv[3]) : 5, tokens = argc > 4 ? atoi(argv[4]) : 64;
    if (argc < 3 || argc > 5 || rounds < 1 || rounds > MAX_ROUNDS || tokens < 1) {
        fprintf(stderr, "usage: %s MODEL VINDEX [ROUNDS [TOKENS]]\n", argv[0]);
        return 2;
    }
    infer_status st = infer_vindex_open(&index, argv[2], NULL, &err);
    infer_model_options how = { .ffn = index };
    if (!st) st = infer_model_open(&model, argv[1], &how, &err);
    if (!st) st = compare(model, rounds, tokens, &err);
    if (!st) st = search(argv[2], &err);
    infer_model_close(model);
    infer_vindex_close(index);
    if (st) fprintf(stderr, "bench_walk_inference: %s\n", err.msg);
    return st != INFER_OK;
}
