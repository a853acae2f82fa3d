/*
 * tok_load_json.c: tokenizer.json, the file of Hugging Face tokenizers (versions 0.10 to 0.23), and
 * what tokenizer_config.json and the chat template files beside it add.
 *
 * Each kind of step has a table: its name in the file and the function that reads its parameters.
 * What is not in a table is an error that names it. truncation and padding say how batches are
 * shaped, not what the ids of a text are: they are left alone.
 */
#include <stdio.h>

#include "base/map.h"
#include "models/tok_json.h"

#define MAX_FILE ((size_t)256 << 20)
#define META "\xE2\x96\x81" // U+2581, SentencePiece's space

typedef struct loader {
    tokenizer *t;
    arena tmp; // the parsed files
    const char *path;
    infer_error *err;
    const char *kind; // of the step that is read, for messages
} loader;

static infer_status bad(const loader *l, const char *what, const tj *v, const char *want)
{
    return error_set(l->err, INFER_FORMAT, "%s: %s: expected %s, found %s", l->path, what, want,
                     v ? tj_type_name(v->type) : "nothing");
}

// ---- typed members; a missing one keeps the default -----------------------------------------

static infer_status get_bool(const loader *l, const tj *o, const char *key, bool *out)
{
    const tj *v = tj_get(o, key);
    if (!v) return INFER_OK;
    if (v->type != TJ_BOOL) return bad(l, key, v, "a boolean");
    *out = v->number != 0;
    return INFER_OK;
}

static infer_status get_int(const loader *l, const tj *o, const char *key, int64_t low,
                            int64_t high, int *out)
{
    const tj *v = tj_get(o, key);
    if (!v) return INFER_OK;
    if (v->type != TJ_NUMBER) return bad(l, key, v, "a number");
    if (!(v->number >= (double)low && v->number <= (double)high) ||
        v->number != (double)(int64_t)v->number)
        return error_set(l->err, INFER_FORMAT, "%s: %s: %g is not an integer from %lld to %lld",
                         l->path, key, v->number, (long long)low, (long long)high);
    *out = (int)v->number;
    return INFER_OK;
}

static infer_status keep(const loader *l, text *out,
                         text s) // a copy that lives as long as the tokenizer
{
    out->s = arena_strndup(&l->t->mem, s.s, s.n);
    out->n = s.n;
    return out->s ? INFER_OK : error_set(l->err, INFER_NOMEM, "%s", l->path);
}

static infer_status get_text(const loader *l, const tj *o, const char *key, text *out)
{
    const tj *v = tj_get(o, key);
    if (!v) return INFER_OK;
    if (v->type != TJ_STRING) return bad(l, key, v, "a string");
    return keep(l, out, v->s);
}

static infer_status need_text(const loader *l, const tj *o, const char *key, text *out)
{
    if (!tj_get(o, key))
        return error_set(l->err, INFER_FORMAT, "%s: %s: has no %s", l->path, l->kind, key);
    return get_text(l, o, key, out);
}

static infer_status one_char(const loader *l, const char *key, text s)
{
    uint32_t cp;
    if (s.n && (size_t)utf8_decode(s.s, s.n, &cp) == s.n) return INFER_OK;
    return error_set(l->err, INFER_FORMAT, "%s: %s: %s '%.*s': expected one character", l->path,
                     l->kind, key, (int)(s.n < 40 ? s.n : 40), s.s);
}

static bool is(text s, const char *word) { return s.n == strlen(word) && !memcmp(s.s, word, s.n); }

// pattern: {"String": s} or {"Regex": s}
static infer_status get_pattern(const loader *l, const tj *o, tok_regex **out)
{
    const tj *p = tj_get(o, "pattern"), *v = NULL;
    bool literal = false;
    if (p && p->type == TJ_STRING) v = p, literal = true; // old files
    if (!v && (v = tj_get(p, "String"))) literal = true;
    if (!v) v = tj_get(p, "Regex");
    if (!v || v->type != TJ_STRING) return bad(l, l->kind, v ? v : p, "a pattern, String or Regex");
    infer_status st = regex_new(out, v->s.s, v->s.n, literal, l->err);
    return st ? error_prefix(l->err, "%s: %s", l->path, l->kind) : INFER_OK;
}

// ---- steps ----------------------------------------------------------------------------------

typedef infer_status step_fn(loader *l, const tj *o, tok_step *s);
typedef struct step_kind {
    const char *name;
    tok_step_type type;
    step_fn *fn; // NULL: no parameters
} step_kind;

