/* atomic_file.c: write beside, fsync, rename, fsync the folder. */
#include "base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"

void atomic_abandon(atomic_file *a)
{
    if (a->f) fclose(a->f);
    if (a->temp) unlink(a->temp);
    mem_free(a->temp);
    mem_free(a->path);
    *a = (atomic_file){ 0 };
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
    snprintf(a->temp, room, "%s.%ld.tmp", path, (long)getpid());
    a->f = fopen(a->temp, "wb");
    if (a->f) return INFER_OK;
    infer_status st = error_set(err, errno == ENOENT ? INFER_NOT_FOUND : INFER_IO,
                                "%s: cannot be written: %s", path, strerror(errno));
    atomic_abandon(a);
    return st;
}

static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? mem_strndup(path, (size_t)(slash - path + 1)) : mem_strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    mem_free(folder);
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
        sync_folder(a->path);
        mem_free(a->temp);
        a->temp = NULL;
    }
    atomic_abandon(a);
    return st;
}
