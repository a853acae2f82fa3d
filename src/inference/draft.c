/* draft.c: the index of the text, and the account of what drafts cost and gain. */
#include "inference/draft.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"

#define SHORTEST 2     // tokens that must repeat
#define LONGEST 32     // repetitions are not told apart beyond
#define CANDIDATES 16  // places compared
#define N_SIZES 4      // of drafts: kernels like powers of two rows, so 1, 3, 7 or 15 tokens ahead
#define N_CLASSES 6    // of repetitions by length
#define SHARE 0.02     // of the time that drafts may lose in all
#define ADVANCE 1.0    // steps that they may lose before there is a time to have a share of
#define MOST_SAVED 8.0 // steps won that may be lost again
#define MARGIN 1.04    // what is expected must be better by this, for it is only measured
#define STEPS_UNTIL_SINGLE 128

struct draft {
    int n_ctx;
    /* Places are indices of the token after a pair; the latest of a pair's hash is in head, the
     * others follow by earlier. Invariant: earlier[p] < p, so that every chain ends, and what a
     * truncated text left behind is passed over. */
    int32_t *head, *earlier; // [mask + 1], [n_ctx + 1]; place + 1, 0: none
    uint32_t mask;
    int n_indexed;

    double single, step[N_SIZES]; // seconds; 0: not yet measured
    int n_single, since_single;
    double hits[N_CLASSES], tries[N_CLASSES];
    double time, balance; // seconds: of all steps; won less lost
    /* The last proposal. */
    int size, class, n;
    double seconds;
};

static const int sizes[N_SIZES] = { 1, 3, 7, 15 };
/* Times of a step over that of a single one, before any was measured. */
static const double guessed[N_SIZES] = { 1.2, 1.6, 2.6, 4.5 };
static const double prior[N_CLASSES] = { 0.3, 0.45, 0.55, 0.7, 0.85, 0.95 };

infer_status draft_new(draft **out, int n_ctx, infer_error *err)
{
    *out = NULL;
    draft *d = mem_zero(1, sizeof *d);
    uint32_t n = 256;
    while (n < (uint32_t)n_ctx)
        n *= 2;
    if (d) {
        d->n_ctx = n_ctx;
        d->mask = n - 1;
        d->head = mem_pages((size_t)n * sizeof(int32_t)); // costs what is touched
        d->earlier = mem_pages(((size_t)n_ctx + 1) * sizeof(int32_t));
    }
    if (!d || !d->head || !d->earlier) {
        draft_free(d);
        return error_set(err, INFER_NOMEM, "draft: out of memory");
    }
    for (int c = 0; c < N_CLASSES; c++) {
        d->tries[c] = 4;
        d->hits[c] = prior[c] * d->tries[c];
    }
    *out = d;
    return error_clear(err);
}

void draft_free(draft *d)
{
    if (!d) return;
    mem_free_pages(d->head, ((size_t)d->mask + 1) * sizeof(int32_t));
    mem_free_pages(d->earlier, ((size_t)d->n_ctx + 1) * sizeof(int32_t));
    mem_free(d);
}

void draft_cut(draft *d, int n)
{
    if (d->n_indexed > n) d->n_indexed = n;
}

/* ---- where it stood before ---- */

static int32_t *head_of(draft *d, const int32_t *ids, int place)
{
    uint32_t h = (uint32_t)ids[place - 2] * 0x9e3779b1u ^ (uint32_t)ids[place - 1] * 0x85ebca6bu;
    return &d->head[(h ^ h >> 15) & d->mask];
}

/* Indexes the places before n. */
static void index_text(draft *d, const int32_t *ids, int n)
{
    for (int p = d->n_indexed < SHORTEST ? SHORTEST : d->n_indexed; p < n; p++) {
        int32_t *head = head_of(d, ids, p), next = *head;
        while (next > p)
            next = d->earlier[next - 1];
        d->earlier[p] = next;
        *head = p + 1;
    }
    d->n_indexed = n;
}