static infer_status read_replace(loader *l, const tj *o, tok_step *s)
{
    TRY(need_text(l, o, "content", &s->s));
    return get_pattern(l, o, &s->re);
}
static infer_status read_prepend(loader *l, const tj *o, tok_step *s)
{
    return need_text(l, o, "prepend", &s->s);
}
static infer_status read_strip_ends(loader *l, const tj *o, tok_step *s)
{
    s->left = s->right = true;
    TRY(get_bool(l, o, "strip_left", &s->left));
    return get_bool(l, o, "strip_right", &s->right);
}
static infer_status read_bert_normalizer(loader *l, const tj *o, tok_step *s)
{
    s->clean = s->chinese = s->lower = true;
    TRY(get_bool(l, o, "clean_text", &s->clean));
    TRY(get_bool(l, o, "handle_chinese_chars", &s->chinese));
    TRY(get_bool(l, o, "lowercase", &s->lower));
    s->accents = s->lower; // null means: as lowercase
    return get_bool(l, o, "strip_accents", &s->accents);
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static infer_status read_precompiled(loader *l, const tj *o, tok_step *s)
{
    text in = { 0 };
    TRY(need_text(l, o, "precompiled_charsmap", &in));
    while (in.n && in.s[in.n - 1] == '=')
        in.n--;
    uint8_t *raw = arena_alloc(&l->t->mem, in.n * 3 / 4 + 8, 1);
    if (!raw) return error_set(l->err, INFER_NOMEM, "%s", l->path);
    size_t n = 0;
    uint32_t acc = 0, bits = 0;
    for (size_t i = 0; i < in.n; i++) {
        int d = base64_digit(in.s[i]);
        if (d < 0)
            return error_set(l->err, INFER_FORMAT, "%s: precompiled_charsmap: not base64", l->path);
        acc = acc << 6 | (uint32_t)d;
        if ((bits += 6) >= 8) raw[n++] = (uint8_t)(acc >> (bits -= 8));
    }
    return charsmap_read(s, &l->t->mem, raw, n, l->err)
               ? error_prefix(l->err, "%s: precompiled_charsmap", l->path)
               : INFER_OK;
}

static infer_status read_byte_level(loader *l, const tj *o, tok_step *s)
{
    bool use_regex = true;
    s->prefix_space = true;
    TRY(get_bool(l, o, "add_prefix_space", &s->prefix_space));
    TRY(get_bool(l, o, "use_regex", &use_regex));
    return use_regex ? regex_new(&s->re, tok_gpt2_pattern, strlen(tok_gpt2_pattern), false, l->err)
                     : INFER_OK;
}

static infer_status read_behavior(loader *l, const tj *o, tok_step *s)
{
    static const char *const names[] = { "removed", "isolated", "mergedwithprevious",
                                         "mergedwithnext", "contiguous" };
    text v = { 0 };
    char low[32] = "";
    TRY(get_text(l, o, "behavior", &v));
    if (!v.s) {
        s->behavior = SPLIT_ISOLATED;
        return INFER_OK;
    }
    for (size_t i = 0; i < v.n && i + 1 < sizeof low; i++)
        low[i] = (char)(v.s[i] >= 'A' && v.s[i] <= 'Z' ? v.s[i] + 32 : v.s[i]);
    for (int i = 0; i < COUNT_OF(names); i++) {
        if (strcmp(low, names[i])) continue;
        s->behavior = (split_behavior)i;
        return INFER_OK;
    }
    return error_set(l->err, INFER_UNSUPPORTED, "%s: %s: unknown behavior '%.*s'", l->path, l->kind,
                     (int)(v.n < 40 ? v.n : 40), v.s);
}

static infer_status read_split(loader *l, const tj *o, tok_step *s)
{
    TRY(read_behavior(l, o, s));
    TRY(get_bool(l, o, "invert", &s->invert));
    return get_pattern(l, o, &s->re);
}
static infer_status read_digits(loader *l, const tj *o, tok_step *s)
{
    return get_bool(l, o, "individual_digits", &s->individual);
}
static infer_status read_delimiter(loader *l, const tj *o, tok_step *s)
{
    TRY(need_text(l, o, "delimiter", &s->s));
    return one_char(l, "delimiter", s->s);
}
#define RUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}" // \w is another set there
static infer_status read_whitespace(loader *l, const tj *o, tok_step *s)
{
    static const char pattern[] = "[" RUST_WORD "]+|[^" RUST_WORD "\\s]+";
    (void)o;
    return regex_new(&s->re, pattern, strlen(pattern), false, l->err);
}
static infer_status read_fixed_length(loader *l, const tj *o, tok_step *s)
{
    s->start = 5;
    return get_int(l, o, "length", 1, 1 << 20, &s->start);
}

static infer_status read_metaspace(loader *l, const tj *o, tok_step *s)
{
    text scheme = { 0 };
    bool prefix = true;
    s->s = (text){ META, 3 };
    s->split = true;
    TRY(get_text(l, o, "replacement", &s->s));
    TRY(one_char(l, "replacement", s->s));
    TRY(get_text(l, o, "prepend_scheme", &scheme));
    TRY(get_bool(l, o, "add_prefix_space", &prefix)); // old files
    TRY(get_bool(l, o, "split", &s->split));
    if (!scheme.s)
        s->scheme = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    else if (is(scheme, "always"))
        s->scheme = PREPEND_ALWAYS;
    else if (is(scheme, "first"))
        s->scheme = PREPEND_FIRST;
    else if (is(scheme, "never"))
        s->scheme = PREPEND_NEVER;
    else
        return error_set(l->err, INFER_UNSUPPORTED, "%s: Metaspace: unknown prepend_scheme '%.*s'",
                         l->path, (int)(scheme.n < 40 ? scheme.n : 40), scheme.s);
    return INFER_OK;
}

static infer_status read_strip_chars(loader *l, const tj *o, tok_step *s)
{
    TRY(need_text(l, o, "content", &s->s));
    TRY(one_char(l, "content", s->s));
    TRY(get_int(l, o, "start", 0, 4096, &s->start));
    return get_int(l, o, "stop", 0, 4096, &s->stop);
}
static infer_status read_wordpiece_decoder(loader *l, const tj *o, tok_step *s)
{
    s->s = (text){ "##", 2 };
    s->cleanup = true;
    TRY(get_text(l, o, "prefix", &s->s));
    return get_bool(l, o, "cleanup", &s->cleanup);
}
static infer_status read_bpe_decoder(loader *l, const tj *o, tok_step *s)
{
    s->s = (text){ "</w>", 4 };
    return get_text(l, o, "suffix", &s->s);
}

// ---- post-processors ------------------------------------------------------------------------

static infer_status template_add(loader *l, bytes *ids, int64_t id)
{
    int32_t v = (int32_t)id;
    return bytes_add(ids, (const char *)&v, sizeof v, l->err);
}

static infer_status template_keep(loader *l, tok_step *s, bytes *ids)
{
    int32_t *v = arena_alloc(&l->t->mem, ids->n / 4 + 1, sizeof *v);
    if (!v) return error_set(l->err, INFER_NOMEM, "%s", l->path);
    if (ids->n) memcpy(v, ids->p, ids->n);
    s->pieces = v;
    s->n_pieces = ids->n / 4;
    return INFER_OK;
}

static infer_status check_id(const loader *l, const char *what, const tj *v, int32_t *id)
{
    if (!v || v->type != TJ_NUMBER) return bad(l, what, v, "a token id");
    if (!(v->number >= 0 && v->number < TOK_MAX_ID) || v->number != (double)(int32_t)v->number)
        return error_set(l->err, INFER_FORMAT, "%s: %s: %g is no token id", l->path, what,
                         v->number);
    *id = (int32_t)v->number;
    return INFER_OK;
}

// The ids of a special token of the template.
static infer_status template_special(loader *l, const tj *specials, text name, bytes *ids)
{
    const tj *found = NULL;
    for (const tj *m = specials ? specials->child : NULL; m; m = m->next)
        if (m->key.n == name.n && !memcmp(m->key.s, name.s, name.n)) found = m;
    const tj *list = tj_get(found, "ids");
    if (!list || list->type != TJ_ARRAY)
        return error_set(l->err, INFER_FORMAT, "%s: TemplateProcessing: no ids for '%.*s'", l->path,
                         (int)(name.n < 60 ? name.n : 60), name.s);
    for (const tj *m = list->child; m; m = m->next) {
        int32_t id;
        TRY(check_id(l, "TemplateProcessing", m, &id));
        TRY(template_add(l, ids, id));
    }
    return INFER_OK;
}

static infer_status template_pieces(loader *l, const tj *o, bytes *ids)
{
    const tj *single = tj_get(o, "single"), *specials = tj_get(o, "special_tokens");
    if (!single || single->type != TJ_ARRAY)
        return bad(l, "TemplateProcessing: single", single, "an array");
    for (const tj *m = single->child; m; m = m->next) {
        const tj *special = tj_get(m, "SpecialToken"), *sequence = tj_get(m, "Sequence");
        const tj *id = tj_get(special ? special : sequence, "id");
        if (!id || id->type != TJ_STRING) return bad(l, "TemplateProcessing: piece", id, "an id");
        if (special) {
            TRY(template_special(l, specials, id->s, ids));
        } else if (is(id->s, "A")) {
            TRY(template_add(l, ids, -1));
        } else {
            return error_set(l->err, INFER_UNSUPPORTED,
                             "%s: TemplateProcessing: single names "
                             "sequence '%.*s'",
                             l->path, (int)(id->s.n < 20 ? id->s.n : 20), id->s.s);
        }
    }
    return INFER_OK;
}

static infer_status read_template(loader *l, const tj *o, tok_step *s)
{
    bytes ids = { 0 };
    infer_status st = template_pieces(l, o, &ids);
    if (!st) st = template_keep(l, s, &ids);
    mem_free(ids.p);
    return st;
}

// BertProcessing, RobertaProcessing: "cls": ["[CLS]", 101], "sep": [...]
static infer_status read_cls_sep(loader *l, const tj *o, tok_step *s)
{
    int32_t *v = arena_alloc(&l->t->mem, 3, sizeof *v);
    if (!v) return error_set(l->err, INFER_NOMEM, "%s", l->path);
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "sep" : "cls";
        const tj *pair = tj_get(o, key);
        if (!pair || pair->type != TJ_ARRAY || pair->n != 2)
            return bad(l, key, pair, "a token and its id");
        TRY(check_id(l, key, pair->child->next, &v[2 * i]));
    }
    v[1] = -1;
    s->pieces = v;
    s->n_pieces = 3;
    return INFER_OK;
}

