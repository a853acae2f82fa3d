/*
 * tok_json.h: reading tokenizer.json and its companions.
 *
 * A tokenizer.json is mostly two tables of hundreds of thousands of entries. tj_parse checks the
 * whole text but makes values only of what lies outside objects and arrays named "vocab" and
 * "merges"; those keep their text, and tj_walk goes through it entry by entry. Strings may hold
 * NUL.
 */
#ifndef MODELS_TOK_JSON_H
#define MODELS_TOK_JSON_H

#include "models/tok.h"

typedef enum tj_type { TJ_NULL, TJ_BOOL, TJ_NUMBER, TJ_STRING, TJ_ARRAY, TJ_OBJECT } tj_type;
typedef struct tj tj;
struct tj {
    tj_type type;
    text key;      // of a member of an object
    text s;        // of a string; of a raw table its text
    double number; // of numbers and booleans
    bool raw;      // a table that tj_walk reads
    tj *child, *next;
    size_t n; // children
};

/* Parses text (UTF-8, at most 2 GiB); everything lies in a. Errors name `name` and the line. */
infer_status tj_parse(const tj **out, arena *a, const char *s, size_t n, const char *name,
                      infer_error *err);
/* The last member of that name; NULL: none, or no object. A member that is null counts as none. */
const tj *tj_get(const tj *o, const char *key);
const char *tj_type_name(tj_type t);

/* The entries of a raw table. Strings are views into the text, or into the walk's own buffers (one
 * for the key, one for the value), valid until the next entry; arrays and objects come raw. */
typedef struct tj_walk {
    const char *p, *end;
    bool object;
    bytes key, value;
    infer_error *err;
} tj_walk;
void tj_walk_start(tj_walk *w, const tj *table, infer_error *err);
/* *more false at the end. */
infer_status tj_walk_next(tj_walk *w, tj *entry, bool *more);
void tj_walk_end(tj_walk *w);

#endif
