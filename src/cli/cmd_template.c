/*
 * cmd_template.c: `infer template`: what a chat template makes of messages, as text or as the ids
 * that the model would be fed. With --json a filter of lines: a context each, a string or ids each;
 * a bad line is answered with {"error": …} on its own line and the others go on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "cli/cli.h"

typedef struct template_options {
    bool json, ids;
    const char *now, *given, *system;
} template_options;

static const cli_option options[] = {
    { "--json", NULL, OPT_FLAG, offsetof(template_options, json),
      .help = "lines in, lines out: a JSON object with what the template sees (messages, tools, "
              "add_generation_prompt, …) to a JSON string" },
    { "--ids", NULL, OPT_FLAG, offsetof(template_options, ids),
      .help = "token ids as 'chat' feeds them: add_generation_prompt is true unless the object "
              "says otherwise, special tokens written in messages are text" },
    { "--now", "TIME", OPT_TEXT, offsetof(template_options, now),
      .help = "the clock that templates see, as 2026-07-26T12:00:00 (default: now)" },
    { "--system", "TEXT", OPT_TEXT, offsetof(template_options, system),
      .help = "a system message before the user's" },
    { "--chat-template", "TEXT|FILE", OPT_TEXT, offsetof(template_options, given),
      .help = "use this template in place of the model's" },
    { 0 },
};

typedef struct work {
    const template_options *o;
    infer_tokenizer *tok; // NULL: a template file
    infer_template *t;
} work;

/* ---- lines of JSON --------------------------------------------------------------------------- */

static json_t *ids_of(const work *w, json_t *context, infer_error *err)
{
    if (!json_object_get(context, "add_generation_prompt"))
        json_object_set_new(context, "add_generation_prompt", json_true());
    char *text = json_dumps(context, JSON_COMPACT);
    int32_t *ids;
    size_t n;
    if (!text) {
        error_set(err, INFER_NOMEM, "out of memory");
        return NULL;
    }
    infer_status st = infer_template_ids(w->t, &ids, &n, text, strlen(text), w->o->now, err);
    free(text);
    if (st) return NULL;
    json_t *out = cli_json_ids(ids, n);
    infer_free(ids);
    return out;
}

static json_t *answer(json_t *context, const char *line, size_t n, const void *user,
                      infer_error *err)
{
    const work *w = user;
    char *text;
    size_t n_text;
    if (!json_is_object(context)) {
        error_set(err, INFER_FORMAT, "expected an object");
        return NULL;
    }
    if (w->o->ids) return ids_of(w, context, err);
    if (infer_template_render(w->t, &text, &n_text, line, n, w->o->now, err)) return NULL;
    json_t *out = cli_json_text(text, n_text);
    infer_free(text);
    return out;
}

/* ---- for people ------------------------------------------------------------------------------ */

static int add_message(json_t *list, const char *role, const char *text, size_t n)
{
    return json_array_append_new(
        list, json_pack("{s:s,s:o}", "role", role, "content", json_stringn(text, n)));
}

// The conversation's beginning as a context; NULL where the text is not UTF-8.
static char *make_context(const char *system, const char *text, size_t n)
{
    json_t *list = json_array();
    int bad = system ? add_message(list, "system", system, strlen(system)) : 0;
    bad |= add_message(list, "user", text, n);
    json_t *root = json_pack("{s:o,s:b}", "messages", list, "add_generation_prompt", 1);
    char *context = bad ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return context;
}

static int print_ids(const work *w, const char *context)
{
    infer_error err = { 0 };
    int32_t *ids;
    size_t n;
    if (infer_template_ids(w->t, &ids, &n, context, strlen(context), w->o->now, &err))
        return cli_error(EXIT_FAILED, "%s", err.msg);
    cli_put_ids(w->tok, ids, n);
    infer_free(ids);
    return EXIT_DONE;
}