static const step_kind norm_kinds[] = {
    { "NFC", NORM_NFC, NULL },
    { "NFD", NORM_NFD, NULL },
    { "NFKC", NORM_NFKC, NULL },
    { "NFKD", NORM_NFKD, NULL },
    { "Lowercase", NORM_LOWERCASE, NULL },
    { "Strip", NORM_STRIP, read_strip_ends },
    { "StripAccents", NORM_STRIP_ACCENTS, NULL },
    { "Replace", NORM_REPLACE, read_replace },
    { "Prepend", NORM_PREPEND, read_prepend },
    { "Nmt", NORM_NMT, NULL },
    { "Precompiled", NORM_PRECOMPILED, read_precompiled },
    { "BertNormalizer", NORM_BERT, read_bert_normalizer },
    { "ByteLevel", NORM_BYTE_LEVEL, NULL },
    { NULL, 0, NULL },
};
static const step_kind pre_kinds[] = {
    { "ByteLevel", PRE_BYTE_LEVEL, read_byte_level },
    { "Split", PRE_SPLIT, read_split },
    { "Digits", PRE_DIGITS, read_digits },
    { "Metaspace", PRE_METASPACE, read_metaspace },
    { "Whitespace", PRE_WHITESPACE, read_whitespace },
    { "WhitespaceSplit", PRE_WHITESPACE_SPLIT, NULL },
    { "Punctuation", PRE_PUNCTUATION, read_behavior },
    { "CharDelimiterSplit", PRE_CHAR_DELIMITER, read_delimiter },
    { "BertPreTokenizer", PRE_BERT, NULL },
    { "FixedLength", PRE_FIXED_LENGTH, read_fixed_length },
    { NULL, 0, NULL },
};
static const step_kind decoder_kinds[] = {
    { "ByteLevel", DEC_BYTE_LEVEL, NULL },
    { "ByteFallback", DEC_BYTE_FALLBACK, NULL },
    { "Metaspace", DEC_METASPACE, read_metaspace },
    { "Replace", DEC_REPLACE, read_replace },
    { "Fuse", DEC_FUSE, NULL },
    { "Strip", DEC_STRIP, read_strip_chars },
    { "WordPiece", DEC_WORDPIECE, read_wordpiece_decoder },
    { "BPEDecoder", DEC_BPE, read_bpe_decoder },
    { NULL, 0, NULL },
};
static const step_kind post_kinds[] = {
    { "TemplateProcessing", POST_TEMPLATE, read_template },
    { "BertProcessing", POST_TEMPLATE, read_cls_sep },
    { "RobertaProcessing", POST_TEMPLATE, read_cls_sep },
    { NULL, 0, NULL },
};

