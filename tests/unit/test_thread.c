/* test_thread.c: jobs, barriers, and the number of threads. Clean under ThreadSanitizer. */
#include "test.h"

#include <sched.h>

#include "base/mem.h"
#include "base/thread.h"

enum { ROUNDS = 300 };

typedef struct job {
    thread_pool *pool;
    int runs[MAX_THREADS]; // by thread, so that only barriers order them
    int n_threads[MAX_THREADS];
    int slot[2][MAX_THREADS];
} job;

static void count_run(void *arg, int thread, int n_threads)
{
    job *j = arg;
    j->runs[thread]++;
    j->n_threads[thread] = n_threads;
}

/* Each round every thread writes its own slot, and after the barrier reads all the others'. Two
 * sets of slots, so that a fast thread's next write cannot meet a slow thread's read. */
static void meet(void *arg, int thread, int n_threads)
{
    job *j = arg;
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int *slot = j->slot[round & 1];
        slot[thread] = round * 1000 + thread;
        pool_barrier(j->pool);
        for (int i = 0; i < n_threads; i++)
            wrong += slot[i] != round * 1000 + i;
    }
    j->runs[thread] = wrong;
}

static const int sizes[] = { 1, 2, 3, 4, 7, 16 };

static void every_thread_runs_each_job_once(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        infer_error err;
        job *j = mem_zero(1, sizeof *j);
        assert_int_equal(pool_new(&j->pool, sizes[k], &err), INFER_OK);
        assert_int_equal(pool_size(j->pool), sizes[k]);
        for (int i = 1; i <= 200; i++) {
            pool_run(j->pool, count_run, j);
            for (int t = 0; t < sizes[k]; t++) {
                assert_int_equal(j->runs[t], i);
                assert_int_equal(j->n_threads[t], sizes[k]);
            }
            if (i % 100 == 0) usleep(2000); // long enough for the others to go to sleep
        }
        pool_free(j->pool);
        mem_free(j);
    }
}

static void barriers_order_memory(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        job *j = mem_zero(1, sizeof *j);
        assert_int_equal(pool_new(&j->pool, sizes[k], NULL), INFER_OK);
        for (int i = 0; i < 3; i++) {
            pool_run(j->pool, meet, j);
            for (int t = 0; t < sizes[k]; t++)
                assert_int_equal(j->runs[t], 0);
        }
        pool_free(j->pool);
        mem_free(j);
    }
}

static void jobs_allocate_nothing(void **state)
{
    (void)state;
    job *j = mem_zero(1, sizeof *j);
    assert_int_equal(pool_new(&j->pool, 3, NULL), INFER_OK);
    uint64_t before = mem_count();
    for (int i = 0; i < 50; i++) {
        pool_run(j->pool, meet, j);
        if (i % 10 == 0) usleep(1000);
    }
    assert_int_equal(mem_count(), before);
    pool_free(j->pool);
    mem_free(j);
}

static void pools_come_and_go(void **state)
{
    (void)state;
    infer_error err;
    thread_pool *p = NULL, *q = NULL;
    for (int i = 0; i < 30; i++) { // freed at once, perhaps before the workers have begun
        assert_int_equal(pool_new(&p, 5, &err), INFER_OK);
        assert_int_equal(pool_new(&q, 2, &err), INFER_OK);
        pool_free(p);
        pool_free(q);
    }
    pool_free(NULL);
    assert_int_equal(pool_new(&p, 0, &err), INFER_OK);
    assert_int_equal(pool_size(p), thread_count_default());
    pool_free(p);
    assert_int_equal(pool_new(&p, MAX_THREADS + 1, &err), INFER_ARGUMENT);
    assert_null(p);
    assert_string_equal(err.msg, "threads: expected 0 to 256, found 257");
    assert_int_equal(pool_new(&p, -1, &err), INFER_ARGUMENT);
    for (unsigned n = 1; n <= 2; n++) {
        mem_fail_at(mem_count() + n);
        assert_int_equal(pool_new(&p, 2, &err), INFER_NOMEM);
        mem_fail_at(0);
        assert_null(p);
    }
}

