/* test_facts.c: knn_store.bin: the known answer of the format, and what stands of base and patch.
 */
#include "test.h"

#include "base/mem.h"
#include "base/sha.h"
#include "models/vindex_dir.h"
#include "vindex/facts.h"

enum { D = 4, LAYERS = 5, VOCAB = 10000 };

static infer_patch *patch_of(infer_vindex *v)
{
    *v = (infer_vindex){
        .path = (char *)"test", .n_layers = LAYERS, .d_model = D, .n_vocab = VOCAB
    };
    infer_patch *p = infer_patch_new(v, NULL);
    assert_non_null(p);
    return p;
}

static infer_status add(infer_patch *p, int layer, const float *key, const char *entity,
                        int32_t token)
{
    patch_op op = { .kind = PATCH_INSERT_KNN,
                    .layer = layer,
                    .token = token,
                    .has_confidence = true,
                    .confidence = 0.9f,
                    .gate = mem_alloc(D, sizeof(float)),
                    .entity = mem_strdup(entity),
                    .relation = mem_strdup("capital"),
                    .target = mem_strdup("Poseidonis") };
    memcpy(op.gate, key, D * sizeof(float));
    return patch_add(p, &op, NULL);
}

static void known_answer(void **state)
{
    (void)state;
    infer_vindex v;
    infer_patch *p = patch_of(&v);
    char *text = NULL, hex[65];
    size_t n = 0;
    assert_int_equal(add(p, 3, (float[]){ 1, 2, 3, 4 }, "Atlantis", 9079), INFER_OK);
    FILE *f = open_memstream(&text, &n);
    assert_int_equal(facts_write(f, &v, p, NULL), INFER_OK);
    fclose(f);
    assert_int_equal(n, 142);
    sha_state s;
    sha256_init(&s);
    sha_add(&s, text, n);
    sha_end(&s, hex);
    assert_string_equal(hex, "cb910741a247b972a9bad5993592db1d0bfe20bba74e98ad5b1dd3d95e0afd27");
    free(text);
    infer_patch_free(p);
}

static void the_nearest_of_the_first_layer(void **state)
{
    (void)state;
    infer_vindex v;
    infer_patch *p = patch_of(&v);
    infer_knn_fact f;
    float x[LAYERS * D] = { 0 };
    add(p, 1, (float[]){ 10, 0, 0, 0 }, "a", 1);
    add(p, 1, (float[]){ 1, 1, 0, 0 }, "b", 2);
    add(p, 3, (float[]){ 0, 0, 0, 2 }, "c", 3);
    add(p, 3, (float[]){ 0, 0, 0, 5 }, "d", 4);
    assert_int_equal(infer_vindex_n_facts(&v, p), 4);
    assert_int_equal(infer_vindex_recall(&v, p, x, 0, &f, NULL), 0); // no length, no direction
    x[3 * D + 3] = 7;
    assert_int_equal(infer_vindex_recall(&v, p, x, 0, &f, NULL), 1);
    assert_int_equal(f.token, 3); // among equals the first
    assert_true(f.layer == 3 && f.cosine == 1);
    x[1 * D] = 3;
    x[1 * D + 1] = 1; // 0.949 and 0.894
    assert_int_equal(infer_vindex_recall(&v, p, x, 0, &f, NULL), 1);
    assert_int_equal(f.token, 1);
    assert_true(f.cosine > 0.948f && f.cosine < 0.949f);
    assert_int_equal(infer_vindex_recall(&v, p, x, 0.95f, &f, NULL), 1);
    assert_int_equal(f.token, 3);
    x[1 * D + 1] = 3;
    assert_int_equal(infer_vindex_recall(&v, p, x, 0, &f, NULL), 1);
    assert_int_equal(f.token, 2);
    patch_op gone = { .kind = PATCH_DELETE_KNN, .entity = mem_strdup("B") };
    assert_int_equal(patch_add(p, &gone, NULL), INFER_OK);
    assert_int_equal(infer_vindex_n_facts(&v, p), 3);
    assert_int_equal(infer_vindex_recall(&v, p, x, 0, &f, NULL), 1);
    assert_int_equal(f.token, 3); // a's 0.707 is too little
    add(p, 1, (float[]){ 1, 1, 0, 0 }, "b", 9);
    assert_int_equal(infer_vindex_recall(&v, p, x, 0, &f, NULL), 1);
    assert_int_equal(f.token, 9); // put in after it was taken out
    assert_int_equal(add(p, 1, x, "z", VOCAB), INFER_ARGUMENT);
    infer_patch_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answer),
        cmocka_unit_test(the_nearest_of_the_first_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