static infer_status read_step(loader *l, const tj *o, const step_kind *kinds, const char *list_key,
                              const char *what, step_list *list, int depth)
{
    const tj *type = tj_get(o, "type");
    if (!type || type->type != TJ_STRING) return bad(l, what, type, "an object with a type");
    if (depth > 16) return error_set(l->err, INFER_LIMIT, "%s: %s: nested too deep", l->path, what);
    if (is(type->s, "Sequence")) {
        const tj *v = tj_get(o, list_key);
        if (!v || v->type != TJ_ARRAY) return bad(l, what, v, "a sequence");
        for (const tj *m = v->child; m; m = m->next)
            TRY(read_step(l, m, kinds, list_key, what, list, depth + 1));
        return INFER_OK;
    }
    if (kinds == post_kinds && is(type->s, "ByteLevel")) return INFER_OK; // it moves offsets only
    for (const step_kind *k = kinds; k->name; k++) {
        if (!is(type->s, k->name)) continue;
        tok_step *s = step_add(list, k->type, l->err);
        if (!s) return error_prefix(l->err, "%s: %s", l->path, what);
        l->kind = k->name;
        return k->fn ? k->fn(l, o, s) : INFER_OK;
    }
    return error_set(l->err, INFER_UNSUPPORTED, "%s: %s '%.*s' is not supported", l->path, what,
                     (int)(type->s.n < 60 ? type->s.n : 60), type->s.s);
}

static infer_status read_steps(loader *l, const tj *root, const char *key, const step_kind *kinds,
                               const char *list_key, step_list *list)
{
    const tj *o = tj_get(root, key);
    return o ? read_step(l, o, kinds, list_key, key, list, 0) : INFER_OK;
}

// ---- vocabularies ---------------------------------------------------------------------------

// Vocabularies: object of token → id, or (Unigram) array of [token, score], where the index is the
// id.
typedef struct vocab_entry {
    text token;
    int32_t id;
    double score;
} vocab_entry;

static infer_status unigram_entry(const loader *l, const tj *raw, tj_walk *inner, vocab_entry *e)
{
    tj v;
    bool more;
    char what[48];
    snprintf(what, sizeof what, "model: vocab %d", e->id);
    if (raw->type != TJ_ARRAY) return bad(l, what, raw, "[token, score]");
    bytes key = inner->key, value = inner->value;
    tj_walk_start(inner, raw, l->err);
    inner->key = key;
    inner->value = value;
    TRY(tj_walk_next(inner, &v, &more));
    if (!more || v.type != TJ_STRING) return bad(l, what, more ? &v : NULL, "a token");
    e->token = v.s;
    if (v.s.s == inner->value.p) { // the score is read with the token still in use
        inner->key.n = 0;
        TRY(bytes_add(&inner->key, v.s.s, v.s.n, l->err));
        e->token.s = inner->key.p;
    }
    TRY(tj_walk_next(inner, &v, &more));
    if (!more || v.type != TJ_NUMBER) return bad(l, what, more ? &v : NULL, "a score");
    e->score = v.number;
    return INFER_OK;
}

typedef infer_status entry_fn(loader *l, const vocab_entry *e, void *user);

static infer_status each_entry(loader *l, const tj *vocab, entry_fn *fn, void *user)
{
    tj_walk w, inner = { 0 };
    tj v;
    bool more = true;
    infer_status st = INFER_OK;
    tj_walk_start(&w, vocab, l->err);
    for (int32_t i = 0; !st && more; i++) {
        vocab_entry e = { .id = i };
        st = tj_walk_next(&w, &v, &more);
        if (st || !more) break;
        if (vocab->type == TJ_OBJECT) {
            e.token = v.key;
            if (v.type != TJ_NUMBER || !(v.number >= 0 && v.number < TOK_MAX_ID) ||
                v.number != (double)(int32_t)v.number) {
                char found[32];
                snprintf(found, sizeof found, "%g", v.number);
                st = error_set(l->err, INFER_FORMAT,
                               "%s: model: vocab '%.*s': expected an id below %d, "
                               "found %s",
                               l->path, (int)(v.key.n < 60 ? v.key.n : 60), v.key.s, TOK_MAX_ID,
                               v.type == TJ_NUMBER ? found : tj_type_name(v.type));
                break;
            }
            e.id = (int32_t)v.number;
        } else {
            st = unigram_entry(l, &v, &inner, &e);
        }
        if (!st) st = fn(l, &e, user);
    }
    tj_walk_end(&w);
    tj_walk_end(&inner);
    return st;
}

