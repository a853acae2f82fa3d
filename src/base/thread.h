/*
 * thread.h: a pool whose threads run one function at a time, all at once, and meet at barriers.
 *
 * The caller of pool_run is thread 0. Between jobs the others spin briefly, then sleep on a
 * condition. pool_barrier may be called only inside a job, by every thread.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include "infer_base.h"

typedef struct thread_pool thread_pool;
typedef void thread_fn(void *arg, int thread, int n_threads);

#define MAX_THREADS 256

/* Threads worth using here: physical cores within the affinity mask and the cgroup's CPU quota. */
int thread_count_default(void);
/* Like it, but counting hardware threads. */
int thread_count_logical(void);
/* Either of them, reading /proc and /sys below root; for tests. */
int thread_count_at(const char *root, bool physical);

/* n_threads 0: the default; more than MAX_THREADS is an error. */
infer_status pool_new(thread_pool **out, int n_threads, infer_error *err);
void pool_free(thread_pool *p);
int pool_size(const thread_pool *p);
void pool_run(thread_pool *p, thread_fn *fn, void *arg);
void pool_barrier(thread_pool *p);

/* This thread's share [*begin, *end) of n items, contiguous, in multiples of step. */
static inline void thread_share(int n, int step, int thread, int n_threads, int *begin, int *end)
{
    int blocks = (n + step - 1) / step;
    int b = (int)((long long)blocks * thread / n_threads) * step;
    int e = (int)((long long)blocks * (thread + 1) / n_threads) * step;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

#endif
