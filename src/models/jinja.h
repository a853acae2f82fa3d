/*
 * jinja.h: the Jinja language of chat templates, interpreted.
 *
 * A template is compiled once and is then immutable: any number of threads may render it at a time.
 * Rendering takes a JSON object (the context) and gives text. What a template means is defined by
 * Python's jinja2 in the setting that Hugging Face transformers uses: trim_blocks, lstrip_blocks,
 * no autoescape, break and continue, the immutable sandbox, tojson without HTML escapes,
 * raise_exception, strftime_now and the `generation` tag. Text and refusals are the same.
 *
 * A template can do no harm: it sees the context's values and their own listed methods, there is no
 * input or output, and each rendering is bounded in steps, memory, output and depth.
 *
 * Provenance: for each byte of the result it is known whether the template wrote it or whether it
 * was copied from the context, through every filter and method. chat.h uses this to keep special
 * tokens that users write from becoming control tokens.
 *
 * Files: jinja_lex.c (text to tokens), jinja_parse.c (tokens to tree), jinja_scope.c (names to
 * slots), jinja_exec.c (statements), jinja_eval.c (expressions), jinja_value.c and jinja_text.c
 * (values and their text), jinja_methods.c, jinja_filters.c, jinja_sequence.c, jinja_tests.c,
 * jinja_globals.c, jinja_format.c (what templates can call).
 */
#ifndef MODELS_JINJA_H
#define MODELS_JINJA_H

#include <jansson.h>
#include <time.h>

#include "infer_base.h"

typedef struct jinja_template jinja_template;

/* Compiles n bytes of UTF-8; the text is not needed afterwards. INFER_FORMAT for what jinja2
 * refuses too, INFER_UNSUPPORTED for what exists only with a loader (include, import, extends),
 * each with "line N: ". */
infer_status jinja_compile(jinja_template **out, const char *text, size_t n, infer_error *err);
void jinja_free(jinja_template *t);

typedef struct jinja_options {
    uint64_t max_steps;   // evaluated nodes and work alike; 0: 5 million (about half a second)
    size_t max_memory;    // bytes of values while rendering; 0: 48 MiB
    size_t max_output;    // bytes of the result; 0: 16 MiB
    const struct tm *now; // what strftime_now formats; NULL: calling it is an error
    /* Tells that a string of the context counts as the template's own text (depth 0: member of the
     * context itself; key: of the nearest object). NULL: none does. */
    bool (*trusted)(int depth, const char *key, const char *s, size_t n, void *user);
    void *user;
} jinja_options;

/* Bytes [begin, end) of a result. */
typedef struct jinja_range {
    size_t begin, end;
} jinja_range;

typedef struct jinja_text {
    char *s; // NUL-terminated, n bytes
    size_t n;
    jinja_range *foreign; // what came from the context; sorted, disjoint, never adjacent
    size_t n_foreign;
} jinja_text;

/* Renders with the members of `context` (a JSON object, only read) as variables. *out is the
 * caller's, freed with jinja_text_free; on failure it is empty. INFER_ARGUMENT: the template raised
 * (its own words, or what Python would say); INFER_LIMIT: a bound; INFER_NOMEM. */
infer_status jinja_render(const jinja_template *t, jinja_text *out, json_t *context,
                          const jinja_options *o, infer_error *err);
void jinja_text_free(jinja_text *text);

#endif
