/*
 * test_kv_types.c: every type of the KV cache, K and V apart: a row's bits do not depend on chunks,
 * neighbours, threads or level, over contexts long enough to be shared among threads, with and
 * without a window; forks, truncation; what is refused.
 */
#define TINY_HEAD_DIM 32
#define TINY_CONTEXT 1024
#include "tiny_model.h"

#include <math.h>

#include "infer.h"

enum { N = 610, WINDOW = 300, MOST_ROWS = 640 };

/* K and V; the first is what the others are compared with. */
static const struct {
    const char *k, *v;
    double near; // of f32's logits
    int bytes;   // of a tile's dimension of K and one of V
} types[] = {
    { "f32", "f32", 0, 512 },      { "f16", "f16", 1, 256 },   { "bf16", "bf16", 1, 256 },
    { "q8_0", "q8_0", 1, 136 },    { "q8_0", "q4_0", 1, 104 }, { "f16", "q4_0", 1, 164 },
    { "bf16", "q8_0", 1, 128 + 68 }, { "q8_0", "f16", 1, 68 + 128 },
};
enum { N_TYPES = sizeof types / sizeof *types };
static infer_model *models[2]; // all positions seen, and a window
static char folder[1024];

static infer_model *open_tiny(const char *arch, bool gemma)
{
    gguf_out g = { 0 };
    infer_error err;
    infer_model *m;
    char path[1200];
    tiny_keys(&g, arch);
    if (gemma) gg_u32(&g, "gemma3.attention.sliding_window", WINDOW);
    tiny_data(&g, gemma, NULL);
    blob file = gg_finish(&g);
    snprintf(path, sizeof path, "%s/%s.gguf", folder, arch);
    test_write(path, file.p, file.n);
    blob_free(&file);
    if (infer_model_open(&m, path, NULL, &err)) fail_msg("%s", err.msg);
    return m;
}

static infer_engine *engine(const infer_model *m, infer_engine_options o)
{
    infer_error err;
    infer_engine *e;
    o.n_kv_tokens = 4 * TINY_CTX;
    o.max_rows = MOST_ROWS;
    if (infer_engine_new(&e, m, &o, &err)) fail_msg("%s", err.msg);
    return e;
}

static int32_t token(int pos) { return (pos * 37 + 11) % TINY_VOCAB; }

/* Feeds positions up to `to`, `chunk` a step, beside rows of `other`; the last row's logits to z. */
static void feed(infer_engine *e, infer_sequence *s, int to, int chunk, infer_sequence *other,
                 float *z)
{
    static infer_row rows[MOST_ROWS];
    infer_error err;
    for (int pos = infer_sequence_length(s); pos < to;) {
        int n = 0, mine = to - pos < chunk ? to - pos : chunk;
        if (other) rows[n++] = (infer_row){ .seq = other, .token = 5 };
        for (int i = 0; i < mine; i++)
            rows[n++] = (infer_row){ .seq = s, .token = token(pos + i), .want = INFER_WANT_LOGITS };
        if (infer_step(e, rows, n, &err)) fail_msg("%s", err.msg);
        memcpy(z, infer_logits(e, n - 1), TINY_VOCAB * sizeof *z);
        pos += mine;
    }
}

static void a_row_depends_on_its_sequence_alone(void **state)
{
    (void)state;
    static const int chunks[] = { 1, 7, 64, N };
    for (int i = 0; i < N_TYPES; i++) {
        float want[2][TINY_VOCAB], z[TINY_VOCAB];
        bool have[2] = { false, false };
        for (int level = 0; infer_cpu_level(level, NULL); level++) {
            bool here;
            const char *name = infer_cpu_level(level, &here);
            for (int c = level ? 0 : 3; here && c < 4; c++) // ref is slow
                for (int m = 0; m < 2; m++) {
                    infer_engine *e = engine(models[m], (infer_engine_options){
                        .n_threads = c + 1, .cpu_level = name, .kv_type_k = types[i].k,
                        .kv_type_v = types[i].v });
                    infer_sequence *s = infer_sequence_new(e, NULL);
                    infer_sequence *other = infer_sequence_new(e, NULL);
                    feed(e, s, N, chunks[c], c % 2 ? other : NULL, z);
                    if (!have[m]) memcpy(want[m], z, sizeof z);
                    have[m] = true;
                    assert_memory_equal(z, want[m], sizeof z);
                    infer_sequence_free(s);
                    infer_sequence_free(other);
                    infer_engine_free(e);
                }
        }
    }
}

