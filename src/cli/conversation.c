/* conversation.c: see conversation.h. */
#include "cli/conversation.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"

enum { FILE_LIMIT = 64 << 20 };

void conversation_free(conversation *c)
{
    conversation_clear(c, true);
    conversation_clear(c, false);
    mem_free(c->v);
    *c = (conversation){ 0 };
}

infer_status conversation_reserve(conversation *c, size_t n, infer_error *err)
{
    return mem_reserve((void **)&c->v, &c->cap, c->n + n, sizeof *c->v, err);
}

const char *conversation_system(const conversation *c)
{
    return c->n && !strcmp(c->v[0].role, "system") ? c->v[0].content : NULL;
}

infer_status conversation_add(conversation *c, const char *role, const char *text, infer_error *err)
{
    bool system = !strcmp(role, "system");
    if (conversation_reserve(c, 1, err)) return err->code;
    char *copy = mem_strdup(text);
    if (!copy) return error_set(err, INFER_NOMEM, "conversation: out of memory");
    if (system) {
        conversation_clear(c, true);
        memmove(c->v + 1, c->v, c->n * sizeof *c->v);
    }
    c->v[system ? 0 : c->n] = (infer_message){ .role = role, .content = copy };
    c->n++;
    return INFER_OK;
}

void conversation_drop(conversation *c) { mem_free((char *)c->v[--c->n].content); }

void conversation_clear(conversation *c, bool system)
{
    bool has = conversation_system(c);
    if (!system) {
        while (c->n > has)
            conversation_drop(c);
    } else if (has) {
        mem_free((char *)c->v[0].content);
        memmove(c->v, c->v + 1, --c->n * sizeof *c->v);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static char *as_json(const conversation *c)
{
    json_t *list = json_array();
    int bad = !list;
    for (size_t i = 0; i < c->n && !bad; i++)
        bad = json_array_append_new(
            list, json_pack("{s:s,s:s}", "role", c->v[i].role, "content", c->v[i].content));
    char *text = bad ? NULL : json_dumps(list, JSON_INDENT(2));
    json_decref(list);
    return text;
}

infer_status conversation_save(const conversation *c, const char *path, infer_error *err)
{
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return error_set(err, INFER_IO, "%s: is there and is no file", path);
    char *text = as_json(c);
    atomic_file a;
    if (!text) return error_set(err, INFER_NOMEM, "%s: out of memory", path);
    infer_status status = atomic_open(&a, path, err);
    if (!status) {
        fprintf(a.f, "%s\n", text);
        status = atomic_commit(&a, err);
    }
    free(text);
    return status;
}

static infer_status add_message(conversation *c, size_t i, const json_t *m, infer_error *err)
{
    static const char *const roles[] = { "system", "user", "assistant" };
    const char *role = json_string_value(json_object_get(m, "role"));
    const char *text = json_string_value(json_object_get(m, "content"));
    if (!role || !text)
        return error_set(err, INFER_FORMAT,
                         "message %zu: expected an object with the texts role and content", i + 1);
    for (size_t r = i ? 1 : 0; r < 3; r++)
        if (!strcmp(role, roles[r])) return conversation_add(c, roles[r], text, err);
    return error_set(err, INFER_FORMAT,
                     "message %zu: expected the role %suser or assistant, found "
                     "'%.40s'",
                     i + 1, i ? "" : "system, ", role);
}

infer_status conversation_load(conversation *c, const char *path, infer_error *err)
{
    char *text;
    size_t n, i;
    if (file_read(path, FILE_LIMIT, &text, &n, err)) return err->code;
    json_error_t why;
    json_t *root = json_loadb(text, n, 0, &why), *m;
    const json_t *list = json_is_object(root) ? json_object_get(root, "messages") : root;
    conversation loaded = { 0 };
    infer_status st = INFER_OK;
    if (!root)
        st = error_set(err, INFER_FORMAT, "line %d: %s", why.line, why.text);
    else if (!json_is_array(list))
        st = error_set(err, INFER_FORMAT, "expected a JSON array of messages");
    else
        json_array_foreach(list, i, m) if (!st) st = add_message(&loaded, i, m, err);
    json_decref(root);
    mem_free(text);
    conversation_free(st ? &loaded : c);
    if (st) return error_prefix(err, "%s", path);
    *c = loaded;
    return INFER_OK;
}
