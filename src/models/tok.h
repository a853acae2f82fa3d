/*
 * tok.h: what the tokenizer's files share (tokenizer.h is the module's face).
 *
 *   tokenizer.c       opening by path, encoding's course, public functions
 *   tok_vocab.c       strings, the string → id tables, the merge table, tries
 *   tok_regex.c       Oniguruma patterns as PCRE2
 *   tok_norm.c        normalizers               tok_pre.c     pre-tokenizers
 *   tok_model.c       BPE, scored BPE, WordPiece, WordLevel   tok_unigram.c
 *   tok_decode.c      decoders, all of them streaming
 *   tok_build.c       what the loaders share
 *   tok_json.c        a JSON reader that leaves large tables unparsed
 *   tok_load_json.c   tokenizer.json            tok_load_gguf.c, tok_pre_names.c   GGUF metadata
 *   tok_beside.c      both
 *
 * A step of any kind is a tok_step: a type and the few parameters that the types need.
 */
#ifndef MODELS_TOK_H
#define MODELS_TOK_H

#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "models/tokenizer.h"

#define TOK_MAX_ID (1 << 22)    // ids below this; a small file shall not ask for gigabytes
#define TOK_MAX_TEXT (1u << 30) // bytes of one text

#define TRY(x)                                                                                     \
    do {                                                                                           \
        infer_status try_ = (x);                                                                   \
        if (try_ != INFER_OK) return try_;                                                         \
    } while (0)

/* Makes room for n elements in array p of capacity cap. */
#define GROW(st, p, cap, n, err)                                                                   \
    do {                                                                                           \
        void *grow_ = (p);                                                                         \
        (st) = mem_reserve(&grow_, &(cap), (n), sizeof *(p), err);                                 \
        (p) = grow_;                                                                               \
    } while (0)

typedef gguf_text text;

/* ---- growing bytes ----------------------------------------------------------------------- */

typedef struct bytes {
    char *p;
    size_t n, cap;
} bytes;
static inline infer_status bytes_room(bytes *b, size_t n, infer_error *err)
{
    if (b->cap - b->n >= n) return INFER_OK;
    infer_status st;
    GROW(st, b->p, b->cap, b->n + n, err);
    return st;
}
static inline infer_status bytes_add(bytes *b, const char *s, size_t n, infer_error *err)
{
    TRY(bytes_room(b, n, err));
    if (n) memcpy(b->p + b->n, s, n);
    b->n += n;
    return INFER_OK;
}

/* ---- tables (tok_vocab.c) ---------------------------------------------------------------- */

enum {
    TOK_PRESENT = 1, // the id is in the vocabulary
    TOK_SPECIAL = 2, // left out by skip_special
    TOK_ADDED = 4,
    TOK_END = 8, // ends generation
};

typedef struct tok_entry {
    uint32_t at, n; // in tokenizer.pool; a NUL follows
} tok_entry;

/* Strings to ids, open addressing: slot = hash << 32 | id + 1, 0 is free. */
typedef struct str_map {
    uint64_t *slots;
    uint32_t mask;
} str_map;

typedef struct pair_slot {
    int32_t a, b; // a < 0: free
    uint32_t rank;
    int32_t id; // of the merged token
} pair_slot;
typedef struct pair_map {
    pair_slot *slots;
    uint32_t mask;
} pair_map;

/* A byte trie in one hash table: slot = node << 32 | byte << 24 | child; node 0 is the root. */
typedef struct trie {
    uint64_t *slots;
    uint32_t mask, n_nodes;
    int32_t *value; // [n_nodes], -1: none
    size_t value_cap;
    uint32_t first[256]; // children of the root, 0: none
} trie;

