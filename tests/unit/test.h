/* test.h: what cmocka.h needs included before it, and files for tests. */
#ifndef TEST_H
#define TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A fresh folder below TMPDIR or /tmp; the test program's end leaves nothing in it worth keeping.
 */
static inline char *test_folder(char *path, size_t size)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(path, size, "%s/infer-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

static inline void test_remove_folder(const char *path)
{
    char command[1200];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

/* Writes a file and the folders above it. */
static inline void test_write(const char *path, const void *data, size_t size)
{
    char part[1200];
    snprintf(part, sizeof part, "%s", path);
    for (char *s = strchr(part + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = 0;
        mkdir(part, 0755);
        *s = '/';
    }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

#endif
