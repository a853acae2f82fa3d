/*
 * sample.c: from logits to the next id: penalties, temperature, top-k, top-p, min-p, a seeded draw.
 *
 * Probabilities always come from the whole vocabulary; filters then keep a part of it. Filters only
 * ever remove candidates from the sorted list's end, so the list is cut once by top-k (a partial
 * sort) and twice by sums. The generator is xoshiro256** (Blackman & Vigna 2018), seeded by
 * splitmix64: one seed gives one text on every machine.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/mem.h"
#include "inference/engine.h"

typedef struct candidate {
    int32_t id;
    float p; // logit, then probability
} candidate;

struct infer_sampler {
    infer_sampling how;
    int n_vocab, window; // ids that penalties see
    float *logits;       // [n_vocab] a copy, penalised
    candidate *list;     // [n_vocab]
    int32_t *recent;     // [window] ring of accepted ids
    int32_t *seen;       // [window] its distinct ids
    int n_recent, next;
    int32_t *count;  // [n_vocab] occurrences in recent
    uint32_t *stamp; // [n_vocab] the last call that saw the id
    uint32_t epoch;
    uint64_t seed, state[4];
};

#define DEFAULT_WINDOW 64
#define GREEDY_BELOW 1e-6f

/* ---- random numbers ---- */

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = *x += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t rotate(uint64_t x, int k) { return x << k | x >> (64 - k); }

static uint64_t next_random(uint64_t s[4])
{
    uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

static double uniform(uint64_t s[4]) { return (double)(next_random(s) >> 11) * 0x1p-53; } // [0, 1)

static uint64_t fresh_seed(const void *salt)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t x = (uint64_t)t.tv_sec * 1000000007u + (uint64_t)t.tv_nsec + (uint64_t)(uintptr_t)salt;
    return splitmix(&x) | 1;
}

/* ---- making one ---- */

