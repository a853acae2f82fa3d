/*
 * convert_tok.c: a tokenizer.json as GGUF keys. GGUF names a pipeline where tokenizer.json states
 * one:
 *
 *   gpt2    byte-level BPE: the merges, and the name of the splitting whose patterns are the same
 *   llama   BPE over U+2581 with byte fallback: SentencePiece's scores, which are the merges' ranks
 *
 * Everything else is refused, and what was written is read back and compared on texts that try what
 * splittings differ in.
 */
#include "models/convert.h"

#include <stdio.h>

#include "base/map.h"
#include "models/tok.h"
#include "models/tok_json.h"

#define MAX_JSON ((size_t)256 << 20)
#define MAX_PATTERNS 5
#define META "\xE2\x96\x81" // U+2581
#define KEY(k) "tokenizer.ggml." k

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

/* ---- byte-level: the name of the splitting --------------------------------------------------- */

typedef struct splitting {
    const char *patterns[MAX_PATTERNS];
    int n;
    const char *odd; // a step that GGUF has no name for; NULL: none
} splitting;

static bool is(const tj *v, const char *word)
{
    return v && v->type == TJ_STRING && v->s.n == strlen(word) && !memcmp(v->s.s, word, v->s.n);
}

static bool is_true(const tj *o, const char *key, bool missing)
{
    const tj *v = tj_get(o, key);
    return v && v->type == TJ_BOOL ? v->number != 0 : missing;
}

static void add_pattern(splitting *p, const char *s)
{
    if (p->n == MAX_PATTERNS)
        p->odd = "more patterns than five";
    else
        p->patterns[p->n++] = s;
}

static void read_split(splitting *p, const tj *step, arena *mem)
{
    const tj *pattern = tj_get(tj_get(step, "pattern"), "Regex"), *how = tj_get(step, "behavior");
    bool inverted = is_true(step, "invert", false);
    // what matches is cut out: both ways of saying it
    bool plain = (is(how, "Isolated") && !inverted) || (is(how, "Removed") && inverted);
    char *s = pattern && pattern->type == TJ_STRING ? arena_strndup(mem, pattern->s.s, pattern->s.n)
                                                    : NULL;
    if (s && plain)
        add_pattern(p, s);
    else
        p->odd = "a Split of another kind than an isolated pattern";
}

static void read_step(splitting *p, const tj *step, arena *mem)
{
    const tj *type = tj_get(step, "type");
    if (is(type, "Sequence")) {
        const tj *list = tj_get(step, "pretokenizers");
        for (const tj *c = list ? list->child : NULL; c; c = c->next)
            read_step(p, c, mem);
    } else if (is(type, "Split")) {
        read_split(p, step, mem);
    } else if (is(type, "Digits")) {
        if (!is_true(step, "individual_digits", false)) p->odd = "Digits that stay together";
        add_pattern(p, "\\p{N}");
    } else if (is(type, "ByteLevel")) {
        if (is_true(step, "use_regex", true)) add_pattern(p, tok_gpt2_pattern);
    } else {
        p->odd = "a step of a type that GGUF has no name for";
    }
}

static infer_status find_pre_name(const out_model *m, const tokenizer *t, text *name,
                                  infer_error *err)
{
    arena mem = { 0 };
    char *path = arena_printf(&mem, "%s/tokenizer.json", m->path), *json = NULL;
    size_t n;
    const tj *root;
    splitting p = { .n = 0 };
    const pre_name *row = NULL;
    infer_status st = path ? file_read(path, MAX_JSON, &json, &n, err)
                           : error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    if (!st) st = tj_parse(&root, &mem, json, n, path, err);
    if (st) goto done;
    bool nfc = t->norms.n == 1 && t->norms.v[0].type == NORM_NFC;
    if (t->norms.n && !nfc) p.odd = "a normalizer other than NFC";
    const tj *pre = tj_get(root, "pre_tokenizer");
    if (pre) read_step(&p, pre, &mem);
    if (!p.odd) row = pre_name_match(p.patterns, p.n, nfc, t->ignore_merges);
    if (row)
        *name = (text){ row->names, strcspn(row->names, " ") };
    else
        st = error_set(err, INFER_UNSUPPORTED,
                       "%s: GGUF has no name for this pre-tokenization (%s%.200s): the text would "
                       "be cut otherwise",
                       path, p.odd ? "" : "first pattern ",
                       p.odd ? p.odd
                       : p.n ? p.patterns[0]
                             : "none");
done:
    mem_free(json);
    arena_free(&mem);
    return st;
}

