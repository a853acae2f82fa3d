/*
 * tokenizer.c: encoding's course, opening by path, and the public functions.
 *
 *   text → added tokens cut out → normalizers → added tokens that match normalized text →
 * pre-tokenizers → model → post-processors
 */
#include "models/tokenizer.h"

#include "base/map.h"
#include "models/locate.h"
#include "models/model.h"
#include "models/tok.h"

void work_free(tok_work *w)
{
    regex_scratch_free(w->regex);
    for (int i = 0; i < 2; i++) {
        mem_free(w->norm[i].p);
        mem_free(w->text[i].p);
        mem_free(w->pieces[i].v);
    }
    mem_free(w->spans.v);
    mem_free(w->cps);
    mem_free(w->symbols);
    mem_free(w->heap);
    mem_free(w->best);
    mem_free(w->key.p);
    mem_free(w->ids);
}

// ---- encoding -------------------------------------------------------------------------------

// A stretch of text without added tokens; first: it begins where the whole text begins.
typedef infer_status stretch_fn(tok_work *w, const char *s, size_t n, bool first);

static infer_status encode_words(tok_work *w, const char *s, size_t n, bool first)
{
    int k;
    if (!w->t->pres.n) return model_encode(w, s, n);
    w->text[0].n = w->pieces[0].n = 0;
    TRY(bytes_add(&w->text[0], s, n, w->err));
    infer_status st;
    GROW(st, w->pieces[0].v, w->pieces[0].cap, 1, w->err);
    if (st) return st;
    w->pieces[0].v[w->pieces[0].n++] = (piece){ 0, (uint32_t)n, first };
    TRY(pre_run(w, &k));
    for (size_t i = 0; i < w->pieces[k].n; i++) {
        piece p = w->pieces[k].v[i];
        TRY(model_encode(w, w->text[0].p + p.at, p.n));
    }
    return INFER_OK;
}

static bool word_before(const char *s, size_t at)
{
    uint32_t cp = 0;
    size_t b = at;
    if (!at) return false;
    do
        b--;
    while (b && ((unsigned char)s[b] & 0xC0) == 0x80);
    utf8_decode(s + b, at - b, &cp);
    return cp_is_word(cp);
}

static bool word_after(const char *s, size_t n, size_t at)
{
    uint32_t cp = 0;
    if (at == n) return false;
    utf8_decode(s + at, n - at, &cp);
    return cp_is_word(cp);
}

static size_t spaces_begin(const char *s, size_t low, size_t at)
{
    uint32_t cp = 0;
    while (at > low) {
        size_t b = at - 1;
        while (b > low && ((unsigned char)s[b] & 0xC0) == 0x80)
            b--;
        if (!utf8_decode(s + b, at - b, &cp) || !cp_is_space(cp)) break;
        at = b;
    }
    return at;
}

static size_t spaces_end(const char *s, size_t n, size_t at)
{
    uint32_t cp = 0;
    while (at < n) {
        int k = utf8_decode(s + at, n - at, &cp);
        if (!cp_is_space(cp)) break;
        at += (size_t)k;
    }
    return at;
}

static bool overlaps_plain(const tok_work *w, size_t begin, size_t end)
{
    size_t low = 0, high = w->n_plain;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (w->plain[mid].end > begin)
            high = mid;
        else
            low = mid + 1;
    }
    return low < w->n_plain && w->plain[low].begin < end;
}

/* Whether the match at s[at] has bytes of a plain range. Normalized text has no positions of its
 * own: the k-th such text in it is taken to be the k-th in the raw stretch. */
static bool is_plain_there(const tok_work *w, const added_token *a, const char *s, size_t at,
                           size_t len)
{
    if (!a->special || !w->n_plain) return false;
    if (!w->raw) {
        size_t from = (size_t)(s - w->whole) + at;
        return overlaps_plain(w, from, from + len);
    }
    const char *raw = w->raw, *end = w->raw + w->n_raw, *found = NULL;
    for (const char *p = s; p <= s + at; p += len) {
        p = memmem(p, (size_t)(s + at - p) + len, s + at, len);
        found = memmem(raw, (size_t)(end - raw), a->content.s, a->content.n);
        if (!p || !found) return true; // normalizing made or unmade one: not matched, to be safe
        raw = found + a->content.n;
    }
    size_t from = (size_t)(found - w->whole);
    return overlaps_plain(w, from, from + a->content.n);
}

static int32_t longest_match(const tok_work *w, const trie *tr, const char *s, size_t n, size_t at,
                             size_t *len)
{
    int32_t found = -1;
    uint32_t node = 0;
    for (size_t e = at; e < n;) {
        node = trie_step(tr, node, (unsigned char)s[e++]);
        if (!node) break;
        if (tr->value[node] < 0) continue;
        if (is_plain_there(w, &w->t->added[tr->value[node]], s, at, e - at)) continue;
        found = tr->value[node];
        *len = e - at;
    }
    return found;
}

