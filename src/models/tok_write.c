/*
 * tok_write.c: tokenizer.json from a GGUF vocabulary.
 *
 *   gpt2    byte-level BPE: entries and merges as they are, the patterns that the name stands for
 *   llama   BPE over U+2581 with byte fallback. SentencePiece merges the pair whose piece scores
 *           highest; the same merges in a list, ordered by the score of what they make
 *
 * All entries stand in the model's vocabulary, unused ones too: readers count ids from it.
 */
#include "models/tok_write.h"

#include <jansson.h>
#include <stdlib.h>

#include "models/tok.h"

#define KEY(k) "tokenizer.ggml." k
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

typedef struct out {
    bytes b;
    const tokenizer *t;
    const gguf *g;
    infer_error *err;
    infer_status st; // the first failure
} out;

static void put(out *o, const char *s, size_t n)
{
    if (!o->st) o->st = bytes_add(&o->b, s, n, o->err);
}
static void puts_(out *o, const char *s) { put(o, s, strlen(s)); }

static void put_string(out *o, const char *s, size_t n)
{
    puts_(o, "\"");
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
        char escape[8];
        put(o, s + from, i - from);
        from = i + 1;
        if (c == '"' || c == '\\')
            snprintf(escape, sizeof escape, "\\%c", c);
        else
            snprintf(escape, sizeof escape, "\\u%04x", c);
        puts_(o, escape);
    }
    put(o, s + from, n - from);
    puts_(o, "\"");
}

static void put_int(out *o, int64_t x)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", (long long)x);
    puts_(o, digits);
}

static text entry(const tokenizer *t, int32_t id)
{
    return (text){ t->pool + t->entries[id].at, t->entries[id].n };
}

/* ---- added tokens ---------------------------------------------------------------------------- */

static void put_flag(out *o, const char *name, bool v)
{
    puts_(o, ", \"");
    puts_(o, name);
    puts_(o, v ? "\": true" : "\": false");
}

