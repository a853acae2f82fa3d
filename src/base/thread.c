/*
 * thread.c: how many threads to use, and the pool.
 *
 * A job is published by raising `job`; every thread runs it once and all meet at a barrier. Waiting
 * is a spin at first, because between two layers the others are microseconds away; then the
 * processor is given up, so that more threads than cores still make progress. Between jobs a worker
 * that has spun in vain sleeps on a condition.
 *
 * Invariants of the pool
 * 1. `fn` and `arg` are written before `job` is raised and read after it was seen raised.
 * 2. A worker counts itself in n_sleeping before it looks at `job` a last time, and pool_run raises
 *    `job` before it looks at n_sleeping: one of them sees the other, so no wake-up is lost.
 * 3. The last thread to reach a barrier resets `arrived` before it raises `phase`; nobody enters
 *    the next barrier before it has seen `phase` raised.
 */
#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"

/* ---- how many -------------------------------------------------------------------------------- */

#ifdef __linux__

/* A small text file below root, freed with mem_free; NULL where there is none. */
static char *read_below(const char *root, const char *path)
{
    char full[4096];
    size_t size;
    char *text;
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return NULL;
    return file_read(full, 1 << 16, &text, &size, NULL) == INFER_OK ? text : NULL;
}

/* Threads that a quota of `quota` µs in each `period` µs is worth, rounded up; 0: no limit. */
static int quota_threads(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) return 0;
    long long n = quota / period + (quota % period != 0);
    return n > MAX_THREADS ? 0 : (int)n;
}

static int tighter(int a, int b) { return a == 0 || (b > 0 && b < a) ? b : a; }

/* The quota of one cgroup folder: version 2 has "max 100000" or "150000 100000" in cpu.max, version
 * 1 two files. */
static int quota_of_folder(const char *root, const char *folder, bool v2)
{
    char path[2048];
    long long quota = 0, period = 0;
    if (v2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        char *text = read_below(root, path);
        if (text && sscanf(text, "%lld %lld", &quota, &period) != 2) quota = 0;
        mem_free(text);
        return quota_threads(quota, period);
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    char *text = read_below(root, path);
    if (text) quota = atoll(text);
    mem_free(text);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    text = read_below(root, path);
    if (text) period = atoll(text);
    mem_free(text);
    return quota_threads(quota, period);
}

/* The tightest quota on the way from our cgroup up to the mount. In a container the path may name
 * folders that are not visible; the mount itself then is the container's own group. */
static int quota_up(const char *root, const char *mount, const char *group, bool v2)
{
    char folder[1536];
    size_t base = strlen(mount);
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int)sizeof folder) return 0;
    int limit = 0;
    for (;;) {
        limit = tighter(limit, quota_of_folder(root, folder, v2));
        char *slash = strrchr(folder + base, '/');
        if (!slash) return limit;
        *slash = 0;
    }
}

static bool lists_cpu(const char *controllers)
{
    for (const char *s = controllers; s; s = strchr(s, ',')) {
        if (*s == ',') s++;
        if (strncmp(s, "cpu", 3) == 0 && (s[3] == ',' || s[3] == 0)) return true;
    }
    return false;
}

/* Lines of /proc/self/cgroup are "hierarchy:controllers:path"; version 2 has no controllers. */
static int quota_limit(const char *root)
{
    char *text = read_below(root, "/proc/self/cgroup");
    int limit = 0;
    char *rest = text;
    for (char *line; rest && (line = strsep(&rest, "\n"));) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *controllers++ = 0, *group++ = 0;
        if (strcmp(group, "/") == 0) group = "";
        if (*controllers == 0) {
            limit = tighter(limit, quota_up(root, "/sys/fs/cgroup", group, true));
        } else if (lists_cpu(controllers)) {
            limit = tighter(limit, quota_up(root, "/sys/fs/cgroup/cpu", group, false));
            limit = tighter(limit, quota_up(root, "/sys/fs/cgroup/cpu,cpuacct", group, false));
        }
    }
    mem_free(text);
    return limit;
}

/* Whether cpu is the lowest of its core's hardware threads that are in the set; the list reads
 * "0,4" or "0-1". */
static bool leads_core(const char *root, int cpu, const cpu_set_t *set, size_t set_size)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    char *text = read_below(root, path);
    bool leads = true;
    for (char *s = text; s && *s >= '0' && *s <= '9';) {
        long from = strtol(s, &s, 10), to = from;
        if (*s == '-') to = strtol(s + 1, &s, 10);
        for (long other = from; other <= to && other < cpu; other++)
            if (CPU_ISSET_S((size_t)other, set_size, set)) leads = false;
        if (*s == ',') s++;
    }
    mem_free(text);
    return leads;
}

