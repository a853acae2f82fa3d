/*
 * map.c: whole-file maps and the guard against files that shrink.
 *
 * The guard is a fixed table of live maps that its SIGBUS handler reads without a lock. A slot is
 * claimed by compare-and-swap, filled, and only then published by its end address; the handler
 * looks at published slots alone. The library's own functions only fill the table; the handler
 * exists once a program has called map_guard_install.
 */
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

/* ---- the guard ------------------------------------------------------------------------------- */

enum { MAX_MAPS = 256 };

static struct map_slot {
    atomic_bool taken, broken;
    _Atomic uintptr_t begin, end; // whole pages; end 0: not published
} slots[MAX_MAPS];

static struct sigaction previous;
static uintptr_t page_size; // set before the handler can run

static uintptr_t system_page(void)
{
    long n = sysconf(_SC_PAGESIZE);
    return n > 0 ? (uintptr_t)n : 4096;
}

static int slot_take(const void *data, size_t size)
{
    uintptr_t page = system_page(), begin = (uintptr_t)data;
    for (int i = 0; i < MAX_MAPS; i++) {
        bool is_free = false;
        if (!atomic_compare_exchange_strong(&slots[i].taken, &is_free, true)) continue;
        atomic_store(&slots[i].broken, false);
        atomic_store(&slots[i].begin, begin);
        atomic_store(&slots[i].end, (begin + size + page - 1) & ~(page - 1));
        return i;
    }
    return -1;
}

static void slot_release(int i)
{
    if (i < 0) return;
    atomic_store(&slots[i].end, 0);
    atomic_store(&slots[i].taken, false);
}

/* Zero pages from the faulting one to the end of its map; false where it is not ours. */
static bool mend(uintptr_t at)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        uintptr_t end = atomic_load(&slots[i].end);
        if (at >= end || at < atomic_load(&slots[i].begin)) continue;
        uintptr_t from = at & ~(page_size - 1);
        void *p = mmap((void *)from, end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                       -1, 0);
        if (p == MAP_FAILED) return false;
        atomic_store(&slots[i].broken, true);
        return true;
    }
    return false;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    int saved = errno;
    // A signal that another process sent (si_code <= 0) carries no address.
    bool mended = info->si_code > 0 && mend((uintptr_t)info->si_addr);
    errno = saved;
    if (mended) return;
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(sig, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(sig);
    } else if (info->si_code > 0) {
        signal(sig, SIG_DFL); // the fault comes again on return and ends the process
    } else if (previous.sa_handler == SIG_DFL) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
}

void map_guard_install(void)
{
    static atomic_bool installed;
    if (atomic_exchange(&installed, true)) return;
    page_size = system_page();
    struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER };
    sigemptyset(&sa.sa_mask);
    // Asked first, so that `previous` is complete before the handler can run.
    sigaction(SIGBUS, NULL, &previous);
    sigaction(SIGBUS, &sa, NULL);
}

bool map_broken(const file_map *m)
{
    return m->data && !m->in_memory && m->slot >= 0 && atomic_load(&slots[m->slot].broken);
}

/* ---- opening --------------------------------------------------------------------------------- */

static infer_status io_error(infer_error *err, const char *path, const char *doing, int code)
{
    if (code == ENOENT) return error_set(err, INFER_NOT_FOUND, "%s: no such file", path);
    return error_set(err, code == ENOMEM ? INFER_NOMEM : INFER_IO, "%s: cannot %s: %s", path, doing,
                     strerror(code));
}

/* Opens a regular file for reading; what else there is would block, or has no size. */
static infer_status open_regular(int *out, size_t *size, const char *path, infer_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not block here
    if (fd < 0) return io_error(err, path, "open", errno);
    struct stat st;
    infer_status status = INFER_OK;
    if (fstat(fd, &st) != 0)
        status = io_error(err, path, "look at it", errno);
    else if (S_ISDIR(st.st_mode))
        status = error_set(err, INFER_IO, "%s: expected a file, found a folder", path);
    else if (!S_ISREG(st.st_mode))
        status =
            error_set(err, INFER_IO, "%s: expected a file, found a device, pipe or socket", path);
    else if ((uint64_t)st.st_size > SIZE_MAX / 2)
        status = error_set(err, INFER_LIMIT, "%s: too large for this system", path);
    if (status != INFER_OK) {
        close(fd);
        return status;
    }
    *out = fd;
    *size = (size_t)st.st_size;
    return INFER_OK;
}

/* Reads up to size bytes; fewer only at the end of the file. -1 and errno on failure. */
static int64_t read_all(int fd, uint8_t *out, size_t size)
{
    size_t done = 0;
    while (done < size) {
        size_t part = size - done < (1u << 30) ? size - done : (1u << 30);
        ssize_t n = read(fd, out + done, part);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        done += (size_t)n;
    }
    return (int64_t)done;
}

