/*
 * tok_load_gguf.c: a GGUF file's vocabulary (tokenizer.ggml.*), stated as the same pipeline that a
 * tokenizer.json states.
 *
 *   model   pipeline
 *   gpt2    byte-level BPE; tokenizer.ggml.pre names the splitting (tok_pre_names.c)
 *   llama   SentencePiece BPE: space → U+2581, one in front, pairs merged by score, unknown bytes
 * as <0x..> t5      Unigram with SentencePiece's normalization bert    WordPiece, whose entries
 * mark the start of a word with U+2581
 *
 * Token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Control and
 * unknown tokens are special added tokens, user-defined ones plain added tokens.
 */
#include <ctype.h>

#include "models/tok.h"

#define META "\xE2\x96\x81" // U+2581
#define KEY(k) "tokenizer.ggml." k

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

typedef struct loader {
    tokenizer *t;
    const gguf *g;
    infer_error *err;
    const gguf_value *tokens, *types, *scores, *merges;
    text model;
    const pre_name *pre;
    bool space_prefix;
} loader;

static infer_status array_of(loader *l, const char *key, gguf_type item, const gguf_value **out,
                             size_t want)
{
    TRY(gguf_array(l->g, key, item, out, l->err));
    if (*out && want && (*out)->count != want)
        return error_set(l->err, INFER_FORMAT,
                         "%s: %s: expected %zu values, one per token, found %llu", gguf_path(l->g),
                         key, want, (unsigned long long)(*out)->count);
    return INFER_OK;
}

static int type_of(const loader *l, size_t id)
{
    if (!l->types) return TYPE_NORMAL;
    int32_t v;
    memcpy(&v, l->types->data + 4 * id, 4);
    return v;
}

static bool is(text s, const char *word) { return s.n == strlen(word) && !memcmp(s.s, word, s.n); }

// ---- entries --------------------------------------------------------------------------------

