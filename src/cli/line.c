/*
 * line.c: libedit behind line.h.
 *
 * The editor reads through read_char, which waits for a key or a signal: the handlers only write to
 * a pipe (they may run on any thread), and what a signal asks for is done there, between two keys.
 * So Ctrl-C is a key like others, a stopped program gives the terminal back in order, and a signal
 * that ends it too.
 */
#include "cli/line.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli.h"

enum { HISTORY_LINES = 1000, CTRL_C = 3, CTRL_D = 4, REPLACEMENT = 0xfffd };

struct line_editor {
    EditLine *el;
    History *history;
    char *file;
    const char *const *words;
    char prompt[64];
    bool interrupted, empty;
};

/* ---- signals --------------------------------------------------------------------------------- */

static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH };
static int wake[2] = { -1, -1 };
static struct sigaction before[COUNT_OF(signals)];

static void on_signal(int number)
{
    int saved = errno;
    unsigned char byte = (unsigned char)number;
    if (write(wake[1], &byte, 1) < 0) errno = 0; // a full pipe holds signals enough
    errno = saved;
}

static void take_signals(void)
{
    struct sigaction a = { .sa_handler = on_signal };
    sigemptyset(&a.sa_mask);
    for (int i = 0; i < COUNT_OF(signals); i++)
        sigaction(signals[i], &a, &before[i]);
}

static void give_signals(void)
{
    for (int i = 0; i < COUNT_OF(signals); i++)
        sigaction(signals[i], &before[i], NULL);
}

