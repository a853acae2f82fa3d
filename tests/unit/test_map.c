/*
 * test_map.c: maps of whole files, what is refused, and files that shrink under the guard. The
 * guard's tests run in a child process each, because the handler stays installed.
 */
#include "test.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/map.h"
#include "base/mem.h"

static char folder[256];

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state)
{
    (void)state;
    test_folder(folder, sizeof folder);
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    test_remove_folder(folder);
    return 0;
}

/* n_pages pages, page i filled with i + 1. */
static const char *write_pages(size_t n_pages, size_t page)
{
    unsigned char *bytes = malloc(n_pages * page);
    assert_non_null(bytes);
    for (size_t i = 0; i < n_pages; i++)
        memset(bytes + i * page, (int)i + 1, page);
    const char *path = in_folder("pages");
    test_write(path, bytes, n_pages * page);
    free(bytes);
    return path;
}

static void opens_and_reads(void **state)
{
    (void)state;
    infer_error err;
    const char *path = in_folder("a");
    test_write(path, "hello", 5);
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
        file_map m;
        map_options o = { .no_mmap = no_mmap, .mlock = true };
        assert_int_equal(map_open(&m, path, &o, NULL, &err), INFER_OK);
        assert_int_equal(err.code, INFER_OK);
        assert_int_equal(m.size, 5);
        assert_int_equal(m.in_memory, no_mmap);
        assert_memory_equal(m.data, "hello", 5);
        assert_string_equal(m.path, path);
        assert_int_equal((uintptr_t)m.data % 64, 0);
        assert_false(map_broken(&m));
        map_release(&m, m.data, m.size);
        assert_memory_equal(m.data, "hello", 5);
        map_close(&m);
        assert_null(m.data);
        map_close(&m);
    }
    file_map zeroed = { 0 };
    assert_false(map_broken(&zeroed));
    map_close(&zeroed);
}

static void empty_file(void **state)
{
    (void)state;
    const char *path = in_folder("empty");
    test_write(path, "", 0);
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
        file_map m;
        map_options o = { .no_mmap = no_mmap };
        assert_int_equal(map_open(&m, path, &o, NULL, NULL), INFER_OK);
        assert_null(m.data);
        assert_int_equal(m.size, 0);
        assert_false(map_broken(&m));
        map_release(&m, NULL, 0);
        map_close(&m);
    }
}

static void refuse(const char *path, infer_status status, const char *part)
{
    infer_error err;
    file_map m;
    char *text;
    size_t size;
    assert_int_equal(map_open(&m, path, NULL, NULL, &err), status);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, part));
    map_close(&m);
    assert_int_equal(file_read(path, 1000, &text, &size, &err), status);
    assert_non_null(strstr(err.msg, part));
}

static void refuses_what_is_no_file(void **state)
{
    (void)state;
    refuse(in_folder("missing"), INFER_NOT_FOUND, "no such file");
    refuse("/dev/null", INFER_IO, "device");
    refuse(folder, INFER_IO, "folder");
    const char *pipe_path = in_folder("pipe");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    refuse(pipe_path, INFER_IO, "pipe"); // and does not wait for a writer
    const char *file = in_folder("f");
    test_write(file, "x", 1);
    refuse(in_folder("f/below"), INFER_IO, "cannot open");
    assert_true(file_exists(in_folder("f")));
    assert_false(file_exists(folder));
    assert_false(file_exists(in_folder("missing")));
    assert_true(dir_exists(folder));
    assert_false(dir_exists(in_folder("f")));
}

static void no_memory_leaves_nothing(void **state)
{
    (void)state;
    const char *path = in_folder("a");
    test_write(path, "hello", 5);
    for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
        map_options o = { .no_mmap = no_mmap };
        infer_status status;
        for (unsigned n = 1;; n++) {
            file_map m;
            mem_fail_at(mem_count() + n);
            status = map_open(&m, path, &o, NULL, NULL);
            mem_fail_at(0);
            if (status == INFER_OK) {
                assert_int_equal(n, no_mmap ? 3 : 2);
                map_close(&m);
                break;
            }
            assert_int_equal(status, INFER_NOMEM);
            assert_null(m.data);
        }
    }
}

static void more_maps_than_slots(void **state)
{
    (void)state;
    enum { N = 300 };
    static file_map m[N];
    const char *path = in_folder("a");
    test_write(path, "hello", 5);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            assert_int_equal(map_open(&m[i], path, NULL, NULL, NULL), INFER_OK);
            assert_int_equal(m[i].slot, i < 256 ? i : -1);
            assert_false(map_broken(&m[i]));
        }
        for (int i = 0; i < N; i++)
            map_close(&m[i]);
    }
}

/* ---- shrinking, each in a child
 * ------------------------------------------------------------------ */

