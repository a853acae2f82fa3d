/* atomic_file.c: write beside, fsync, rename, fsync the folder. */
#include "base/atomic_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/error.h"
#include "base/folder.h"
#include "base/map.h"
#include "base/mem.h"

void atomic_abandon(atomic_file *a)
{
    if (a->f) fclose(a->f);
    if (a->temp) unlink(a->temp);
    mem_free(a->temp);
    mem_free(a->path);
    *a = (atomic_file){ 0 };
}

void atomic_mark(int fd) { (void)!flock(fd, LOCK_EX | LOCK_NB); }

/* The process in "<pid>.tmp" or "<pid>.<n>.tmp"; 0 where the text is neither. */
static long pid_of(const char *s)
{
    char *end;
    long pid = *s >= '1' && *s <= '9' ? strtol(s, &end, 10) : 0, n = 0;
    if (pid <= 0 || pid > INT32_MAX || *end != '.') return 0;
    if (end[1] >= '0' && end[1] <= '9') n = strtol(end + 1, &end, 10);
    return n >= 0 && !strcmp(end, ".tmp") ? pid : 0;
}

/* A process may be out of our sight (another container, another host): the lock tells of it too. */
static void remove_left(int folder, const char *name, long pid)
{
    if (kill((pid_t)pid, 0) == 0 || errno != ESRCH) return;
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(folder, name, 0);
    close(fd);
}

void atomic_clean(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    char *folder = slash ? mem_strndup(path, (size_t)(slash - path) + 1) : mem_strdup(".");
    DIR *d = folder && n ? opendir(folder) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        bool ours = !strncmp(e->d_name, base, n) && e->d_name[n] == '.';
        long pid = ours ? pid_of(e->d_name + n + 1) : 0;
        if (pid) remove_left(dirfd(d), e->d_name, pid);
    }
    if (d) closedir(d);
    mem_free(folder);
}

infer_status atomic_open(atomic_file *a, const char *path, infer_error *err)
{
    size_t room = strlen(path) + 32;
    *a = (atomic_file){ .path = mem_strdup(path), .temp = mem_alloc(room, 1) };
    if (!a->path || !a->temp) {
        mem_free(a->temp);
        a->temp = NULL; // its bytes are no name yet
        atomic_abandon(a);
        return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    }
    atomic_clean(path);
    snprintf(a->temp, room, "%s.%ld.tmp", path, (long)getpid());
    a->f = fopen(a->temp, "wb");
    if (a->f) {
        atomic_mark(fileno(a->f));
        return INFER_OK;
    }
    infer_status st = error_set(err, errno == ENOENT ? INFER_NOT_FOUND : INFER_IO,
                                "%s: cannot be written: %s", path, strerror(errno));
    atomic_abandon(a);
    return st;
}

infer_status atomic_commit(atomic_file *a, infer_error *err)
{
    bool ok = !ferror(a->f) && fflush(a->f) == 0 && fsync(fileno(a->f)) == 0;
    int reason = errno;
    if (fclose(a->f) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    a->f = NULL;
    if (ok && rename(a->temp, a->path) != 0) {
        ok = false;
        reason = errno;
    }
    infer_status st =
        ok ? INFER_OK
           : error_set(err, INFER_IO, "%s: writing failed: %s", a->path, strerror(reason));
    if (ok) {
        folder_sync_of(a->path);
        mem_free(a->temp);
        a->temp = NULL;
    }
    atomic_abandon(a);
    return st;
}

infer_status atomic_copy(const char *from, const char *to, size_t most, infer_error *err)
{
    char *text;
    size_t n;
    atomic_file f;
    if (!file_exists(from)) return INFER_OK;
    infer_status st = file_read(from, most, &text, &n, err);
    if (st) return st;
    st = atomic_open(&f, to, err);
    if (!st) {
        fwrite(text, 1, n, f.f);
        st = atomic_commit(&f, err);
    }
    mem_free(text);
    return st;
}