static void shares_cover_everything_once(void **state)
{
    (void)state;
    for (int n = 0; n < 70; n++)
        for (int step = 1; step <= 16; step *= 2)
            for (int n_threads = 1; n_threads <= 9; n_threads++) {
                int next = 0;
                for (int t = 0; t < n_threads; t++) {
                    int begin, end;
                    thread_share(n, step, t, n_threads, &begin, &end);
                    assert_int_equal(begin, next);
                    assert_true(end >= begin && (end % step == 0 || end == n));
                    next = end;
                }
                assert_int_equal(next, n);
            }
}

/* ---- how many: the system's files as we wish them
 * ------------------------------------------------- */

static char root[256];

static void system_file(const char *path, const char *text)
{
    char full[600];
    snprintf(full, sizeof full, "%s%s", root, path);
    test_write(full, text, strlen(text));
}

static int less(int a, int b) { return a < b ? a : b; }

static void counts_are_sensible(void **state)
{
    (void)state;
    assert_in_range(thread_count_default(), 1, thread_count_logical());
    assert_in_range(thread_count_logical(), 1, MAX_THREADS);
}

#ifdef __linux__
static void quotas_limit(void **state)
{
    (void)state;
    test_folder(root, sizeof root);
    int all = thread_count_at(root, false); // nothing there: affinity alone
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        assert_int_equal(all, less(CPU_COUNT(&set), MAX_THREADS));
    assert_int_equal(thread_count_at(root, true), all);

    system_file("/proc/self/cgroup", "0::/user/box\n");
    system_file("/sys/fs/cgroup/user/box/cpu.max", "max 100000\n");
    assert_int_equal(thread_count_at(root, false), all);
    system_file("/sys/fs/cgroup/user/box/cpu.max", "150000 100000\n"); // 1.5 is worth 2
    assert_int_equal(thread_count_at(root, false), less(all, 2));
    system_file("/sys/fs/cgroup/user/cpu.max", "50000 100000\n"); // a parent's holds too
    assert_int_equal(thread_count_at(root, false), 1);
    system_file("/sys/fs/cgroup/user/cpu.max", "nonsense\n");
    assert_int_equal(thread_count_at(root, false), less(all, 2));
    system_file("/proc/self/cgroup", "0::/elsewhere/not/visible\n"); // as in a container
    system_file("/sys/fs/cgroup/cpu.max", "20000 100000\n");
    assert_int_equal(thread_count_at(root, false), 1);
    system_file("/sys/fs/cgroup/cpu.max", "max 100000\n");

    system_file("/proc/self/cgroup", "9:cpuset:/box\n3:cpuacct,cpu:/box\n0::/\n"); // version 1
    system_file("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1\n");
    system_file("/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
    assert_int_equal(thread_count_at(root, false), all);
    system_file("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "100000\n");
    assert_int_equal(thread_count_at(root, false), 1);
    system_file("/proc/self/cgroup", "9:cpuset:/box\n0::/\n");
    assert_int_equal(thread_count_at(root, false), all);
    test_remove_folder(root);
}

static void cores_count_once(void **state)
{
    (void)state;
    test_folder(root, sizeof root);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) skip();
    for (int form = 0; form < 2; form++) { // neighbours in pairs, written in the kernel's two ways
        int pairs = 0;
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            char path[128], text[32];
            if (!CPU_ISSET((size_t)cpu, &set)) continue;
            pairs += cpu % 2 == 0 || !CPU_ISSET((size_t)cpu - 1, &set);
            snprintf(path, sizeof path,
                     "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
            snprintf(text, sizeof text, form ? "%d,%d\n" : "%d-%d\n", cpu & ~1, cpu | 1);
            system_file(path, text);
        }
        assert_int_equal(thread_count_at(root, true), less(pairs, MAX_THREADS));
    }
    test_remove_folder(root);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_each_job_once),
        cmocka_unit_test(barriers_order_memory),
        cmocka_unit_test(jobs_allocate_nothing),
        cmocka_unit_test(pools_come_and_go),
        cmocka_unit_test(shares_cover_everything_once),
        cmocka_unit_test(counts_are_sensible),
#ifdef __linux__
        cmocka_unit_test(quotas_limit),
        cmocka_unit_test(cores_count_once),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
