/*
 * template_cases.h: a golden case of a chat template (template, context, and the text or the
 * refusal of jinja2) against ours. For the program templates and the unit test.
 */
#ifndef TEMPLATE_CASES_H
#define TEMPLATE_CASES_H

#include <stdio.h>
#include <string.h>

#include "models/jinja.h"

/* "2026-07-26T12:00:00"; NULL gives year zero. */
static inline struct tm case_clock(const char *iso)
{
    struct tm t = { 0 };
    if (iso && sscanf(iso, "%d-%d-%dT%d:%d:%d", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour,
                      &t.tm_min, &t.tm_sec) == 6) {
        t.tm_year -= 1900;
        t.tm_mon--;
        timegm(&t); // fills in the weekday and the day of the year
    }
    return t;
}

typedef enum case_result { CASE_EQUAL, CASE_OTHER_WORDS, CASE_DIFFERENT } case_result;

/* Refusals are compared without the "line N: " that ours have. */
static inline case_result case_check(json_t *c, const char *source, size_t n, json_t *context,
                                     const struct tm *now, bool show)
{
    infer_error err = { 0 };
    jinja_options o = { .now = now };
    jinja_template *t = NULL;
    jinja_text out = { 0 };
    json_t *text = json_object_get(c, "text"), *raises = json_object_get(c, "raises");
    if (!jinja_compile(&t, source, n, &err)) jinja_render(t, &out, context, &o, &err);
    case_result result = CASE_DIFFERENT;
    const char *colon = strstr(err.msg, ": ");
    const char *words = !strncmp(err.msg, "line ", 5) && colon ? colon + 2 : err.msg;
    if (!err.code && text && out.n == json_string_length(text) &&
        !memcmp(out.s, json_string_value(text), out.n))
        result = CASE_EQUAL;
    else if (err.code && raises)
        result = strcmp(words, json_string_value(raises)) ? CASE_OTHER_WORDS : CASE_EQUAL;
    if (show && result) {
        const char *file = json_string_value(json_object_get(c, "template"));
        printf("== %s %s\n", file ? file : "", json_string_value(json_object_get(c, "case")));
        if (json_object_get(c, "source")) printf("source:   %s\n", source);
        printf("expected: %s%s\n",
               text ? "" : "refusal: ", json_string_value(text ? text : raises));
        printf("found:    %s%s\n", err.code ? "refusal: " : "", err.code ? err.msg : out.s);
    }
    jinja_text_free(&out);
    jinja_free(t);
    return result;
}

#endif
