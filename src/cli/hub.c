/*
 * hub.c: what the commands around the store share: its folders and the hub's address by the
 * environment, and a pull with its progress on standard error.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "cli/cli.h"

static const char *environment(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

char *cli_home(arena *a, const char *sub)
{
    const char *home = environment("INFER_HOME"), *data = environment("XDG_DATA_HOME");
    if (home) return arena_printf(a, "%s/%s", home, sub);
    if (data) return arena_printf(a, "%s/infer/%s", data, sub);
    home = environment("HOME");
    return arena_printf(a, "%s/.local/share/infer/%s", home ? home : "", sub);
}

static const char *cache_home(arena *a)
{
    const char *hf = environment("HF_HOME"), *cache = environment("XDG_CACHE_HOME");
    const char *home = environment("HOME");
    if (hf) return hf;
    if (cache) return arena_printf(a, "%s/huggingface", cache);
    return arena_printf(a, "%s/.cache/huggingface", home ? home : "");
}

// HF_TOKEN, else the file that logging in with Hugging Face's own tools leaves.
static const char *token(arena *a, const char *cache)
{
    const char *given = environment("HF_TOKEN"), *found = NULL;
    char *path = given || !cache ? NULL : arena_printf(a, "%s/token", cache), *text;
    size_t n;
    if (!path || !file_exists(path) || file_read(path, 4096, &text, &n, NULL)) return given;
    n = strcspn(text, " \r\n");
    if (n) found = arena_strndup(a, text, n);
    mem_free(text);
    return found;
}

infer_hub_options cli_hub_options(arena *a)
{
    const char *cache = cache_home(a);
    return (infer_hub_options){
        .store = cli_home(a, "hub"),
        .cache = cache ? arena_printf(a, "%s/hub", cache) : NULL,
        .endpoint = environment("HF_ENDPOINT"),
        .token = token(a, cache),
    };
}

/* ---- progress -------------------------------------------------------------------------------- */

typedef struct display {
    const char *name;
    bool quiet, terminal, begun;
    double began, last;   // seconds
    uint64_t first, seen; // bytes at those times
    double rate;          // bytes/s, smoothed
    int tenth;            // of the whole, told last
} display;

static void print_log(infer_log_level level, const char *line, void *user)
{
    const display *d = user;
    if (level == INFER_LOG_WARN)
        cli_warn("%s", line);
    else if (!d->quiet) {
        cli_progress_end();
        fprintf(stderr, "%s\n", line);
    }
}

static void duration(char out[32], double s)
{
    if (s >= 36000)
        snprintf(out, 32, "%.0f h", s / 3600);
    else if (s >= 3600)
        snprintf(out, 32, "%d:%02d:%02d", (int)s / 3600, (int)s / 60 % 60, (int)s % 60);
    else
        snprintf(out, 32, "%d:%02d", (int)s / 60, (int)s % 60);
}

// The speed of the last seconds counts more than what was before.
static void measure(display *d, uint64_t done, double now)
{
    double dt = now - d->last;
    if (dt < 0.5) return;
    double rate = done > d->seen ? (double)(done - d->seen) / dt : 0;
    double keep = d->rate > 0 ? 1 / (1 + dt / 3) : 0;
    d->rate = keep * d->rate + (1 - keep) * rate;
    d->last = now;
    d->seen = done;
}

static void show_line(const display *d, const infer_pull_progress *p, double now)
{
    char done[32], total[32], rate[32], left[32];
    const char *file = p->file ? p->file : d->name, *slash = strrchr(file, '/');
    double speed = d->rate;
    if (!(speed > 0) && now > d->began) speed = (double)(p->done - d->first) / (now - d->began);
    if (slash) file = slash + 1;
    cli_bytes(done, p->done);
    cli_bytes(total, p->total);
    if (p->phase == INFER_PULL_CHECK) {
        cli_progress("%-.36s  %s, checking", file, total);
    } else if (p->phase == INFER_PULL_WAIT) {
        cli_progress("%-.36s  %s of %s, waiting", file, done, total);
    } else {
        duration(left, speed > 1 ? (double)(p->total - p->done) / speed : 0);
        cli_progress("%-.28s %3.0f %%  %s of %s  %s/s  %s left", file,
                     100.0 * (double)p->done / (double)p->total, done, total,
                     cli_bytes(rate, (uint64_t)speed), speed > 1 ? left : "?");
    }
}

static bool on_progress(const infer_pull_progress *p, void *user)
{
    display *d = user;
    double now = cli_now();
    char a[32], b[32];
    if (cli_interrupted()) return false;
    if (d->quiet || !p->total) return true;
    if (!d->begun) {
        d->begun = true;
        d->began = d->last = now;
        d->first = d->seen = p->done;
        d->tenth = (int)(10.0 * (double)p->done / (double)p->total);
        fprintf(stderr, "%s: %d file%s, %s", d->name, p->n_files, p->n_files == 1 ? "" : "s",
                cli_bytes(a, p->total));
        if (p->done == p->total)
            fprintf(stderr, ", all here");
        else if (p->done)
            fprintf(stderr, ", of which %s are here", cli_bytes(b, p->done));
        fputc('\n', stderr);
    }
    measure(d, p->done, now);
    if (d->terminal) {
        show_line(d, p, now);
        return true;
    }
    int tenth = (int)(10.0 * (double)p->done / (double)p->total);
    if (tenth > d->tenth)
        fprintf(stderr, "%s: %s of %s (%d %%)\n", d->name, cli_bytes(a, p->done),
                cli_bytes(b, p->total), tenth * 10);
    if (tenth > d->tenth) d->tenth = tenth;
    return true;
}

int cli_pull(char **path, const char *name, infer_hub_options o, bool quiet)
{
    display d = { .name = name, .quiet = quiet, .terminal = isatty(STDERR_FILENO) };
    infer_error err = { 0 };
    o.progress = on_progress;
    o.user = &d;
    o.log = (infer_log){ print_log, &d };
    cli_interrupt_later(true);
    infer_status s = infer_pull(path, name, &o, &err);
    cli_interrupt_later(false);
    cli_progress_end();
    if (s == INFER_CANCELLED && d.begun)
        fprintf(stderr, "stopped: 'infer pull %s' goes on from here\n", name);
    return s ? cli_fail(&err) : EXIT_DONE;
}