/* A long prompt, then a fork that goes its own way, and a truncation: as if fed from the start. */
static void forks_and_truncation_change_no_bit(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_TYPES; i++) {
        float want[TINY_VOCAB], z[TINY_VOCAB], zf[TINY_VOCAB];
        infer_engine *e = engine(models[i / N_TYPES], (infer_engine_options){
            .n_threads = 2, .kv_type_k = types[i % N_TYPES].k, .kv_type_v = types[i % N_TYPES].v });
        infer_sequence *s = infer_sequence_new(e, NULL), *fork;
        feed(e, s, 590, 590, NULL, z);
        fork = infer_sequence_fork(s, NULL);
        feed(e, s, N, 1, NULL, want);
        feed(e, fork, N, 3, s, zf); // writes to s between
        assert_memory_equal(zf, want, sizeof want);
        assert_int_equal(infer_sequence_truncate(fork, 580, NULL), INFER_OK);
        feed(e, fork, N, 20, NULL, z);
        assert_memory_equal(z, want, sizeof want);
        infer_sequence_free(s);
        infer_sequence_free(fork);
        infer_engine_free(e);
    }
}

static double worst(const float *a, const float *b)
{
    double most = 0;
    for (int i = 0; i < TINY_VOCAB; i++)
        most = fabs((double)(a[i] - b[i])) > most ? fabs((double)(a[i] - b[i])) : most;
    return most;
}

/* Each type is near f32, in the order of its bits, and costs what its bits say. */
static void types_round_as_they_say(void **state)
{
    (void)state;
    float exact[TINY_VOCAB], z[TINY_VOCAB];
    uint64_t bytes = 0;
    for (int i = 0; i < N_TYPES; i++) {
        infer_engine *e = engine(models[0], (infer_engine_options){
            .kv_type = types[i].v, .kv_type_k = types[i].k });
        infer_sequence *s = infer_sequence_new(e, NULL);
        infer_engine_info info = infer_engine_describe(e);
        feed(e, s, 300, 300, NULL, i ? z : exact);
        if (!i) bytes = info.kv_bytes;
        assert_true(worst(i ? z : exact, exact) <= types[i].near);
        assert_string_equal(info.kv_type_k, types[i].k);
        assert_string_equal(info.kv_type_v, types[i].v);
        assert_true(info.kv_bytes == bytes / 512 * (uint64_t)types[i].bytes);
        infer_sequence_free(s);
        infer_engine_free(e);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    infer_engine *e;
    infer_error err;
    infer_engine_options o = { .kv_type_k = "q5_0" };
    assert_int_equal(infer_engine_new(&e, models[0], &o, &err), INFER_ARGUMENT);
    assert_non_null(strstr(err.msg, "kv_type_k: expected f32, f16, bf16, q8_0 or q4_0, found 'q5_0'"));
    o = (infer_engine_options){ .kv_type = "q4_0" };
    assert_int_equal(infer_engine_new(&e, models[0], &o, &err), INFER_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "K as q4_0: expected f32, f16, bf16 or q8_0; only V takes q4_0"));
    o = (infer_engine_options){ .kv_type_v = "q8_0", .exact = true };
    assert_int_equal(infer_engine_new(&e, models[0], &o, &err), INFER_ARGUMENT);
    assert_non_null(strstr(err.msg, "kv_type_v: q8_0 rounds"));

    infer_model *narrow; // heads of 16
    assert_int_equal(infer_model_open(&narrow, "tests/golden/tiny/control_gguf_bpe_f32.gguf", NULL,
                                      &err), INFER_OK);
    o = (infer_engine_options){ .kv_type_v = "q8_0" };
    assert_int_equal(infer_engine_new(&e, narrow, &o, &err), INFER_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "V as q8_0: expected heads of a multiple of 32"));
    infer_model_close(narrow);
}

static int open_models(void **state)
{
    (void)state;
    test_folder(folder, sizeof folder);
    models[0] = open_tiny("llama", false);
    models[1] = open_tiny("gemma3", true);
    return 0;
}
static int close_models(void **state)
{
    (void)state;
    infer_model_close(models[0]);
    infer_model_close(models[1]);
    test_remove_folder(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_depends_on_its_sequence_alone),
        cmocka_unit_test(forks_and_truncation_change_no_bit),
        cmocka_unit_test(types_round_as_they_say),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
