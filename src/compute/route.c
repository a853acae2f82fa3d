/*
 * route.c: top-k routing in its variants: Switch and Mixtral (softmax), DeepSeek-V2 (groups by
 * their best), DeepSeek-V3 (sigmoid, a bias that weighs in the choice alone, groups by their two
 * best), gpt-oss (softmax of the chosen logits).
 */
#include "compute/route.h"

#include <math.h>

static void softmax(float *p, const float *x, int n)
{
    float top = x[0];
    double sum = 0;
    for (int i = 1; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    for (int i = 0; i < n; i++)
        p[i] = (float)(exp((double)x[i] - top) / sum);
}

/* Index of the largest of x [n]; ties to the lowest. */
static int best(const float *x, int n)
{
    int b = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[b] || isnan(x[b])) b = i;
    return b;
}

static float group_score(const float *x, int n, bool top2)
{
    int first = best(x, n);
    if (!top2) return x[first];
    float second = -INFINITY;
    for (int i = 0; i < n; i++)
        if (i != first && x[i] > second) second = x[i];
    return x[first] + second;
}

/* Scores of experts outside the best groups become -inf. */
static void keep_best_groups(const route_args *a, float *choice)
{
    int size = a->n_experts / a->n_groups;
    for (int drop = a->n_groups - a->n_groups_used; drop > 0; drop--) {
        int worst = -1;
        float least = INFINITY;
        for (int g = 0; g < a->n_groups; g++) {
            if (choice[g * size] == -INFINITY) continue; // dropped before
            float s = group_score(choice + g * size, size, a->group_top2);
            if (worst < 0 || s <= least) worst = g, least = s;
        }
        for (int i = 0; worst >= 0 && i < size; i++)
            choice[worst * size + i] = -INFINITY;
    }
}

void route_row(const route_args *a, const float *logits, int32_t *expert, float *weight,
               float *scratch)
{
    float *score = scratch, *choice = scratch + a->n_experts;
    if (a->score == ROUTE_SOFTMAX) {
        softmax(score, logits, a->n_experts);
    } else {
        for (int i = 0; i < a->n_experts; i++)
            score[i] =
                a->score == ROUTE_SIGMOID ? (float)(1 / (1 + exp(-(double)logits[i]))) : logits[i];
    }
    for (int i = 0; i < a->n_experts; i++)
        choice[i] = score[i] + (a->select_bias ? a->select_bias[i] : 0.0f);
    if (a->n_groups > 1) keep_best_groups(a, choice);
    for (int j = 0; j < a->n_used; j++) {
        expert[j] = best(choice, a->n_experts);
        weight[j] = score[expert[j]];
        choice[expert[j]] = -INFINITY;
    }
    if (a->score == ROUTE_SOFTMAX_USED) softmax(weight, weight, a->n_used);
    if (a->renormalise) {
        double sum = 0;
        for (int j = 0; j < a->n_used; j++)
            sum += weight[j];
        for (int j = 0; j < a->n_used; j++)
            weight[j] = (float)(weight[j] / (sum > 1e-20 ? sum : 1e-20));
    }
    for (int j = 0; j < a->n_used; j++)
        weight[j] *= a->weight_scale * (a->expert_scale ? a->expert_scale[expert[j]] : 1.0f);
}