// As utf8_valid, eight bytes at a time where they are ASCII.
static bool all_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint64_t w;
        uint32_t cp;
        if (n - i >= 8 && (memcpy(&w, s + i, 8), !(w & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        int k = (unsigned char)s[i] < 0x80 ? 1 : utf8_decode(s + i, n - i, &cp);
        if (!k) return false;
        i += (size_t)k;
    }
    return true;
}

static infer_status read_entries(loader *l)
{
    tokenizer *t = l->t;
    size_t n, total = 0, at = 0;
    TRY(array_of(l, KEY("tokens"), GGUF_STRING, &l->tokens, 0));
    if (!l->tokens || !l->tokens->count)
        return error_set(l->err, INFER_FORMAT, "%s: " KEY("tokens") ": the vocabulary is empty",
                         gguf_path(l->g));
    n = l->tokens->count;
    TRY(array_of(l, KEY("token_type"), GGUF_I32, &l->types, n));
    TRY(array_of(l, KEY("scores"), GGUF_F32, &l->scores, n));
    const gguf_text *s = l->tokens->strings;
    for (size_t i = 0; i < n; i++)
        total += s[i].n + 1;
    TRY(tok_reserve(t, n, total, l->err));
    for (size_t i = 0; i < n; i++) {
        t->entries[i] = (tok_entry){ (uint32_t)at, (uint32_t)s[i].n };
        t->flags[i] = TOK_PRESENT;
        if (s[i].n) memcpy(t->pool + at, s[i].s, s[i].n);
        at += s[i].n;
        t->pool[at++] = 0;
    }
    if (all_valid(t->pool, total)) return INFER_OK;
    for (size_t i = 0; i < n; i++)
        if (!utf8_valid(s[i].s, s[i].n))
            return error_set(l->err, INFER_FORMAT, "%s: " KEY("tokens") ": token %zu is not UTF-8",
                             gguf_path(l->g), i);
    return INFER_OK;
}

static infer_status id_of(loader *l, const char *key, int32_t *out)
{
    int64_t v = -1;
    bool found = false;
    TRY(gguf_int(l->g, key, &v, &found, l->err));
    if (!found || v == -1 || v == UINT32_MAX) return INFER_OK;
    if (v < 0 || v >= l->t->n_ids)
        return error_set(l->err, INFER_FORMAT, "%s: %s: %lld is outside the vocabulary of %d",
                         gguf_path(l->g), key, (long long)v, l->t->n_ids);
    *out = (int32_t)v;
    return INFER_OK;
}

// Control, unknown and user-defined tokens are cut out of the text before anything else.
static infer_status read_added(loader *l)
{
    tokenizer *t = l->t;
    size_t n = 0;
    for (int i = 0; i < t->n_ids; i++) {
        int k = type_of(l, (size_t)i);
        n += k == TYPE_CONTROL || k == TYPE_USER || k == TYPE_UNKNOWN;
    }
    t->added = arena_zero(&t->mem, n + 1, sizeof *t->added);
    if (!t->added) return error_set(l->err, INFER_NOMEM, "%s", gguf_path(l->g));
    for (int32_t i = 0; i < t->n_ids; i++) {
        int k = type_of(l, (size_t)i);
        if ((k != TYPE_CONTROL && k != TYPE_USER && k != TYPE_UNKNOWN) || !t->entries[i].n)
            continue;
        t->added[t->n_added++] =
            (added_token){ .id = i,
                           .special = k != TYPE_USER,
                           .content = { t->pool + t->entries[i].at, t->entries[i].n } };
    }
    return INFER_OK;
}

static infer_status fill_vocab(loader *l, unsigned without) // bit k: leave out type k
{
    tokenizer *t = l->t;
    int32_t batch[TOK_BATCH];
    size_t n = 0;
    TRY(str_map_init(&t->vocab, &t->mem, (size_t)t->n_ids, l->err));
    for (int32_t i = 0; i < t->n_ids; i++) {
        int k = type_of(l, (size_t)i);
        if (!t->entries[i].n || (k >= 0 && k < 8 && without >> k & 1)) continue;
        batch[n++] = i;
        if (n < TOK_BATCH) continue;
        str_map_put_many(&t->vocab, t, batch, n);
        n = 0;
    }
    str_map_put_many(&t->vocab, t, batch, n);
    return INFER_OK;
}

static void find_bytes(loader *l)
{
    tokenizer *t = l->t;
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    for (int32_t i = 0; i < t->n_ids; i++) {
        if (type_of(l, (size_t)i) != TYPE_BYTE) continue;
        int b = byte_token(t->pool + t->entries[i].at, t->entries[i].n);
        if (b >= 0) t->byte_id[b] = i;
    }
}

// ---- steps ----------------------------------------------------------------------------------

static infer_status step(loader *l, step_list *list, tok_step_type type, tok_step **out)
{
    *out = step_add(list, type, l->err);
    return *out ? INFER_OK : l->err ? l->err->code : INFER_NOMEM;
}

static infer_status step_replace(loader *l, step_list *list, tok_step_type type, const char *from,
                                 bool literal, const char *to)
{
    tok_step *s;
    TRY(step(l, list, type, &s));
    s->s = (text){ to, strlen(to) };
    return regex_new(&s->re, from, strlen(from), literal, l->err);
}

// ---- gpt2 -----------------------------------------------------------------------------------

// The three strings of merge `rank`; both has room for the third.
static infer_status merge_strings(loader *l, uint32_t rank, bytes *both, text *s)
{
    text m = l->merges->strings[rank];
    const char *space = m.n > 1 ? memchr(m.s + 1, ' ', m.n - 1) : NULL;
    if (!space || space + 1 == m.s + m.n)
        return error_set(l->err, INFER_FORMAT, "%s: " KEY("merges") ": entry %u '%.*s' is no pair",
                         gguf_path(l->g), rank, (int)(m.n < 60 ? m.n : 60), m.s);
    size_t n = (size_t)(space - m.s), rest = m.n - n - 1;
    s[0] = (text){ m.s, n };
    s[1] = (text){ space + 1, rest };
    s[2] = (text){ both->p + both->n, n + rest };
    TRY(bytes_add(both, m.s, n, l->err));
    return bytes_add(both, space + 1, rest, l->err);
}

static infer_status merge_batch(loader *l, uint32_t first, uint32_t n, bytes *both)
{
    text s[TOK_BATCH] = { 0 };
    int32_t ids[TOK_BATCH];
    size_t room = 0;
    for (uint32_t i = 0; i < n; i++)
        room += l->merges->strings[first + i].n;
    both->n = 0;
    TRY(bytes_room(both, room, l->err)); // the strings point into it: it must not move
    for (uint32_t i = 0; i < n; i++)
        TRY(merge_strings(l, first + i, both, s + 3 * i));
    str_map_find_many(&l->t->vocab, l->t, s, ids, 3 * (size_t)n);
    for (uint32_t i = 0; i < n; i++) {
        const int32_t *v = ids + 3 * i;
        text m = l->merges->strings[first + i];
        if (v[0] < 0 || v[1] < 0 || v[2] < 0)
            return error_set(
                l->err, INFER_FORMAT,
                "%s: " KEY("merges") ": entry %u '%.*s' names a token that is not in the "
                                     "vocabulary",
                gguf_path(l->g), first + i, (int)(m.n < 60 ? m.n : 60), m.s);
        pair_map_put(&l->t->merges, v[0], v[1], first + i, v[2]);
    }
    return INFER_OK;
}

static infer_status read_merges(loader *l)
{
    TRY(array_of(l, KEY("merges"), GGUF_STRING, &l->merges, 0));
    if (!l->merges)
        return error_set(l->err, INFER_FORMAT, "%s: " KEY("merges") ": missing", gguf_path(l->g));
    if (l->merges->count > 1u << 24)
        return error_set(l->err, INFER_LIMIT, "%s: " KEY("merges") ": too many", gguf_path(l->g));
    TRY(pair_map_init(&l->t->merges, &l->t->mem, l->merges->count, l->err));
    bytes both = { 0 };
    infer_status st = INFER_OK;
    uint32_t count = (uint32_t)l->merges->count, step = TOK_BATCH / 3;
    for (uint32_t i = 0; i < count && !st; i += step)
        st = merge_batch(l, i, count - i < step ? count - i : step, &both);
    mem_free(both.p);
    return st;
}

static infer_status load_gpt2(loader *l)
{
    tokenizer *t = l->t;
    text pre = { "default", 7 };
    tok_step *s;
    t->model = MODEL_BPE;
    TRY(gguf_string(l->g, KEY("pre"), &pre, NULL, l->err));
    l->pre = pre_name_find(pre.s, pre.n);
    if (!l->pre)
        return error_set(l->err, INFER_UNSUPPORTED,
                         "%s: " KEY("pre") ": '%.*s' is not a "
                                           "pre-tokenization known here",
                         gguf_path(l->g), (int)(pre.n < 60 ? pre.n : 60), pre.s);
    if (l->pre->nfc) TRY(step(l, &t->norms, NORM_NFC, &s));
    for (int i = 0; i < COUNT_OF(l->pre->patterns) && l->pre->patterns[i]; i++) {
        TRY(step(l, &t->pres, PRE_SPLIT, &s));
        s->behavior = SPLIT_ISOLATED;
        TRY(regex_new(&s->re, l->pre->patterns[i], strlen(l->pre->patterns[i]), false, l->err));
    }
    TRY(step(l, &t->pres, PRE_BYTE_LEVEL, &s));
    TRY(gguf_bool(l->g, KEY("add_space_prefix"), &s->prefix_space, NULL, l->err));
    TRY(step(l, &t->decoders, DEC_BYTE_LEVEL, &s));
    t->ignore_merges = l->pre->ignore_merges;
    TRY(fill_vocab(l, 1u << TYPE_UNUSED));
    return read_merges(l);
}

// ---- llama: SentencePiece BPE ---------------------------------------------------------------

static infer_status load_llama(loader *l)
{
    tokenizer *t = l->t;
    tok_step *s;
    t->model = MODEL_SPM;
    if (!l->scores)
        return error_set(l->err, INFER_FORMAT, "%s: " KEY("scores") ": missing", gguf_path(l->g));
    l->space_prefix = true;
    TRY(gguf_bool(l->g, KEY("add_space_prefix"), &l->space_prefix, NULL, l->err));
    if (l->space_prefix) {
        TRY(step(l, &t->norms, NORM_PREPEND, &s));
        s->s = (text){ META, 3 };
    }
    TRY(step_replace(l, &t->norms, NORM_REPLACE, " ", true, META));
    TRY(step_replace(l, &t->decoders, DEC_REPLACE, META, true, " "));
    TRY(step(l, &t->decoders, DEC_BYTE_FALLBACK, &s));
    TRY(step(l, &t->decoders, DEC_FUSE, &s));
    if (l->space_prefix) {
        TRY(step(l, &t->decoders, DEC_STRIP, &s));
        s->s = (text){ " ", 1 };
        s->start = 1;
    }
    t->byte_fallback = t->fuse_unk = true;
    find_bytes(l);
    // What SentencePiece keeps apart: nothing is merged into control, unknown, unused and byte
    // tokens.
    TRY(fill_vocab(l,
                   1u << TYPE_UNKNOWN | 1u << TYPE_CONTROL | 1u << TYPE_UNUSED | 1u << TYPE_BYTE));
    t->scores = arena_alloc(&t->mem, (size_t)t->n_ids, sizeof *t->scores);
    if (!t->scores) return error_set(l->err, INFER_NOMEM, "%s", gguf_path(l->g));
    memcpy(t->scores, l->scores->data, (size_t)t->n_ids * sizeof *t->scores);
    return INFER_OK;
}

// ---- t5: Unigram ----------------------------------------------------------------------------

static infer_status read_charsmap(loader *l)
{
    static const char key[] = KEY("precompiled_charsmap");
    const gguf_value *v = gguf_find(l->g, key);
    tok_step *s;
    if (!v) return INFER_OK;
    if (v->type != GGUF_ARRAY || (v->item != GGUF_U8 && v->item != GGUF_I8))
        return error_set(l->err, INFER_FORMAT, "%s: %s: expected an array of bytes",
                         gguf_path(l->g), key);
    if (!v->count) return INFER_OK;
    char *raw = arena_strndup(&l->t->mem, (const char *)v->data, v->count);
    if (!raw) return error_set(l->err, INFER_NOMEM, "%s", gguf_path(l->g));
    TRY(step(l, &l->t->norms, NORM_PRECOMPILED, &s));
    return charsmap_read(s, &l->t->mem, (const uint8_t *)raw, v->count, l->err)
               ? error_prefix(l->err, "%s: %s", gguf_path(l->g), key)
               : INFER_OK;
}

static infer_status load_t5(loader *l)
{
    tokenizer *t = l->t;
    tok_step *s;
    bool prefix = true, collapse = false;
    t->model = MODEL_UNIGRAM;
    if (!l->scores)
        return error_set(l->err, INFER_FORMAT, "%s: " KEY("scores") ": missing", gguf_path(l->g));
    TRY(gguf_bool(l->g, KEY("add_space_prefix"), &prefix, NULL, l->err));
    TRY(gguf_bool(l->g, KEY("remove_extra_whitespaces"), &collapse, NULL, l->err));
    TRY(read_charsmap(l));
    if (collapse) { // spaces alone: what else is white has become one in the charsmap
        TRY(step(l, &t->norms, NORM_STRIP, &s));
        s->left = s->right = true;
        s->s = (text){ " ", 1 };
        TRY(step_replace(l, &t->norms, NORM_REPLACE, " {2,}", false, " "));
    }
    if (prefix) {
        TRY(step(l, &t->norms, NORM_PREPEND, &s));
        s->s = (text){ META, 3 };
    }
    TRY(step_replace(l, &t->norms, NORM_REPLACE, " ", true, META));
    TRY(step(l, &t->decoders, DEC_BYTE_FALLBACK, &s));
    TRY(step(l, &t->decoders, DEC_METASPACE, &s));
    s->s = (text){ META, 3 };
    s->scheme = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    unsigned without = 1u << TYPE_UNKNOWN | 1u << TYPE_CONTROL | 1u << TYPE_UNUSED;
    TRY(fill_vocab(l, without));
    t->scores64 = arena_zero(&t->mem, (size_t)t->n_ids, sizeof *t->scores64);
    if (!t->scores64) return error_set(l->err, INFER_NOMEM, "%s", gguf_path(l->g));
    bool any = false;
    for (int32_t i = 0; i < t->n_ids; i++) {
        int k = type_of(l, (size_t)i);
        float f;
        memcpy(&f, l->scores->data + 4 * (size_t)i, 4);
        t->scores64[i] = (double)f;
        if (k == TYPE_NORMAL && (!any || (double)f < t->min_score))
            t->min_score = (double)f, any = true;
        if (k >= 0 && k < 8 && without >> k & 1) continue;
        TRY(trie_add(&t->pieces, t->pool + t->entries[i].at, t->entries[i].n, i, l->err));
        t->byte_fallback |= k == TYPE_BYTE;
    }
    return INFER_OK;
}

// ---- bert: WordPiece ------------------------------------------------------------------------

static infer_status load_bert(loader *l)
{
    tokenizer *t = l->t;
    tok_step *s;
    t->model = MODEL_WORDPIECE;
    t->max_word_chars = 100;
    t->first_prefix = (text){ META, 3 };
    TRY(step(l, &t->norms, NORM_BERT, &s));
    s->clean = s->chinese = s->lower = s->accents = true;
    TRY(step(l, &t->pres, PRE_BERT, &s));
    TRY(step(l, &t->decoders, DEC_METASPACE, &s));
    s->s = (text){ META, 3 };
    return fill_vocab(l, 1u << TYPE_CONTROL | 1u << TYPE_UNUSED);
}

// ---- what comes before and after the text, and the rest -------------------------------------

static infer_status read_ends(loader *l)
{
    tokenizer *t = l->t;
    bool llama = t->model == MODEL_SPM, bert = t->model == MODEL_WORDPIECE;
    int32_t more[3] = { -1, -1, -1 }, sep = -1;
    tok_step *s;
    if (llama && t->n_ids > 2) t->bos = 1, t->eos = 2, t->unk = 0; // SentencePiece's own order
    t->adds_bos = llama || bert || (l->pre && l->pre->add_bos);
    t->adds_eos = t->model == MODEL_UNIGRAM || bert;
    TRY(id_of(l, KEY("bos_token_id"), &t->bos));
    TRY(id_of(l, KEY("eos_token_id"), &t->eos));
    TRY(id_of(l, KEY("unknown_token_id"), &t->unk));
    TRY(id_of(l, KEY("seperator_token_id"), &sep)); // spelt so in the format
    TRY(id_of(l, KEY("eot_token_id"), &more[0]));
    TRY(id_of(l, KEY("eom_token_id"), &more[1]));
    TRY(gguf_bool(l->g, KEY("add_bos_token"), &t->adds_bos, NULL, l->err));
    TRY(gguf_bool(l->g, KEY("add_eos_token"), &t->adds_eos, NULL, l->err));
    for (int i = 0; i < COUNT_OF(more); i++)
        if (more[i] >= 0) t->flags[more[i]] |= TOK_END;
    if (t->model == MODEL_BPE) t->unk = -1; // all bytes are entries
    t->adds_bos &= t->bos >= 0;
    int32_t last = bert && sep >= 0 ? sep : t->eos;
    t->adds_eos &= last >= 0;
    if (!t->adds_bos && !t->adds_eos) return INFER_OK;
    int32_t *v = arena_alloc(&t->mem, 3, sizeof *v);
    if (!v) return error_set(l->err, INFER_NOMEM, "%s", gguf_path(l->g));
    TRY(step(l, &t->posts, POST_TEMPLATE, &s));
    s->pieces = v;
    if (t->adds_bos) v[s->n_pieces++] = t->bos;
    v[s->n_pieces++] = -1;
    if (t->adds_eos) v[s->n_pieces++] = last;
    return INFER_OK;
}

static bool contains(text s, const char *word) // without regard to case
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= s.n; i++) {
        size_t k = 0;
        while (k < n && tolower((unsigned char)s.s[i + k]) == word[k])
            k++;
        if (k == n) return true;
    }
    return false;
}

