/*
 * main.c: the `infer` program: the table of commands, the help that is made from it, and the
 * dispatch of the first argument.
 */
#include <string.h>

#include "cli/cli.h"

static const cli_command *const commands[] = {
#define X(name) &cmd_##name,
    CLI_COMMANDS(X)
#undef X
};

static void help_all(FILE *f)
{
    fprintf(f, "%sinfer COMMAND [arguments]%s\n\n", cli_bold(f), cli_plain(f));
    cli_wrap(f, 0, 0, "Runs open-weight language models from the files they come in.");
    fputc('\n', f);
    for (int i = 0; i < COUNT_OF(commands); i++) {
        int n = fprintf(f, "  %-12s", commands[i]->name);
        cli_wrap(f, n, n, commands[i]->summary);
    }
    fputc('\n', f);
    cli_wrap(f, 0, 0,
             "MODEL is a GGUF file (or the first of a split set), a Hugging Face folder, a name in "
             "the local store, owner/name or hf://owner/name[@revision][:file] (fetched where it "
             "is neither in the store nor in the Hugging Face cache), or 'default'.\n"
             "'infer COMMAND --help' shows the options of one command.\n\n"
             "Exit codes: 0 done, 1 the work failed, 2 wrong usage, 130 after Ctrl-C.\n"
             "Environment: INFER_CPU (as --cpu), INFER_HOME (the store's folder), HF_TOKEN, "
             "HF_ENDPOINT, HF_HOME, NO_COLOR.");
}

static const cli_command *find_command(const char *name)
{
    for (int i = 0; i < COUNT_OF(commands); i++)
        if (!strcmp(commands[i]->name, name)) return commands[i];
    return NULL;
}

static int unknown_command(const char *word)
{
    const char *names[COUNT_OF(commands) + 1];
    int n = 0;
    for (; n < COUNT_OF(commands); n++)
        names[n] = commands[n]->name;
    names[n++] = "help";
    size_t len = strlen(word);
    if (strchr(word, '/') || (len > 5 && !strcmp(word + len - 5, ".gguf")) ||
        !strcmp(word, "default"))
        return cli_error(EXIT_USAGE, "'%s' is not a command: did you mean 'infer run %s'?", word,
                         word);
    const char *near = cli_nearest(word, names, n);
    if (near)
        return cli_error(EXIT_USAGE, "'%s' is not a command: the nearest is '%s'", word, near);
    return cli_error(EXIT_USAGE, "'%s' is not a command: 'infer help' lists them", word);
}

int main(int argc, char **argv)
{
    cli_start();
    infer_guard_install();
    if (argc < 2) {
        help_all(stderr);
        return EXIT_USAGE;
    }
    const char *word = argv[1];
    bool help = !strcmp(word, "help") || !strcmp(word, "--help") || !strcmp(word, "-h");
    if (!strcmp(word, "--version") || !strcmp(word, "version")) {
        printf("infer %s\n", infer_version());
        return cli_flush(EXIT_DONE);
    }
    if (help && argc < 3) {
        help_all(stdout);
        return cli_flush(EXIT_DONE);
    }
    const cli_command *c = find_command(help ? argv[2] : word);
    if (!c) return unknown_command(help ? argv[2] : word);
    if (help) {
        cli_help(stdout, c);
        return cli_flush(EXIT_DONE);
    }
    return cli_flush(c->run(argc - 2, argv + 2));
}