typedef struct vocab_size {
    size_t n, bytes;
    int32_t largest;
} vocab_size;

static infer_status count_entry(loader *l, const vocab_entry *e, void *user)
{
    vocab_size *z = user;
    (void)l;
    z->n++;
    z->bytes += e->token.n + 1;
    if (e->id > z->largest) z->largest = e->id;
    return INFER_OK;
}

static infer_status put_token(loader *l, int32_t id, text s, size_t *used)
{
    tokenizer *t = l->t;
    t->entries[id] = (tok_entry){ (uint32_t)*used, (uint32_t)s.n };
    t->flags[id] = TOK_PRESENT;
    if (s.n) memcpy(t->pool + *used, s.s, s.n);
    t->pool[*used + s.n] = 0;
    *used += s.n + 1;
    return INFER_OK;
}

static infer_status take_entry(loader *l, const vocab_entry *e, void *user)
{
    tokenizer *t = l->t;
    if (t->flags[e->id] & TOK_PRESENT)
        return error_set(l->err, INFER_FORMAT, "%s: model: vocab '%.*s': id %d belongs to '%s'",
                         l->path, (int)(e->token.n < 60 ? e->token.n : 60), e->token.s, e->id,
                         t->pool + t->entries[e->id].at);
    TRY(put_token(l, e->id, e->token, user));
    str_map_put(&t->vocab, t, e->id);
    if (!t->scores64) return INFER_OK;
    t->scores64[e->id] = e->score;
    if (e->id == 0 || e->score < t->min_score) t->min_score = e->score;
    return trie_add(&t->pieces, e->token.s, e->token.n, e->id, l->err);
}

static infer_status read_added(loader *l, const tj *root)
{
    const tj *list = tj_get(root, "added_tokens");
    tokenizer *t = l->t;
    if (!list) return INFER_OK;
    if (list->type != TJ_ARRAY) return bad(l, "added_tokens", list, "an array");
    t->added = arena_zero(&t->mem, list->n + 1, sizeof *t->added);
    if (!t->added) return error_set(l->err, INFER_NOMEM, "%s", l->path);
    for (const tj *m = list->child; m; m = m->next) {
        added_token *a = &t->added[t->n_added];
        l->kind = "added_tokens";
        TRY(need_text(l, m, "content", &a->content));
        TRY(check_id(l, "added_tokens: id", tj_get(m, "id"), &a->id));
        a->normalized = true; // where the file is silent: for what is not special
        TRY(get_bool(l, m, "special", &a->special));
        a->normalized = !a->special;
        TRY(get_bool(l, m, "single_word", &a->single_word));
        TRY(get_bool(l, m, "lstrip", &a->lstrip));
        TRY(get_bool(l, m, "rstrip", &a->rstrip));
        TRY(get_bool(l, m, "normalized", &a->normalized));
        if (a->content.n) t->n_added++;
    }
    return INFER_OK;
}

// Entries of the model and added tokens, which may have ids of their own.
static infer_status read_vocab(loader *l, const tj *root, const tj *model)
{
    tokenizer *t = l->t;
    const tj *vocab = tj_get(model, "vocab");
    vocab_size z = { 0, 0, -1 };
    size_t used = 0;
    tj_type want = t->model == MODEL_UNIGRAM ? TJ_ARRAY : TJ_OBJECT;
    if (!vocab || vocab->type != want)
        return bad(l, "model: vocab", vocab, want == TJ_ARRAY ? "an array" : "an object");
    TRY(each_entry(l, vocab, count_entry, &z));
    TRY(read_added(l, root));
    size_t n_model = z.n;
    for (size_t i = 0; i < t->n_added; i++)
        count_entry(l, &(vocab_entry){ .token = t->added[i].content, .id = t->added[i].id }, &z);
    if (!z.n) return error_set(l->err, INFER_FORMAT, "%s: model: vocab is empty", l->path);
    if ((size_t)z.largest > 65536 + 64 * z.n)
        return error_set(l->err, INFER_FORMAT, "%s: id %d in a vocabulary of %zu", l->path,
                         z.largest, z.n);
    TRY(tok_reserve(t, (size_t)z.largest + 1, z.bytes, l->err));
    TRY(str_map_init(&t->vocab, &t->mem, n_model, l->err));
    if (t->model == MODEL_UNIGRAM) {
        t->scores64 = arena_zero(&t->mem, (size_t)t->n_ids, sizeof *t->scores64);
        if (!t->scores64) return error_set(l->err, INFER_NOMEM, "%s", l->path);
    }
    TRY(each_entry(l, vocab, take_entry, &used));
    for (size_t i = 0; i < t->n_added; i++) {
        added_token *a = &t->added[i];
        int32_t id = str_map_find(&t->vocab, t, a->content.s, a->content.n);
        if (id >= 0) { // the model's id counts
            a->id = id;
        } else if (t->flags[a->id] & TOK_PRESENT) {
            return error_set(l->err, INFER_FORMAT, "%s: added token '%s': id %d belongs to '%s'",
                             l->path, a->content.s, a->id, t->pool + t->entries[a->id].at);
        } else {
            TRY(put_token(l, a->id, a->content, &used));
        }
    }
    return INFER_OK;
}

// ---- merges ---------------------------------------------------------------------------------

