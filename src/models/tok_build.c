/*
 * tok_build.c: what both loaders need: room for entries, steps, and the tables that follow from the
 * entries once all are there.
 */
#include "models/tok.h"

// Tokens that end an answer, whatever the file says of its end-of-text token.
static const char *const end_tokens[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<EOT>",
    "_<EOT>",
    "< EOT >",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81"
    "sentence\xEF\xBD\x9C>",
    "</s>",
    "<eos>",
    "<end_of_utterance>",
    "<|eot|>",
    "[EOT]",
    "[EOS]",
    "<|end_of_role|>",
    "<seed:eos>",
    "<\xEF\xBD\x9C"
    "hy_place\xE2\x96\x81holder\xE2\x96\x81no\xE2\x96\x81"
    "2\xEF\xBD\x9C>",
    "[|endofturn|]",
    "<|role_end|>",
};

infer_status tok_new(tokenizer **out, infer_error *err)
{
    tokenizer *t = mem_zero(1, sizeof *t);
    if (!t) return error_set(err, INFER_NOMEM, "tokenizer");
    t->unk = t->bos = t->eos = -1;
    *out = t;
    return INFER_OK;
}

static void steps_free(step_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        regex_free(l->v[i].re);
    mem_free(l->v);
}

void tokenizer_free(tokenizer *t)
{
    if (!t) return;
    steps_free(&t->norms);
    steps_free(&t->pres);
    steps_free(&t->posts);
    steps_free(&t->decoders);
    trie_free(&t->added_raw);
    trie_free(&t->added_normalized);
    trie_free(&t->pieces);
    mem_free(t->chat_template);
    arena_free(&t->mem);
    mem_free(t);
}

tok_step *step_add(step_list *l, tok_step_type type, infer_error *err)
{
    infer_status st;
    if (l->n == 32) return error_set(err, INFER_LIMIT, "tokenizer: over 32 steps of a kind"), NULL;
    GROW(st, l->v, l->cap, l->n + 1, err);
    if (st) return NULL;
    l->v[l->n] = (tok_step){ .type = type };
    return &l->v[l->n++];
}

infer_status tok_reserve(tokenizer *t, size_t n_ids, size_t pool_bytes, infer_error *err)
{
    if (n_ids > TOK_MAX_ID || pool_bytes >= UINT32_MAX)
        return error_set(err, INFER_LIMIT, "vocabulary of %zu ids and %zu bytes: too large", n_ids,
                         pool_bytes);
    t->pool = arena_alloc(&t->mem, pool_bytes + 1, 1);
    t->entries = arena_zero(&t->mem, n_ids + 1, sizeof *t->entries);
    t->flags = arena_zero(&t->mem, n_ids + 1, 1);
    if (!t->pool || !t->entries || !t->flags)
        return error_set(err, INFER_NOMEM, "vocabulary of %zu tokens", n_ids);
    t->n_ids = (int)n_ids;
    return INFER_OK;
}

int byte_token(const char *s, size_t n)
{
    int v = 0;
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

static infer_status show_normalized(tokenizer *t, const added_token *a, const bytes *b,
                                    infer_error *err)
{
    if (b->n == a->content.n && !memcmp(b->p, a->content.s, b->n)) return INFER_OK;
    if (!t->shown) t->shown = arena_zero(&t->mem, (size_t)t->n_ids, sizeof *t->shown);
    char *s = arena_strndup(&t->mem, b->p, b->n);
    if (!t->shown || !s) return error_set(err, INFER_NOMEM, "added tokens");
    t->shown[a->id] = (text){ s, b->n };
    if (b->n > t->longest) t->longest = (uint32_t)b->n;
    return INFER_OK;
}

static infer_status added_tables(tokenizer *t, infer_error *err)
{
    tok_work w = { .t = t, .err = err };
    infer_status st = INFER_OK;
    TRY(str_map_init(&t->added_map, &t->mem, t->n_added, err));
    if (t->norms.n) TRY(regex_scratch_new(&w.regex, err));
    for (size_t i = 0; i < t->n_added && !st; i++) {
        const added_token *a = &t->added[i];
        str_map_put(&t->added_map, t, a->id);
        t->flags[a->id] |= TOK_ADDED | (a->special ? TOK_SPECIAL : 0);
        if (!a->normalized || !t->norms.n) {
            st = trie_add(a->normalized ? &t->added_normalized : &t->added_raw, a->content.s,
                          a->content.n, (int32_t)i, err);
            continue;
        }
        bool kept = true;
        w.norm[0].n = 0;
        st = bytes_add(&w.norm[0], a->content.s, a->content.n, err);
        if (!st) st = norm_run(&w, &t->norms, &w.norm[0], &kept);
        if (!st) st = show_normalized(t, a, &w.norm[0], err);
        if (!st && w.norm[0].n)
            st = trie_add(&t->added_normalized, w.norm[0].p, w.norm[0].n, (int32_t)i, err);
    }
    work_free(&w);
    return st;
}

static void mark_ends(tokenizer *t)
{
    for (int i = 0; i < COUNT_OF(end_tokens); i++) {
        int32_t id = str_map_find(&t->added_map, t, end_tokens[i], strlen(end_tokens[i]));
        if (id >= 0) t->flags[id] |= TOK_END;
    }
    // Harmony's <|end|> only ends a message: an answer ends with <|return|> or <|call|>.
    int32_t end = str_map_find(&t->added_map, t, "<|end|>", 7);
    if (end >= 0 && str_map_find(&t->added_map, t, "<|return|>", 10) >= 0 &&
        str_map_find(&t->added_map, t, "<|call|>", 8) >= 0)
        t->flags[end] &= (uint8_t)~TOK_END;
    if (t->eos >= 0) t->flags[t->eos] |= TOK_END;
}

infer_status tok_finish(tokenizer *t, infer_error *err)
{
    for (int i = 0; i < t->n_ids; i++)
        if (t->entries[i].n > t->longest) t->longest = t->entries[i].n;
    for (uint32_t cp = 0; cp < 512; cp++) {
        char c[4];
        t->char_id[cp] = str_map_find(&t->vocab, t, c, (size_t)utf8_encode(cp, c));
    }
    for (int b = 0; t->model != MODEL_SPM && b < 256; b++) {
        static const char hex[] = "0123456789ABCDEF";
        char s[6] = { '<', '0', 'x', hex[b >> 4], hex[b & 15], '>' };
        t->byte_id[b] = str_map_find(&t->vocab, t, s, 6);
    }
    TRY(added_tables(t, err));
    mark_ends(t);
    return INFER_OK;
}
