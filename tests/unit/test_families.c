/*
 * test_families.c: opening each family's folder of tests/golden/families while memory runs out: a refusal
 * every time, never a model that is planned otherwise.
 */
#include "tiny_model.h"

#include <dirent.h>

#include "base/mem.h"
#include "models/model.h"

#define FOLDER "tests/golden/families"

/* The n-th allocation from here on fails. True where the model opened without reaching it. */
static bool open_failing_at(const char *path, uint64_t n)
{
    infer_model *m;
    infer_error err;
    uint64_t before = mem_count();
    mem_fail_at(before + n);
    infer_status s = infer_model_open(&m, path, NULL, &err);
    bool reached = mem_count() >= before + n;
    mem_fail_at(0);
    if (s == INFER_OK && reached) fail_msg("%s: allocation %d failed unnoticed", path, (int)n);
    if (s != INFER_OK && s != INFER_NOMEM) fail_msg("%s: %d: %s", path, (int)n, err.msg);
    infer_model_close(m);
    return !reached;
}

static void memory_runs_out(void **state)
{
    (void)state;
    DIR *d = opendir(FOLDER);
    int n_folders = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, FOLDER "/%s", e->d_name);
        DIR *inner = e->d_name[0] == '.' ? NULL : opendir(path);
        if (!inner) continue;
        closedir(inner);
        n_folders++;
        for (uint64_t n = 1; !open_failing_at(path, n); n++)
            assert_true(n < 10000);
    }
    closedir(d);
    assert_true(n_folders >= 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(memory_runs_out) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