/* Leftmost-longest matches of the trie's tokens; fn gets what lies between. A match inside the
 * space that an earlier token took (rstrip) still counts, and what follows it is text again: so
 * does the reference. */
static infer_status cut_added(tok_work *w, const trie *tr, bool plain, const char *s, size_t n,
                              bool first, stretch_fn *fn)
{
    size_t done = 0, len = 0, blank_from = 1, blank_to = 0; // [from, to]: known end of blanks
    if (!tr->n_nodes) return fn(w, s, n, first);
    for (size_t at = 0; at < n;) {
        int32_t i = tr->first[(unsigned char)s[at]] ? longest_match(w, tr, s, n, at, &len) : -1;
        if (i < 0) {
            at++;
            continue;
        }
        const added_token *a = &w->t->added[i];
        size_t start = at, stop = at + len;
        at = stop;
        if (plain && a->special) continue;
        if (a->single_word && (word_before(s, start) || word_after(s, n, stop))) continue;
        if (a->lstrip && start > done) start = spaces_begin(s, done, start);
        if (a->rstrip) {
            if (stop < blank_from || stop > blank_to) {
                blank_from = stop;
                blank_to = spaces_end(s, n, stop);
            }
            stop = blank_to;
        }
        if (start > done) TRY(fn(w, s + done, start - done, first && !done));
        TRY(work_id(w, a->id));
        done = stop;
    }
    return done < n ? fn(w, s + done, n - done, first && !done) : INFER_OK;
}

// Whether special tokens are text is the same for the whole call: two functions, not a parameter.
static infer_status normalized(tok_work *w, const char *s, size_t n, bool first, bool plain)
{
    const tokenizer *t = w->t;
    if (!t->norms.n) return cut_added(w, &t->added_normalized, plain, s, n, first, encode_words);
    bool kept = true;
    w->norm[0].n = 0;
    TRY(bytes_add(&w->norm[0], s, n, w->err));
    TRY(norm_run(w, &t->norms, &w->norm[0], &kept));
    if (!w->norm[0].n) return INFER_OK;
    w->raw = s;
    w->n_raw = n;
    infer_status st = cut_added(w, &t->added_normalized, plain, w->norm[0].p, w->norm[0].n,
                                first && kept, encode_words);
    w->raw = NULL;
    return st;
}
static infer_status stretch_plain(tok_work *w, const char *s, size_t n, bool first)
{
    return normalized(w, s, n, first, true);
}
static infer_status stretch(tok_work *w, const char *s, size_t n, bool first)
{
    return normalized(w, s, n, first, false);
}

static infer_status post_process(tok_work *w)
{
    for (size_t i = 0; i < w->t->posts.n; i++) {
        const tok_step *s = &w->t->posts.v[i];
        size_t n = w->n_ids, cap = 0, k = 0, times = 0;
        int32_t *out = NULL;
        infer_status st;
        for (size_t j = 0; j < s->n_pieces; j++)
            times += s->pieces[j] < 0;
        GROW(st, out, cap, n * times + s->n_pieces + 1, w->err);
        if (st) return st;
        for (size_t j = 0; j < s->n_pieces; j++) {
            if (s->pieces[j] >= 0) {
                out[k++] = s->pieces[j];
            } else {
                if (n) memcpy(out + k, w->ids, n * sizeof *out);
                k += n;
            }
        }
        mem_free(w->ids);
        w->ids = out;
        w->n_ids = k;
        w->ids_cap = cap;
    }
    return INFER_OK;
}

infer_status tok_encode(const tokenizer *t, int32_t **ids, size_t *n_ids, const char *s, size_t n,
                        const tok_options *o, infer_error *err)
{
    static const tok_options none = { 0 };
    if (!o) o = &none;
    if (n > TOK_MAX_TEXT) return error_set(err, INFER_LIMIT, "text of %zu bytes: at most 1 GiB", n);
    if (!utf8_valid(s, n)) return error_set(err, INFER_ARGUMENT, "text is not valid UTF-8");
    tok_work w = { .t = t, .err = err, .whole = s, .plain = o->plain, .n_plain = o->n_plain };
    infer_status st = regex_scratch_new(&w.regex, err);
    if (!st && n)
        st = cut_added(&w, &t->added_raw, o->plain_text, s, n, true,
                       o->plain_text ? stretch_plain : stretch);
    if (!st && !o->no_special) st = post_process(&w);
    if (!st && !w.ids) GROW(st, w.ids, w.ids_cap, 1, err); // never NULL
    if (!st) {
        *ids = w.ids;
        *n_ids = w.n_ids;
        w.ids = NULL;
        st = error_clear(err);
    }
    work_free(&w);
    return st;
}

// ---- questions ------------------------------------------------------------------------------

static bool has(const tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && t->flags[id] & TOK_PRESENT;
}

int tok_n_vocab(const tokenizer *t) { return t->n_ids; }

const char *tok_token(const tokenizer *t, int32_t id, size_t *n)
{
    if (!has(t, id)) return NULL;
    if (n) *n = t->entries[id].n;
    return t->pool + t->entries[id].at;
}