/* The longest repetition of the text's end, the latest of equals: its length and what follows. */
static int find(draft *d, const int32_t *ids, int n, int *follows)
{
    int longest = 0;
    if (n < SHORTEST + 1) return 0;
    index_text(d, ids, n);
    int32_t p = *head_of(d, ids, n);
    for (int i = 0; p && i < CANDIDATES && longest < LONGEST; p = d->earlier[p - 1]) {
        int place = p - 1, length = 0;
        if (place >= n) continue;
        while (length < LONGEST && length < place && ids[place - 1 - length] == ids[n - 1 - length])
            length++;
        if (length >= SHORTEST && length > longest) {
            longest = length;
            *follows = place;
        }
        i++;
    }
    return longest;
}

/* ---- whether it pays ---- */

static int class_of(int length)
{
    return length < 3 ? 0 : length < 4 ? 1 : length < 6 ? 2 : length < 10 ? 3 : length < 18 ? 4 : 5;
}

static double step_time(const draft *d, int size)
{
    return d->step[size] > 0 ? d->step[size] : guessed[size] * d->single;
}

/* Tokens that a step with n drafted ones gives when each holds with p. */
static double expected(double p, int n)
{
    double sum = 1, all = 1;
    for (int i = 0; i < n; i++)
        sum += all *= p;
    return sum;
}

/* The size that promises most, -1 where none is better than a single step. */
static int choose_size(draft *d, int most)
{
    double p = d->hits[d->class] / d->tries[d->class], best = MARGIN / d->single;
    double allowance = SHARE * d->time + ADVANCE * d->single + d->balance;
    int chosen = -1;
    if (d->n_single < 2 || d->since_single >= STEPS_UNTIL_SINGLE) return -1;
    for (int i = 0; i < N_SIZES && sizes[i] <= most; i++) {
        double t = step_time(d, i), rate = expected(p, sizes[i]) / t;
        // What was slow once is looked at again in time.
        if (d->step[i] > 0) d->step[i] += 0.002 * (guessed[i] * d->single - d->step[i]);
        if (rate <= best || t - d->single > allowance) continue;
        best = rate;
        chosen = i;
    }
    return chosen;
}

int draft_propose(draft *d, int32_t *out, const int32_t *ids, int n, int most, bool always)
{
    int follows = 0, length = find(d, ids, n, &follows);
    d->n = 0;
    d->size = -1;
    if (most > DRAFT_MOST) most = DRAFT_MOST;
    if (!length || most < 1) return 0;
    d->class = class_of(length);
    d->size = choose_size(d, most);
    d->n = always ? most : d->size < 0 ? 0 : sizes[d->size];
    for (int i = 0; i < d->n; i++) // a repetition may reach into what it foretells
        out[i] = follows + i < n ? ids[follows + i] : out[follows + i - n];
    return d->n;
}

/* Moves an estimate: slow steps may be somebody else's doing, fast ones are ours. */
static void estimate(double *t, double seconds)
{
    if (*t <= 0)
        *t = seconds;
    else
        *t += (seconds < *t ? 0.4 : 0.1) * (seconds - *t);
}

void draft_timed(draft *d, int n_drafted, double seconds)
{
    int size = 0;
    while (size < N_SIZES && sizes[size] != n_drafted)
        size++;
    // The process may have stood still.
    if (d->single > 0 && n_drafted && seconds > 16 * d->single) seconds = 16 * d->single;
    if (d->single > 0 && !n_drafted && seconds > 4 * d->single) seconds = 4 * d->single;
    d->seconds = seconds;
    d->time += seconds;
    if (n_drafted) {
        if (size < N_SIZES) estimate(&d->step[size], seconds);
        d->since_single++;
        return;
    }
    estimate(&d->single, seconds);
    d->n_single++;
    d->since_single = 0;
}

void draft_held(draft *d, int n_held, bool settled)
{
    if (!d->n) return;
    d->balance += (n_held + 1) * d->single - d->seconds;
    if (d->balance > MOST_SAVED * d->single) d->balance = MOST_SAVED * d->single;
    d->hits[d->class] += n_held;
    d->tries[d->class] += n_held + (settled && n_held < d->n);
    if (d->tries[d->class] > 24) { // what held lately counts more
        d->tries[d->class] /= 2;
        d->hits[d->class] /= 2;
    }
    d->n = 0;
}
