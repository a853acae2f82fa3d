/*
 * chat.c: a conversation as a template's context, and the rendered text as ids with forged special
 * tokens left as text.
 */
#include "models/chat.h"

#include <string.h>

#include "base/compiler.h"
#include "base/error.h"
#include "base/mem.h"

struct chat_template {
    jinja_template *jinja;
    const tokenizer *tok;
};

/* A rendering may take more than jinja.h's defaults where the conversation is long: per byte of it.
 */
enum { STEPS_PER_BYTE = 4, MEMORY_PER_BYTE = 64 };

infer_status chat_template_new(chat_template **out, const tokenizer *t, const char *source,
                               infer_error *err)
{
    *out = NULL;
    if (!source && t) source = tok_chat_template(t);
    if (!source) return error_set(err, INFER_NOT_FOUND, "the tokenizer has no chat template");
    chat_template *c = mem_zero(1, sizeof *c);
    if (!c) return error_set(err, INFER_NOMEM, "out of memory");
    c->tok = t;
    if (jinja_compile(&c->jinja, source, strlen(source), err)) {
        mem_free(c);
        return error_prefix(err, "chat template");
    }
    *out = c;
    return INFER_OK;
}

void chat_template_free(chat_template *c)
{
    if (!c) return;
    jinja_free(c->jinja);
    mem_free(c);
}

// ---- context

static const char *token_text(const tokenizer *t, int32_t id)
{
    const char *s = id < 0 ? NULL : tok_token(t, id, NULL);
    return s ? s : "";
}

static json_t *plain_messages(const chat_request *q)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < q->n_messages; i++) {
        const chat_message *m = &q->messages[i];
        json_t *content = m->content ? json_string(m->content) : json_null();
        json_t *one = json_object();
        int bad = json_object_set_new(one, "role", json_string(m->role));
        bad |= json_object_set_new(one, "content", content);
        bad |= json_array_append_new(list, one);
        if (bad) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* NULL without memory or where a message is not UTF-8. */
static json_t *make_context(const chat_template *c, const chat_request *q)
{
    json_t *j = json_object();
    int bad = q->messages_json ? json_object_set(j, "messages", q->messages_json)
                               : json_object_set_new(j, "messages", plain_messages(q));
    if (q->tools) bad |= json_object_set(j, "tools", q->tools);
    bad |= json_object_set_new(j, "add_generation_prompt", json_boolean(q->add_generation_prompt));
    if (c->tok) {
        bad |=
            json_object_set_new(j, "bos_token", json_string(token_text(c->tok, tok_bos(c->tok))));
        bad |=
            json_object_set_new(j, "eos_token", json_string(token_text(c->tok, tok_eos(c->tok))));
    }
    if (q->extra) bad |= json_object_update(j, q->extra);
    if (!bad) return j;
    json_decref(j);
    return NULL;
}

static bool is_trusted(int depth, const char *key, const char *s, size_t n, void *user)
{
    static const char *const roles[] = { "system",    "user",     "assistant", "tool",
                                         "developer", "function", "model" };
    (void)user;
    if (depth == 0) return !strcmp(key, "bos_token") || !strcmp(key, "eos_token");
    if (strcmp(key, "role")) return false;
    for (int i = 0; i < COUNT_OF(roles); i++)
        if (strlen(roles[i]) == n && !memcmp(roles[i], s, n)) return true;
    return false;
}

/* Bytes of text in a JSON value, roughly; deep ones are cut off here and refused by the renderer.
 */
static size_t text_bytes(json_t *j, int depth)
{
    size_t n = 16, i;
    const char *key;
    json_t *v;
    if (depth > 64) return n;
    if (json_is_string(j)) n += json_string_length(j);
    json_array_foreach(j, i, v) n += text_bytes(v, depth + 1);
    json_object_foreach(j, key, v) n += strlen(key) + text_bytes(v, depth + 1);
    return n;
}

infer_status chat_render(const chat_template *c, jinja_text *out, const chat_request *q,
                         infer_error *err)
{
    *out = (jinja_text){ 0 };
    if (q->messages_json && !json_is_array(q->messages_json))
        return error_set(err, INFER_ARGUMENT, "messages: expected a JSON array");
    if (q->tools && !json_is_array(q->tools))
        return error_set(err, INFER_ARGUMENT, "tools: expected a JSON array");
    if (q->extra && !json_is_object(q->extra))
        return error_set(err, INFER_ARGUMENT, "template variables: expected a JSON object");
    json_t *context = make_context(c, q);
    if (!context)
        return error_set(err, INFER_ARGUMENT, "messages: not valid UTF-8, or out of memory");
    size_t bytes = text_bytes(context, 0);
    jinja_options o = { .now = q->now, .trusted = is_trusted };
    o.max_steps = 5000000 + (uint64_t)bytes * STEPS_PER_BYTE;
    o.max_memory = ((size_t)32 << 20) + bytes * MEMORY_PER_BYTE;
    o.max_output = ((size_t)16 << 20) + bytes * 4;
    infer_status status = jinja_render(c->jinja, out, context, &o, err);
    json_decref(context);
    return status ? error_prefix(err, "chat template") : INFER_OK;
}

/* Once: by the template, or else here. Twice would move every position by one. */
static infer_status begin_with_bos(const tokenizer *t, int32_t **ids, size_t *n_ids,
                                   infer_error *err)
{
    int32_t bos = tok_bos(t);
    if (!tok_adds_bos(t) || bos < 0 || (*n_ids && (*ids)[0] == bos)) return INFER_OK;
    int32_t *more = mem_resize(*ids, *n_ids + 1, sizeof *more);
    if (!more) {
        mem_free(*ids);
        *ids = NULL;
        *n_ids = 0;
        return error_set(err, INFER_NOMEM, "out of memory");
    }
    memmove(more + 1, more, *n_ids * sizeof *more);
    more[0] = bos;
    *ids = more;
    ++*n_ids;
    return INFER_OK;
}

infer_status chat_encode(const chat_template *c, int32_t **ids, size_t *n_ids,
                         const chat_request *q, infer_error *err)
{
    jinja_text text;
    if (!c->tok) return error_set(err, INFER_ARGUMENT, "chat template: ids need a tokenizer");
    infer_status status = chat_render(c, &text, q, err);
    if (status) return status;
    tok_range *plain = mem_alloc(text.n_foreign + 1, sizeof *plain);
    if (!plain) {
        jinja_text_free(&text);
        return error_set(err, INFER_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < text.n_foreign; i++)
        plain[i] = (tok_range){ text.foreign[i].begin, text.foreign[i].end };
    tok_options o = { .no_special = true, .plain = plain, .n_plain = text.n_foreign };
    status = tok_encode(c->tok, ids, n_ids, text.s, text.n, &o, err);
    mem_free(plain);
    jinja_text_free(&text);
    return status ? status : begin_with_bos(c->tok, ids, n_ids, err);
}