/* ---- merges ---------------------------------------------------------------------------------- */

/* Slots of the merge table by rank; NULL without memory. */
static const pair_slot **by_rank(const tokenizer *t, uint32_t *n)
{
    const pair_map *p = &t->merges;
    *n = 0;
    for (uint32_t i = 0; p->slots && i <= p->mask; i++)
        if (p->slots[i].a >= 0 && p->slots[i].rank >= *n) *n = p->slots[i].rank + 1;
    const pair_slot **list = mem_zero((size_t)*n + 1, sizeof *list);
    for (uint32_t i = 0; list && p->slots && i <= p->mask; i++)
        if (p->slots[i].a >= 0) list[p->slots[i].rank] = &p->slots[i];
    return list;
}

static infer_status put_merges(out_model *m, const tokenizer *t, infer_error *err)
{
    uint32_t n, n_out = 0;
    arena mem = { 0 };
    infer_status st = INFER_OK;
    const pair_slot **list = by_rank(t, &n);
    text *lines = mem_alloc((size_t)n + 1, sizeof *lines);
    if (!list || !lines) st = error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    for (uint32_t i = 0; !st && i < n; i++) {
        if (!list[i]) continue; // a merge that stands twice counts once
        char *s = arena_printf(&mem, "%s %s", t->pool + t->entries[list[i]->a].at,
                               t->pool + t->entries[list[i]->b].at);
        if (!s)
            st = error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
        else
            lines[n_out++] = (text){ s, strlen(s) };
    }
    if (!st) gguf_put_strings(m->w, KEY("merges"), lines, n_out);
    mem_free(list);
    mem_free(lines);
    arena_free(&mem);
    return st;
}

/* SentencePiece merges the pair whose piece has the highest score: a piece's score is its first
 * merge's rank, negated; what no merge makes comes last. */
static infer_status put_scores(out_model *m, const tokenizer *t, const int32_t *types, int n_vocab,
                               infer_error *err)
{
    uint32_t n;
    const pair_slot **list = by_rank(t, &n);
    float *scores = mem_alloc((size_t)n_vocab, sizeof *scores);
    infer_status st = INFER_OK;
    if (!list || !scores) st = error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    for (int i = 0; !st && i < n_vocab; i++)
        scores[i] = types[i] == TYPE_NORMAL   ? -(float)n - 1
                    : types[i] == TYPE_BYTE   ? 0
                    : types[i] == TYPE_UNUSED ? -10000
                                              : -1000;
    for (uint32_t i = n; !st && i-- > 0;)
        if (list[i] && types[list[i]->id] == TYPE_NORMAL) scores[list[i]->id] = -(float)i;
    if (!st) gguf_put_array(m->w, KEY("scores"), GGUF_F32, scores, (uint64_t)n_vocab);
    mem_free(list);
    mem_free(scores);
    return st;
}

/* ---- entries --------------------------------------------------------------------------------- */

static void find_types(const tokenizer *t, int32_t *types, int n_vocab)
{
    for (int i = 0; i < n_vocab; i++) {
        bool here = i < t->n_ids && t->flags[i] & TOK_PRESENT;
        types[i] = here ? TYPE_NORMAL : TYPE_UNUSED;
        if (here && t->byte_fallback &&
            byte_token(t->pool + t->entries[i].at, t->entries[i].n) >= 0)
            types[i] = TYPE_BYTE;
    }
    if (t->unk >= 0 && t->unk < n_vocab) types[t->unk] = TYPE_UNKNOWN;
    for (size_t i = 0; i < t->n_added; i++) {
        const added_token *a = &t->added[i];
        if (a->id < n_vocab) types[a->id] = a->special ? TYPE_CONTROL : TYPE_USER;
    }
}

