/*
 * common.c: what every command needs around its work: errors and exit codes, standard input and
 * output, progress, Ctrl-C.
 *
 * Standard output holds results only and standard error all else. Escape sequences and carriage
 * returns go to terminals alone.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli.h"

/* ---- errors ---------------------------------------------------------------------------------- */

static const unsigned char exit_codes[] = {
    [INFER_OK] = EXIT_DONE,
    [INFER_NOMEM] = EXIT_FAILED,
    [INFER_ARGUMENT] = EXIT_USAGE,
    [INFER_IO] = EXIT_FAILED,
    [INFER_NOT_FOUND] = EXIT_FAILED,
    [INFER_FORMAT] = EXIT_FAILED,
    [INFER_UNSUPPORTED] = EXIT_FAILED,
    [INFER_LIMIT] = EXIT_FAILED,
    [INFER_CANCELLED] = EXIT_INTERRUPTED,
    [INFER_DEVICE] = EXIT_FAILED,
    [INFER_INTERNAL] = EXIT_FAILED,
};
static_assert(sizeof exit_codes == INFER_STATUS_COUNT, "every status has its exit code");

// One line: text from files, arguments and the system may hold anything.
static void print_line(const char *prefix, const char *fmt, va_list ap)
{
    char line[1400];
    vsnprintf(line, sizeof line, fmt, ap);
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = '?';
    cli_progress_end();
    fprintf(stderr, "infer: %s%s\n", prefix, line);
}

int cli_error(int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_line("", fmt, ap);
    va_end(ap);
    return code;
}

int cli_usage(const cli_command *c, const char *fmt, ...)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s: ", c->name);
    va_list ap;
    va_start(ap, fmt);
    print_line(prefix, fmt, ap);
    va_end(ap);
    return EXIT_USAGE;
}

void cli_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_line("warning: ", fmt, ap);
    va_end(ap);
}

int cli_fail(const infer_error *err)
{
    if (err->code == INFER_CANCELLED) {
        cli_progress_end();
        return EXIT_INTERRUPTED;
    }
    int code = err->code < INFER_STATUS_COUNT ? exit_codes[err->code] : EXIT_FAILED;
    return cli_error(code, "%s", *err->msg ? err->msg : infer_status_str(err->code));
}

static void print_log(infer_log_level level, const char *line, void *user)
{
    (void)user;
    if (level == INFER_LOG_WARN) cli_warn("%s", line);
}
const infer_log cli_log = { print_log, NULL };

// Insertions, deletions and replacements between a [n] and b [m], both at most 63 long.
static int edit_distance(const char *a, int n, const char *b, int m)
{
    int row[64];
    for (int j = 0; j <= m; j++)
        row[j] = j;
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

// Length of a name, less the suffix of a model file.
static int stem_length(const char *s)
{
    size_t n = strnlen(s, 63);
    return (int)(n > 5 && !strcmp(s + n - 5, ".gguf") ? n - 5 : n);
}

const char *cli_nearest(const char *word, const char *const *names, int n)
{
    const char *best = NULL;
    int best_d = 0, len = stem_length(word);
    for (int i = 0; i < n; i++) {
        int other = stem_length(names[i]), longest = other > len ? other : len;
        int d = edit_distance(word, len, names[i], other);
        // Half a word wrong is another word, unless it is the beginning of this one.
        bool prefix = len > 1 && other > len && !strncmp(word, names[i], (size_t)len);
        if (prefix) d = 1;
        if (d * 2 <= longest && (!best || d < best_d)) best = names[i], best_d = d;
    }
    return best;
}

/* ---- input and output ------------------------------------------------------------------------ */

#define INPUT_LIMIT (256u << 20)

int cli_read_input(char **text, size_t *n, const char *what)
{
    infer_error err = { 0 };
    char *p = NULL;
    size_t cap = 0, len = 0;
    if (isatty(STDIN_FILENO))
        fprintf(stderr, "reading %s from the terminal, Ctrl-D on an empty line ends it\n", what);
    for (;;) {
        if (mem_reserve((void **)&p, &cap, len + 65536 + 1, 1, &err)) goto failed;
        ssize_t got = read(STDIN_FILENO, p + len, 65536);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            error_set(&err, INFER_IO, "standard input: %s", strerror(errno));
            goto failed;
        }
        if (!got) break;
        len += (size_t)got;
        if (len > INPUT_LIMIT) {
            error_set(&err, INFER_LIMIT, "standard input: %s of more than %u MB", what,
                      INPUT_LIMIT >> 20);
            goto failed;
        }
    }
    // The newline that ends the last line of a file or of `echo` is not part of the text.
    if (len && p[len - 1] == '\n') len--;
    p[len] = 0;
    *text = p;
    *n = len;
    if (len) return EXIT_DONE;
    mem_free(p);
    *text = NULL;
    return cli_error(EXIT_USAGE, "standard input is empty: expected %s", what);
failed:
    mem_free(p);
    return cli_fail(&err);
}

