/* test_route.c: the choice of experts, against results worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "compute/route.h"

static void run(route_args a, const float *logits, const int *expert, const double *weight)
{
    int32_t e[8];
    float w[8], scratch[64];
    a.n_rows = 1;
    if (a.weight_scale == 0) a.weight_scale = 1;
    route_row(&a, logits, e, w, scratch);
    for (int j = 0; j < a.n_used; j++) {
        assert_int_equal(e[j], expert[j]);
        assert_true(fabs(w[j] - weight[j]) < 1e-6);
    }
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void softmax_before_and_after_the_choice(void **state)
{
    (void)state;
    float z[4] = {0, logf(4), logf(2), logf(3)}; // softmax .1 .4 .2 .3
    run((route_args){.n_experts = 4, .n_used = 2}, z, (int[]){1, 3}, (double[]){.4, .3});
    run((route_args){.n_experts = 4, .n_used = 2, .renormalise = true, .weight_scale = 2}, z,
        (int[]){1, 3}, (double[]){8. / 7, 6. / 7});
    run((route_args){.n_experts = 4, .n_used = 2, .score = ROUTE_SOFTMAX_USED}, z, (int[]){1, 3},
        (double[]){4. / 7, 3. / 7});
    run((route_args){.n_experts = 4, .n_used = 1, .expert_scale = (float[]){1, .5f, 1, 1}}, z,
        (int[]){1}, (double[]){.2});
    float equal[3] = {1, 1, 1};
    run((route_args){.n_experts = 3, .n_used = 2}, equal, (int[]){0, 1}, (double[]){1. / 3, 1. / 3});
}

static void the_bias_weighs_in_the_choice_alone(void **state)
{
    (void)state;
    float z[4] = {2, 1, 0, -1}, bias[4] = {0, 0, 0, 5};
    run((route_args){.n_experts = 4, .n_used = 2, .score = ROUTE_SIGMOID, .select_bias = bias}, z,
        (int[]){3, 0}, (double[]){sigmoid(-1), sigmoid(2)});
}

static void groups_limit_the_choice(void **state)
{
    (void)state;
    // Groups {0,1} {2,3} {4,5}; best single in the first, best pair in the second.
    float z[6] = {3, -9, 2, 2, 1, 1};
    route_args a = {.n_experts = 6, .n_used = 2, .score = ROUTE_SIGMOID, .n_groups = 3,
                    .n_groups_used = 1};
    run(a, z, (int[]){0, 1}, (double[]){sigmoid(3), sigmoid(-9)});
    a.group_top2 = true;
    run(a, z, (int[]){2, 3}, (double[]){sigmoid(2), sigmoid(2)});
    a.n_groups_used = 2;
    run(a, z, (int[]){2, 3}, (double[]){sigmoid(2), sigmoid(2)});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_before_and_after_the_choice),
        cmocka_unit_test(the_bias_weighs_in_the_choice_alone),
        cmocka_unit_test(groups_limit_the_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