/* A user-defined token of SentencePiece's is cut out of the text, where spaces are still spaces. */
static char *with_spaces(arena *mem, const char *s, size_t n)
{
    char *out = arena_alloc(mem, n + 1, 1);
    size_t k = 0;
    for (size_t i = 0; out && i < n;) {
        bool meta = n - i >= 3 && !memcmp(s + i, META, 3);
        out[k++] = meta ? ' ' : s[i];
        i += meta ? 3 : 1;
    }
    if (out) out[k] = 0;
    return out;
}

static infer_status put_entries(out_model *m, const tokenizer *t, const int32_t *types, int n_vocab,
                                bool spaces, infer_error *err)
{
    arena mem = { 0 };
    infer_status st = INFER_OK;
    text *tokens = mem_alloc((size_t)n_vocab + 1, sizeof *tokens);
    if (!tokens) st = error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    for (int i = 0; !st && i < n_vocab; i++) {
        const char *s;
        if (types[i] == TYPE_UNUSED) {
            s = arena_printf(&mem, "[PAD%d]", i);
        } else {
            tokens[i] = (text){ t->pool + t->entries[i].at, t->entries[i].n };
            if (!spaces || types[i] != TYPE_USER) continue;
            s = with_spaces(&mem, tokens[i].s, tokens[i].n);
        }
        if (s)
            tokens[i] = (text){ s, strlen(s) };
        else
            st = error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    }
    if (!st) gguf_put_strings(m->w, KEY("tokens"), tokens, (uint64_t)n_vocab);
    mem_free(tokens);
    arena_free(&mem);
    return st;
}

/* What GGUF has no place for is said. */
static void warn_lost(const out_model *m, const tokenizer *t)
{
    char shown[200] = "";
    size_t at = 0;
    int n = 0;
    for (size_t i = 0; i < t->n_added; i++) {
        const added_token *a = &t->added[i];
        bool composed = a->normalized && t->norms.n && t->model == MODEL_BPE && !t->byte_fallback;
        if (!a->lstrip && !a->rstrip && !a->single_word && !composed) continue;
        if (n++ < 3)
            at += (size_t)snprintf(shown + at, sizeof shown - at, "%s%.*s", at ? ", " : "",
                                   (int)(a->content.n < 40 ? a->content.n : 40), a->content.s);
    }
    if (n)
        log_line(&m->o->log, INFER_LOG_WARN,
                 "%s: GGUF cannot say that %d added token%s the space beside, whole words alone or "
                 "normalized text (%s%s); a tokenizer.json beside the GGUF file is still heeded",
                 m->path, n, n > 1 ? "s take" : " takes", shown, n > 3 ? ", …" : "");
}

static void put_id(out_model *m, const char *key, int32_t id)
{
    if (id >= 0) gguf_put_u32(m->w, key, (uint32_t)id);
}

static bool has_step(const step_list *l, tok_step_type type)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].type == type) return true;
    return false;
}

static bool prefixes_space(const tokenizer *t)
{
    for (size_t i = 0; i < t->pres.n; i++) {
        const tok_step *s = &t->pres.v[i];
        if (s->type == PRE_METASPACE && s->scheme != PREPEND_NEVER) return true;
        if (s->type == PRE_BYTE_LEVEL && s->prefix_space) return true;
    }
    return has_step(&t->norms, NORM_PREPEND);
}

