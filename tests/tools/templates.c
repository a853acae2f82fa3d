/*
 * templates.c: renders the cases of a golden file and counts those that differ.
 *
 *     templates CASES.json [--show N]         every case of the file
 *     templates --one TEMPLATE CONTEXT.json   the text of one
 *
 * CASES.json: {"strftime_now": "2026-07-26T12:00:00", "context": {…} for cases without one,
 * "cases":
 * [{"case": name, "template": file beside CASES.json or "source": text, "context": {…}, and "text":
 * … or "raises": …}, …]}. Exit code 0: all equal.
 */
#include "template_cases.h"

#include <libgen.h>
#include <stdlib.h>

#include "base/map.h"
#include "base/mem.h"

static int one(const char *template, const char *context)
{
    infer_error err = { 0 };
    struct tm now = case_clock("2026-07-26T12:00:00");
    jinja_options o = { .now = &now };
    jinja_template *t = NULL;
    jinja_text out = { 0 };
    char *source = NULL;
    size_t n;
    json_t *j = json_load_file(context, JSON_ALLOW_NUL, NULL);
    bool ok = j && !file_read(template, 1 << 24, &source, &n, &err) &&
              !jinja_compile(&t, source, n, &err) && !jinja_render(t, &out, j, &o, &err);
    if (ok)
        fwrite(out.s, 1, out.n, stdout);
    else
        fprintf(stderr, "%s\n", j ? err.msg : "context: not JSON");
    jinja_text_free(&out);
    jinja_free(t);
    mem_free(source);
    json_decref(j);
    return !ok;
}

static int all(const char *path, int show)
{
    int counts[3] = { 0 };
    json_t *file = json_load_file(path, JSON_ALLOW_NUL, NULL), *c;
    if (!file) return fprintf(stderr, "%s: not a JSON file\n", path), 1;
    struct tm now = case_clock(json_string_value(json_object_get(file, "strftime_now")));
    char *copy = mem_strdup(path), *folder = dirname(copy);
    size_t i;
    json_array_foreach(json_object_get(file, "cases"), i, c)
    {
        json_t *context = json_object_get(c, "context"), *source = json_object_get(c, "source");
        const char *name = json_string_value(json_object_get(c, "template"));
        char template[4096], *text = NULL;
        size_t n = 0;
        snprintf(template, sizeof template, "%s/%s", folder, name ? name : "");
        if (!source) file_read(template, 1 << 24, &text, &n, NULL);
        int result =
            case_check(c,
                       source ? json_string_value(source)
                       : text ? text
                              : "",
                       source ? json_string_length(source) : n,
                       context ? context : json_object_get(file, "context"), &now, show > 0);
        show -= result && show > 0;
        counts[result]++;
        mem_free(text);
    }
    printf("%zu cases: %d equal, %d refused with another text, %d different\n", i, counts[0],
           counts[1], counts[2]);
    json_decref(file);
    mem_free(copy);
    return counts[1] + counts[2] > 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "--one")) return one(argv[2], argv[3]);
    if (argc == 2 || (argc == 4 && !strcmp(argv[2], "--show")))
        return all(argv[1], argc == 4 ? atoi(argv[3]) : 0);
    return fprintf(stderr,
                   "usage: templates CASES.json [--show N] | --one TEMPLATE CONTEXT.json\n"),
           2;
}
