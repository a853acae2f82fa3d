/* test_sample.c: penalties, filters, draws against arithmetic done by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "infer.h"

static infer_sampler *sampler(infer_sampling how, int n_vocab)
{
    infer_error err;
    infer_sampler *s = infer_sampler_new(&how, n_vocab, 128, &err);
    assert_non_null(s);
    return s;
}

static void repeat_penalty_multiplies_negative_logits(void **state)
{
    (void)state;
    float z[3] = {2, -2, 0};
    int32_t seen[] = {0, 1};
    infer_penalise(&(infer_sampling){.repeat_penalty = 2}, z, 3, seen, 2);
    assert_true(z[0] == 1 && z[1] == -4 && z[2] == 0);
}

static void penalties_count_occurrences(void **state)
{
    (void)state;
    infer_sampling how = {.frequency_penalty = 0.5f, .presence_penalty = 0.25f};
    float z[4] = {1, 1, 1, 1};
    int32_t seen[] = {2, 0, 2, 2, 99, -1};
    infer_penalise(&how, z, 4, seen, 6);
    assert_true(z[0] == 0.25f && z[1] == 1 && z[2] == -0.75f && z[3] == 1);

    // The sampler's own counts over its window give the same.
    how.repeat_window = 3;
    infer_sampler *s = sampler(how, 4);
    for (int i = 0; i < 3; i++) infer_sampler_accept(s, 1);
    for (int i = 0; i < 3; i++) infer_sampler_accept(s, 0); // 1 has left the window
    float y[4] = {2.6f, 1.2f, 1.3f, 0};
    assert_int_equal(infer_sample(s, y), 2); // 0: 2.6 - 1.75
    infer_sampler_free(s);
}

static void greedy_takes_the_lowest_of_equals_and_never_nan(void **state)
{
    (void)state;
    infer_sampler *s = sampler((infer_sampling){0}, 4);
    assert_int_equal(infer_sample(s, (float[]){NAN, 3, 3, 1}), 1);
    assert_int_equal(infer_sample(s, (float[]){NAN, NAN, NAN, NAN}), -1);
    assert_int_equal(infer_sample(s, (float[]){-INFINITY, -INFINITY, NAN, -INFINITY}), 0);
    infer_sampler_free(s);
    s = sampler((infer_sampling){.temperature = 1e-30f}, 4);
    assert_int_equal(infer_sample(s, (float[]){0, 1, 2, 2}), 2);
    infer_sampler_free(s);
}

/* Frequencies of n draws within 5 standard deviations of p. */
static void check_draws(infer_sampling how, const float *z, const double *p, int n_vocab)
{
    enum { N = 20000 };
    how.seed = 11;
    infer_sampler *s = sampler(how, n_vocab);
    int count[8] = {0};
    for (int i = 0; i < N; i++) count[infer_sample(s, z)]++;
    for (int i = 0; i < n_vocab; i++)
        assert_true(fabs(count[i] - N * p[i]) <= 5 * sqrt(N * p[i] * (1 - p[i])) + 1e-9);
    infer_sampler_free(s);
}

static void draws_follow_the_softmax(void **state)
{
    (void)state;
    float z[4] = {logf(0.4f), logf(0.1f), logf(0.3f), logf(0.2f)};
    check_draws((infer_sampling){.temperature = 1}, z, (double[]){.4, .1, .3, .2}, 4);
    check_draws((infer_sampling){.temperature = 1, .top_k = 2}, z, (double[]){4. / 7, 0, 3. / 7, 0}, 4);
    check_draws((infer_sampling){.temperature = 1, .top_k = 100000}, z, (double[]){.4, .1, .3, .2}, 4);
    check_draws((infer_sampling){.temperature = 1, .top_p = 0.6f}, z, (double[]){4. / 7, 0, 3. / 7, 0}, 4);
    check_draws((infer_sampling){.temperature = 1, .min_p = 0.45f}, z,
                (double[]){4. / 9, 0, 3. / 9, 2. / 9}, 4);
    check_draws((infer_sampling){.temperature = 0.5f}, z,
                (double[]){16. / 30, 1. / 30, 9. / 30, 4. / 30}, 4);
}

static void one_seed_gives_one_text(void **state)
{
    (void)state;
    float z[64];
    for (int i = 0; i < 64; i++) z[i] = (float)(i % 7) * 0.3f;
    int32_t first[20];
    for (int round = 0; round < 3; round++) {
        infer_sampler *s = sampler((infer_sampling){.temperature = 1, .seed = 42}, 64);
        for (int i = 0; i < 20; i++) {
            int32_t id = infer_sample(s, z);
            if (!round) first[i] = id;
            assert_int_equal(id, first[i]);
        }
        infer_sampler_free(s);
    }
    infer_sampler *s = sampler((infer_sampling){.temperature = 1, .seed = 43}, 64);
    int equal = 0;
    for (int i = 0; i < 20; i++) equal += infer_sample(s, z) == first[i];
    assert_true(equal < 20);
    infer_sampler_free(s);
}

static void out_of_range_values_are_all_named(void **state)
{
    (void)state;
    infer_error err;
    infer_sampling bad = {.temperature = -1, .top_k = -1, .top_p = 1.5f, .repeat_penalty = NAN};
    assert_null(infer_sampler_new(&bad, 10, 10, &err));
    assert_int_equal(err.code, INFER_ARGUMENT);
    const char *names[] = {"temperature", "top_k", "top_p", "repeat_penalty"};
    for (int i = 0; i < 4; i++) assert_non_null(strstr(err.msg, names[i]));
}

static void top_k_uses_the_whole_vocabulary(void **state)
{
    (void)state;
    float z[5] = {0, logf(2), NAN, logf(2), logf(5)};
    infer_prediction p[5];
    assert_int_equal(infer_top_k(z, 5, 2, p), 2);
    assert_true(p[0].id == 4 && fabs(p[0].probability - 0.5) < 1e-6);
    assert_true(p[1].id == 1 && fabs(p[1].probability - 0.2) < 1e-6);
    assert_int_equal(infer_top_k(z, 5, 99, p), 5);
    assert_true(p[2].id == 3 && p[3].id == 0 && p[4].id == 2);
    assert_int_equal(infer_top_k(z, 5, 0, p), 0);
}

static void sampling_allocates_nothing(void **state)
{
    (void)state;
    infer_sampler *s = sampler((infer_sampling){.temperature = 1, .top_k = 5, .top_p = 0.9f,
                                                .repeat_penalty = 1.1f, .seed = 1}, 100);
    float z[100] = {0};
    uint64_t before = mem_count();
    for (int i = 0; i < 50; i++) infer_sampler_accept(s, infer_sample(s, z));
    assert_int_equal(mem_count(), before);
    infer_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeat_penalty_multiplies_negative_logits),
        cmocka_unit_test(penalties_count_occurrences),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals_and_never_nan),
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(one_seed_gives_one_text),
        cmocka_unit_test(out_of_range_values_are_all_named),
        cmocka_unit_test(top_k_uses_the_whole_vocabulary),
        cmocka_unit_test(sampling_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