int cli_flush(int code)
{
    static bool told;
    errno = 0;
    bool failed = fflush(stdout) || ferror(stdout);
    if (!failed) return code;
    if (!told)
        cli_error(EXIT_FAILED, "standard output: %s", errno ? strerror(errno) : "write failed");
    told = true;
    return code ? code : EXIT_FAILED;
}

static bool styled(FILE *f)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(f)) && !(no && *no) && !(term && !strcmp(term, "dumb"));
}

const char *cli_bold(FILE *f) { return styled(f) ? "\033[1m" : ""; }
const char *cli_plain(FILE *f) { return styled(f) ? "\033[0m" : ""; }

void cli_put_text(FILE *f, const char *s, size_t n, int max)
{
    int col = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_decode(s + i, n - i, &cp);
        char out[16];
        if (!len)
            len = 1, snprintf(out, sizeof out, "\\x%02x", (unsigned char)s[i]);
        else if (cp == '\n')
            strcpy(out, "\\n");
        else if (cp == '\t')
            strcpy(out, "\\t");
        else if (cp == '\r')
            strcpy(out, "\\r");
        else if (cp < 32 || cp == 127)
            snprintf(out, sizeof out, "\\x%02x", (unsigned)cp);
        // C1 controls and the characters that turn the direction of writing around
        else if ((cp >= 0x80 && cp < 0xa0) || (cp >= 0x200b && cp <= 0x200f) ||
                 (cp >= 0x2028 && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069) || cp == 0xfeff)
            snprintf(out, sizeof out, "\\u%04x", (unsigned)cp);
        else
            snprintf(out, sizeof out, "%.*s", len, s + i);
        int w = out[0] == '\\' ? (int)strlen(out) : 1;
        if (max && col + w > max - (i + (size_t)len < n)) {
            fputs("…", f);
            return;
        }
        fputs(out, f);
        col += w;
        i += (size_t)len;
    }
}

void cli_put_ids(const infer_tokenizer *tok, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *piece = infer_token_text(tok, ids[i]);
        printf("%8d  ", (int)ids[i]);
        if (piece) cli_put_text(stdout, piece, strlen(piece), 60);
        puts(infer_token_is_special(tok, ids[i]) ? "  (special)" : "");
    }
}

const char *cli_bytes(char out[32], uint64_t bytes)
{
    static const char *const unit[] = { "kB", "MB", "GB", "TB" };
    if (bytes < 1000) {
        snprintf(out, 32, "%d B", (int)bytes);
        return out;
    }
    double v = (double)bytes / 1000;
    int u = 0;
    while (v >= 999.95 && u < 3)
        v /= 1000, u++;
    snprintf(out, 32, "%.1f %s", v, unit[u]);
    return out;
}

static int progress_width; // columns of the line that stands there now

void cli_progress(const char *fmt, ...)
{
    static double last;
    static int terminal = -1;
    if (terminal < 0) terminal = isatty(STDERR_FILENO);
    double now = cli_now();
    if (!terminal || (progress_width && now - last < 0.1)) return;
    last = now;
    char line[80];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    int n = (int)strlen(line);
    fprintf(stderr, "\r%s%*s", line, progress_width > n ? progress_width - n : 0, "");
    fflush(stderr);
    if (n > progress_width) progress_width = n;
}

