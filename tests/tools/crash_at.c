/*
 * crash_at.c: kills a program just before its N-th call that changes files, and sees whether what
 * it renames was flushed.
 *
 *     crash_at [-t] N PROGRAM [ARGUMENT …]
 *
 * With -t the N-th call, where it is a write, still writes half of its bytes. The program's output
 * is dropped. Prints "killed" or "done CALLS STATUS", then a line "unsynced PATH" for each file or
 * folder that was renamed, or left behind at a good end, without an fsync since it was last
 * changed.
 *
 * The calls are caught by a seccomp filter and the threads held by ptrace, so that calls from
 * inside the C library count too.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_DIRTY 1024
#define COUNT_OF(a) (int)(sizeof(a) / sizeof *(a))

static const int watched[] = {
#ifdef SYS_open
    SYS_open,      SYS_creat,     SYS_rename,    SYS_link,
    SYS_unlink,    SYS_mkdir,     SYS_rmdir,
#endif
    SYS_openat,    SYS_write,     SYS_pwrite64,  SYS_writev,
    SYS_pwritev,   SYS_ftruncate, SYS_fallocate, SYS_fsync,
    SYS_fdatasync, SYS_renameat,  SYS_renameat2, SYS_linkat,
    SYS_unlinkat,  SYS_mkdirat,   SYS_sendfile,  SYS_copy_file_range,
};

/* ---- what is not on the disk yet ------------------------------------------------------------- */

static char *dirty[MAX_DIRTY];
static int n_dirty;

static bool is_below(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return !strncmp(path, folder, n) && (path[n] == '/' || !path[n]);
}

static void mark(const char *path)
{
    for (int i = 0; i < n_dirty; i++)
        if (!strcmp(dirty[i], path)) return;
    if (n_dirty < MAX_DIRTY) dirty[n_dirty++] = strdup(path);
}

static void mark_folder_of(const char *path)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash || slash == folder) return;
    *slash = 0;
    mark(folder);
}

static void forget(const char *path, bool below, bool tell)
{
    for (int i = 0; i < n_dirty;) {
        if (strcmp(dirty[i], path) && !(below && is_below(dirty[i], path))) {
            i++;
            continue;
        }
        if (tell) printf("unsynced %s\n", dirty[i]);
        free(dirty[i]);
        dirty[i] = dirty[--n_dirty];
    }
}

/* ---- a stopped thread ------------------------------------------------------------------------ */

/* Absolute; "" where it cannot be read. */
static void path_at(char out[PATH_MAX], pid_t pid, uint64_t address)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/mem", (int)pid);
    int fd = open(name, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : pread(fd, out, PATH_MAX - 1, (off_t)address);
    if (fd >= 0) close(fd);
    out[n > 0 ? n : 0] = 0;
    if (*out == '/' || !*out) return;
    char folder[PATH_MAX], rest[PATH_MAX];
    snprintf(rest, sizeof rest, "%s", out);
    snprintf(name, sizeof name, "/proc/%d/cwd", (int)pid);
    n = readlink(name, folder, sizeof folder - 1);
    folder[n > 0 ? n : 0] = 0;
    if (snprintf(out, PATH_MAX, "%s/%s", folder, rest) >= PATH_MAX) *out = 0;
}

static void path_of(char out[PATH_MAX], pid_t pid, uint64_t fd)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)pid, (int)fd);
    ssize_t n = readlink(name, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = 0;
}

static bool is_file(const char *path, bool or_folder)
{
    struct stat s;
    if (*path != '/' || stat(path, &s)) return false;
    return S_ISREG(s.st_mode) || (or_folder && S_ISDIR(s.st_mode));
}

/* Half of what the call would write, written on its behalf. */
static void write_half(pid_t pid, uint64_t nr, const uint64_t *a)
{
    char name[64], line[128] = "", *bytes = malloc(a[2] / 2 + 1);
    long long at = (long long)a[3];
    snprintf(name, sizeof name, "/proc/%d/fdinfo/%d", (int)pid, (int)a[0]);
    FILE *info = nr == SYS_write ? fopen(name, "r") : NULL;
    if (info && fgets(line, sizeof line, info)) sscanf(line, "pos: %lld", &at);
    if (info) fclose(info);
    snprintf(name, sizeof name, "/proc/%d/mem", (int)pid);
    int mem = open(name, O_RDONLY);
    snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)pid, (int)a[0]);
    int fd = open(name, O_WRONLY);
    ssize_t n = pread(mem, bytes, a[2] / 2, (off_t)a[1]);
    if (n > 0 && pwrite(fd, bytes, (size_t)n, (off_t)at) != n) perror("crash_at: half a write");
    close(mem);
    close(fd);
    free(bytes);
}

