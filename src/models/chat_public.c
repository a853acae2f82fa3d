/* chat_public.c: the public face of chat templates: JSON text in, text or ids out. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/mem.h"
#include "infer.h"
#include "models/chat.h"

static chat_template *inner(const infer_template *t) { return (chat_template *)t; }

infer_status infer_template_new(infer_template **out, const infer_tokenizer *tok,
                                const char *source, infer_error *err)
{
    chat_template *c;
    *out = NULL;
    infer_status st = chat_template_new(&c, (const tokenizer *)tok, source, err);
    if (st) return st;
    *out = (infer_template *)c;
    return error_clear(err);
}

void infer_template_free(infer_template *t) { chat_template_free(inner(t)); }

/* Two digits or four; *s goes past them. */
static bool number(const char **s, int digits, int *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++, ++*s) {
        if (**s < '0' || **s > '9') return false;
        *out = *out * 10 + (**s - '0');
    }
    return true;
}
static bool mark(const char **s, char c) { return *(*s)++ == c; }

/* "2026-07-26", "2026-07-26T12:00" or "2026-07-26T12:00:00". */
static infer_status parse_time(struct tm *tm, const char *text, infer_error *err)
{
    const char *s = text;
    *tm = (struct tm){ .tm_isdst = 0 };
    bool ok = number(&s, 4, &tm->tm_year) && mark(&s, '-') && number(&s, 2, &tm->tm_mon) &&
              mark(&s, '-') && number(&s, 2, &tm->tm_mday);
    if (ok && (*s == 'T' || *s == ' ')) {
        s++;
        ok = number(&s, 2, &tm->tm_hour) && mark(&s, ':') && number(&s, 2, &tm->tm_min);
        if (ok && *s == ':') s++, ok = number(&s, 2, &tm->tm_sec);
    }
    struct tm given = *tm;
    tm->tm_year -= 1900;
    tm->tm_mon -= 1;
    // timegm fills weekday and day of the year, and moves what is out of range: then it is refused.
    ok = ok && !*s && timegm(tm) != (time_t)-1 && tm->tm_mon + 1 == given.tm_mon &&
         tm->tm_mday == given.tm_mday && tm->tm_hour == given.tm_hour &&
         tm->tm_min == given.tm_min && tm->tm_sec == given.tm_sec;
    if (ok) return INFER_OK;
    return error_set(err, INFER_ARGUMENT, "time '%s': expected a time as 2026-07-26T12:00:00",
                     text);
}

/* The request that a context in JSON makes; *root is to be released. */
static infer_status read_request(json_t **root, chat_request *q, struct tm *tm, const char *context,
                                 size_t n, const char *now, infer_error *err)
{
    json_error_t at;
    *root = json_loadb(context, n, JSON_ALLOW_NUL, &at);
    if (!*root) return error_set(err, INFER_ARGUMENT, "context: column %d: %s", at.column, at.text);
    if (!json_is_object(*root)) {
        json_decref(*root);
        *root = NULL;
        return error_set(err, INFER_ARGUMENT, "context: expected a JSON object");
    }
    *q = (chat_request){ .extra = *root, .now = tm };
    infer_status st = INFER_OK;
    if (now) {
        st = parse_time(tm, now, err);
    } else {
        time_t t = time(NULL);
        if (!localtime_r(&t, tm)) st = error_set(err, INFER_INTERNAL, "the clock gives no time");
    }
    if (st) json_decref(*root);
    return st;
}

infer_status infer_template_render(const infer_template *t, char **text, size_t *n_text,
                                   const char *context, size_t n, const char *now, infer_error *err)
{
    json_t *root;
    chat_request q;
    struct tm tm;
    *text = NULL;
    *n_text = 0;
    infer_status st = read_request(&root, &q, &tm, context, n, now, err);
    if (st) return st;
    jinja_text out;
    st = chat_render(inner(t), &out, &q, err);
    json_decref(root);
    if (st) return st;
    *text = out.s; // allocated as infer_free expects
    *n_text = out.n;
    out.s = NULL;
    jinja_text_free(&out);
    return error_clear(err);
}

infer_status infer_template_ids(const infer_template *t, int32_t **ids, size_t *n_ids,
                                const char *context, size_t n, const char *now, infer_error *err)
{
    json_t *root;
    chat_request q;
    struct tm tm;
    *ids = NULL;
    *n_ids = 0;
    infer_status st = read_request(&root, &q, &tm, context, n, now, err);
    if (st) return st;
    st = chat_encode(inner(t), ids, n_ids, &q, err);
    json_decref(root);
    return st ? st : error_clear(err);
}
