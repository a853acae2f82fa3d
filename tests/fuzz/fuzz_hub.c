/*
 * fuzz_hub.c: a hub's listing, the name that asks for a part of it, and a record of the store, all
 * of any bytes: "name\nlisting". What is accepted must stay inside the folder that it is put in.
 */
#include <string.h>

#include "models/hub.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_path(const char *path)
{
    if (*path == '/' || !strcmp(path, "..") || !strncmp(path, "../", 3) || strstr(path, "/../") ||
        strstr(path, "//"))
        __builtin_trap();
    size_t n = strlen(path);
    if (n == 0 || path[n - 1] == '/' || (n > 2 && !strcmp(path + n - 3, "/.."))) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *line = size ? memchr(text, '\n', size) : NULL;
    arena mem = { 0 };
    hub_tree t = { 0 };
    hub_name name;
    hub_choice c;
    infer_error err;
    size_t n = line ? (size_t)(line - text) : 0;
    char *word = line ? arena_strndup(&mem, text, n) : NULL;
    if (word && hub_name_parse(&name, word, &mem, &err) == INFER_OK) {
        check_path(name.repo);
        if (name.file) check_path(name.file);
        // The listing twice: pages are added to each other, and the same names are refused.
        if (!hub_tree_add(&t, line + 1, size - n - 1, &mem, &err) && !hub_tree_end(&t, &err)) {
            for (size_t i = 0; i < t.n; i++)
                check_path(t.v[i].path);
            if (!hub_choose(&c, &t, &name, &mem, &err)) {
                if (c.n < 1 || (size_t)c.n > t.n) __builtin_trap();
                if (c.file && strcmp(c.file, c.v[0]->path)) __builtin_trap();
            } else if (!*err.msg) {
                __builtin_trap();
            }
            if (t.n &&
                (hub_tree_add(&t, line + 1, size - n - 1, &mem, &err) || !hub_tree_end(&t, &err)))
                __builtin_trap();
        }
    }
    hub_tree_free(&t);
    arena_free(&mem);
    return 0;
}
