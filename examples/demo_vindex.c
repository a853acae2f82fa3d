/*
 * demo_vindex.c: a model as a database: what it knows of an entity, which features a prompt
 * excites, a fact put into it as a patch, and what it predicts before and after. The index is never
 * changed.
 *
 *     demo_vindex VINDEX [ENTITY RELATION TARGET [ALPHA]]
 */
#include <infer_vindex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void describe(const infer_vindex *index, const char *entity, infer_error *err)
{
    infer_edge edges[8];
    infer_query query = { .band = "all", .contrast = true };
    int n = infer_vindex_describe(index, entity, edges, 8, &query, err);
    printf("describe %s\n", entity);
    for (int i = 0; i < n; i++)
        printf("  %-20s layers %2d to %2d, score %.2f\n", edges[i].target, edges[i].first_layer,
               edges[i].last_layer, (double)edges[i].score);
}

static void walk(const infer_vindex *index, const char *prompt, infer_error *err)
{
    infer_hit hits[256];
    infer_query query = { .band = "all" };
    int layers = infer_vindex_describe_index(index).n_layers;
    int n = layers <= 256 ? infer_vindex_walk(index, prompt, hits, 1, &query, err) : 0;
    printf("walk '%s'\n", prompt);
    for (int i = 0; i < n; i++)
        printf("  layer %2d  feature %5d  %8.3f  %s\n", hits[i].layer, hits[i].feature,
               (double)hits[i].score,
               hits[i].token >= 0 ? infer_vindex_token(index, hits[i].token) : "");
}

/* Opens the index as a model, with the patch laid over it. */
static infer_status predict(const char *path, const infer_vindex *index, const infer_patch *patch,
                            const char *prompt, infer_error *err)
{
    infer_model *model = NULL;
    infer_session *session = NULL;
    infer_model_options how = { .ffn = index, .patch = patch };
    infer_session_options options = { .n_ctx = 256 };
    int32_t *ids = NULL;
    size_t n = 0;
    infer_status st = infer_model_open(&model, path, &how, err);
    if (!st) st = infer_session_new(&session, model, &options, err);
    if (!st)
        st = infer_tokenize(infer_model_tokenizer(model), &ids, &n, prompt, strlen(prompt), NULL,
                            err);
    for (size_t i = 0; i < n && !st; i++) {
        infer_row row = { .seq = infer_session_sequence(session),
                          .token = ids[i],
                          .want = INFER_WANT_LOGITS };
        st = infer_step(infer_session_engine(session), &row, 1, err);
    }
    if (!st && n) {
        infer_prediction best[3];
        const float *logits = infer_logits(infer_session_engine(session), 0);
        int found = infer_top_k(logits, infer_model_describe(model).n_vocab, 3, best);
        printf("predict '%s'%s\n", prompt, patch ? ", patched" : "");
        for (int i = 0; i < found; i++)
            printf("  %-20s %5.1f%%\n", infer_vindex_token(index, best[i].id),
                   100 * best[i].probability);
    }
    infer_free(ids);
    infer_session_free(session);
    infer_model_close(model);
    return st;
}

static infer_status insert(const char *path, const infer_vindex *index, infer_patch *patch,
                           const infer_fact *fact, float alpha, infer_error *err)
{
    infer_model *model = NULL;
    infer_model_options how = { .ffn = index };
    infer_insert_options options = { .alpha = alpha }; // 0: what it takes
    infer_status st = infer_model_open(&model, path, &how, err);
    if (!st) st = infer_insert(model, patch, fact, &options, err);
    infer_model_close(model);
    if (!st)
        printf("insert %s, %s: %s: %d features\n", fact->entity, fact->relation, fact->target,
               infer_patch_n_operations(patch));
    return st;
}

int main(int argc, char **argv)
{
    infer_error err = { 0 };
    infer_vindex *index = NULL;
    infer_patch *patch = NULL;
    infer_fact fact = { "Atlantis", "capital", "Poseidon" };
    char prompt[512];
    if (argc != 2 && argc != 5 && argc != 6) {
        fprintf(stderr, "usage: %s VINDEX [ENTITY RELATION TARGET [ALPHA]]\n", argv[0]);
        return 2;
    }
    if (argc >= 5) fact = (infer_fact){ argv[2], argv[3], argv[4] };
    snprintf(prompt, sizeof prompt, "The %s of %s is", fact.relation, fact.entity);
    infer_status st = infer_vindex_open(&index, argv[1], NULL, &err);
    if (!st) {
        describe(index, fact.entity, &err);
        walk(index, prompt, &err);
        st = err.code;
    }
    if (!st) st = predict(argv[1], index, NULL, prompt, &err);
    if (!st && !(patch = infer_patch_new(index, &err))) st = err.code;
    if (!st) st = insert(argv[1], index, patch, &fact, argc == 6 ? strtof(argv[5], NULL) : 0, &err);
    if (!st) st = predict(argv[1], index, patch, prompt, &err);
    infer_patch_free(patch);
    infer_vindex_close(index);
    if (st) fprintf(stderr, "demo_vindex: %s\n", err.msg);
    return st != INFER_OK;
}