// GGUF has no place for which added tokens take the space beside them: known models.
static infer_status known_strips(loader *l)
{
    text name = { 0 }, arch = { 0 }, pre = { 0 };
    TRY(gguf_string(l->g, "general.name", &name, NULL, l->err));
    TRY(gguf_string(l->g, "general.architecture", &arch, NULL, l->err));
    TRY(gguf_string(l->g, KEY("pre"), &pre, NULL, l->err));
    bool phi3 = contains(name, "phi-3") || contains(name, "phi3");
    bool mask = contains(pre, "jina-v2-") || is(arch, "nomic-bert-moe");
    for (size_t i = 0; i < l->t->n_added; i++) {
        added_token *a = &l->t->added[i];
        text c = a->content;
        if (phi3)
            a->rstrip = a->special && !is(c, "<unk>") && !is(c, "<s>") && !is(c, "<|endoftext|>");
        if (phi3 && is(c, "</s>")) a->rstrip = true;
        if (mask && is(c, "<mask>")) a->lstrip = true;
        if (is(pre, "modern-bert") && is(c, "[MASK]")) a->lstrip = true;
    }
    return INFER_OK;
}

static infer_status read_template(loader *l)
{
    text s = { 0 };
    TRY(gguf_string(l->g, "tokenizer.chat_template", &s, NULL, l->err));
    if (!s.s) return INFER_OK;
    if (!utf8_valid(s.s, s.n))
        return error_set(l->err, INFER_FORMAT, "%s: tokenizer.chat_template: not UTF-8",
                         gguf_path(l->g));
    l->t->chat_template = mem_strndup(s.s, s.n);
    return l->t->chat_template ? INFER_OK : error_set(l->err, INFER_NOMEM, "%s", gguf_path(l->g));
}