infer_status convert_tokenizer(out_model *m, const tokenizer *t, int n_vocab, int32_t bos,
                               infer_error *err)
{
    bool bytes_level = t->model == MODEL_BPE && has_step(&t->pres, PRE_BYTE_LEVEL);
    bool pieces = t->model == MODEL_BPE && !bytes_level && t->byte_fallback;
    text pre = { "default", 7 };
    if (!bytes_level && !pieces)
        return error_set(err, INFER_UNSUPPORTED,
                         "%s/tokenizer.json: only byte-level BPE and BPE with byte fallback can be "
                         "converted",
                         m->path);
    if (t->n_ids > n_vocab)
        return error_set(err, INFER_FORMAT,
                         "%s/tokenizer.json: ids up to %d, but the embedding has %d rows", m->path,
                         t->n_ids - 1, n_vocab);
    if (bytes_level) TRY(find_pre_name(m, t, &pre, err));
    int32_t *types = mem_alloc((size_t)n_vocab + 1, sizeof *types);
    if (!types) return error_set(err, INFER_NOMEM, "%s: out of memory", m->path);
    find_types(t, types, n_vocab);
    const char *model = bytes_level ? "gpt2" : "llama";
    gguf_put_string(m->w, KEY("model"), model, strlen(model));
    gguf_put_string(m->w, KEY("pre"), pre.s, pre.n);
    infer_status st = put_entries(m, t, types, n_vocab, pieces, err);
    if (!st && pieces) st = put_scores(m, t, types, n_vocab, err);
    gguf_put_array(m->w, KEY("token_type"), GGUF_I32, types, (uint64_t)n_vocab);
    if (!st && bytes_level) st = put_merges(m, t, err);
    mem_free(types);
    put_id(m, KEY("bos_token_id"), t->bos >= 0 ? t->bos : bos);
    put_id(m, KEY("eos_token_id"), t->eos);
    if (pieces) put_id(m, KEY("unknown_token_id"), t->unk);
    gguf_put_bool(m->w, KEY("add_bos_token"), t->adds_bos);
    gguf_put_bool(m->w, KEY("add_eos_token"), t->adds_eos);
    if (pieces || prefixes_space(t))
        gguf_put_bool(m->w, KEY("add_space_prefix"), prefixes_space(t));
    if (t->chat_template)
        gguf_put_string(m->w, "tokenizer.chat_template", t->chat_template,
                        strlen(t->chat_template));
    if (!st) warn_lost(m, t);
    return st;
}

/* ---- the check ------------------------------------------------------------------------------- */

// clang-format off
static const char *const samples[] = {
    "Hello, world! It's what we'd call a test; isn't it? YES, I'LL SAY",
    "In 2024 there were 1234567 of 12, 3.14159 or 1e-9; ٣٤ and Ⅷ too",
    "   leading, trailing   \n\n\n  lines\r\n\tand\ttabs \n  end  ",
    "int main(void) { return a[i]++ != b->c && ~x; } // C99 \"quoted\" <tag/> #!@$%^&*_=+|",
    "HTTPServer camelCase McDonald’s École naïve mode\xCC\x80le Üníçödé",
    "Привет 你好世界 こんにちは 한국 नमस्ते",
    "😀👩\xE2\x80\x8D💻 — € 5 \xC2\xA0 \xE3\x80\x80 end",
    "",
    " ",
    "the inner parts of the outer thing are where the others were",
};
// clang-format on

static infer_status check_text(const out_model *m, const tokenizer *t, const tokenizer *written,
                               const char *s, infer_error *err)
{
    int32_t *a = NULL, *b = NULL;
    size_t n = 0, k = 0, at = 0;
    infer_status st = tok_encode(t, &a, &n, s, strlen(s), NULL, err);
    if (!st) st = tok_encode(written, &b, &k, s, strlen(s), NULL, err);
    while (!st && at < n && at < k && a[at] == b[at])
        at++;
    if (!st && (at < n || at < k))
        st =
            error_set(err, INFER_UNSUPPORTED,
                      "%s/tokenizer.json: its GGUF form cuts text otherwise: '%.40s': id %zu is %d "
                      "and would be %d",
                      m->path, s, at, at < n ? a[at] : -1, at < k ? b[at] : -1);
    mem_free(a);
    mem_free(b);
    return st;
}

infer_status convert_check_tokenizer(const out_model *m, const tokenizer *t, const gguf *written,
                                     infer_error *err)
{
    tokenizer *g;
    TRY(tok_load_gguf(&g, written, err));
    infer_status st = INFER_OK;
    for (int i = 0; i < COUNT_OF(samples) && !st; i++)
        st = check_text(m, t, g, samples[i], err);
    tokenizer_free(g);
    return st;
}
