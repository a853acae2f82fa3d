/* cmd_list.c: `infer list`: the models of the local store, with what their files say of themselves.
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/mem.h"
#include "cli/cli.h"

typedef struct list_options {
    bool json;
} list_options;

static const cli_option options[] = {
    { "--json", NULL, OPT_FLAG, offsetof(list_options, json), .help = "one JSON array" },
    { 0 },
};

#define MAX_TYPES 64

typedef struct row {
    const char *name, *path, *commit; // commit NULL: a file of the models folder
    uint64_t bytes;
    int64_t when;
    bool complete;
    char type[48], quant[24];
} row;

typedef struct rows {
    arena a;
    row *v;
    size_t n, cap;
} rows;

// What the file's directory says: its architecture, and the type that most bytes have.
static void describe(row *r)
{
    infer_file *f;
    infer_error err = { 0 };
    strcpy(r->type, "?");
    strcpy(r->quant, "?");
    if (!r->complete || infer_file_open(&f, r->path, &err)) return;
    for (int i = 0; i < infer_file_n_meta(f); i++) {
        infer_meta_info m = infer_file_meta(f, i);
        if (!strcmp(m.key, "general.architecture") || !strcmp(m.key, "model_type"))
            snprintf(r->type, sizeof r->type, "%s", m.value);
    }
    const char *types[MAX_TYPES];
    uint64_t bytes[MAX_TYPES] = { 0 };
    int n_types = 0, best = 0;
    for (int i = 0; i < infer_file_n_tensors(f); i++) {
        infer_tensor_info t = infer_file_tensor(f, i);
        int k = 0;
        while (k < n_types && strcmp(types[k], t.type))
            k++;
        if (k == MAX_TYPES) continue;
        if (k == n_types) types[n_types++] = t.type;
        bytes[k] += t.bytes;
        if (bytes[k] > bytes[best]) best = k;
    }
    if (n_types) snprintf(r->quant, sizeof r->quant, "%s", types[best]);
    infer_file_close(f);
}

static bool add(rows *l, row r)
{
    infer_error err;
    if (!r.name || !r.path || mem_reserve((void **)&l->v, &l->cap, l->n + 1, sizeof *l->v, &err))
        return false;
    describe(&r);
    l->v[l->n++] = r;
    return true;
}

static bool add_hub(rows *l, const infer_store *s)
{
    for (int i = 0; i < infer_store_count(s); i++) {
        infer_store_entry e = infer_store_get(s, i);
        row r = { .name = e.name,
                  .path = e.path,
                  .commit = e.commit,
                  .bytes = e.bytes,
                  .when = e.when,
                  .complete = e.complete };
        if (!add(l, r)) return false;
    }
    return true;
}

// The files of the models folder: what `pull default` fetched, and what the user put there.
static bool add_files(rows *l, const char *folder)
{
    DIR *d = folder ? opendir(folder) : NULL;
    bool ok = true;
    for (struct dirent *e; ok && d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        struct stat st;
        if (n < 6 || strcmp(e->d_name + n - 5, ".gguf") || *e->d_name == '.') continue;
        char *path = arena_printf(&l->a, "%s/%s", folder, e->d_name);
        if (!path || stat(path, &st) || !S_ISREG(st.st_mode)) continue;
        row r = { .name = arena_strndup(&l->a, e->d_name, n),
                  .path = path,
                  .bytes = (uint64_t)st.st_size,
                  .when = st.st_mtime,
                  .complete = true };
        ok = add(l, r);
    }
    if (d) closedir(d);
    return ok;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const row *)a)->name, ((const row *)b)->name);
}

static void print_rows(const rows *l)
{
    int name = 4, type = 4;
    for (size_t i = 0; i < l->n; i++) {
        int n = (int)strlen(l->v[i].name), t = (int)strlen(l->v[i].type);
        name = n > name ? n : name;
        type = t > type ? t : type;
    }
    printf("%s%-*s %10s  %-*s  %-7s  %s%s\n", cli_bold(stdout), name, "name", "size", type, "type",
           "quant", "when", cli_plain(stdout));
    for (size_t i = 0; i < l->n; i++) {
        const row *r = &l->v[i];
        char size[32], when[32] = "?";
        time_t t = (time_t)r->when;
        struct tm tm;
        if (localtime_r(&t, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
        cli_put_text(stdout, r->name, strlen(r->name), 0);
        printf("%*s %10s  ", name - (int)strlen(r->name), "", cli_bytes(size, r->bytes));
        cli_put_text(stdout, r->type, strlen(r->type), 0);
        printf("%*s  %-7s  %s\n", type - (int)strlen(r->type), "", r->quant,
               r->complete ? when : "incomplete");
    }
}

static json_t *text(const char *s) { return cli_json_text(s, strlen(s)); }

static int print_json(const rows *l)
{
    json_t *root = json_array();
    for (size_t i = 0; i < l->n; i++) {
        const row *r = &l->v[i];
        json_array_append_new(
            root, json_pack("{s:o,s:o,s:o?,s:I,s:o,s:o,s:I,s:b}", "name", text(r->name), "path",
                            text(r->path), "commit", r->commit ? text(r->commit) : NULL, "bytes",
                            (json_int_t)r->bytes, "type", text(r->type), "quant", text(r->quant),
                            "when", (json_int_t)r->when, "complete", (int)r->complete));
    }
    return cli_json_print(root);
}

static int run(int argc, char **argv)
{
    list_options o = { 0 };
    cli_args args;
    int code;
    rows l = { 0 };
    infer_store *store = NULL;
    infer_error err = { 0 };
    if (!cli_parse(&cmd_list, &o, &args, argc, argv, &code)) return code;
    infer_hub_options ho = cli_hub_options(&l.a);
    if (infer_store_open(&store, &ho, &err)) {
        code = cli_fail(&err);
    } else if (!add_hub(&l, store) || !add_files(&l, cli_home(&l.a, "models"))) {
        code = cli_error(EXIT_FAILED, "list: out of memory");
    } else {
        if (l.n) qsort(l.v, l.n, sizeof *l.v, by_name);
        code = EXIT_DONE;
        if (o.json)
            code = print_json(&l);
        else if (l.n)
            print_rows(&l);
        else
            fprintf(stderr, "the store is empty: 'infer pull default' fetches a first model\n");
    }
    infer_store_close(store);
    mem_free(l.v);
    arena_free(&l.a);
    return code;
}

const cli_command cmd_list = {
    .name = "list",
    .args = "",
    .summary = "the models of the local store",
    .text =
        "Size, architecture, the type that most weights have, and when it was pulled. The names "
        "are what the other commands take as MODEL.",
    .options = options,
    .run = run,
};