void cli_progress_end(void)
{
    if (progress_width) fprintf(stderr, "\r%*s\r", progress_width, "");
    progress_width = 0;
}

double cli_now(void) { return clock_seconds(); }

uint64_t cli_proc_bytes(const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    char line[256];
    size_t n = strlen(key);
    unsigned long long kb = 0;
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && sscanf(line + n, ": %llu", &kb) == 1) break;
    if (f) fclose(f);
    return kb << 10;
}

uint64_t cli_peak_memory(void) { return cli_proc_bytes("/proc/self/status", "VmHWM"); }

json_t *cli_json_text(const char *s, size_t n)
{
    json_t *direct = json_stringn(s, n);
    if (direct) return direct;
    char *clean = mem_alloc(n + 1, 3);
    if (!clean) return NULL;
    json_t *j = json_stringn(clean, utf8_replace(s, n, clean));
    mem_free(clean);
    return j;
}

json_t *cli_json_ids(const int32_t *ids, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; a && i < n; i++)
        json_array_append_new(a, json_integer(ids[i]));
    return a;
}

int cli_json_print(json_t *root)
{
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(root);
    if (!text) return cli_error(EXIT_FAILED, "JSON output: out of memory");
    puts(text);
    free(text);
    return cli_flush(EXIT_DONE);
}

int cli_json_lines(cli_answer *answer, const void *user)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    int code = EXIT_DONE;
    setvbuf(stdout, NULL, _IOLBF, 0); // a program at the other end may wait for each answer
    while (!code && (errno = 0, len = getline(&line, &cap, stdin)) >= 0) {
        size_t n = (size_t)len;
        if (n && line[n - 1] == '\n') n--;
        infer_error err = { 0 };
        json_error_t why;
        json_t *in = json_loadb(line, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why), *out = NULL;
        if (!in)
            error_set(&err, INFER_FORMAT, "column %d: %s", why.column, why.text);
        else
            out = answer(in, line, n, user, &err);
        if (!out) out = json_pack("{s:o}", "error", cli_json_text(err.msg, strlen(err.msg)));
        json_decref(in);
        code = cli_json_print(out);
    }
    if (!code && ferror(stdin))
        code = cli_error(EXIT_FAILED, "standard input: %s", strerror(errno));
    free(line);
    return code;
}

/* ---- interrupts ------------------------------------------------------------------------------ */

static infer_engine *volatile interrupt_engine;
static infer_session *volatile interrupt_session;
static volatile sig_atomic_t interrupt_later;
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (interrupted || (!interrupt_engine && !interrupt_session && !interrupt_later))
        _exit(EXIT_INTERRUPTED);
    interrupted = 1;
    if (interrupt_session) infer_session_cancel(interrupt_session);
    if (interrupt_engine) infer_engine_cancel(interrupt_engine);
}

// The reader has left: nobody is there to be told. Exit 0 and not death by the signal, so that
// `infer … | head -1` is no failure under `set -o pipefail`.
static void on_closed_pipe(int signal_number)
{
    (void)signal_number;
    _exit(EXIT_DONE);
}

void cli_start(void)
{
    // A missing standard stream would be given to the next file that is opened. What stands in for
    // it is open the wrong way round, so that using it is an error and not a silence.
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
            _exit(EXIT_FAILED);
    struct sigaction a = { .sa_handler = on_interrupt };
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    a.sa_handler = on_closed_pipe;
    sigaction(SIGPIPE, &a, NULL);
    a.sa_handler = SIG_IGN; // a file at the limit of its size is a failed write, told like others
    sigaction(SIGXFSZ, &a, NULL);
}

void cli_interrupt_engine(infer_engine *engine) { interrupt_engine = engine; }
void cli_interrupt_session(infer_session *session) { interrupt_session = session; }
void cli_interrupt_later(bool on) { interrupt_later = on; }
bool cli_interrupted(void) { return interrupted; }
void cli_interrupt_over(void) { interrupted = 0; }
