/*
 * cmd_tokenize.c: `infer tokenize`: text to ids and back; with --json a filter of lines, where a
 * bad line is answered with {"error": …} on its own line and the others go on.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "cli/cli.h"

typedef struct tokenize_options {
    bool json, decode, no_special, skip_special;
} tokenize_options;

static const cli_option options[] = {
    { "--json", NULL, OPT_FLAG, offsetof(tokenize_options, json),
      .help = "lines in, lines out: a JSON string each to an array of ids" },
    { "--decode", NULL, OPT_FLAG, offsetof(tokenize_options, decode),
      .help = "the way back: ids (5,6,7; with --json an array a line) to text" },
    { "--no-special", NULL, OPT_FLAG, offsetof(tokenize_options, no_special),
      .help = "add no BOS or EOS; special tokens written in the text still count" },
    { "--skip-special", NULL, OPT_FLAG, offsetof(tokenize_options, skip_special),
      .help = "with --decode: leave special tokens out of the text" },
    { 0 },
};

/* ---- lines of JSON --------------------------------------------------------------------------- */

static json_t *ids_of_line(const infer_tokenizer *tok, const tokenize_options *o, const json_t *in,
                           infer_error *err)
{
    infer_tokenize_options to = { .no_special = o->no_special };
    int32_t *ids;
    size_t n;
    if (!json_is_string(in)) {
        error_set(err, INFER_ARGUMENT, "expected a string");
        return NULL;
    }
    if (infer_tokenize(tok, &ids, &n, json_string_value(in), json_string_length(in), &to, err))
        return NULL;
    json_t *out = cli_json_ids(ids, n);
    infer_free(ids);
    return out;
}

static json_t *text_of_line(const infer_tokenizer *tok, const tokenize_options *o, const json_t *in,
                            infer_error *err)
{
    size_t n = json_array_size(in), n_text;
    int32_t *ids = json_is_array(in) ? mem_alloc(n + 1, sizeof *ids) : NULL;
    json_t *out = NULL;
    char *text;
    if (!ids) {
        error_set(err, INFER_ARGUMENT, "expected an array of ids");
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(in, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id > INT32_MAX) {
            error_set(err, INFER_ARGUMENT, "item %zu: expected a token id", i);
            goto end;
        }
        ids[i] = (int32_t)id;
    }
    if (infer_detokenize(tok, &text, &n_text, ids, n, o->skip_special, err)) goto end;
    out = cli_json_text(text, n_text);
    infer_free(text);
end:
    mem_free(ids);
    return out;
}

typedef struct line_work {
    const infer_tokenizer *tok;
    const tokenize_options *o;
} line_work;

static json_t *answer(json_t *in, const char *line, size_t n, const void *user,
                      infer_error *err)
{
    (void)line, (void)n;
    const line_work *w = user;
    return w->o->decode ? text_of_line(w->tok, w->o, in, err) : ids_of_line(w->tok, w->o, in, err);
}

/* ---- for people ------------------------------------------------------------------------------ */

static int show_ids(const infer_tokenizer *tok, const tokenize_options *o, const char *text,
                    size_t n_text)
{
    infer_error err = { 0 };
    infer_tokenize_options to = { .no_special = o->no_special };
    int32_t *ids;
    size_t n;
    if (infer_tokenize(tok, &ids, &n, text, n_text, &to, &err)) return cli_fail(&err);
    cli_put_ids(tok, ids, n);
    infer_free(ids);
    return EXIT_DONE;
}

// "5,6,7" or "5 6 7", brackets around them allowed.
static int show_text(const infer_tokenizer *tok, const tokenize_options *o, const char *list)
{
    infer_error err = { 0 };
    size_t n = 0, n_text;
    int32_t *ids = mem_alloc(strlen(list) / 2 + 1, sizeof *ids);
    if (!ids) return cli_error(EXIT_FAILED, "tokenize: out of memory");
    for (const char *p = list; *(p += strspn(p, ", []\n\t"));) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 0 || v > INT32_MAX || (*end && !strchr(", ]\n\t", *end))) {
            mem_free(ids);
            return cli_usage(&cmd_tokenize, "--decode: expected ids like 5,6,7, found '%.40s'", p);
        }
        ids[n++] = (int32_t)v;
        p = end;
    }
    char *text;
    int code = EXIT_DONE;
    if (infer_detokenize(tok, &text, &n_text, ids, n, o->skip_special, &err)) {
        code = cli_fail(&err);
    } else {
        fwrite(text, 1, n_text, stdout);
        putchar('\n');
        infer_free(text);
    }
    mem_free(ids);
    return code;
}

static int run(int argc, char **argv)
{
    tokenize_options o = { 0 };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_tokenize, &o, &args, argc, argv, &code)) return code;
    if (o.json && args.n > 1)
        return cli_usage(&cmd_tokenize, "--json reads standard input, found the argument '%.40s'",
                         args.v[1]);
    if (o.skip_special && !o.decode)
        return cli_usage(&cmd_tokenize, "--skip-special: needs --decode");
    if (o.no_special && o.decode)
        return cli_usage(&cmd_tokenize, "--no-special: not with --decode, see --skip-special");
    char *path, *input = NULL;
    if ((code = cli_model_path(&path, args.v[0]))) return code;
    infer_tokenizer *tok = NULL;
    infer_error err = { 0 };
    size_t n = args.n > 1 ? strlen(args.v[1]) : 0;
    if (infer_tokenizer_open(&tok, path, &err))
        code = cli_fail(&err);
    else if (o.json)
        code = cli_json_lines(answer, &(line_work){ tok, &o });
    else if (args.n < 2)
        code = cli_read_input(&input, &n, o.decode ? "ids" : "text");
    if (!code && !o.json) {
        const char *text = args.n > 1 ? args.v[1] : input;
        code = o.decode ? show_text(tok, &o, text) : show_ids(tok, &o, text, n);
    }
    mem_free(input);
    mem_free(path);
    infer_tokenizer_close(tok);
    return code;
}

const cli_command cmd_tokenize = {
    .name = "tokenize",
    .args = "MODEL [TEXT]",
    .min_args = 1,
    .max_args = 2,
    .summary = "text to token ids and pieces, and back",
    .text =
        "MODEL may also be a folder with only a tokenizer, or a GGUF file with only a vocabulary. "
        "Without TEXT it is read from standard input, less one final newline.",
    .options = options,
    .run = run,
};