static void put_added(out *o)
{
    const tokenizer *t = o->t;
    puts_(o, "  \"added_tokens\": [");
    for (size_t i = 0; i < t->n_added; i++) {
        const added_token *a = &t->added[i];
        puts_(o, i ? ",\n    { \"id\": " : "\n    { \"id\": ");
        put_int(o, a->id);
        puts_(o, ", \"content\": ");
        put_string(o, a->content.s, a->content.n);
        put_flag(o, "single_word", a->single_word);
        put_flag(o, "lstrip", a->lstrip);
        put_flag(o, "rstrip", a->rstrip);
        put_flag(o, "normalized", a->normalized);
        put_flag(o, "special", a->special);
        puts_(o, " }");
    }
    puts_(o, t->n_added ? "\n  ],\n" : "],\n");
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void replace_step(out *o, const tok_step *s)
{
    size_t n;
    const char *literal = regex_literal(s->re, &n);
    if (!literal) {
        if (!o->st)
            o->st =
                error_set(o->err, INFER_UNSUPPORTED, "tokenizer.json: a replacement by a pattern");
        return;
    }
    puts_(o, "{ \"type\": \"Replace\", \"pattern\": { \"String\": ");
    put_string(o, literal, n);
    puts_(o, " }, \"content\": ");
    put_string(o, s->s.s, s->s.n);
    puts_(o, " }");
}

static void put_step(out *o, const tok_step *s)
{
    switch (s->type) {
    case NORM_NFC: puts_(o, "{ \"type\": \"NFC\" }"); break;
    case NORM_PREPEND:
        puts_(o, "{ \"type\": \"Prepend\", \"prepend\": ");
        put_string(o, s->s.s, s->s.n);
        puts_(o, " }");
        break;
    case NORM_REPLACE:
    case DEC_REPLACE: replace_step(o, s); break;
    case PRE_BYTE_LEVEL:
        puts_(o, "{ \"type\": \"ByteLevel\"");
        put_flag(o, "add_prefix_space", s->prefix_space);
        put_flag(o, "trim_offsets", true);
        put_flag(o, "use_regex", false);
        puts_(o, " }");
        break;
    case DEC_BYTE_LEVEL:
        puts_(o, "{ \"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
                 "\"use_regex\": true }");
        break;
    case DEC_BYTE_FALLBACK: puts_(o, "{ \"type\": \"ByteFallback\" }"); break;
    case DEC_FUSE: puts_(o, "{ \"type\": \"Fuse\" }"); break;
    case DEC_STRIP:
        puts_(o, "{ \"type\": \"Strip\", \"content\": ");
        put_string(o, s->s.s, s->s.n);
        puts_(o, ", \"start\": ");
        put_int(o, s->start);
        puts_(o, ", \"stop\": ");
        put_int(o, s->stop);
        puts_(o, " }");
        break;
    default:
        if (!o->st)
            o->st = error_set(o->err, INFER_UNSUPPORTED, "tokenizer.json: a step of kind %d",
                              (int)s->type);
    }
}

/* The patterns of a pre-tokenization that the file names, then its other steps. */
static void put_pre_steps(out *o)
{
    text name = { "default", 7 };
    const tokenizer *t = o->t;
    bool first = true;
    if (!o->st) o->st = gguf_string(o->g, KEY("pre"), &name, NULL, o->err);
    const pre_name *row = pre_name_find(name.s, name.n);
    for (int i = 0; row && i < COUNT_OF(row->patterns) && row->patterns[i]; i++) {
        puts_(o, first ? "" : ", ");
        first = false;
        puts_(o, "{ \"type\": \"Split\", \"pattern\": { \"Regex\": ");
        put_string(o, row->patterns[i], strlen(row->patterns[i]));
        puts_(o, " }, \"behavior\": \"Isolated\", \"invert\": false }");
    }
    for (size_t i = 0; i < t->pres.n; i++) {
        if (t->pres.v[i].type == PRE_SPLIT) continue;
        puts_(o, first ? "" : ", ");
        first = false;
        put_step(o, &t->pres.v[i]);
    }
}

static void put_steps(out *o, const char *key, const char *list, const step_list *steps)
{
    puts_(o, "  \"");
    puts_(o, key);
    puts_(o, "\": ");
    bool pre = steps == &o->t->pres;
    if (!steps->n) {
        puts_(o, "null,\n");
        return;
    }
    puts_(o, "{ \"type\": \"Sequence\", \"");
    puts_(o, list);
    puts_(o, "\": [");
    if (pre) put_pre_steps(o);
    for (size_t i = 0; !pre && i < steps->n; i++) {
        puts_(o, i ? ", " : "");
        put_step(o, &steps->v[i]);
    }
    puts_(o, "] },\n");
}

static void put_template(out *o)
{
    const tokenizer *t = o->t;
    const tok_step *s = t->posts.n ? &t->posts.v[0] : NULL;
    puts_(o, "  \"post_processor\": ");
    if (!s || s->type != POST_TEMPLATE) {
        puts_(o, "null,\n");
        return;
    }
    for (int pair = 0; pair < 2; pair++) {
        puts_(o, pair ? ", \"pair\": [" : "{ \"type\": \"TemplateProcessing\", \"single\": [");
        bool first = true;
        for (int part = 0; part <= pair; part++)
            for (size_t i = 0; i < s->n_pieces; i++) {
                int32_t id = s->pieces[i];
                puts_(o, first ? "" : ", ");
                first = false;
                if (id < 0) {
                    puts_(o, part ? "{ \"Sequence\": { \"id\": \"B\", \"type_id\": 1 } }"
                                  : "{ \"Sequence\": { \"id\": \"A\", \"type_id\": 0 } }");
                    continue;
                }
                puts_(o, "{ \"SpecialToken\": { \"id\": ");
                put_string(o, entry(t, id).s, entry(t, id).n);
                puts_(o, part ? ", \"type_id\": 1 } }" : ", \"type_id\": 0 } }");
            }
        puts_(o, "]");
    }
    puts_(o, ", \"special_tokens\": {");
    bool first = true;
    for (size_t i = 0; i < s->n_pieces; i++) {
        int32_t id = s->pieces[i];
        if (id < 0 || (i && s->pieces[0] == id)) continue;
        puts_(o, first ? " " : ", ");
        first = false;
        put_string(o, entry(t, id).s, entry(t, id).n);
        puts_(o, ": { \"id\": ");
        put_string(o, entry(t, id).s, entry(t, id).n);
        puts_(o, ", \"ids\": [");
        put_int(o, id);
        puts_(o, "], \"tokens\": [");
        put_string(o, entry(t, id).s, entry(t, id).n);
        puts_(o, "] }");
    }
    puts_(o, " } },\n");
}

/* ---- merges ---------------------------------------------------------------------------------- */

typedef struct merge {
    int32_t a, b, id; // id: of what it makes, or the rank
    float score;      // highest first
} merge;

static int by_score(const void *pa, const void *pb)
{
    const merge *a = pa, *b = pb;
    if (a->score > b->score || a->score < b->score) return a->score > b->score ? -1 : 1;
    if (a->id != b->id) return a->id < b->id ? -1 : 1;
    if (a->a != b->a) return a->a < b->a ? -1 : 1;
    return (a->b > b->b) - (a->b < b->b);
}

static infer_status add_merge(merge **v, size_t *n, size_t *cap, merge m, infer_error *err)
{
    infer_status st;
    GROW(st, *v, *cap, *n + 1, err);
    if (!st) (*v)[(*n)++] = m;
    return st;
}

/* Every way to cut a piece in two that are pieces. */
static infer_status merges_of_scores(const out *o, merge **v, size_t *n)
{
    const tokenizer *t = o->t;
    size_t cap = 0;
    for (int32_t id = 0; id < t->n_ids; id++) {
        text s = entry(t, id);
        if (s.n < 2 || str_map_find(&t->vocab, t, s.s, s.n) != id) continue;
        for (size_t k = 1; k < s.n; k++) {
            if ((s.s[k] & 0xc0) == 0x80) continue; // inside a character
            int32_t a = str_map_find(&t->vocab, t, s.s, k);
            int32_t b = a < 0 ? -1 : str_map_find(&t->vocab, t, s.s + k, s.n - k);
            if (b >= 0) TRY(add_merge(v, n, &cap, (merge){ a, b, id, t->scores[id] }, o->err));
        }
    }
    qsort(*v, *n, sizeof **v, by_score);
    return INFER_OK;
}

static infer_status merges_of_list(const out *o, merge **v, size_t *n)
{
    const pair_map *p = &o->t->merges;
    size_t cap = 0;
    for (uint32_t i = 0; p->slots && i <= p->mask; i++)
        if (p->slots[i].a >= 0)
            TRY(add_merge(v, n, &cap,
                          (merge){ p->slots[i].a, p->slots[i].b, (int32_t)p->slots[i].rank, 0 },
                          o->err));
    qsort(*v, *n, sizeof **v, by_score); // equal scores: by rank
    return INFER_OK;
}

static void put_model(out *o)
{
    const tokenizer *t = o->t;
    bool pieces = t->model == MODEL_SPM;
    merge *v = NULL;
    size_t n = 0;
    if (!o->st) o->st = pieces ? merges_of_scores(o, &v, &n) : merges_of_list(o, &v, &n);
    puts_(o, "  \"model\": { \"type\": \"BPE\", \"dropout\": null, \"unk_token\": ");
    if (pieces && t->unk >= 0)
        put_string(o, entry(t, t->unk).s, entry(t, t->unk).n);
    else
        puts_(o, "null");
    puts_(o, ", \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null");
    put_flag(o, "fuse_unk", t->fuse_unk);
    put_flag(o, "byte_fallback", t->byte_fallback);
    put_flag(o, "ignore_merges", t->ignore_merges);
    puts_(o, ",\n    \"vocab\": {");
    for (int32_t id = 0; id < t->n_ids && !o->st; id++) {
        puts_(o, id ? ",\n      " : "\n      ");
        put_string(o, entry(t, id).s, entry(t, id).n);
        puts_(o, ": ");
        put_int(o, id);
    }
    puts_(o, "\n    },\n    \"merges\": [");
    for (size_t i = 0; i < n && !o->st; i++) {
        text a = entry(t, v[i].a), b = entry(t, v[i].b);
        puts_(o, i ? ",\n      [" : "\n      [");
        put_string(o, a.s, a.n);
        puts_(o, ", ");
        put_string(o, b.s, b.n);
        puts_(o, "]");
    }
    puts_(o, "\n    ] }\n}\n");
    mem_free(v);
}

/* ---- the check ------------------------------------------------------------------------------- */

// clang-format off
static const char *const samples[] = {
    "Hello, world! It's what we'd call a test; isn't it? YES, I'LL SAY",
    "In 2024 there were 1234567 of 12, 3.14159 or 1e-9; ٣٤ and Ⅷ too",
    "   leading, trailing   \n\n\n  lines\r\n\tand\ttabs \n  end  ",
    "int main(void) { return a[i]++ != b->c && ~x; } // C99 \"quoted\" <tag/> #!@$%^&*_=+|",
    "HTTPServer camelCase McDonald's École naïve mode\xCC\x80le Üníçödé",
    "Привет 你好世界 こんにちは 한국 नमस्ते",
    "😀👩\xE2\x80\x8D💻 — € 5 \xC2\xA0 \xE3\x80\x80 end",
    "",
    " ",
    "the inner parts of the outer thing are where the others were",
};
// clang-format on

static infer_status check(const tokenizer *t, const char *s, size_t n, infer_error *err)
{
    tokenizer *other;
    TRY(tok_load_json_text(&other, s, n, err));
    infer_status st = INFER_OK;
    for (int i = 0; i < COUNT_OF(samples) && !st; i++) {
        int32_t *a = NULL, *b = NULL;
        size_t na = 0, nb = 0;
        st = tok_encode(t, &a, &na, samples[i], strlen(samples[i]), NULL, err);
        if (!st) st = tok_encode(other, &b, &nb, samples[i], strlen(samples[i]), NULL, err);
        if (!st && (na != nb || (na && memcmp(a, b, na * sizeof *a))))
            st = error_set(err, INFER_UNSUPPORTED,
                           "tokenizer.json: it would cut '%.40s' into other tokens", samples[i]);
        mem_free(a);
        mem_free(b);
    }
    tokenizer_free(other);
    return st;
}

infer_status tok_write_json(char **result, size_t *n, const tokenizer *t, const gguf *g,
                            infer_error *err)
{
    out o = { .t = t, .g = g, .err = err };
    *result = NULL;
    bool bytes_level =
        t->model == MODEL_BPE && t->decoders.n == 1 && t->decoders.v[0].type == DEC_BYTE_LEVEL;
    if (!bytes_level && t->model != MODEL_SPM)
        return error_set(err, INFER_UNSUPPORTED,
                         "tokenizer.json: of GGUF vocabularies only byte-level BPE and "
                         "SentencePiece BPE are written");
    puts_(&o, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    put_added(&o);
    put_steps(&o, "normalizer", "normalizers", &t->norms);
    put_steps(&o, "pre_tokenizer", "pretokenizers", &t->pres);
    put_template(&o);
    put_steps(&o, "decoder", "decoders", &t->decoders);
    put_model(&o);
    if (!o.st) o.st = check(t, o.b.p, o.b.n, err);
    if (o.st) {
        mem_free(o.b.p);
        return o.st;
    }
    *result = o.b.p;
    *n = o.b.n;
    return INFER_OK;
}

static void put_token(out *o, const char *key, int32_t id)
{
    if (id < 0) return;
    puts_(o, ",\n  \"");
    puts_(o, key);
    puts_(o, "\": ");
    put_string(o, entry(o->t, id).s, entry(o->t, id).n);
}

infer_status tok_write_config(char **result, size_t *n, const tokenizer *t, infer_error *err)
{
    out o = { .t = t, .err = err };
    *result = NULL;
    puts_(&o, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"");
    puts_(&o, t->adds_bos ? ",\n  \"add_bos_token\": true" : ",\n  \"add_bos_token\": false");
    puts_(&o, t->adds_eos ? ",\n  \"add_eos_token\": true" : ",\n  \"add_eos_token\": false");
    put_token(&o, "bos_token", t->bos);
    put_token(&o, "eos_token", t->eos);
    put_token(&o, "unk_token", t->unk);
    if (t->chat_template) {
        puts_(&o, ",\n  \"chat_template\": ");
        put_string(&o, t->chat_template, strlen(t->chat_template));
    }
    puts_(&o, "\n}\n");
    if (o.st) {
        mem_free(o.b.p);
        return o.st;
    }
    *result = o.b.p;
    *n = o.b.n;
    return INFER_OK;
}
