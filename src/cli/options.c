/*
 * options.c: command-line options as a table. One row says the name, the type, the range and the
 * help, so that parsing, the refusal of bad values and the help text cannot disagree.
 *
 * Accepted forms: --name value, --name=value, flags alone, "--" before arguments that start with
 * "-".
 */
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define HELP_COLUMN 24
#define HELP_WIDTH 80

/* ---- help ------------------------------------------------------------------------------------ */

// Columns of n bytes of UTF-8, for text whose characters are one column wide.
static int columns(const char *s, size_t n)
{
    int c = 0;
    for (size_t i = 0; i < n; i++)
        c += ((unsigned char)s[i] & 0xc0) != 0x80;
    return c;
}

void cli_wrap(FILE *f, int at, int indent, const char *text)
{
    int col = at;
    bool start = true; // of a line: no space before the next word
    while (*text) {
        if (*text == '\n') {
            fputc('\n', f);
            col = 0, start = true, text++;
            continue;
        }
        size_t n = strcspn(text, " \n");
        int w = columns(text, n);
        if (!start && col + 1 + w > HELP_WIDTH) {
            fputc('\n', f);
            col = 0, start = true;
        }
        if (start && col < indent) fprintf(f, "%*s", indent - col, ""), col = indent;
        fprintf(f, "%s%.*s", start ? "" : " ", (int)n, text);
        col += w + !start;
        start = false;
        text += n;
        while (*text == ' ')
            text++;
    }
    fputc('\n', f);
}

void cli_help(FILE *f, const cli_command *c)
{
    fprintf(f, "%sinfer %s %s%s%s\n\n", cli_bold(f), c->name, c->args,
            c->options->name ? " [options]" : "", cli_plain(f));
    char first[128]; // the list of commands shows the same words in lower case
    snprintf(first, sizeof first, "%c%s.", c->summary[0] - 'a' + 'A', c->summary + 1);
    cli_wrap(f, 0, 0, first);
    if (c->text) {
        fputc('\n', f);
        cli_wrap(f, 0, 0, c->text);
    }
    if (!c->options->name) return;
    fprintf(f, "\n%soptions%s\n", cli_bold(f), cli_plain(f));
    for (const cli_option *o = c->options; o->name; o++) {
        if (o->kind == OPT_LATER) continue;
        int n = fprintf(f, "  %s", o->name);
        if (o->kind == OPT_CHOICE)
            n += fprintf(f, " %s", o->choices);
        else if (o->value)
            n += fprintf(f, " %s", o->value);
        if (n > HELP_COLUMN - 2) fputc('\n', f), n = 0;
        fprintf(f, "%*s", HELP_COLUMN - n, "");
        cli_wrap(f, HELP_COLUMN, HELP_COLUMN, o->help);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool refuse(const cli_command *c, const char *name, const char *expected, const char *found,
                   int *code)
{
    *code = cli_usage(c, "%s: expected %s, found '%s'", name, expected, found);
    return false;
}

static void describe_range(char *out, size_t size, const cli_option *o, const char *noun)
{
    if (o->kind != OPT_FLOAT) // whole: %g would round a limit of ten digits
        snprintf(out, size, "%s from %.0f to %.0f", noun, o->min, o->max);
    else if (o->max < FLT_MAX)
        snprintf(out, size, "%s %s %.9g to %.9g", noun, o->above_min ? "above" : "from", o->min,
                 o->max);
    else if (o->min > -FLT_MAX)
        snprintf(out, size, "%s %s %g", noun, o->above_min ? "above" : "of at least", o->min);
    else
        snprintf(out, size, "a finite number");
}

static bool set_int(const cli_command *c, const cli_option *o, int *field, const char *s, int *code)
{
    char *end, want[96];
    errno = 0;
    long v = strtol(s, &end, 10);
    bool digits = *s == '-' ? s[1] >= '0' && s[1] <= '9' : *s >= '0' && *s <= '9';
    if (!digits || *end || errno || (double)v < o->min || (double)v > o->max) {
        describe_range(want, sizeof want, o, "a whole number");
        return refuse(c, o->name, want, s, code);
    }
    *field = (int)v;
    return true;
}

static bool set_float(const cli_command *c, const cli_option *o, float *field, const char *s,
                      int *code)
{
    char *end, want[96];
    double v = strtod(s, &end);
    bool ok = *s && *s != ' ' && !*end && isfinite(v) && v <= o->max && v >= o->min;
    if (!ok || (o->above_min && (float)v <= (float)o->min)) {
        describe_range(want, sizeof want, o, "a number");
        return refuse(c, o->name, want, s, code);
    }
    *field = (float)v;
    return true;
}

static bool set_u64(const cli_command *c, const cli_option *o, uint64_t *field, const char *s,
                    int *code)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (*s < '0' || *s > '9' || *end || errno || v > INT64_MAX)
        return refuse(c, o->name, "a whole number from 0 to 2^63-1", s, code);
    *field = v;
    return true;
}

static bool set_choice(const cli_command *c, const cli_option *o, const char **field, const char *s,
                       int *code)
{
    size_t len = strlen(s);
    for (const char *p = o->choices; *p;) {
        size_t n = strcspn(p, "|");
        if (n == len && !memcmp(p, s, n)) {
            *field = s;
            return true;
        }
        p += n + (p[n] == '|');
    }
    return refuse(c, o->name, o->choices, s, code);
}

static bool set_value(const cli_command *c, const cli_option *o, void *options, const char *s,
                      const char *second, int *code)
{
    void *field = (char *)options + o->at;
    switch (o->kind) {
    case OPT_FLAG: *(bool *)field = true; return true;
    case OPT_INT: return set_int(c, o, field, s, code);
    case OPT_U64: return set_u64(c, o, field, s, code);
    case OPT_FLOAT: return set_float(c, o, field, s, code);
    case OPT_TEXT: *(const char **)field = s; return true;
    case OPT_CHOICE: return set_choice(c, o, field, s, code);
    case OPT_LIST: {
        cli_list *list = field;
        if (list->n == CLI_LIST_MAX) {
            *code = cli_usage(c, "%s: given more than %d times", o->name, CLI_LIST_MAX);
            return false;
        }
        list->v[list->n++] = s;
        return true;
    }
    case OPT_INT_TEXT: {
        cli_int_text *pair = field;
        pair->given = true;
        pair->text = second;
        return set_int(c, o, &pair->number, s, code);
    }
    case OPT_LATER: break;
    }
    *code = cli_usage(c, "%s: not supported yet", o->name);
    return false;
}

/* ---- parsing --------------------------------------------------------------------------------- */

static const cli_option *find_option(const cli_command *c, const char *arg, size_t n)
{
    for (const cli_option *o = c->options; o->name; o++)
        if (strlen(o->name) == n && !memcmp(o->name, arg, n)) return o;
    return NULL;
}

static void unknown_option(const cli_command *c, const char *arg, size_t n, int *code)
{
    const char *names[64];
    int count = 0;
    for (const cli_option *o = c->options; o->name && count < 64; o++)
        names[count++] = o->name;
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)n, arg);
    const char *near = cli_nearest(word, names, count);
    *code = near ? cli_usage(c, "unknown option '%s', the nearest is %s", word, near)
                 : cli_usage(c, "unknown option '%s', see 'infer %s --help'", word, c->name);
}