// True where it stands for a key, which is then *c.
static bool serve_signal(line_editor *l, int number, wchar_t *c)
{
    switch (number) {
    case SIGINT: *c = CTRL_C; return true;
    case SIGWINCH: el_resize(l->el); return false;
    case SIGCONT: // stopped from outside
        el_set(l->el, EL_PREP_TERM, 1);
        el_set(l->el, EL_REFRESH);
        return false;
    case SIGTSTP:
        el_set(l->el, EL_PREP_TERM, 0);
        raise(SIGSTOP);
        return false; // the SIGCONT that goes on has its byte in the pipe
    default:
        el_set(l->el, EL_PREP_TERM, 0);
        give_signals();
        raise(number);
        _exit(128 + number); // where it was ignored before
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

// The rest of a character that begins with the byte s[0].
static int read_rest(int fd, char s[4], wchar_t *c)
{
    unsigned char lead = (unsigned char)s[0];
    size_t want = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1, n = 1;
    uint32_t cp;
    while (n < want) {
        ssize_t got = read(fd, s + n, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        if (((unsigned char)s[n++] & 0xc0) != 0x80) break;
    }
    *c = utf8_decode(s, n, &cp) == (int)n ? (wchar_t)cp : REPLACEMENT;
    return 1;
}

// What libedit calls for each character: 1, 0 at the end, -1 on failure.
static int read_char(EditLine *el, wchar_t *c)
{
    line_editor *l;
    el_get(el, EL_CLIENTDATA, &l);
    for (;;) {
        struct pollfd p[2] = { { .fd = wake[0], .events = POLLIN },
                               { .fd = STDIN_FILENO, .events = POLLIN } };
        if (poll(p, 2, -1) < 0 && errno != EINTR) return -1;
        unsigned char number;
        if (p[0].revents & POLLIN && read(wake[0], &number, 1) == 1) {
            if (serve_signal(l, number, c)) return 1;
            continue;
        }
        if (!p[1].revents) continue;
        char s[4];
        ssize_t got = read(STDIN_FILENO, s, 1);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got <= 0) return 0;
        // A Ctrl-D typed while no line was edited: the terminal has kept it as a NUL.
        if (!s[0]) s[0] = CTRL_D;
        return read_rest(STDIN_FILENO, s, c);
    }
}

static unsigned char on_interrupt(EditLine *el, int key)
{
    line_editor *l;
    (void)key;
    el_get(el, EL_CLIENTDATA, &l);
    const LineInfo *line = el_line(el);
    l->interrupted = true;
    l->empty = line->lastchar == line->buffer;
    return CC_EOF;
}

// Completes the one word that the line begins with.
static unsigned char on_tab(EditLine *el, int key)
{
    line_editor *l;
    (void)key;
    el_get(el, EL_CLIENTDATA, &l);
    const LineInfo *line = el_line(el);
    size_t n = (size_t)(line->cursor - line->buffer);
    const char *found = NULL;
    for (const char *const *w = l->words; w && *w && n; w++) {
        if (strncmp(*w, line->buffer, n)) continue;
        if (found) return CC_ERROR; // several
        found = *w;
    }
    if (!found || strlen(found) <= n) return CC_ERROR;
    return el_insertstr(el, found + n) ? CC_ERROR : CC_REFRESH;
}

static char *show_prompt(EditLine *el)
{
    line_editor *l;
    el_get(el, EL_CLIENTDATA, &l);
    return l->prompt;
}

/* ---- history --------------------------------------------------------------------------------- */

static void make_folders(const char *file)
{
    char *path = mem_strdup(file);
    for (char *p = path; p && (p = strchr(p + 1, '/'));) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    mem_free(path);
}

static void open_history(line_editor *l, const char *file)
{
    HistEvent ev;
    l->history = history_init();
    if (!l->history) return;
    history(l->history, &ev, H_SETSIZE, HISTORY_LINES);
    history(l->history, &ev, H_SETUNIQUE, 1);
    el_set(l->el, EL_HIST, history, l->history);
    if (!file) return;
    make_folders(file);
    history(l->history, &ev, H_LOAD, file);
    l->file = mem_strdup(file);
}

void line_remember(line_editor *l, const char *text)
{
    HistEvent ev;
    if (!l->history || !*text) return;
    history(l->history, &ev, H_ENTER, text);
    if (!l->file || history(l->history, &ev, H_SAVE, l->file) >= 0) return;
    cli_warn("the history cannot be kept in %s: %s", l->file, strerror(errno));
    mem_free(l->file); // told once
    l->file = NULL;
}

/* ---- the editor ------------------------------------------------------------------------------ */

// Characters are drawn by the locale: where it has no UTF-8, one that has.
static void choose_locale(void)
{
    if (setlocale(LC_CTYPE, "") && !strcmp(nl_langinfo(CODESET), "UTF-8")) return;
    setlocale(LC_CTYPE, "C.UTF-8");
}

static void bind_keys(EditLine *el)
{
    static const char *const keys[][2] = {
        { "^C", "infer-interrupt" },    { "^I", "infer-complete" },
        { "^R", "em-inc-search-prev" }, { "\\e[3~", "ed-delete-next-char" },
        { "\\e[H", "ed-move-to-beg" },  { "\\e[F", "ed-move-to-end" },
        { "\\e[1~", "ed-move-to-beg" }, { "\\e[4~", "ed-move-to-end" },
        { "\\e[1;5C", "em-next-word" }, { "\\e[1;5D", "ed-prev-word" },
    };
    el_set(el, EL_EDITOR, "emacs");
    // Wide: the narrow call copies the names and never frees them.
    el_wset(el, EL_ADDFN, L"infer-interrupt", L"drop the line", on_interrupt);
    el_wset(el, EL_ADDFN, L"infer-complete", L"complete a command", on_tab);
    for (int i = 0; i < COUNT_OF(keys); i++)
        el_set(el, EL_BIND, keys[i][0], keys[i][1], NULL);
}

line_editor *line_new(const char *history_file, const char *const *words)
{
    line_editor *l = mem_zero(1, sizeof *l);
    if (!l) return NULL;
    choose_locale();
    l->words = words;
    if (wake[0] < 0 && pipe2(wake, O_CLOEXEC | O_NONBLOCK)) goto failed;
    if (!(l->el = el_init("infer", stdin, stdout, stderr))) goto failed;
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_SIGNAL, 0);
    el_set(l->el, EL_PROMPT_ESC, show_prompt, '\1');
    el_wset(l->el, EL_GETCFN, read_char);
    bind_keys(l->el);
    open_history(l, history_file);
    return l;
failed:
    line_free(l);
    return NULL;
}

void line_free(line_editor *l)
{
    if (!l) return;
    if (l->el) el_end(l->el);
    if (l->history) history_end(l->history);
    mem_free(l->file);
    mem_free(l);
}

line_end line_read(line_editor *l, const char *prompt, char **text)
{
    int n;
    const char *bold = cli_bold(stdout);
    *text = NULL;
    l->interrupted = l->empty = false;
    if (*bold)
        snprintf(l->prompt, sizeof l->prompt, "\1%s\1%s\1%s\1", bold, prompt, cli_plain(stdout));
    else
        snprintf(l->prompt, sizeof l->prompt, "%s", prompt);
    fflush(stdout);
    take_signals();
    el_set(l->el, EL_PREP_TERM, 1); // before the prompt is seen and answered
    const char *line = el_gets(l->el, &n);
    give_signals();
    if (l->interrupted || !line) {
        putchar('\n');
        fflush(stdout);
        if (!l->interrupted) return LINE_CLOSED;
        return l->empty ? LINE_INTERRUPTED_EMPTY : LINE_INTERRUPTED;
    }
    size_t len = strlen(line);
    if (len && line[len - 1] == '\n') len--;
    *text = mem_strndup(line, len);
    return *text ? LINE_TEXT : LINE_NO_MEMORY;
}
