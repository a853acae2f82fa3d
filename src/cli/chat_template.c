/*
 * chat_template.c: which chat template a command uses: --chat-template with the text itself or a
 * file's name, or else the model's own.
 */
#include <string.h>

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "cli/cli.h"

enum { TEMPLATE_LIMIT = 1 << 20 }; // bytes of a file

// A template without a tag would say the same to every message: what has none is a file's name.
static bool is_text(const char *given) { return strstr(given, "{{") || strstr(given, "{%"); }

int cli_template_source(char **source, const char *path)
{
    infer_error err = { 0 };
    size_t n;
    if (file_read(path, TEMPLATE_LIMIT, source, &n, &err)) return cli_fail(&err);
    if (!memchr(*source, 0, n)) return EXIT_DONE;
    mem_free(*source);
    *source = NULL;
    return cli_error(EXIT_FAILED, "%s: expected a template, found a file with NUL bytes", path);
}

static int given_source(char **source, const char *given)
{
    if (!is_text(given)) {
        if (file_exists(given)) return cli_template_source(source, given);
        return cli_error(EXIT_FAILED,
                         "--chat-template: expected a file or a template with {{ or {%%, found "
                         "'%.60s'",
                         given);
    }
    *source = mem_strdup(given);
    return *source ? EXIT_DONE : cli_error(EXIT_FAILED, "--chat-template: out of memory");
}

int cli_template_open(infer_template **out, const infer_tokenizer *tok, const char *given,
                      const char *name)
{
    infer_error err = { 0 };
    char *source = NULL;
    *out = NULL;
    int code = given ? given_source(&source, given) : EXIT_DONE;
    if (code) return code;
    infer_status st = infer_template_new(out, tok, source, &err);
    mem_free(source);
    if (!st) return EXIT_DONE;
    if (st == INFER_NOT_FOUND)
        return cli_error(EXIT_FAILED,
                         "%s: has no chat template: give one with --chat-template "
                         "TEXT or FILE",
                         name);
    error_prefix(&err, "%s", given ? "--chat-template" : name);
    return cli_error(EXIT_FAILED, "%s", err.msg);
}