int thread_count_at(const char *root, bool physical)
{
    int n = 0;
    // The kernel refuses a set smaller than its own: grow until it fits.
    for (int n_cpus = 1024; n_cpus <= 1 << 18 && n == 0; n_cpus *= 4) {
        size_t size = CPU_ALLOC_SIZE(n_cpus);
        cpu_set_t *set = mem_zero(1, size);
        if (!set) break;
        if (sched_getaffinity(0, size, set) == 0) {
            for (int cpu = 0; cpu < n_cpus; cpu++)
                if (CPU_ISSET_S((size_t)cpu, size, set))
                    n += !physical || leads_core(root, cpu, set, size);
        }
        mem_free(set);
    }
    n = tighter(n, quota_limit(root));
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

#else

int thread_count_at(const char *root, bool physical)
{
    (void)root;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __APPLE__
    int cores = 0;
    size_t size = sizeof cores;
    if (physical && sysctlbyname("hw.physicalcpu", &cores, &size, NULL, 0) == 0) n = cores;
#else
    (void)physical;
#endif
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
}

#endif

int thread_count_default(void) { return thread_count_at("", true); }
int thread_count_logical(void) { return thread_count_at("", false); }

/* ---- the pool -------------------------------------------------------------------------------- */

#define CACHE_LINE 64

typedef struct worker {
    thread_pool *pool;
    int index;
    pthread_t id;
} worker;

struct thread_pool {
    // Written once a job; apart from what the barrier writes all the time.
    thread_fn *fn;
    void *arg; // fn NULL: end
    atomic_uint job;
    atomic_int n_sleeping;
    int n_threads, spins; // spins: before a waiting thread gives the processor up
    pthread_mutex_t lock;
    pthread_cond_t wake;
    worker *workers; // [n_threads], the first is the caller

    ATTR_ALIGNED(CACHE_LINE) atomic_int arrived;
    ATTR_ALIGNED(CACHE_LINE) atomic_uint phase;
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int pool_size(const thread_pool *p) { return p->n_threads; }

void pool_barrier(thread_pool *p)
{
    if (p->n_threads == 1) return;
    unsigned phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == p->n_threads - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&p->phase, phase + 1, memory_order_release);
        return;
    }
    for (int i = 0; atomic_load_explicit(&p->phase, memory_order_acquire) == phase; i++) {
        if (i < p->spins) {
            relax();
        } else {
            sched_yield();
            i = p->spins; // and no further, so that it cannot overflow
        }
    }
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns the number of the first job after `seen`. */
static unsigned wait_for_job(thread_pool *p, unsigned seen)
{
    enum { SPIN_NS = 30000, LOOKS_PER_CLOCK = 32 };
    unsigned job;
    int64_t end = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            job = atomic_load_explicit(&p->job, memory_order_acquire);
            if (job != seen) return job;
            relax();
        }
    } while (now_ns() < end);

    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_sleeping, 1);
    while ((job = atomic_load(&p->job)) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->n_sleeping, 1);
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void start_job(thread_pool *p, thread_fn *fn, void *arg)
{
    p->fn = fn;
    p->arg = arg;
    atomic_fetch_add(&p->job, 1);
    if (atomic_load(&p->n_sleeping) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    thread_pool *p = w->pool;
    for (unsigned seen = 0;;) {
        seen = wait_for_job(p, seen);
        if (!p->fn) return NULL;
        p->fn(p->arg, w->index, p->n_threads);
        pool_barrier(p);
    }
}

void pool_run(thread_pool *p, thread_fn *fn, void *arg)
{
    if (p->n_threads > 1) start_job(p, fn, arg);
    fn(arg, 0, p->n_threads);
    pool_barrier(p);
}

/* Ends the first n_started workers and frees everything. */
static void end_pool(thread_pool *p, int n_started)
{
    if (n_started > 1) start_job(p, NULL, NULL);
    for (int i = 1; i < n_started; i++)
        pthread_join(p->workers[i].id, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    mem_free(p->workers);
    mem_free_pages(p, sizeof *p);
}

void pool_free(thread_pool *p)
{
    if (p) end_pool(p, p->n_threads);
}

/* Signals from outside are the caller's business; those a thread raises by itself stay open, or the
 * map guard could not run in a worker. */
static void block_signals(sigset_t *before)
{
    static const int own[] = { SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF };
    sigset_t set;
    sigfillset(&set);
    for (int i = 0; i < COUNT_OF(own); i++)
        sigdelset(&set, own[i]);
    pthread_sigmask(SIG_BLOCK, &set, before);
}

infer_status pool_new(thread_pool **out, int n_threads, infer_error *err)
{
    *out = NULL;
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return error_set(err, INFER_ARGUMENT, "threads: expected 0 to %d, found %d", MAX_THREADS,
                         n_threads);
    if (n_threads == 0) n_threads = thread_count_default();
    thread_pool *p = mem_pages(sizeof *p); // pages, for the alignment
    worker *workers = mem_zero((size_t)n_threads, sizeof *workers);
    if (!p || !workers) {
        mem_free(workers);
        mem_free_pages(p, sizeof *p);
        return error_set(err, INFER_NOMEM, "no memory for a pool of %d threads", n_threads);
    }
    p->n_threads = n_threads;
    p->workers = workers;
    // With more threads than processors somebody who is waited for needs the one that we spin on.
    p->spins = n_threads <= thread_count_logical() ? 4000 : 16;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);

    int started = 1, code = 0;
    sigset_t before;
    block_signals(&before);
    for (; started < n_threads; started++) {
        worker *w = &workers[started];
        w->pool = p;
        w->index = started;
        code = pthread_create(&w->id, NULL, work, w);
        if (code != 0) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        end_pool(p, started);
        return error_set(err, INFER_LIMIT, "cannot start thread %d of %d: %s", started + 1,
                         n_threads, strerror(code));
    }
    *out = p;
    return error_clear(err);
}