static infer_status check(const infer_sampling *s, infer_error *err)
{
    fault_list f = { 0 };
    if (!(s->temperature >= 0 && isfinite(s->temperature)))
        fault_add(&f, "temperature: expected 0 or more, found %g", (double)s->temperature);
    if (s->top_k < 0) fault_add(&f, "top_k: expected 0 or more, found %d", s->top_k);
    if (!(s->top_p >= 0 && s->top_p <= 1))
        fault_add(&f, "top_p: expected 0 to 1, found %g", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        fault_add(&f, "min_p: expected 0 to 1, found %g", (double)s->min_p);
    if (!(s->repeat_penalty >= 0 && isfinite(s->repeat_penalty)))
        fault_add(&f, "repeat_penalty: expected more than 0, found %g", (double)s->repeat_penalty);
    if (s->repeat_window < -1)
        fault_add(&f, "repeat_window: expected -1 or more, found %d", s->repeat_window);
    if (!isfinite(s->frequency_penalty))
        fault_add(&f, "frequency_penalty: expected a finite number");
    if (!isfinite(s->presence_penalty)) fault_add(&f, "presence_penalty: expected a finite number");
    return fault_status(&f, err, INFER_ARGUMENT, "sampling");
}

infer_sampler *infer_sampler_new(const infer_sampling *sampling, int n_vocab, int n_ctx,
                                 infer_error *err)
{
    infer_sampling how = { 0 };
    if (sampling) how = *sampling;
    if (check(&how, err)) return NULL;
    if (n_vocab < 1 || n_ctx < 1) {
        error_set(err, INFER_ARGUMENT,
                  "sampler: expected a vocabulary and a context, found %d and %d", n_vocab, n_ctx);
        return NULL;
    }
    infer_sampler *s = mem_zero(1, sizeof *s);
    if (s) {
        s->how = how;
        s->n_vocab = n_vocab;
        s->window = how.repeat_window == 0 ? DEFAULT_WINDOW : how.repeat_window;
        if (s->window < 0 || s->window > n_ctx) s->window = n_ctx;
        s->logits = mem_alloc((size_t)n_vocab, sizeof *s->logits);
        s->list = mem_alloc((size_t)n_vocab, sizeof *s->list);
        s->recent = mem_alloc((size_t)s->window, sizeof *s->recent);
        s->seen = mem_alloc((size_t)s->window, sizeof *s->seen);
    }
    if (s) {
        s->count = mem_zero((size_t)n_vocab, sizeof *s->count);
        s->stamp = mem_zero((size_t)n_vocab, sizeof *s->stamp);
    }
    if (!s || !s->logits || !s->list || !s->recent || !s->seen || !s->count || !s->stamp) {
        infer_sampler_free(s);
        error_set(err, INFER_NOMEM, "sampler: out of memory");
        return NULL;
    }
    s->seed = how.seed ? how.seed : fresh_seed(s);
    uint64_t x = s->seed;
    for (int i = 0; i < 4; i++)
        s->state[i] = splitmix(&x);
    error_clear(err);
    return s;
}

void infer_sampler_free(infer_sampler *s)
{
    if (!s) return;
    mem_free(s->logits);
    mem_free(s->list);
    mem_free(s->recent);
    mem_free(s->seen);
    mem_free(s->count);
    mem_free(s->stamp);
    mem_free(s);
}

uint64_t infer_sampler_seed(const infer_sampler *s) { return s->seed; }

void infer_sampler_accept(infer_sampler *s, int32_t id)
{
    if (id < 0 || id >= s->n_vocab) return;
    if (s->n_recent == s->window) s->count[s->recent[s->next]]--;
    s->count[id]++;
    s->recent[s->next] = id;
    s->next = (s->next + 1) % s->window;
    if (s->n_recent < s->window) s->n_recent++;
}

void sampler_forget(infer_sampler *s)
{
    for (int i = 0; i < s->n_recent; i++)
        s->count[s->recent[i]] = 0;
    s->n_recent = s->next = 0;
}

/* ---- penalties ---- */

static bool penalises(const infer_sampling *h)
{
    return (h->repeat_penalty != 0 && h->repeat_penalty != 1) || h->frequency_penalty != 0 ||
           h->presence_penalty != 0;
}

bool sampler_penalises(const infer_sampler *s) { return penalises(&s->how); }

/* A negative logit is multiplied: dividing it would reward the repeat. */
static float penalised(const infer_sampling *h, float logit, int count)
{
    if (h->repeat_penalty != 0)
        logit = logit > 0 ? logit / h->repeat_penalty : logit * h->repeat_penalty;
    return logit - h->frequency_penalty * (float)count - h->presence_penalty;
}

void infer_penalise(const infer_sampling *h, float *logits, int n_vocab, const int32_t *seen,
                    int n_seen)
{
    if (!penalises(h)) return;
    for (int i = 0; i < n_seen; i++) {
        int count = 0;
        bool first = seen[i] >= 0 && seen[i] < n_vocab;
        for (int k = 0; k < i && first; k++)
            first = seen[k] != seen[i];
        if (!first) continue;
        for (int k = i; k < n_seen; k++)
            count += seen[k] == seen[i];
        logits[seen[i]] = penalised(h, logits[seen[i]], count);
    }
}

/* The distinct ids that penalties see, into s->seen; returns their number. */
static int list_seen(infer_sampler *s)
{
    int n = 0;
    s->epoch++;
    for (int i = 0; i < s->n_recent; i++) {
        int32_t id = s->recent[i];
        if (s->stamp[id] == s->epoch) continue;
        s->stamp[id] = s->epoch;
        s->seen[n++] = id;
    }
    return n;
}

/* The same on the sampler's own counts: s->logits of ids [n], or of all where ids is NULL. */
static void penalise_recent(infer_sampler *s, const int32_t *ids, int n)
{
    int n_seen = ids ? 0 : list_seen(s);
    for (int i = 0; i < n_seen; i++)
        s->logits[s->seen[i]] = penalised(&s->how, s->logits[s->seen[i]], s->count[s->seen[i]]);
    for (int i = 0; ids && i < n; i++)
        if (s->count[ids[i]]) s->logits[i] = penalised(&s->how, s->logits[i], s->count[ids[i]]);
}

/* ---- choosing ---- */

/* Order of candidates: larger first, then the lower id; NaN last. */
static bool before(candidate a, candidate b)
{
    if (isnan(a.p) || isnan(b.p)) return isnan(a.p) != isnan(b.p) ? isnan(b.p) : a.id < b.id;
    return a.p != b.p ? a.p > b.p : a.id < b.id;
}

/* The worst of the heap is on top. */
static void sift_down(candidate *heap, int n, int i)
{
    for (;;) {
        int worst = i, left = 2 * i + 1;
        if (left < n && before(heap[worst], heap[left])) worst = left;
        if (left + 1 < n && before(heap[worst], heap[left + 1])) worst = left + 1;
        if (worst == i) return;
        candidate t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

/* The k best of logits in order into list [k]; ids [n], or NULL: 0, 1, … */
static void best_of(candidate *list, int k, const int32_t *ids, const float *logits, int n)
{
    for (int i = 0; i < k; i++)
        list[i] = (candidate){ ids ? ids[i] : i, logits[i] };
    for (int i = k / 2 - 1; i >= 0; i--)
        sift_down(list, k, i);
    for (int i = k; i < n; i++) {
        candidate c = { ids ? ids[i] : i, logits[i] };
        if (!before(c, list[0])) continue;
        list[0] = c;
        sift_down(list, k, 0);
    }
    for (int m = k - 1; m > 0; m--) { // worst to the end, one after another
        candidate t = list[0];
        list[0] = list[m];
        list[m] = t;
        sift_down(list, m, 0);
    }
}

static int32_t greedy(const float *logits, int n)
{
    int32_t best = -1;
    for (int i = 0; i < n; i++)
        if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
    return best;
}

/* Turns the list's scores into probabilities of exp(score / temperature), unnormalised; returns
 * their sum. The first is the largest. */
static double soften(candidate *list, int n, float temperature)
{
    float top = list[0].p;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        // Infinite logits: all equal to the top share it.
        double x = list[i].p == top ? 0 : ((double)list[i].p - top) / temperature;
        list[i].p = isnan(list[i].p) ? 0.0f : (float)exp(x);
        sum += list[i].p;
    }
    return sum;
}

int infer_sampler_top(infer_sampler *s, const int32_t **also, int *n_also)
{
    const infer_sampling *h = &s->how;
    *also = NULL;
    *n_also = 0;
    int k = h->temperature < GREEDY_BELOW ? 1 : h->top_k;
    if (k < 1 || k >= s->n_vocab) return 0;
    // What a penalty moves is looked at whatever it is; all others keep their order.
    if (penalises(h)) {
        *n_also = list_seen(s);
        *also = s->seen;
    }
    return k;
}

/* The choice among n ids, which are ascending; ids NULL: all. */
static int32_t choose(infer_sampler *s, const int32_t *ids, const float *logits, int n)
{
    const infer_sampling *h = &s->how;
    if (penalises(h)) {
        memcpy(s->logits, logits, (size_t)n * sizeof *logits);
        penalise_recent(s, ids, n);
        logits = s->logits;
    }
    int32_t top = greedy(logits, n);
    if (top < 0) return -1;
    if (h->temperature < GREEDY_BELOW) return ids ? ids[top] : top;

    int n_all = n;
    bool cut = h->top_k > 0 && h->top_k < n, sorted = cut || (h->top_p > 0 && h->top_p < 1);
    if (cut) n = h->top_k;
    candidate *list = s->list;
    if (sorted) {
        best_of(list, n, ids, logits, n_all);
    } else { // only the largest must stand first
        for (int i = 0; i < n; i++)
            list[i] = (candidate){ ids ? ids[i] : i, logits[i] };
        candidate first = list[top];
        list[top] = list[0];
        list[0] = first;
    }
    double sum = soften(list, n, h->temperature);
    if (h->top_p > 0 && h->top_p < 1) {
        double part = 0;
        int keep = 0;
        while (keep < n && (keep == 0 || part < h->top_p * sum))
            part += list[keep++].p;
        n = keep;
        sum = part;
    }
    if (h->min_p > 0) {
        int keep = 0;
        double part = 0;
        float least = h->min_p * list[0].p;
        for (int i = 0; i < n; i++)
            if (list[i].p >= least) part += (list[keep++] = list[i]).p;
        n = keep;
        sum = part;
    }
    double at = uniform(s->state) * sum;
    for (int i = 0; i < n; i++) {
        at -= list[i].p;
        if (at < 0) return list[i].id;
    }
    return list[0].id; // rounding left a remainder
}

int32_t infer_sample(infer_sampler *s, const float *logits)
{
    return choose(s, NULL, logits, s->n_vocab);
}

int32_t infer_sample_top(infer_sampler *s, const int32_t *ids, const float *logits, int n)
{
    return n < 1 || n > s->n_vocab ? -1 : choose(s, ids, logits, n);
}

int infer_top_k(const float *logits, int n_vocab, int k, infer_prediction *out)
{
    if (k > n_vocab) k = n_vocab;
    if (k <= 0) return 0;
    candidate *list = mem_alloc((size_t)k, sizeof *list);
    if (!list) return -1;
    best_of(list, k, NULL, logits, n_vocab);
    double sum = 0;
    float top = list[0].p;
    for (int i = 0; i < n_vocab; i++)
        if (!isnan(logits[i])) sum += logits[i] == top ? 1 : exp((double)logits[i] - top);
    for (int i = 0; i < k; i++) {
        double p = list[i].p == top ? 1 : exp((double)list[i].p - top);
        out[i] = (infer_prediction){ list[i].id, list[i].p, isnan(list[i].p) ? 0 : p / sum };
    }
    mem_free(list);
    return k;
}