/* What the call is going to change is noted; false: it changes no file. */
static bool note(pid_t pid, uint64_t nr, const uint64_t *a)
{
    char path[PATH_MAX], to[PATH_MAX];
    switch (nr) {
#ifdef SYS_open
    case SYS_open:
        if (!(a[1] & (O_CREAT | O_TRUNC))) return false;
        path_at(path, pid, a[0]);
        if (!is_file(path, false)) mark_folder_of(path);
        return true;
    case SYS_creat:
    case SYS_mkdir:
        path_at(path, pid, a[0]);
        mark_folder_of(path);
        return true;
    case SYS_unlink:
    case SYS_rmdir:
        path_at(path, pid, a[0]);
        forget(path, true, false);
        return true;
    case SYS_link:
        path_at(to, pid, a[1]);
        mark_folder_of(to);
        return true;
    case SYS_rename:
        path_at(path, pid, a[0]);
        path_at(to, pid, a[1]);
        forget(path, true, true);
        mark_folder_of(to);
        return true;
#endif
    case SYS_openat:
        if (!(a[2] & (O_CREAT | O_TRUNC))) return false;
        path_at(path, pid, a[1]);
        if (!is_file(path, false)) mark_folder_of(path);
        return true;
    case SYS_mkdirat:
        path_at(path, pid, a[1]);
        mark_folder_of(path);
        return true;
    case SYS_unlinkat:
        path_at(path, pid, a[1]);
        forget(path, true, false);
        return true;
    case SYS_linkat:
        path_at(to, pid, a[3]);
        mark_folder_of(to);
        return true;
    case SYS_renameat:
    case SYS_renameat2:
        path_at(path, pid, a[1]);
        path_at(to, pid, a[3]);
        forget(path, true, true);
        mark_folder_of(to);
        return true;
    case SYS_fsync:
    case SYS_fdatasync:
        path_of(path, pid, a[0]);
        forget(path, false, false);
        return is_file(path, true);
    case SYS_copy_file_range: path_of(path, pid, a[2]); break;
    default: // writes: the file comes first
        path_of(path, pid, a[0]);
    }
    if (!is_file(path, false)) return false;
    mark(path);
    return true;
}

/* ---- running it ------------------------------------------------------------------------------ */

static void child(char **argv)
{
    enum { FIRST = 1, N = COUNT_OF(watched) };
    struct sock_filter code[FIRST + N + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < N; i++)
        code[FIRST + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, watched[i],
                                                       (unsigned char)(N - i), 0);
    code[FIRST + N] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[FIRST + N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    struct sock_fprog program = { COUNT_OF(code), code };
    if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(125);
    raise(SIGSTOP);
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        _exit(125);
    execvp(argv[0], argv);
    _exit(126);
}

static int finish(long calls, int status)
{
    printf("done %ld %d\n", calls, WIFEXITED(status) ? WEXITSTATUS(status) : 128);
    if (!status) forget("", true, true);
    return WIFEXITED(status) && WEXITSTATUS(status) == 125 ? 125 : 0;
}

int main(int argc, char **argv)
{
    bool torn = argc > 1 && !strcmp(argv[1], "-t");
    argv += 1 + torn;
    if (argc - torn < 3) return 2;
    long last = atol(argv[0]), calls = 0;
    int status;
    pid_t pid = fork(), who;
    if (pid == 0) child(argv + 1);
    if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFSTOPPED(status) ||
        ptrace(PTRACE_SETOPTIONS, pid, 0,
               PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE |
                   PTRACE_O_TRACEEXEC) ||
        ptrace(PTRACE_CONT, pid, 0, 0)) {
        fprintf(stderr, "crash_at: a program cannot be traced here: %s\n", strerror(errno));
        return 125;
    }
    while ((who = waitpid(-1, &status, __WALL)) > 0) {
        int event = status >> 16, sig = 0;
        if (!WIFSTOPPED(status)) {
            if (who == pid) return finish(calls, status);
            continue;
        }
        if (event == PTRACE_EVENT_SECCOMP) {
            struct __ptrace_syscall_info info;
            ptrace(PTRACE_GET_SYSCALL_INFO, who, sizeof info, &info);
            uint64_t nr = info.seccomp.nr, a[6];
            memcpy(a, info.seccomp.args, sizeof a);
            if (note(who, nr, a) && ++calls == last) {
                if (torn && (nr == SYS_write || nr == SYS_pwrite64)) write_half(who, nr, a);
                kill(pid, SIGKILL);
                while (waitpid(-1, &status, __WALL) > 0)
                    ;
                puts("killed");
                return 0;
            }
        } else if (!event && WSTOPSIG(status) != SIGSTOP && WSTOPSIG(status) != SIGTRAP) {
            sig = WSTOPSIG(status);
        }
        ptrace(PTRACE_CONT, who, 0, sig);
    }
    return 1;
}
