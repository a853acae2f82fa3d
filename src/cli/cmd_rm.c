/* cmd_rm.c: `infer rm`: deletes a model of the local store. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"

static const cli_option options[] = { { 0 } };

// A file of the models folder, by its name with or without .gguf, or by the name of its bundle.
static const char *plain_file(arena *a, const char *name)
{
    const cli_bundle *b = cli_bundle_find(name);
    const char *folder = cli_home(a, "models"), *file = b ? b->file : name;
    struct stat st;
    if (strchr(file, '/') || *file == '.' || !*file || !folder) return NULL;
    for (int i = 0; i < 2; i++) {
        char *path = arena_printf(a, "%s/%s%s", folder, file, i ? ".gguf" : "");
        size_t n = path ? strlen(path) : 0;
        if (n > 5 && !strcmp(path + n - 5, ".gguf") && !lstat(path, &st) && !S_ISDIR(st.st_mode))
            return path;
    }
    return NULL;
}

static int remove_plain(arena *a, const char *path)
{
    struct stat st;
    char freed[32];
    if (lstat(path, &st) || unlink(path))
        return cli_error(EXIT_FAILED, "%s: %s", path, strerror(errno));
    char *note = arena_printf(a, "%s.sha256", path);
    if (note) unlink(note);
    printf("removed %s, %s\n", path, cli_bytes(freed, (uint64_t)st.st_size));
    return EXIT_DONE;
}

static int run(int argc, char **argv)
{
    char none = 0, freed[32];
    cli_args args;
    int code;
    arena a = { 0 };
    if (!cli_parse(&cmd_rm, &none, &args, argc, argv, &code)) return code;
    infer_hub_options ho = cli_hub_options(&a);
    infer_error err = { 0 };
    uint64_t bytes = 0;
    const char *plain = plain_file(&a, args.v[0]);
    if (plain)
        code = remove_plain(&a, plain);
    else if (!infer_hub_is_name(args.v[0]))
        code =
            cli_error(EXIT_FAILED, "%s: not in the store: 'infer list' shows what is", args.v[0]);
    else if (infer_store_remove(&bytes, args.v[0], &ho, &err))
        code = cli_fail(&err);
    else
        printf("removed %s, %s\n", args.v[0], cli_bytes(freed, bytes));
    arena_free(&a);
    return code;
}

const cli_command cmd_rm = {
    .name = "rm",
    .args = "NAME",
    .min_args = 1,
    .max_args = 1,
    .summary = "delete a model of the local store",
    .text =
        "NAME is as 'infer list' shows it. owner/name without a file deletes all that was pulled "
        "of it. Only the store is touched: never a path, never the Hugging Face cache.",
    .options = options,
    .run = run,
};
