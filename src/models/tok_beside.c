/*
 * tok_beside.c: a GGUF file with the tokenizer.json it was made from in the same folder.
 *
 * GGUF states a vocabulary with less than tokenizer.json says: not which added tokens take the
 * space beside them (lstrip, rstrip), stand only as whole words or match normalized text, and
 * scores where the original has merges. So where the folder holds a tokenizer.json of exactly the
 * same vocabulary, its pipeline is used. What GGUF states itself stays: special ids, BOS and EOS
 * rules, padding entries, the chat template.
 */
#include "base/map.h"
#include "models/tok.h"

#define META "\xE2\x96\x81" // U+2581

static text entry(const tokenizer *t, int i)
{
    return (text){ t->pool + t->entries[i].at, t->entries[i].n };
}

// Equal, where GGUF may have written U+2581 as a space.
static bool same_token(text a, text b)
{
    size_t i = 0, j = 0;
    while (i < a.n && j < b.n) {
        if (a.s[i] == ' ' && b.n - j >= 3 && !memcmp(b.s + j, META, 3))
            i++, j += 3;
        else if (a.s[i++] != b.s[j++])
            return false;
    }
    return i == a.n && j == b.n;
}

static bool same_vocab(const tokenizer *g, const tokenizer *j)
{
    if (j->n_ids > g->n_ids) return false;
    for (int i = 0; i < j->n_ids; i++) {
        if (!(j->flags[i] & TOK_PRESENT)) continue; // a hole that GGUF pads
        if (!same_token(entry(g, i), entry(j, i))) return false;
    }
    for (int i = j->n_ids; i < g->n_ids; i++) // only padding may follow
        if (entry(g, i).n < 4 || memcmp(entry(g, i).s, "[PAD", 4)) return false;
    return true;
}

// Entries of j, then the padding of g, in j's memory.
static infer_status pad(tokenizer *j, const tokenizer *g, infer_error *err)
{
    int n = j->n_ids;
    size_t used = 0, more = 0;
    char *pool = j->pool;
    tok_entry *entries = j->entries;
    uint8_t *flags = j->flags;
    text *shown = j->shown;
    for (int i = 0; i < n; i++)
        if (used < entries[i].at + (size_t)entries[i].n + 1)
            used = entries[i].at + (size_t)entries[i].n + 1;
    for (int i = n; i < g->n_ids; i++)
        more += entry(g, i).n + 1;
    TRY(tok_reserve(j, (size_t)g->n_ids, used + more, err));
    if (shown) {
        j->shown = arena_zero(&j->mem, (size_t)g->n_ids, sizeof *shown);
        if (!j->shown) return error_set(err, INFER_NOMEM, "vocabulary");
        memcpy(j->shown, shown, (size_t)n * sizeof *shown);
    }
    memcpy(j->pool, pool, used);
    memcpy(j->entries, entries, (size_t)n * sizeof *entries);
    memcpy(j->flags, flags, (size_t)n);
    for (int i = n; i < g->n_ids; i++) {
        text s = entry(g, i);
        j->entries[i] = (tok_entry){ (uint32_t)used, (uint32_t)s.n };
        j->flags[i] = TOK_PRESENT;
        memcpy(j->pool + used, s.s, s.n + 1);
        used += s.n + 1;
    }
    return INFER_OK;
}

infer_status tok_beside(tokenizer **t, const char *gguf_path, infer_error *err)
{
    arena a = { 0 };
    tokenizer *g = *t, *j = NULL;
    const char *slash = strrchr(gguf_path, '/');
    char *path =
        arena_printf(&a, "%.*stokenizer.json", slash ? (int)(slash - gguf_path + 1) : 0, gguf_path);
    infer_status st = INFER_OK;
    if (!path) {
        st = error_set(err, INFER_NOMEM, "%s", gguf_path);
    } else if (file_exists(path)) {
        // A file of no use here (malformed, another model's) leaves the GGUF's own statement, which
        // is whole.
        st = tok_load_json(&j, path, NULL);
        st = st == INFER_NOMEM ? error_set(err, st, "%s", path) : INFER_OK;
        if (!st && j && same_vocab(g, j))
            st = pad(j, g, err);
        else if (j)
            tokenizer_free(j), j = NULL;
    }
    arena_free(&a);
    if (st || !j) {
        tokenizer_free(j);
        return st;
    }
    for (int i = 0; i < g->n_ids; i++)
        j->flags[i] |= g->flags[i] & TOK_END;
    step_list posts = j->posts;
    char *template = j->chat_template;
    j->posts = g->posts;
    g->posts = posts;
    j->bos = g->bos, j->eos = g->eos, j->adds_bos = g->adds_bos, j->adds_eos = g->adds_eos;
    if (g->chat_template) {
        j->chat_template = g->chat_template;
        g->chat_template = template;
    }
    // The template's ids lie in g's arena: they are few.
    for (size_t i = 0; i < j->posts.n && !st; i++) {
        tok_step *s = &j->posts.v[i];
        int32_t *v = arena_alloc(&j->mem, s->n_pieces + 1, sizeof *v);
        if (!v)
            st = error_set(err, INFER_NOMEM, "%s", gguf_path);
        else
            s->pieces = memcpy(v, s->pieces, s->n_pieces * sizeof *v);
    }
    tokenizer_free(g);
    *t = j;
    return st;
}
