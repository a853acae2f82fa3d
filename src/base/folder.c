/* folder.c: see folder.h. */
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"

static void sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

void folder_sync_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? mem_strndup(path, (size_t)(slash - path) + 1) : mem_strdup(".");
    if (folder) sync_folder(folder);
    mem_free(folder);
}

static infer_status cannot_remove(infer_error *err, const char *path)
{
    return error_set(err, INFER_IO, "%s: cannot be removed: %s", path, strerror(errno));
}

static infer_status remove_entries(const char *path, int depth, infer_error *err)
{
    DIR *d = opendir(path);
    infer_status st = d ? INFER_OK : cannot_remove(err, path);
    for (struct dirent *e; !st && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        size_t room = strlen(path) + strlen(e->d_name) + 2;
        char *name = mem_alloc(room, 1);
        if (!name) {
            st = error_set(err, INFER_NOMEM, "%s: out of memory", path);
            break;
        }
        snprintf(name, room, "%s/%s", path, e->d_name);
        if (unlinkat(dirfd(d), e->d_name, 0)) {
            if (depth && (errno == EISDIR || errno == EPERM) && dir_exists(name))
                st = remove_entries(name, depth - 1, err);
            else
                st = cannot_remove(err, name);
        }
        mem_free(name);
    }
    if (d) closedir(d);
    return st || !rmdir(path) ? st : cannot_remove(err, path);
}

infer_status folder_remove(const char *path, infer_error *err)
{
    return remove_entries(path, 1, err);
}

/* Both names are changed at once where the system can; else `path` is gone for a moment. */
static int exchange(const char *work, const char *path)
{
#ifdef RENAME_EXCHANGE
    if (!renameat2(AT_FDCWD, work, AT_FDCWD, path, RENAME_EXCHANGE)) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
#endif
    size_t room = strlen(work) + 5;
    char *aside = mem_alloc(room, 1);
    if (!aside) return -1;
    snprintf(aside, room, "%s.old", work);
    int failed = rename(path, aside) || rename(work, path) || rename(aside, work);
    mem_free(aside);
    return failed;
}

infer_status folder_replace(const char *work, const char *path, infer_error *err)
{
    bool there = dir_exists(path);
    sync_folder(work);
    if (there ? exchange(work, path) : rename(work, path))
        return error_set(err, INFER_IO, "%s: the finished folder cannot be renamed to %s: %s", work,
                         path, strerror(errno));
    folder_sync_of(path);
    return there ? folder_remove(work, err) : INFER_OK;
}
