/*
 * chat.h: messages to the text, or the token ids, that a model expects, by its own chat template.
 *
 * A conversation is turned into a template's context (messages, tools, add_generation_prompt,
 * bos_token, eos_token and whatever else the caller gives), the template is rendered, and for ids
 * the text is encoded so that special tokens count only where the template wrote them: text that
 * came from a message, a tool or another value of the context stays text, whatever it contains.
 * What is the template's own: its literals, the token texts, and roles that every chat API knows (a
 * template may write '<|' + message.role + '|>').
 */
#ifndef MODELS_CHAT_H
#define MODELS_CHAT_H

#include "models/jinja.h"
#include "models/tokenizer.h"

typedef struct chat_template chat_template;

/* Compiles the tokenizer's template, or `source` (NUL-terminated) where it is not NULL. t is
 * borrowed and must outlive it; NULL: the template alone, for chat_render without token texts. No
 * template: INFER_NOT_FOUND. Immutable: any number of threads may use one. */
infer_status chat_template_new(chat_template **out, const tokenizer *t, const char *source,
                               infer_error *err);
void chat_template_free(chat_template *c);

typedef struct chat_message {
    const char *role, *content; // NUL-terminated UTF-8; a NULL content is null
} chat_message;

typedef struct chat_request {
    const chat_message *messages; // either these,
    size_t n_messages;
    json_t *messages_json; // or a JSON array as chat APIs have it (tool calls, parts, …)
    json_t *tools;         // array of tool descriptions, or NULL
    json_t *extra;         // object: further variables (enable_thinking, documents, …), or NULL;
                           // they win over all of the above and the token texts
    bool add_generation_prompt;
    const struct tm *now; // for templates that ask; NULL: asking is an error
} chat_request;

/* The text; out is the caller's, freed with jinja_text_free. INFER_ARGUMENT: the template refused
 * the messages, in its own words. JSON values are borrowed and only read. */
infer_status chat_render(const chat_template *c, jinja_text *out, const chat_request *request,
                         infer_error *err);
/* The ids, allocated with mem_alloc, the caller's. A BOS is put before them only where the
 * tokenizer adds one and the template did not begin with it; an EOS never, for the conversation
 * goes on. */
infer_status chat_encode(const chat_template *c, int32_t **ids, size_t *n_ids,
                         const chat_request *request, infer_error *err);

#endif
