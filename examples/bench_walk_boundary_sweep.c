/*
 * bench_walk_boundary_sweep.c: the FFN from an index, layer by layer: for every boundary B the
 * layers before B run from the model's weights, the others from the index, and the likeliest token
 * is compared with that of the model alone.
 *
 *     bench_walk_boundary_sweep MODEL VINDEX [PROMPT …]
 */
#include <infer_vindex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_PROMPTS 16

static const char *const usual[] = { "The capital of France is", "Water boils when it is",
                                     "The opposite of hot is", "One, two, three,",
                                     "The sun rises in the" };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Logits [n_prompts, n_vocab] after each prompt, with layers from `from` on out of the index. */
static infer_status run(const infer_model *model, int from, const char *const *prompts, int n,
                        float *logits, int n_vocab, infer_error *err)
{
    infer_session *session = NULL;
    infer_session_options options = { .n_ctx = 256, .walk_from = from };
    infer_status st = infer_session_new(&session, model, &options, err);
    for (int i = 0; i < n && !st; i++) {
        int32_t *ids = NULL;
        size_t n_ids = 0;
        infer_session_clear(session);
        infer_sequence *seq = infer_session_sequence(session);
        st = infer_tokenize(infer_model_tokenizer(model), &ids, &n_ids, prompts[i],
                            strlen(prompts[i]), NULL, err);
        for (size_t k = 0; k < n_ids && !st; k++) {
            infer_row row = { .seq = seq, .token = ids[k], .want = INFER_WANT_LOGITS };
            st = infer_step(infer_session_engine(session), &row, 1, err);
        }
        if (!st && n_ids)
            memcpy(logits + (size_t)i * (size_t)n_vocab,
                   infer_logits(infer_session_engine(session), 0),
                   (size_t)n_vocab * sizeof *logits);
        infer_free(ids);
    }
    infer_session_free(session);
    return st;
}

static int sweep(const infer_model *model, const char *const *prompts, int n, infer_error *err)
{
    infer_model_info info = infer_model_describe(model);
    size_t size = (size_t)n * (size_t)info.n_vocab;
    float *dense = malloc(size * sizeof *dense), *walk = malloc(size * sizeof *walk);
    int wrong = 0;
    infer_status st = INFER_NOMEM;
    if (dense && walk) st = run(model, info.n_layers, prompts, n, dense, info.n_vocab, err);
    if (!st) printf("boundary  from index  top-1   largest difference  seconds\n");
    for (int b = 0; b <= info.n_layers && !st; b++) {
        double from = now(), most = 0;
        int same = 0;
        st = run(model, b, prompts, n, walk, info.n_vocab, err);
        for (int i = 0; i < n && !st; i++) {
            const float *p = dense + (size_t)i * (size_t)info.n_vocab;
            const float *q = walk + (size_t)i * (size_t)info.n_vocab;
            infer_prediction a, c;
            infer_top_k(p, info.n_vocab, 1, &a);
            infer_top_k(q, info.n_vocab, 1, &c);
            same += a.id == c.id;
            for (int k = 0; k < info.n_vocab; k++)
                most = fmax(most, fabs((double)p[k] - (double)q[k]));
        }
        if (!st)
            printf("%8d  %10d  %2d/%-2d  %19.6f  %7.2f\n", b, info.n_layers - b, same, n, most,
                   now() - from);
        wrong += same != n;
    }
    free(dense);
    free(walk);
    if (!st) printf("%s\n", wrong ? "not equal at every boundary" : "equal at every boundary");
    return st || wrong;
}

int main(int argc, char **argv)
{
    infer_error err = { 0 };
    infer_vindex *index = NULL;
    infer_model *model = NULL;
    if (argc < 3 || argc > 3 + MAX_PROMPTS) {
        fprintf(stderr, "usage: %s MODEL VINDEX [PROMPT ...]\n", argv[0]);
        return 2;
    }
    int n = argc > 3 ? argc - 3 : (int)(sizeof usual / sizeof *usual), failed = 1;
    const char *const *prompts = argc > 3 ? (const char *const *)(argv + 3) : usual;
    if (!infer_vindex_open(&index, argv[2], NULL, &err)) {
        infer_model_options options = { .ffn = index };
        if (!infer_model_open(&model, argv[1], &options, &err))
            failed = sweep(model, prompts, n, &err);
    }
    infer_model_close(model);
    infer_vindex_close(index);
    if (err.code) fprintf(stderr, "bench_walk_boundary_sweep: %s\n", err.msg);
    return failed;
}