static int in_child(int (*body)(const char *path), const char *path)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(body(path));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int shrink_guarded(const char *path)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    file_map m, other;
    map_guard_install();
    map_guard_install(); // twice is once
    if (map_open(&m, path, NULL, NULL, NULL) || map_open(&other, path, NULL, NULL, NULL)) return 1;
    if (m.data[7 * page] != 8) return 2;
    if (truncate(path, (off_t)(3 * page)) != 0) return 3;
    if (map_broken(&m)) return 4;             // nobody has read yet
    if (m.data[2 * page] != 3) return 5;      // still there
    if (m.data[5 * page + 17] != 0) return 6; // lost: zero
    if (!map_broken(&m)) return 7;
    if (m.data[8 * page - 1] != 0) return 8; // to the end of the map
    if (m.data[3 * page] != 0) return 9;     // before the first fault
    if (m.data[2 * page] != 3) return 10;
    if (map_broken(&other)) return 11;
    if (other.data[6 * page] != 0 || !map_broken(&other)) return 12;
    map_close(&m);
    map_close(&other);
    if (map_open(&m, path, NULL, NULL, NULL)) return 13; // the slot's next user starts whole
    if (m.slot != 0 || map_broken(&m)) return 14;
    map_close(&m);
    return 0;
}

static int shrink_unguarded(const char *path)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    file_map m;
    signal(SIGBUS, SIG_DFL);
    if (map_open(&m, path, NULL, NULL, NULL)) return 1;
    if (truncate(path, (off_t)page) != 0) return 2;
    return m.data[5 * page];
}

/* A map that is not ours, with the guard there. */
static int foreign_fault(const char *path)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    FILE *f = fopen(path, "rb");
    if (!f) return 1;
    volatile unsigned char *p = mmap(NULL, 8 * page, PROT_READ, MAP_PRIVATE, fileno(f), 0);
    if (truncate(path, (off_t)page) != 0) return 2;
    return p[5 * page];
}

static int foreign_fault_default(const char *path)
{
    signal(SIGBUS, SIG_DFL);
    map_guard_install();
    return foreign_fault(path);
}

static void earlier_handler(int sig)
{
    (void)sig;
    _exit(42);
}

static void earlier_siginfo_handler(int sig, siginfo_t *info, void *context)
{
    (void)sig;
    (void)context;
    _exit(info->si_addr ? 43 : 44);
}

static int foreign_fault_handled(const char *path)
{
    signal(SIGBUS, earlier_handler);
    map_guard_install();
    return foreign_fault(path);
}

static int foreign_fault_siginfo(const char *path)
{
    struct sigaction sa = { .sa_sigaction = earlier_siginfo_handler, .sa_flags = SA_SIGINFO };
    sigaction(SIGBUS, &sa, NULL);
    map_guard_install();
    return foreign_fault(path);
}

static int sent_from_outside(const char *path)
{
    (void)path;
    signal(SIGBUS, SIG_DFL);
    map_guard_install();
    raise(SIGBUS);
    return 0;
}

static void shrinking_files(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(in_child(shrink_guarded, write_pages(8, page)), 0);
    assert_int_equal(in_child(shrink_unguarded, write_pages(8, page)), 1000 + SIGBUS);
    assert_int_equal(in_child(foreign_fault_default, write_pages(8, page)), 1000 + SIGBUS);
    assert_int_equal(in_child(foreign_fault_handled, write_pages(8, page)), 42);
    assert_int_equal(in_child(foreign_fault_siginfo, write_pages(8, page)), 43);
    assert_int_equal(in_child(sent_from_outside, ""), 1000 + SIGBUS);
}

/* ---- small files
 * --------------------------------------------------------------------------------- */

static void reads_small_files(void **state)
{
    (void)state;
    infer_error err;
    char *text = NULL;
    size_t size = 0;
    static const size_t sizes[] = { 0, 1, 4095, 4096, 4097, 100000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *bytes = malloc(sizes[i] + 1);
        memset(bytes, 'q', sizes[i] + 1);
        const char *path = in_folder("small");
        test_write(path, bytes, sizes[i]);
        assert_int_equal(file_read(path, sizes[i], &text, &size, &err), INFER_OK);
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(text, bytes, size);
        assert_int_equal(text[size], 0);
        mem_free(text);
        assert_int_equal(file_read(path, SIZE_MAX, &text, &size, &err), INFER_OK);
        mem_free(text);
        if (sizes[i] > 0) {
            assert_int_equal(file_read(path, sizes[i] - 1, &text, &size, &err), INFER_LIMIT);
            assert_non_null(strstr(err.msg, "expected at most"));
        }
        mem_fail_at(mem_count() + 1);
        assert_int_equal(file_read(path, SIZE_MAX, &text, &size, &err), INFER_NOMEM);
        mem_fail_at(0);
        free(bytes);
    }
#ifdef __linux__
    assert_int_equal(file_read("/proc/self/status", 1 << 20, &text, &size, &err), INFER_OK);
    assert_non_null(strstr(text, "Threads:")); // a file that claims to have no bytes
    mem_free(text);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_and_reads),         cmocka_unit_test(empty_file),
        cmocka_unit_test(refuses_what_is_no_file), cmocka_unit_test(no_memory_leaves_nothing),
        cmocka_unit_test(more_maps_than_slots),    cmocka_unit_test(shrinking_files),
        cmocka_unit_test(reads_small_files),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
