/*
 * error.c: the caller's error, lists of faults, log lines, and the library's version.
 *
 * A message may carry names out of a hostile file to a terminal or into JSON. So whatever is
 * written here is one line of valid UTF-8 without control characters.
 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define INFER_VERSION "0.1.0" // the Makefile reads this line

const char *infer_version(void) { return INFER_VERSION; }

const char *infer_status_str(infer_status status)
{
    static const char *const texts[] = {
#define X(name, text) text,
        INFER_STATUS_LIST(X)
#undef X
    };
    if ((unsigned)status >= INFER_STATUS_COUNT) return "unknown status";
    return texts[status];
}

/* Control characters (C0, DEL, C1) and invalid bytes become '?', in place; the text shrinks. */
static void clean(char *s)
{
    size_t n = strlen(s), out = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int len = utf8_decode(s + i, n - i, &cp);
        if (len == 0 || cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) {
            s[out++] = '?';
            i += len ? (size_t)len : 1;
            continue;
        }
        memmove(s + out, s + i, (size_t)len);
        out += (size_t)len;
        i += (size_t)len;
    }
    s[out] = 0;
}

/* Formats into s [size]; what does not fit is cut behind a whole character. */
static void format_line(char *s, size_t size, const char *fmt, va_list args)
{
    int n = vsnprintf(s, size, fmt, args);
    if (n < 0) s[0] = 0;
    if (n >= 0 && (size_t)n >= size) s[utf8_whole(s, size - 1)] = 0;
    clean(s);
}

infer_status error_set(infer_error *err, infer_status code, const char *fmt, ...)
{
    if (!err) return code;
    char line[sizeof err->msg]; // the arguments may point into err
    va_list args;
    va_start(args, fmt);
    format_line(line, sizeof line, fmt, args);
    va_end(args);
    err->code = code;
    memcpy(err->msg, line, strlen(line) + 1);
    return code;
}

infer_status error_prefix(infer_error *err, const char *fmt, ...)
{
    if (!err) return INFER_INTERNAL;
    char text[sizeof err->msg];
    va_list args;
    va_start(args, fmt);
    format_line(text, sizeof text, fmt, args);
    va_end(args);
    return error_set(err, err->code, "%s: %s", text, err->msg);
}

infer_status error_clear(infer_error *err)
{
    if (err) {
        err->code = INFER_OK;
        err->msg[0] = 0;
    }
    return INFER_OK;
}

void fault_add(fault_list *f, const char *fmt, ...)
{
    enum { TAIL = 32 }; // room for "; and 2147483647 more"
    size_t used = strlen(f->text), room = sizeof f->text - TAIL - used;
    char line[sizeof f->text - TAIL];
    va_list args;
    va_start(args, fmt);
    format_line(line, sizeof line, fmt, args);
    va_end(args);
    // Shown faults are the first ones: after one that did not fit, none is shown.
    size_t n = strlen(line);
    if (f->n_shown == f->n && (f->n == 0 || n + 2 < room)) {
        if (f->n) memcpy(f->text + used, "; ", 2), used += 2;
        memcpy(f->text + used, line, n + 1);
        f->n_shown++;
    }
    f->n++;
}

infer_status fault_status(const fault_list *f, infer_error *err, infer_status code,
                          const char *where)
{
    if (f->n == 0) return error_clear(err);
    if (f->n == f->n_shown) return error_set(err, code, "%s: %s", where, f->text);
    return error_set(err, code, "%s: %s; and %d more", where, f->text, f->n - f->n_shown);
}

void log_line(const infer_log *log, infer_log_level level, const char *fmt, ...)
{
    if (!log || !log->fn) return;
    char line[1024];
    va_list args;
    va_start(args, fmt);
    format_line(line, sizeof line, fmt, args);
    va_end(args);
    log->fn(level, line, log->user);
}