infer_status trie_add(trie *t, const char *s, size_t n, int32_t value, infer_error *err);
void trie_free(trie *t);
static inline uint32_t trie_hash(uint32_t node, unsigned char c)
{
    return (uint32_t)(((uint64_t)(node << 8 | c) * 0x9E3779B97F4A7C15u) >> 32);
}
static inline uint32_t trie_step(const trie *t, uint32_t node, unsigned char c) // 0: none
{
    if (!node) return t->first[c];
    uint64_t key = (uint64_t)node << 8 | c;
    for (uint32_t i = trie_hash(node, c) & t->mask;; i = (i + 1) & t->mask) {
        uint64_t s = t->slots[i];
        if (!s) return 0;
        if (s >> 24 == key) return s & 0xffffff;
    }
}

infer_status str_map_init(str_map *m, arena *a, size_t n, infer_error *err);
void str_map_put(str_map *m, const tokenizer *t, int32_t id); // the same string again: replaced
int32_t str_map_find(const str_map *m, const tokenizer *t, const char *s, size_t n);
/* The same for up to TOK_BATCH of them. */
#define TOK_BATCH 96
void str_map_put_many(str_map *m, const tokenizer *t, const int32_t *ids, size_t n);
void str_map_find_many(const str_map *m, const tokenizer *t, const text *s, int32_t *ids, size_t n);

infer_status pair_map_init(pair_map *m, arena *a, size_t n, infer_error *err);
void pair_map_put(pair_map *m, int32_t a, int32_t b, uint32_t rank, int32_t id);
static inline uint32_t pair_hash(int32_t a, int32_t b)
{
    uint64_t h = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 11);
}
static inline const pair_slot *pair_map_find(const pair_map *m, int32_t a, int32_t b)
{
    for (uint32_t i = pair_hash(a, b) & m->mask;; i = (i + 1) & m->mask) {
        const pair_slot *s = &m->slots[i];
        if (s->a < 0) return NULL;
        if (s->a == a && s->b == b) return s;
    }
}

/* ---- regular expressions (tok_regex.c) --------------------------------------------------- */

typedef struct tok_regex tok_regex;
typedef struct regex_scratch regex_scratch; // one thread's working memory
/* Compiles an Oniguruma pattern, or a literal string. */
infer_status regex_new(tok_regex **out, const char *pattern, size_t n, bool literal,
                       infer_error *err);
void regex_free(tok_regex *re);
infer_status regex_scratch_new(regex_scratch **out, infer_error *err);
void regex_scratch_free(regex_scratch *x);
/* Matches in order as Oniguruma's find_iter gives them. s must be valid UTF-8. */
typedef struct regex_iter {
    size_t next, last_end;
    bool any;
} regex_iter;
/* *found false at the end; zero the iterator first. */
infer_status regex_next(const tok_regex *re, regex_scratch *x, const char *s, size_t n,
                        regex_iter *it, size_t *begin, size_t *end, bool *found, infer_error *err);
/* The string of a literal, NULL for a pattern. */
const char *regex_literal(const tok_regex *re, size_t *n);

/* ---- steps ------------------------------------------------------------------------------- */

typedef enum tok_step_type {
    /* normalizers */
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWERCASE,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_NMT,
    NORM_PRECOMPILED,
    NORM_BERT,
    NORM_BYTE_LEVEL,
    /* pre-tokenizers */
    PRE_BYTE_LEVEL,
    PRE_SPLIT,
    PRE_DIGITS,
    PRE_METASPACE,
    PRE_WHITESPACE,
    PRE_WHITESPACE_SPLIT,
    PRE_PUNCTUATION,
    PRE_CHAR_DELIMITER,
    PRE_BERT,
    PRE_FIXED_LENGTH,
    /* decoders */
    DEC_BYTE_LEVEL,
    DEC_BYTE_FALLBACK,
    DEC_METASPACE,
    DEC_REPLACE,
    DEC_FUSE,
    DEC_STRIP,
    DEC_WORDPIECE,
    DEC_BPE,
    DEC_JOIN,
    /* post-processors */
    POST_TEMPLATE,
} tok_step_type;

