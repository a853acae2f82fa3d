/*
 * templates.c: renders the cases of a golden file and counts those that differ.
 *
 *     templates CASES.json [--show N]      every case of the file
 *     templates --one TEMPLATE CONTEXT.json the text of one (no clock but that of the golden files)
 *
 * CASES.json: {"strftime_now": "2026-07-26T12:00:00", "cases": [{"template": file beside CASES.json
 * or "source": text, "case": name, "context": {…}, and "text": … or "raises": …}, …]}. Exit code 0:
 * all equal.
 */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "models/jinja.h"

static struct tm read_clock(const char *iso)
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

/* Refusals are compared without "line N: "; where Python names an internal function, ours may
 * differ. */
static const char *message(const infer_error *e)
{
    const char *colon = strstr(e->msg, ": ");
    return !strncmp(e->msg, "line ", 5) && colon ? colon + 2 : e->msg;
}

static char *source_of(json_t *c, const char *folder, infer_error *err)
{
    const char *source = json_string_value(json_object_get(c, "source"));
    if (source) return mem_strndup(source, json_string_length(json_object_get(c, "source")));
    char path[4096], *text = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/%s", folder, json_string_value(json_object_get(c, "template")));
    file_read(path, 1 << 24, &text, &n, err);
    return text;
}

/* 0 equal, 1 another refusal text, 2 different. */
static int check(json_t *c, const char *folder, const struct tm *now, bool show)
{
    infer_error err = { 0 };
    jinja_options o = { .now = now };
    jinja_template *t = NULL;
    jinja_text out = { 0 };
    char *source = source_of(c, folder, &err);
    json_t *text = json_object_get(c, "text"), *raises = json_object_get(c, "raises");
    if (source && !jinja_compile(&t, source, strlen(source), &err))
        jinja_render(t, &out, json_object_get(c, "context"), &o, &err);
    int result = 2;
    if (!err.code && text)
        result = out.n == json_string_length(text) && !memcmp(out.s, json_string_value(text), out.n)
                     ? 0
                     : 2;
    else if (err.code && raises)
        result = strcmp(message(&err), json_string_value(raises)) ? 1 : 0;
    if (show && result) {
        printf("== %s %s\n", json_string_value(json_object_get(c, "template")),
               json_string_value(json_object_get(c, "case")));
        if (json_object_get(c, "source")) printf("source:   %s\n", source);
        printf("expected: %s%s\n",
               text ? "" : "refusal: ", json_string_value(text ? text : raises));
        printf("found:    %s%s\n", err.code ? "refusal: " : "", err.code ? err.msg : out.s);
    }
    jinja_text_free(&out);
    jinja_free(t);
    mem_free(source);
    return result;
}

static int one(const char *template, const char *context)
{
    infer_error err = { 0 };
    struct tm now = read_clock("2026-07-26T12:00:00");
    jinja_options o = { .now = &now };
    jinja_template *t = NULL;
    jinja_text out = { 0 };
    char *source;
    size_t n;
    json_t *j = json_load_file(context, JSON_ALLOW_NUL, NULL);
    if (!j || file_read(template, 1 << 24, &source, &n, &err) ||
        jinja_compile(&t, source, n, &err) || jinja_render(t, &out, j, &o, &err)) {
        fprintf(stderr, "%s\n", j ? err.msg : "context: not JSON");
        return 1;
    }
    fwrite(out.s, 1, out.n, stdout);
    jinja_text_free(&out);
    jinja_free(t);
    mem_free(source);
    json_decref(j);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "--one")) return one(argv[2], argv[3]);
    if (argc < 2) return fprintf(stderr, "usage: templates CASES.json [--show N]\n"), 2;
    int show = argc == 4 ? atoi(argv[3]) : 0, counts[3] = { 0 };
    json_t *file = json_load_file(argv[1], JSON_ALLOW_NUL, NULL), *c;
    if (!file) return fprintf(stderr, "%s: not a JSON file\n", argv[1]), 1;
    struct tm now = read_clock(json_string_value(json_object_get(file, "strftime_now")));
    char *path = mem_strdup(argv[1]), *folder = dirname(path);
    size_t i;
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        int result = check(c, folder, &now, show > 0);
        if (result && show > 0) show--;
        counts[result]++;
    }
    printf("%d cases: %d equal, %d refused with another text, %d different\n",
           counts[0] + counts[1] + counts[2], counts[0], counts[1], counts[2]);
    json_decref(file);
    mem_free(path);
    return counts[1] + counts[2] ? 1 : 0;
}