static infer_status merge_halves(loader *l, const tj *m, size_t rank, tj_walk *inner, bytes *a,
                                 text *b)
{
    char what[48];
    snprintf(what, sizeof what, "model: merges %zu", rank);
    a->n = 0;
    if (m->type == TJ_STRING) {
        const char *space = memchr(m->s.s, ' ', m->s.n);
        size_t at = space ? (size_t)(space - m->s.s) : 0;
        if (!space || memchr(space + 1, ' ', m->s.n - at - 1))
            return error_set(l->err, INFER_FORMAT, "%s: %s: '%.*s' is no pair", l->path, what,
                             (int)(m->s.n < 60 ? m->s.n : 60), m->s.s);
        *b = (text){ space + 1, m->s.n - at - 1 };
        return bytes_add(a, m->s.s, at, l->err);
    }
    if (m->type != TJ_ARRAY) return bad(l, what, m, "a pair");
    tj v;
    bool more;
    bytes key = inner->key, value = inner->value;
    tj_walk_start(inner, m, l->err);
    inner->key = key;
    inner->value = value;
    TRY(tj_walk_next(inner, &v, &more));
    if (!more || v.type != TJ_STRING) return bad(l, what, more ? &v : NULL, "two tokens");
    TRY(bytes_add(a, v.s.s, v.s.n, l->err));
    TRY(tj_walk_next(inner, &v, &more));
    if (!more || v.type != TJ_STRING) return bad(l, what, more ? &v : NULL, "two tokens");
    *b = v.s;
    return INFER_OK;
}

static infer_status read_merge(loader *l, const tj *m, size_t rank, tj_walk *inner, bytes *a)
{
    tokenizer *t = l->t;
    text b = { 0 };
    TRY(merge_halves(l, m, rank, inner, a, &b));
    size_t skip = t->subword_prefix.n < b.n ? t->subword_prefix.n : b.n;
    int32_t left = str_map_find(&t->vocab, t, a->p ? a->p : "", a->n);
    int32_t right = str_map_find(&t->vocab, t, b.s, b.n);
    size_t n_left = a->n;
    TRY(bytes_add(a, b.s + skip, b.n - skip, l->err));
    int32_t both = str_map_find(&t->vocab, t, a->p ? a->p : "", a->n);
    if (left < 0 || right < 0 || both < 0) {
        text no = left < 0 ? (text){ a->p, n_left } : right < 0 ? b : (text){ a->p, a->n };
        return error_set(l->err, INFER_FORMAT,
                         "%s: model: merges %zu: '%.*s' is not in the vocabulary", l->path, rank,
                         (int)(no.n < 60 ? no.n : 60), no.s ? no.s : "");
    }
    pair_map_put(&t->merges, left, right, (uint32_t)rank, both);
    return INFER_OK;
}

static infer_status read_merges(loader *l, const tj *model)
{
    const tj *merges = tj_get(model, "merges");
    if (!merges || merges->type != TJ_ARRAY) return bad(l, "model: merges", merges, "an array");
    tj_walk w, inner = { 0 };
    bytes a = { 0 };
    tj m;
    bool more = true;
    size_t rank = 0;
    infer_status st = pair_map_init(&l->t->merges, &l->t->mem, merges->n, l->err);
    tj_walk_start(&w, merges, l->err);
    while (!st) {
        st = tj_walk_next(&w, &m, &more);
        if (st || !more) break;
        if (m.type == TJ_STRING && m.s.n >= 8 && !memcmp(m.s.s, "#version", 8)) continue;
        st = read_merge(l, &m, rank++, &inner, &a);
    }
    tj_walk_end(&w);
    tj_walk_end(&inner);
    mem_free(a.p);
    return st;
}

// ---- models ---------------------------------------------------------------------------------

static infer_status find_unk(loader *l, const tj *model)
{
    text unk = { 0 };
    TRY(get_text(l, model, "unk_token", &unk));
    if (!unk.s) return INFER_OK;
    l->t->unk = str_map_find(&l->t->vocab, l->t, unk.s, unk.n);
    // Met only when an unknown character comes, an unk_token outside the vocabulary is an error of
    // the reference too; here it counts as none, and words then name what is missing.
    return INFER_OK;
}

static infer_status read_bpe(loader *l, const tj *root, const tj *model)
{
    tokenizer *t = l->t;
    const tj *dropout = tj_get(model, "dropout");
    if (dropout && !(dropout->type == TJ_NUMBER && dropout->number == 0))
        return error_set(l->err, INFER_UNSUPPORTED, "%s: model: dropout is not supported", l->path);
    TRY(get_text(l, model, "continuing_subword_prefix", &t->subword_prefix));
    TRY(get_text(l, model, "end_of_word_suffix", &t->word_suffix));
    TRY(get_bool(l, model, "fuse_unk", &t->fuse_unk));
    TRY(get_bool(l, model, "byte_fallback", &t->byte_fallback));
    TRY(get_bool(l, model, "ignore_merges", &t->ignore_merges));
    TRY(read_vocab(l, root, model));
    TRY(find_unk(l, model));
    return read_merges(l, model);
}

static infer_status read_unigram(loader *l, const tj *root, const tj *model)
{
    tokenizer *t = l->t;
    int unk = -1;
    TRY(get_bool(l, model, "byte_fallback", &t->byte_fallback));
    TRY(read_vocab(l, root, model));
    TRY(get_int(l, model, "unk_id", 0, TOK_MAX_ID, &unk));
    if (unk >= t->n_ids || (unk >= 0 && !(t->flags[unk] & TOK_PRESENT)))
        return error_set(l->err, INFER_FORMAT,
                         "%s: model: unk_id %d is outside the vocabulary of %d", l->path, unk,
                         t->n_ids);
    t->unk = unk;
    return INFER_OK;
}

