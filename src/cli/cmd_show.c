/* cmd_show.c: `infer show`: a model of the store in a few lines; nothing is fetched. */
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "cli/cli.h"

typedef struct show_options {
    bool json;
} show_options;

static const cli_option options[] = {
    { "--json", NULL, OPT_FLAG, offsetof(show_options, json),
      .help = "one JSON object, as 'infer inspect --json'" },
    { 0 },
};

// What the store knows beyond the file: its name, revision and day.
static void print_origin(const char *path)
{
    arena a = { 0 };
    infer_store *store = NULL;
    infer_hub_options ho = cli_hub_options(&a);
    if (!infer_store_open(&store, &ho, NULL)) {
        for (int i = 0; i < infer_store_count(store); i++) {
            infer_store_entry e = infer_store_get(store, i);
            char when[32] = "?";
            time_t t = (time_t)e.when;
            struct tm tm;
            if (strcmp(e.path, path)) continue;
            if (localtime_r(&t, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
            printf("name      %s\nrevision  %s (%.12s), pulled %s\n", e.name, e.revision, e.commit,
                   when);
            break;
        }
        infer_store_close(store);
    }
    arena_free(&a);
}

static int run(int argc, char **argv)
{
    show_options o = { 0 };
    cli_args args;
    int code;
    char *path;
    if (!cli_parse(&cmd_show, &o, &args, argc, argv, &code)) return code;
    if ((code = cli_model_find(&path, args.v[0]))) return code;
    if (!o.json) print_origin(path);
    code = cli_inspect(path, o.json, false, true);
    mem_free(path);
    return code;
}

const cli_command cmd_show = {
    .name = "show",
    .args = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "a model of the store in a few lines",
    .text = "MODEL is named as everywhere, but nothing is fetched. 'infer inspect' shows all.",
    .options = options,
    .run = run,
};
