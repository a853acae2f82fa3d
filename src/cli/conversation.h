/*
 * conversation.h: the messages of a chat, and their file: a JSON array of {"role", "content"}.
 */
#ifndef CLI_CONVERSATION_H
#define CLI_CONVERSATION_H

#include "infer.h"

/* Messages in order; one from the system, if any, is the first. Zeroed is empty. Owns all text. */
typedef struct conversation {
    infer_message *v; // roles are literals
    size_t n, cap;
} conversation;

void conversation_free(conversation *c);
/* Room for n more, so that as many additions cannot fail half-way. */
infer_status conversation_reserve(conversation *c, size_t n, infer_error *err);
/* role: "system" (put first, in place of an earlier one), "user" or "assistant". */
infer_status conversation_add(conversation *c, const char *role, const char *text,
                              infer_error *err);
/* The system's text, or NULL. */
const char *conversation_system(const conversation *c);
/* Drops the last message. */
void conversation_drop(conversation *c);
/* Drops all but the system's message, or with `system` that alone. */
void conversation_clear(conversation *c, bool system);

/* Replaces the file whole or not at all. */
infer_status conversation_save(const conversation *c, const char *path, infer_error *err);
/* Takes an array, or an object with "messages". On failure c is unchanged. */
infer_status conversation_load(conversation *c, const char *path, infer_error *err);

#endif