// A negative number is an argument, and so is "-" alone.
static bool is_option(const char *arg)
{
    return arg[0] == '-' && arg[1] && !(arg[1] >= '0' && arg[1] <= '9');
}

static bool parse_option(const cli_command *c, void *options, int argc, char **argv, int *i,
                         int *code)
{
    const char *arg = argv[*i], *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
    const cli_option *o = find_option(c, arg, n);
    if (!o) {
        unknown_option(c, arg, n, code);
        return false;
    }
    const char *value = equals ? equals + 1 : NULL, *second = NULL;
    if (o->kind == OPT_FLAG && value) {
        *code = cli_usage(c, "%s: takes no value, found '%s'", o->name, value);
        return false;
    }
    if (o->kind != OPT_FLAG && o->kind != OPT_LATER) {
        if (!value && *i + 1 < argc) value = argv[++*i];
        if (value && o->kind == OPT_INT_TEXT && *i + 1 < argc) second = argv[++*i];
        if (!value || (o->kind == OPT_INT_TEXT && !second)) {
            *code = cli_usage(c, "%s: needs %s", o->name, o->value ? o->value : o->choices);
            return false;
        }
    }
    return set_value(c, o, options, value, second, code);
}

bool cli_parse(const cli_command *c, void *options, cli_args *args, int argc, char **argv,
               int *code)
{
    bool only_args = false;
    *args = (cli_args){ 0 };
    *code = EXIT_DONE;
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (!only_args && !strcmp(arg, "--")) {
            only_args = true;
        } else if (!only_args && (!strcmp(arg, "--help") || !strcmp(arg, "-h"))) {
            cli_help(stdout, c);
            return false;
        } else if (!only_args && is_option(arg)) {
            if (!parse_option(c, options, argc, argv, &i, code)) return false;
        } else if (args->n < c->max_args) {
            args->v[args->n++] = arg;
        } else {
            *code = cli_usage(c, "unexpected argument '%s', expected %s", arg,
                              *c->args ? c->args : "none");
            return false;
        }
    }
    if (args->n < c->min_args) {
        *code = cli_usage(c, "expected %s, see 'infer %s --help'", c->args, c->name);
        return false;
    }
    return true;
}