typedef enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_MERGED_PREVIOUS,
    SPLIT_MERGED_NEXT,
    SPLIT_CONTIGUOUS
} split_behavior;
typedef enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } prepend_scheme;

typedef struct tok_step {
    tok_step_type type;
    tok_regex *re; // SPLIT, REPLACE; BYTE_LEVEL with its own pattern, WHITESPACE
    text s;        // content, replacement, prefix, suffix
    split_behavior behavior;
    bool invert;
    bool left, right;                    // STRIP
    bool prefix_space;                   // BYTE_LEVEL
    bool individual;                     // DIGITS
    bool split;                          // METASPACE
    bool cleanup;                        // WORDPIECE
    bool clean, chinese, accents, lower; // BERT
    prepend_scheme scheme;               // METASPACE
    int start, stop;                     // STRIP of decoders; FIXED_LENGTH: start
    const uint32_t *units;               // PRECOMPILED: the double array ...
    size_t n_units;
    const int32_t *pieces; // TEMPLATE: ids, -1 where the text goes
    size_t n_pieces;
} tok_step;

typedef struct step_list {
    tok_step *v;
    size_t n, cap;
} step_list;

typedef struct added_token {
    int32_t id;
    text content;
    bool special, single_word, lstrip, rstrip, normalized;
} added_token;

typedef enum tok_model_type {
    MODEL_BPE,
    MODEL_SPM,
    MODEL_UNIGRAM,
    MODEL_WORDPIECE,
    MODEL_WORDLEVEL
} tok_model_type;

struct tokenizer {
    arena mem;
    char *pool;         // all entries' bytes
    tok_entry *entries; // [n_ids]
    uint8_t *flags;     // [n_ids] TOK_*
    int n_ids;          // largest id + 1
    uint32_t longest;   // bytes of the longest entry
    text *shown;        // [n_ids] what decoding sees in place of the entry where s is set: an
                        // added token's normalized form; NULL where there is none

    step_list norms, pres, posts, decoders;
    added_token *added;
    size_t n_added;
    trie added_raw, added_normalized; // values are indices into added

    tok_model_type model;
    str_map vocab;     // the model's entries
    str_map added_map; // contents of added tokens
    pair_map merges;
    float *scores;    // [n_ids] SPM, ...
    double *scores64; // ... UNIGRAM
    double min_score;
    trie pieces;          // UNIGRAM
    int32_t char_id[512]; // entry of a lone character below U+0200, -1: none
    int32_t byte_id[256]; // <0x..>, -1: none
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk;                      // -1: none
    text subword_prefix, word_suffix; // continuing_subword_prefix, end_of_word_suffix
    text first_prefix;                // WordPiece in GGUF: what a word's first piece starts with
    int max_word_chars;               // WordPiece

    int32_t bos, eos;
    bool adds_bos, adds_eos;
    char *chat_template;
};

/* ---- working memory of one encoding ------------------------------------------------------ */

typedef struct piece {
    uint32_t at, n;
    bool first; // begins where the original text begins
} piece;
typedef struct piece_list {
    piece *v;
    size_t n, cap;
} piece_list;

typedef struct symbol {
    int32_t id, prev, next;
    uint32_t at, n; // bytes
} symbol;
typedef struct bigram {
    uint64_t key; // priority << 32 | position of the left symbol: the smallest comes first
    uint32_t n;   // bytes of both when it was found
    int32_t id;
} bigram;
typedef struct best_path {
    double score;
    int32_t start, id; // start -1: not reached
} best_path;