static infer_status read_wordpiece(loader *l, const tj *root, const tj *model)
{
    tokenizer *t = l->t;
    t->max_word_chars = 100;
    t->subword_prefix = (text){ "##", 2 };
    TRY(get_text(l, model, "continuing_subword_prefix", &t->subword_prefix));
    TRY(get_int(l, model, "max_input_chars_per_word", 0, 1 << 30, &t->max_word_chars));
    TRY(read_vocab(l, root, model));
    return find_unk(l, model);
}

static infer_status read_wordlevel(loader *l, const tj *root, const tj *model)
{
    TRY(read_vocab(l, root, model));
    return find_unk(l, model);
}

static infer_status read_model(loader *l, const tj *root)
{
    static const struct {
        const char *name;
        tok_model_type type;
        infer_status (*fn)(loader *, const tj *, const tj *);
    } kinds[] = { { "BPE", MODEL_BPE, read_bpe },
                  { "Unigram", MODEL_UNIGRAM, read_unigram },
                  { "WordPiece", MODEL_WORDPIECE, read_wordpiece },
                  { "WordLevel", MODEL_WORDLEVEL, read_wordlevel } };
    const tj *model = tj_get(root, "model"), *type = tj_get(model, "type"),
             *v = tj_get(model, "vocab");
    if (!model || model->type != TJ_OBJECT) return bad(l, "model", model, "an object");
    if (type && type->type != TJ_STRING) return bad(l, "model: type", type, "a string");
    // Old files have no type: the members tell.
    text name = type                                        ? type->s
                : tj_get(model, "merges")                   ? (text){ "BPE", 3 }
                : v && v->type == TJ_ARRAY                  ? (text){ "Unigram", 7 }
                : tj_get(model, "max_input_chars_per_word") ? (text){ "WordPiece", 9 }
                                                            : (text){ "WordLevel", 9 };
    for (int i = 0; i < COUNT_OF(kinds); i++) {
        if (!is(name, kinds[i].name)) continue;
        l->t->model = kinds[i].type;
        return kinds[i].fn(l, root, model);
    }
    return error_set(l->err, INFER_UNSUPPORTED, "%s: model '%.*s' is not supported", l->path,
                     (int)(name.n < 60 ? name.n : 60), name.s);
}

// ---- tokenizer_config.json and chat templates -----------------------------------------------

static infer_status read_file(loader *l, const char *path, const tj **root)
{
    char *s;
    size_t n;
    TRY(file_read(path, MAX_FILE, &s, &n, l->err));
    char *kept = arena_strndup(&l->tmp, s, n); // values are views into it
    mem_free(s);
    if (!kept) return error_set(l->err, INFER_NOMEM, "%s", path);
    return tj_parse(root, &l->tmp, kept, n, path, l->err);
}

// A special token of the config: a string, or an added token's object.
static int32_t config_token(const loader *l, const tj *config, const char *key)
{
    const tj *v = tj_get(config, key);
    if (v && v->type == TJ_OBJECT) v = tj_get(v, "content");
    if (!v || v->type != TJ_STRING) return -1;
    int32_t id = str_map_find(&l->t->added_map, l->t, v->s.s, v->s.n);
    return id >= 0 ? id : str_map_find(&l->t->vocab, l->t, v->s.s, v->s.n);
}

static infer_status keep_template(loader *l, text s)
{
    mem_free(l->t->chat_template);
    l->t->chat_template = mem_strndup(s.s, s.n);
    return l->t->chat_template ? INFER_OK : error_set(l->err, INFER_NOMEM, "%s", l->path);
}

// A string, or a list of {"name", "template"}: "default", else the first.
static infer_status config_template(loader *l, const tj *v, const char *path)
{
    const tj *best = NULL;
    if (!v) return INFER_OK;
    if (v->type == TJ_STRING) return keep_template(l, v->s);
    for (const tj *m = v->type == TJ_ARRAY ? v->child : NULL; m; m = m->next) {
        const tj *name = tj_get(m, "name"), *source = tj_get(m, "template");
        if (!source || source->type != TJ_STRING) continue;
        if (!best || (name && name->type == TJ_STRING && is(name->s, "default"))) best = source;
    }
    if (best) return keep_template(l, best->s);
    return error_set(l->err, INFER_FORMAT,
                     "%s: chat_template: expected a string or a list of named "
                     "templates, found %s",
                     path, tj_type_name(v->type));
}

// Puts id before or after the text, or takes it away, as the config says.
static infer_status set_end(loader *l, int32_t id, bool first, bool want)
{
    tokenizer *t = l->t;
    tok_step *s = t->posts.n ? &t->posts.v[t->posts.n - 1] : NULL;
    if (!s && !want) return INFER_OK;
    if (!s) {
        if (!(s = step_add(&t->posts, POST_TEMPLATE, l->err)))
            return l->err ? l->err->code : INFER_NOMEM;
        static const int32_t alone[] = { -1 };
        s->pieces = alone;
        s->n_pieces = 1;
    }
    size_t n = s->n_pieces;
    bool has = n && s->pieces[first ? 0 : n - 1] == id;
    if (has == want) return INFER_OK;
    int32_t *v = arena_alloc(&t->mem, n + 1, sizeof *v);
    if (!v) return error_set(l->err, INFER_NOMEM, "%s", l->path);
    memcpy(v + (want && first), s->pieces + (!want && first), (n - !want) * sizeof *v);
    if (want) v[first ? 0 : n] = id;
    s->pieces = v;
    s->n_pieces = want ? n + 1 : n - 1;
    return INFER_OK;
}