static int print_text(const work *w, const char *context)
{
    infer_error err = { 0 };
    char *text;
    size_t n;
    if (infer_template_render(w->t, &text, &n, context, strlen(context), w->o->now, &err))
        return cli_error(EXIT_FAILED, "%s", err.msg);
    fwrite(text, 1, n, stdout);
    if (!n || text[n - 1] != '\n') putchar('\n');
    infer_free(text);
    return EXIT_DONE;
}

static int show(const work *w, const char *text)
{
    char *input = NULL;
    size_t n = text ? strlen(text) : 0;
    int code = text ? EXIT_DONE : cli_read_input(&input, &n, "the user's message");
    if (code) return code;
    char *context = make_context(w->o->system, text ? text : input, n);
    if (!context)
        code = cli_error(EXIT_USAGE, "template: the message is not valid UTF-8");
    else
        code = w->o->ids ? print_ids(w, context) : print_text(w, context);
    free(context);
    mem_free(input);
    return code;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool is_template_file(const char *name)
{
    static const char *const ends[] = { ".jinja", ".jinja2", ".j2" };
    size_t n = strlen(name);
    for (int i = 0; i < COUNT_OF(ends); i++) {
        size_t k = strlen(ends[i]);
        if (n > k && !strcmp(name + n - k, ends[i])) return true;
    }
    return false;
}

// Only the library knows how a time is written: it is asked before any line is read.
static int check_time(const char *now)
{
    infer_error err = { 0 };
    infer_template *t;
    char *text;
    size_t n;
    if (!now) return EXIT_DONE;
    if (infer_template_new(&t, NULL, "", &err)) return cli_fail(&err);
    if (!infer_template_render(t, &text, &n, "{}", 2, now, &err)) infer_free(text);
    infer_template_free(t);
    return err.code ? cli_usage(&cmd_template, "--now: %s", err.msg) : EXIT_DONE;
}

static int open_template(work *w, const char *name)
{
    infer_error err = { 0 };
    char *path, *source;
    int code;
    if (is_template_file(name)) {
        if (w->o->given)
            return cli_usage(&cmd_template, "--chat-template: %s is a template already", name);
        if (w->o->ids)
            return cli_usage(&cmd_template,
                             "--ids: %s has no tokenizer: name a model and give the "
                             "file with --chat-template",
                             name);
        if ((code = cli_template_source(&source, name))) return code;
        if (infer_template_new(&w->t, NULL, source, &err))
            code = cli_error(EXIT_FAILED, "%s: %s", name, err.msg);
        mem_free(source);
        return code;
    }
    if ((code = cli_model_path(&path, name))) return code;
    code = infer_tokenizer_open(&w->tok, path, &err) ? cli_fail(&err) : EXIT_DONE;
    mem_free(path);
    return code ? code : cli_template_open(&w->t, w->tok, w->o->given, name);
}

static int run(int argc, char **argv)
{
    template_options o = { 0 };
    work w = { .o = &o };
    cli_args args;
    int code;
    if (!cli_parse(&cmd_template, &o, &args, argc, argv, &code)) return code;
    if (o.json && args.n > 1)
        return cli_usage(&cmd_template, "--json reads standard input, found the argument '%.40s'",
                         args.v[1]);
    if (o.json && o.system)
        return cli_usage(&cmd_template, "--system: not with --json, whose lines hold it");
    if ((code = check_time(o.now))) return code;
    code = open_template(&w, args.v[0]);
    if (!code) code = o.json ? cli_json_lines(answer, &w) : show(&w, args.v[1]);
    infer_template_free(w.t);
    infer_tokenizer_close(w.tok);
    return code;
}

const cli_command cmd_template = {
    .name = "template",
    .args = "MODEL_OR_FILE [TEXT]",
    .min_args = 1,
    .max_args = 2,
    .summary = "what the chat template makes of messages",
    .text =
        "MODEL_OR_FILE is a model, a folder with only a tokenizer, or a template file (.jinja). "
        "TEXT is one user message; without it, it is read from standard input, less one final "
        "newline. "
        "The prompt is shown as it would be fed, up to where the answer begins.",
    .options = options,
    .run = run,
};