static infer_status load(loader *l)
{
    static const struct {
        const char *name;
        infer_status (*fn)(loader *);
    } models[] = {
        { "gpt2", load_gpt2 }, { "llama", load_llama }, { "t5", load_t5 }, { "bert", load_bert }
    };
    infer_status (*fn)(loader *) = NULL;
    bool found = false;
    TRY(gguf_string(l->g, KEY("model"), &l->model, &found, l->err));
    if (!found)
        return error_set(l->err, INFER_FORMAT, "%s: " KEY("model") ": missing", gguf_path(l->g));
    for (int i = 0; i < COUNT_OF(models); i++)
        if (is(l->model, models[i].name)) fn = models[i].fn;
    if (!fn)
        return error_set(l->err, INFER_UNSUPPORTED, "%s: " KEY("model") ": '%.*s' is not supported",
                         gguf_path(l->g), (int)(l->model.n < 60 ? l->model.n : 60), l->model.s);
    TRY(read_entries(l));
    TRY(fn(l));
    TRY(read_ends(l));
    TRY(read_added(l));
    TRY(known_strips(l));
    TRY(read_template(l));
    return tok_finish(l->t, l->err);
}

infer_status tok_load_gguf(tokenizer **out, const gguf *g, infer_error *err)
{
    loader l = { .g = g, .err = err };
    infer_status st = tok_new(&l.t, err);
    if (!st) st = load(&l);
    if (st) {
        tokenizer_free(l.t);
        return st;
    }
    *out = l.t;
    return error_clear(err);
}

infer_status tokenizer_from_gguf(tokenizer **out, const gguf *g, infer_error *err)
{
    tokenizer *t;
    TRY(tok_load_gguf(&t, g, err));
    infer_status st = tok_beside(&t, gguf_path(g), err);
    if (st) {
        tokenizer_free(t);
        return st;
    }
    *out = t;
    return error_clear(err);
}