static infer_status load_file(file_map *m, int fd, infer_error *err)
{
    uint8_t *data = mem_pages(m->size);
    if (!data) return error_set(err, INFER_NOMEM, "%s: no memory for %zu bytes", m->path, m->size);
    int64_t n = read_all(fd, data, m->size);
    int code = errno;
    if (n == (int64_t)m->size) {
        m->data = data;
        m->in_memory = true;
        return INFER_OK;
    }
    mem_free_pages(data, m->size);
    if (n < 0) return io_error(err, m->path, "read", code);
    return error_set(err, INFER_IO,
                     "%s: expected %zu bytes, found %zu: it shrank while it was read", m->path,
                     m->size, (size_t)n);
}

static infer_status map_file(file_map *m, int fd, infer_error *err)
{
    void *p = mmap(NULL, m->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) return io_error(err, m->path, "map", errno);
    m->data = p;
    m->slot = slot_take(p, m->size);
    // Starts reading now what the first token will touch. A file that may not fit in memory is left
    // to the kernel's own read-ahead: asking for all of it would push out what is in use.
    if (m->size <= (size_t)512 << 20) madvise(p, m->size, MADV_WILLNEED);
    return INFER_OK;
}

infer_status map_open(file_map *m, const char *path, const map_options *o, const infer_log *log,
                      infer_error *err)
{
    int fd = -1;
    *m = (file_map){ .slot = -1 };
    infer_status status = open_regular(&fd, &m->size, path, err);
    if (status != INFER_OK) return status;
    m->path = mem_strdup(path);
    if (!m->path)
        status = error_set(err, INFER_NOMEM, "%s: no memory", path);
    else if (m->size > 0)
        status = o && o->no_mmap ? load_file(m, fd, err) : map_file(m, fd, err);
    close(fd);
    if (status != INFER_OK) {
        map_close(m);
        return status;
    }
    if (m->data && !m->in_memory && m->slot < 0)
        log_line(log, INFER_LOG_WARN, "%s: over %d files mapped: not guarded against shrinking",
                 path, MAX_MAPS);
    if (o && o->mlock && m->data && mlock(m->data, m->size) != 0)
        log_line(log, INFER_LOG_WARN, "%s: cannot lock it in memory: %s", path, strerror(errno));
    return error_clear(err);
}

void map_close(file_map *m)
{
    // An empty file's map, and a zeroed struct, own no data and no slot.
    if (m->data) {
        if (!m->in_memory) slot_release(m->slot);
        munmap((void *)(uintptr_t)m->data, m->size);
    }
    mem_free(m->path);
    *m = (file_map){ .slot = -1 };
}

void map_release(const file_map *m, const void *from, size_t size)
{
    if (!m->data || m->in_memory) return; // memory of our own would not come back
    uintptr_t page = system_page(), begin = (uintptr_t)from, end = begin + size;
    uintptr_t lo = (uintptr_t)m->data, hi = lo + m->size;
    if (begin < lo) begin = lo;
    if (end > hi) end = hi;
    // Pages that lie in the range as a whole; the file's last one counts as whole.
    begin = (begin + page - 1) & ~(page - 1);
    end = end == hi ? (end + page - 1) & ~(page - 1) : end & ~(page - 1);
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* ---- small files ----------------------------------------------------------------------------- */

infer_status file_read(const char *path, size_t limit, char **text, size_t *size, infer_error *err)
{
    int fd;
    size_t known;
    infer_status status = open_regular(&fd, &known, path, err);
    if (status != INFER_OK) return status;
    // Files below /proc and /sys say 0 bytes: read until the end, whatever the size said.
    char *buffer = NULL;
    size_t cap = 0, n = 0;
    while (status == INFER_OK) {
        size_t want = n ? n * 2 : known + 1;
        if (want < 4096) want = 4096;
        if (limit < SIZE_MAX && want > limit + 1) want = limit + 1;
        status = mem_reserve((void **)&buffer, &cap, want + 1, 1, err);
        if (status != INFER_OK) break;
        int64_t got = read_all(fd, (uint8_t *)buffer + n, want - n);
        if (got < 0) {
            status = io_error(err, path, "read", errno);
            break;
        }
        n += (size_t)got;
        if (n > limit)
            status = error_set(err, INFER_LIMIT, "%s: expected at most %zu bytes", path, limit);
        else if (n < want)
            break;
    }
    close(fd);
    if (status != INFER_OK) {
        mem_free(buffer);
        return status == INFER_NOMEM ? error_prefix(err, "%s", path) : status;
    }
    buffer[n] = 0;
    *text = buffer;
    *size = n;
    return error_clear(err);
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}