static infer_status read_config(loader *l, const char *folder)
{
    tokenizer *t = l->t;
    const tj *config = NULL, *map = NULL;
    bool add;
    char *path = arena_printf(&l->tmp, "%s/tokenizer_config.json", folder);
    char *map_path = arena_printf(&l->tmp, "%s/special_tokens_map.json", folder);
    if (!path || !map_path) return error_set(l->err, INFER_NOMEM, "%s", folder);
    if (file_exists(path)) TRY(read_file(l, path, &config));
    if (file_exists(map_path)) TRY(read_file(l, map_path, &map));
    t->bos = config_token(l, config, "bos_token");
    t->eos = config_token(l, config, "eos_token");
    if (t->bos < 0 && !tj_get(config, "bos_token")) t->bos = config_token(l, map, "bos_token");
    if (t->eos < 0 && !tj_get(config, "eos_token")) t->eos = config_token(l, map, "eos_token");
    l->path = path;
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "add_eos_token" : "add_bos_token";
        int32_t id = i ? t->eos : t->bos;
        if (!tj_get(config, key) || id < 0) continue;
        TRY(get_bool(l, config, key, &add));
        TRY(set_end(l, id, !i, add));
    }
    return config_template(l, tj_get(config, "chat_template"), path);
}

static infer_status read_template_files(loader *l, const char *folder)
{
    const tj *root = NULL;
    char *jinja = arena_printf(&l->tmp, "%s/chat_template.jinja", folder);
    char *wrapped = arena_printf(&l->tmp, "%s/chat_template.json", folder);
    if (!jinja || !wrapped) return error_set(l->err, INFER_NOMEM, "%s", folder);
    if (file_exists(jinja)) {
        char *s;
        size_t n;
        TRY(file_read(jinja, MAX_FILE, &s, &n, l->err));
        mem_free(l->t->chat_template);
        l->t->chat_template = s;
        return INFER_OK;
    }
    if (l->t->chat_template || !file_exists(wrapped)) return INFER_OK;
    TRY(read_file(l, wrapped, &root));
    return config_template(l, tj_get(root, "chat_template"), wrapped);
}

// ---- the file -------------------------------------------------------------------------------

static infer_status read_pipeline(loader *l, const tj *root)
{
    if (root->type != TJ_OBJECT) return bad(l, "the file", root, "an object");
    TRY(read_steps(l, root, "normalizer", norm_kinds, "normalizers", &l->t->norms));
    TRY(read_steps(l, root, "pre_tokenizer", pre_kinds, "pretokenizers", &l->t->pres));
    TRY(read_steps(l, root, "post_processor", post_kinds, "processors", &l->t->posts));
    TRY(read_steps(l, root, "decoder", decoder_kinds, "decoders", &l->t->decoders));
    TRY(read_model(l, root));
    for (size_t i = 0; i < l->t->posts.n; i++)
        for (size_t j = 0; j < l->t->posts.v[i].n_pieces; j++)
            if (l->t->posts.v[i].pieces[j] >= l->t->n_ids)
                return error_set(l->err, INFER_FORMAT,
                                 "%s: post_processor: token id %d is outside the "
                                 "vocabulary of %d",
                                 l->path, l->t->posts.v[i].pieces[j], l->t->n_ids);
    return INFER_OK;
}

static void ends_from_template(tokenizer *t)
{
    for (size_t i = 0; i < t->posts.n; i++) {
        const tok_step *s = &t->posts.v[i];
        size_t n = s->n_pieces;
        if (!n) continue;
        if (t->bos < 0 && s->pieces[0] >= 0) t->bos = s->pieces[0];
        t->adds_bos |= t->bos >= 0 && s->pieces[0] == t->bos;
        t->adds_eos |= t->eos >= 0 && s->pieces[n - 1] == t->eos;
    }
}

static infer_status read_folder(loader *l)
{
    const char *slash = strrchr(l->path, '/');
    const char *folder = slash == l->path ? "/"
                         : slash ? arena_strndup(&l->tmp, l->path, (size_t)(slash - l->path))
                                 : ".";
    if (!folder) return error_set(l->err, INFER_NOMEM, "%s", l->path);
    TRY(read_config(l, folder));
    return read_template_files(l, folder);
}

// s NULL: from the file at path, with what lies beside it.
static infer_status load(tokenizer **out, const char *s, size_t n, const char *path,
                         infer_error *err)
{
    loader l = { .path = path, .err = err };
    const tj *root = NULL;
    infer_status st = tok_new(&l.t, err);
    if (!st) st = s ? tj_parse(&root, &l.tmp, s, n, path, err) : read_file(&l, path, &root);
    if (!st) st = read_pipeline(&l, root);
    if (!st) st = tok_finish(l.t, err);
    if (!st && !s) st = read_folder(&l);
    if (!st) {
        ends_from_template(l.t);
        if (l.t->eos >= 0) l.t->flags[l.t->eos] |= TOK_END;
        *out = l.t;
    } else {
        tokenizer_free(l.t);
    }
    arena_free(&l.tmp);
    return st;
}

infer_status tok_load_json(tokenizer **out, const char *path, infer_error *err)
{
    return load(out, NULL, 0, path, err);
}

infer_status tok_load_json_text(tokenizer **out, const char *s, size_t n, infer_error *err)
{
    return load(out, s, n, "tokenizer.json", err);
}