int32_t tok_find(const tokenizer *t, const char *token)
{
    size_t n = strlen(token);
    int32_t id = str_map_find(&t->added_map, t, token, n);
    if (id < 0) id = str_map_find(&t->vocab, t, token, n);
    int b = id < 0 ? byte_token(token, n) : -1; // byte tokens of a scored vocabulary
    return b >= 0 ? t->byte_id[b] : id;
}

bool tok_is_special(const tokenizer *t, int32_t id)
{
    return has(t, id) && t->flags[id] & TOK_SPECIAL;
}
bool tok_is_end(const tokenizer *t, int32_t id) { return has(t, id) && t->flags[id] & TOK_END; }
int32_t tok_bos(const tokenizer *t) { return t->bos; }
int32_t tok_eos(const tokenizer *t) { return t->eos; }
bool tok_adds_bos(const tokenizer *t) { return t->adds_bos; }
bool tok_adds_eos(const tokenizer *t) { return t->adds_eos; }
const char *tok_chat_template(const tokenizer *t) { return t->chat_template; }

// ---- opening --------------------------------------------------------------------------------

infer_status tokenizer_from_folder(tokenizer **out, const char *folder, infer_error *err)
{
    arena a = { 0 };
    size_t n = strlen(folder);
    char *path = arena_printf(
        &a, n && folder[n - 1] == '/' ? "%stokenizer.json" : "%s/tokenizer.json", folder);
    infer_status st =
        path ? tok_load_json(out, path, err) : error_set(err, INFER_NOMEM, "%s", folder);
    arena_free(&a);
    return st ? st : error_clear(err);
}

static infer_status open_gguf(tokenizer **out, const char *path, infer_error *err)
{
    gguf *g = NULL;
    char *found = NULL;
    bool folder = false;
    infer_status st = model_locate(&found, &folder, path, err);
    if (!st && folder)
        st =
            error_set(err, INFER_NOT_FOUND, "%s: has neither tokenizer.json nor a GGUF file", path);
    if (!st) st = gguf_open(&g, found, NULL, NULL, err);
    if (!st) st = tokenizer_from_gguf(out, g, err);
    gguf_close(g);
    mem_free(found);
    return st;
}

static infer_status open_path(tokenizer **out, const char *path, infer_error *err)
{
    arena a = { 0 };
    size_t n = strlen(path);
    infer_status st;
    char *inside = arena_printf(&a, "%s/tokenizer.json", path);
    if (!inside)
        st = error_set(err, INFER_NOMEM, "%s", path);
    else if (dir_exists(path) && file_exists(inside))
        st = tok_load_json(out, inside, err);
    else if (n > 5 && !strcmp(path + n - 5, ".json"))
        st = tok_load_json(out, path, err);
    else
        st = open_gguf(out, path, err);
    arena_free(&a);
    return st;
}

// ---- the public face: an infer_tokenizer is a tokenizer -------------------------------------

static const tokenizer *inner(const infer_tokenizer *t) { return (const tokenizer *)t; }

infer_status infer_tokenizer_open(infer_tokenizer **out, const char *path, infer_error *err)
{
    tokenizer *t = NULL;
    *out = NULL;
    infer_status st = open_path(&t, path, err);
    if (st) return st;
    *out = (infer_tokenizer *)t;
    return error_clear(err);
}

void infer_tokenizer_close(infer_tokenizer *tok) { tokenizer_free((tokenizer *)tok); }

const infer_tokenizer *infer_model_tokenizer(const infer_model *model)
{
    return (const infer_tokenizer *)model->tok;
}

infer_status infer_tokenize(const infer_tokenizer *tok, int32_t **ids, size_t *n_ids, const char *s,
                            size_t n, const infer_tokenize_options *options, infer_error *err)
{
    tok_options o = { 0 };
    if (options)
        o = (tok_options){ .no_special = options->no_special, .plain_text = options->plain_text };
    return tok_encode(inner(tok), ids, n_ids, s, n, &o, err);
}

infer_status infer_detokenize(const infer_tokenizer *tok, char **s, size_t *n, const int32_t *ids,
                              size_t n_ids, bool skip_special, infer_error *err)
{
    return tok_decode(inner(tok), s, n, ids, n_ids, skip_special, err);
}

int infer_tokenizer_n_vocab(const infer_tokenizer *tok) { return tok_n_vocab(inner(tok)); }
const char *infer_token_text(const infer_tokenizer *tok, int32_t id)
{
    return tok_token(inner(tok), id, NULL);
}
bool infer_token_is_special(const infer_tokenizer *tok, int32_t id)
{
    return tok_is_special(inner(tok), id);
}
int32_t infer_token_bos(const infer_tokenizer *tok) { return tok_bos(inner(tok)); }
int32_t infer_token_eos(const infer_tokenizer *tok) { return tok_eos(inner(tok)); }
void infer_free(void *p) { mem_free(p); }