typedef struct tok_work {
    const tokenizer *t;
    infer_error *err;
    const char *whole;      // the text given, in which ...
    const tok_range *plain; // ... special tokens that overlap these are text
    size_t n_plain;
    const char *raw;      // the stretch that norm[0] was made of; NULL: none
    size_t n_raw;
    regex_scratch *regex;
    bytes norm[2];        // a segment through the normalizers
    bytes text[2];        // and through the pre-tokenizers, with ...
    piece_list pieces[2]; // ... its pieces
    piece_list spans;     // matches of a split; first tells a match
    int32_t *cps;         // NFC and its like
    size_t cps_cap;
    symbol *symbols;
    size_t symbols_cap;
    bigram *heap;
    size_t n_heap, heap_cap;
    best_path *best;
    size_t best_cap;
    bytes key;
    int32_t *ids;
    size_t n_ids, ids_cap;
} tok_work;

/* Normalizes *s (of any length) in place; *head_kept tells whether its first character still comes
 * from where the text began. */
infer_status norm_run(tok_work *w, const step_list *steps, bytes *s, bool *head_kept);
/* Splits w->text[0] with w->pieces[0]; *which tells where the result lies. */
infer_status pre_run(tok_work *w, int *which);
/* Appends the ids of one piece. */
infer_status model_encode(tok_work *w, const char *s, size_t n);
infer_status unigram_encode(tok_work *w, const char *s, size_t n);
infer_status work_id(tok_work *w, int32_t id);
void work_free(tok_work *w);

/* ---- characters -------------------------------------------------------------------------- */

bool cp_is_space(uint32_t cp);   // White_Space
bool cp_is_word(uint32_t cp);    // \w
bool cp_is_numeric(uint32_t cp); // Nd, Nl, No
bool cp_is_punct(uint32_t cp);   // ASCII punctuation and P*
/* The character that byte-level vocabularies write for a byte, and back (-1: none). */
uint32_t byte_to_cp(unsigned char b);
int cp_to_byte(uint32_t cp);

/* ---- building ---------------------------------------------------------------------------- */

/* What both loaders fill; then tok_finish. */
infer_status tok_new(tokenizer **out, infer_error *err);
/* A zeroed step at the end of the list. */
tok_step *step_add(step_list *l, tok_step_type type, infer_error *err);
/* Room for n_ids entries and pool_bytes bytes. */
infer_status tok_reserve(tokenizer *t, size_t n_ids, size_t pool_bytes, infer_error *err);
/* Tables that depend on the entries: characters, bytes, added tokens, ends. Takes `added`, which
 * lies in t->mem. */
infer_status tok_finish(tokenizer *t, infer_error *err);
/* Parses <0xAB>; -1: something else. */
int byte_token(const char *s, size_t n);
/* The pattern of GPT-2, which ByteLevel uses. */
extern const char tok_gpt2_pattern[];

/* Reads a precompiled_charsmap: a double array and the replacements; raw must live as long as a. */
infer_status charsmap_read(tok_step *s, arena *a, const uint8_t *raw, size_t n, infer_error *err);

/* tok_load_json.c */
infer_status tok_load_json(tokenizer **out, const char *path, infer_error *err);
/* From the text of a tokenizer.json alone. */
infer_status tok_load_json_text(tokenizer **out, const char *s, size_t n, infer_error *err);
/* tok_beside.c: replaces *t, read from a GGUF file, by the same vocabulary's tokenizer.json where
 * one lies in the file's folder. *t stays valid after failure. */
infer_status tok_beside(tokenizer **t, const char *gguf_path, infer_error *err);
/* tok_pre_names.c: pre-tokenization that a GGUF file names */
typedef struct pre_name {
    const char *names;       // separated by spaces
    const char *patterns[5]; // each an isolated split, in order
    bool nfc, ignore_merges, add_bos;
} pre_name;
const pre_name *pre_name_find(const char *s, size_t n);
/* The row with exactly these patterns; NULL: none. */
const pre_name *pre_name_match(const char *const *patterns, int n, bool nfc, bool ignore_merges);
/* tok_load_gguf.c: from the GGUF file alone, whatever lies beside it. */
infer_status tok_load_gguf(tokenizer **out, const gguf *g, infer_error *err);

#endif
