/*
 * session.c: the simple face: an engine with one sequence, a sampler, the tokenizer's stream and
 * stop strings. Everything is allocated before the first token.
 *
 * Drafts: a step may compute guessed tokens after the last one (draft.h). Their rows then wait:
 * each call samples from the next row's logits, as it would after a step of its own, and goes on to
 * the row after it where the guess was what came out; the first wrong guess takes the rest out of
 * the sequence. So a draft changes nothing but the time, and what was never asked for is never
 * drawn.
 *
 * Text held back: the stream holds incomplete UTF-8, and `pending` the tail that may still become a
 * stop string. What infer_session_next returns can therefore never have to be taken back.
 */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "inference/draft.h"
#include "inference/engine.h"
#include "models/chat.h"

#define MAX_STOP_BYTES 4096
#define MAX_STOPS 64

struct infer_session {
    const infer_model *model;
    infer_engine *engine;
    infer_sequence *seq;
    infer_sampler *sampler;
    tok_stream *stream;
    infer_session_options o;
    char *stops[MAX_STOPS];
    int n_stops;
    size_t longest_stop;
    infer_row *rows; // [max_rows]
    char *pending;   // text not yet given out, pending_cap bytes
    char *piece;     // what the caller holds
    size_t n_pending, pending_cap;
    int32_t *ids;        // [n_ctx] what the sequence holds
    infer_template *own; // the model's chat template, compiled at its first use
    bool have_logits, flushed;
    int last_row; // of the last step: the row whose logits come next; -1: rows[0] is yet to be fed
    int n_drafts; // rows after it, in the sequence but not yet known to be right
    int n_held;   // of the last draft
    bool is_drafted; // last_row is a drafted token that is right; its logits were not yet asked for
    draft *draft;    // NULL: none are made
    int n_generated; // since the prompt
    atomic_int cancel;
    infer_stats stats;
    double started;
};

static infer_status copy_stops(infer_session *s, const char *const *stop, infer_error *err)
{
    for (; stop && *stop; stop++) {
        size_t n = strlen(*stop);
        if (!n) continue;
        if (n > MAX_STOP_BYTES || s->n_stops == MAX_STOPS)
            return error_set(err, INFER_LIMIT, "stop: expected at most %d strings of %d bytes",
                             MAX_STOPS, MAX_STOP_BYTES);
        s->stops[s->n_stops] = mem_strdup(*stop);
        if (!s->stops[s->n_stops++]) return error_set(err, INFER_NOMEM, "session: out of memory");
        if (n > s->longest_stop) s->longest_stop = n;
    }
    return INFER_OK;
}

static size_t longest_token(const tokenizer *t)
{
    size_t longest = 16;
    for (int32_t id = 0, n_vocab = tok_n_vocab(t); id < n_vocab; id++) {
        size_t n;
        if (tok_token(t, id, &n) && n > longest) longest = n;
    }
    return longest;
}

infer_status infer_session_new(infer_session **out, const infer_model *model,
                               const infer_session_options *options, infer_error *err)
{
    *out = NULL;
    double from = clock_seconds();
    infer_session *s = mem_zero(1, sizeof *s);
    if (!s) return error_set(err, INFER_NOMEM, "session: out of memory");
    if (options) s->o = *options;
    s->model = model;
    infer_engine_options e = { .n_threads = s->o.n_threads,
                               .n_ctx = s->o.n_ctx,
                               .max_sequences = 1,
                               .backend = s->o.backend,
                               .cpu_level = s->o.cpu_level,
                               .kv_type = s->o.kv_type,
                               .kv_type_k = s->o.kv_type_k,
                               .kv_type_v = s->o.kv_type_v,
                               .exact = s->o.exact,
                               .walk_from = s->o.walk_from,
                               .walk_keep = s->o.walk_keep,
                               .log = s->o.log };
    infer_status st = copy_stops(s, s->o.stop, err);
    if (!st && s->o.max_tokens < 0)
        st = error_set(err, INFER_ARGUMENT, "max_tokens: expected 0 or more, found %d",
                       s->o.max_tokens);
    if (!st) st = infer_engine_new(&s->engine, model, &e, err);
    if (!st && !(s->seq = infer_sequence_new(s->engine, err))) st = INFER_NOMEM;
    if (!st &&
        !(s->sampler = infer_sampler_new(&s->o.sampling, model->n_vocab, s->engine->n_ctx, err)))
        st = INFER_ARGUMENT;
    if (!st && model->tok) {
        st = tok_stream_new(&s->stream, model->tok, true, err);
        // A token's text can triple where bytes become U+FFFD.
        // A run of byte tokens is given out whole.
        s->pending_cap = s->longest_stop + 8 * longest_token(model->tok) + TOK_STREAM_MOST;
    }
    if (!st) {
        s->rows = mem_zero((size_t)s->engine->max_rows, sizeof *s->rows);
        s->pending = mem_zero(s->pending_cap + 1, 1);
        s->piece = mem_zero(s->pending_cap + 1, 1);
        s->ids = mem_alloc((size_t)s->engine->n_ctx, sizeof *s->ids);
        if (!s->rows || !s->pending || !s->piece || !s->ids)
            st = error_set(err, INFER_NOMEM, "session: out of memory");
        if (!st && s->o.draft >= 0) st = draft_new(&s->draft, s->engine->n_ctx, err);
    }
    if (st) {
        infer_session_free(s);
        return st;
    }
    s->stats.mapped_bytes = model->file_bytes;
    s->stats.kv_bytes = s->engine->kv.bytes;
    s->stats.work_bytes = s->engine->ws.bytes;
    s->stats.seed = infer_sampler_seed(s->sampler);
    s->stats.bytes_per_token = infer_model_describe(model).bytes_per_token;
    s->stats.load_s = model->open_s + clock_seconds() - from;
    *out = s;
    return error_clear(err);
}

void infer_session_free(infer_session *s)
{
    if (!s) return;
    infer_sampler_free(s->sampler);
    tok_stream_free(s->stream);
    infer_sequence_free(s->seq);
    infer_engine_free(s->engine);
    for (int i = 0; i < s->n_stops; i++)
        mem_free(s->stops[i]);
    infer_template_free(s->own);
    draft_free(s->draft);
    mem_free(s->ids);
    mem_free(s->rows);
    mem_free(s->pending);
    mem_free(s->piece);
    mem_free(s);
}

/* A row whose logits choose the next id. */
static infer_row choosing_row(infer_session *s, int32_t id)
{
    infer_row row = { .seq = s->seq, .token = id, .want = INFER_WANT_LOGITS };
    int k = infer_sampler_top(s->sampler, &row.also, &row.n_also);
    if (!k) return row;
    row.want = INFER_WANT_TOP;
    row.top = k;
    return row;
}

static int32_t choose(infer_session *s)
{
    const int32_t *ids;
    const float *logits;
    int n = infer_top(s->engine, s->last_row, &ids, &logits);
    return ids ? infer_sample_top(s->sampler, ids, logits, n) : infer_sample(s->sampler, logits);
}

/* ---- drafts ---- */

/* Takes unverified tokens out of the sequence; `wrong`: the first of them was. */
static void drop_drafts(infer_session *s, bool wrong)
{
    if (s->draft) draft_held(s->draft, s->n_held, wrong);
    s->n_held = 0;
    if (!s->n_drafts) return;
    // Never refused: the cache keeps what its last DRAFT_MOST positions see.
    infer_sequence_truncate(s->seq, s->seq->kv.length - s->n_drafts, NULL);
    s->n_drafts = 0;
}

/* Forgets the text from position n on, where the cache still can. */
static infer_status cut(infer_session *s, int n)
{
    drop_drafts(s, false);
    s->is_drafted = false;
    infer_status st = infer_sequence_truncate(s->seq, n, NULL);
    if (!st && s->draft) draft_cut(s->draft, n);
    return st;
}

/* Guesses after rows[0]; returns their number. */
static int add_drafts(infer_session *s)
{
    if (!s->draft) return 0;
    int32_t guess[DRAFT_MOST];
    int n = s->seq->kv.length, most = s->o.draft > 0 ? s->o.draft : DRAFT_MOST;
    int room = s->engine->n_ctx - n - 1;
    if (most > room) most = room;
    if (most > s->engine->max_rows - 1) most = s->engine->max_rows - 1;
    // Tokens that may still be made, of which a step without drafts makes one.
    if (s->o.max_tokens && most > s->o.max_tokens - s->n_generated - 1)
        most = s->o.max_tokens - s->n_generated - 1;
    s->ids[n] = s->rows[0].token;
    most = draft_propose(s->draft, guess, s->ids, n + 1, most, s->o.draft > 0);
    for (int i = 0; i < most; i++) {
        infer_row *row = &s->rows[i + 1];
        *row = choosing_row(s, guess[i]);
        // Penalties will see the guesses before it, which the sampler has not accepted yet.
        if (sampler_penalises(s->sampler)) row->want = INFER_WANT_LOGITS;
    }
    return most;
}

/* ---- prompt ---- */

/* Steps over the first n of s->rows and keeps their ids. */
static infer_status feed(infer_session *s, int n, infer_error *err)
{
    infer_status st = infer_step(s->engine, s->rows, n, err);
    for (int i = 0; !st && i < n; i++)
        s->ids[s->seq->kv.length - n + i] = s->rows[i].token;
    return st;
}

/* The last token, which is yet to be fed, and what may follow it. */
static infer_status feed_owed(infer_session *s, infer_error *err)
{
    int n = add_drafts(s);
    double from = clock_seconds();
    infer_status st = feed(s, n + 1, err);
    if (st) return st;
    if (s->draft) draft_timed(s->draft, n, clock_seconds() - from);
    s->last_row = 0;
    s->is_drafted = false;
    s->n_drafts = n;
    s->n_held = 0;
    s->stats.n_drafted += n;
    return INFER_OK;
}

static void forget_cancel(infer_session *s)
{
    atomic_store(&s->cancel, 0);
    atomic_store(&s->engine->cancel, 0);
}

infer_status infer_session_prompt_ids(infer_session *s, const int32_t *ids, size_t n,
                                      infer_error *err)
{
    drop_drafts(s, false);
    int length = s->seq->kv.length, n_ctx = s->engine->n_ctx;
    if (!n) return error_set(err, INFER_ARGUMENT, "prompt: it has no tokens");
    // The last generated id is part of the text, but was not fed yet.
    bool owed = s->have_logits && s->last_row < 0;
    if (n > (size_t)(n_ctx - length - owed))
        return error_set(err, INFER_LIMIT, "prompt: %zu tokens after %d do not fit a context of %d",
                         n, length + owed, n_ctx);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->model->n_vocab)
            return error_set(err, INFER_ARGUMENT, "prompt: token %d, expected 0 to %d", ids[i],
                             s->model->n_vocab - 1);
    if (s->stats.finish != INFER_FINISH_NONE) forget_cancel(s); // it was meant for what has ended
    s->started = clock_seconds();
    if (owed) {
        infer_status st = feed(s, 1, err);
        if (st == INFER_CANCELLED) forget_cancel(s);
        if (st) return st;
        s->last_row = 0;
        length++;
    }
    s->seq->rope_len = length + (int)n;
    for (size_t done = 0; done < n;) {
        int rows = n - done < (size_t)s->engine->max_rows ? (int)(n - done) : s->engine->max_rows;
        for (int r = 0; r < rows; r++) {
            bool last = done + (size_t)r + 1 == n;
            s->rows[r] = (infer_row){ .seq = s->seq, .token = ids[done + (size_t)r] };
            // Penalties will see the prompt, which the sampler has not accepted yet.
            if (last && sampler_penalises(s->sampler))
                s->rows[r].want = INFER_WANT_LOGITS;
            else if (last)
                s->rows[r] = choosing_row(s, ids[done + (size_t)r]);
        }
        infer_status st = feed(s, rows, err);
        if (st) { // as before the call, where the cache still can
            if (st == INFER_CANCELLED) forget_cancel(s);
            cut(s, length);
            return st;
        }
        done += (size_t)rows;
        s->last_row = rows - 1;
        s->is_drafted = false;
        if (s->o.progress) s->o.progress((int)done, (int)n, s->o.progress_user);
    }
    for (size_t i = 0; i < n; i++)
        infer_sampler_accept(s->sampler, ids[i]);
    s->seq->rope_len = 0;
    s->have_logits = true;
    s->flushed = false;
    s->n_generated = 0;
    s->n_pending = 0;
    if (s->stream) tok_stream_reset(s->stream);
    s->stats.finish = INFER_FINISH_NONE;
    s->stats.n_prompt += (int)n;
    s->stats.prompt_s += clock_seconds() - s->started;
    return error_clear(err);
}

infer_status infer_session_prompt(infer_session *s, const char *text, infer_error *err)
{
    if (!s->model->tok)
        return error_set(err, INFER_UNSUPPORTED, "%s: the file has no vocabulary: give token ids",
                         s->model->path);
    int32_t *ids = NULL;
    size_t n = 0;
    tok_options o = { .no_special = s->seq->kv.length > 0 };
    infer_status st = tok_encode(s->model->tok, &ids, &n, text, strlen(text), &o, err);
    int32_t bos = tok_bos(s->model->tok);
    if (!st && !o.no_special && tok_adds_bos(s->model->tok) && n > 1 && ids[0] == bos &&
        ids[1] == bos) { // twice would move every position by one
        log_line(&s->o.log, INFER_LOG_WARN,
                 "the prompt begins with %s, which is added anyway: one is kept",
                 tok_token(s->model->tok, bos, NULL));
        memmove(ids, ids + 1, --n * sizeof *ids);
    }
    // An empty prompt begins a text: the model's BOS alone, where it has one.
    if (!st) st = infer_session_prompt_ids(s, ids, n, err);
    mem_free(ids);
    return st;
}

/* ---- chat ---- */

void infer_session_clear(infer_session *s)
{
    cut(s, 0); // from position 0 nothing is needed
    sampler_forget(s->sampler);
    forget_cancel(s);
    s->have_logits = s->flushed = false;
    s->last_row = 0;
    s->n_pending = 0;
    s->stats.finish = INFER_FINISH_NONE;
}

/* Positions of the sequence that begin ids too and need not be computed again. */
static int reusable(const infer_session *s, const int32_t *ids, size_t n)
{
    const infer_model *m = s->model;
    for (int i = 0; i < m->n_ropes; i++) { // frequencies that differ with the length: only if equal
        const rope_plan *r = &m->ropes[i];
        bool varies = r->scaling == ROPE_DYNAMIC || r->scaling == ROPE_LONGROPE;
        if (varies && ((int)n > r->original_len || s->seq->kv.length > r->original_len)) return 0;
    }
    int k = 0;
    while (k < s->seq->kv.length && (size_t)k + 1 < n && s->ids[k] == ids[k])
        k++;
    return k;
}

static infer_status feed_conversation(infer_session *s, const int32_t *ids, size_t n,
                                      infer_error *err)
{
    if (n > (size_t)s->engine->n_ctx)
        return error_set(err, INFER_LIMIT, "chat: %zu tokens do not fit a context of %d", n,
                         s->engine->n_ctx);
    drop_drafts(s, false);
    int k = reusable(s, ids, n);
    if (cut(s, k)) { // a window has dropped what is needed
        k = 0;
        cut(s, 0);
    }
    s->have_logits = false;
    s->last_row = 0;
    // Penalties see this conversation, not what was made and then dropped.
    sampler_forget(s->sampler);
    for (int i = 0; i < k; i++)
        infer_sampler_accept(s->sampler, ids[i]);
    return infer_session_prompt_ids(s, ids + k, n - (size_t)k, err);
}

infer_status infer_session_chat(infer_session *s, const infer_message *messages, size_t n,
                                const infer_template *t, infer_error *err)
{
    if (!s->model->tok)
        return error_set(err, INFER_UNSUPPORTED, "%s: the file has no vocabulary", s->model->path);
    infer_status st = INFER_OK;
    if (!t && !s->own) st = infer_template_new(&s->own, infer_model_tokenizer(s->model), NULL, err);
    if (st) return error_prefix(err, "%s", s->model->path);
    chat_message *list = mem_alloc(n ? n : 1, sizeof *list);
    if (!list) return error_set(err, INFER_NOMEM, "chat: out of memory");
    for (size_t i = 0; i < n; i++)
        list[i] = (chat_message){ messages[i].role, messages[i].content };
    struct tm tm;
    time_t clock = time(NULL);
    chat_request q = { .messages = list,
                       .n_messages = n,
                       .add_generation_prompt = true,
                       .now = localtime_r(&clock, &tm) };
    int32_t *ids = NULL;
    size_t n_ids = 0;
    st = chat_encode((const chat_template *)(t ? t : s->own), &ids, &n_ids, &q, err);
    if (!st) st = feed_conversation(s, ids, n_ids, err);
    mem_free(ids);
    mem_free(list);
    return st;
}

/* ---- generation ---- */

static bool ends(const infer_session *s, int32_t id)
{
    if (s->o.ignore_eos) return false;
    for (int i = 0; i < s->model->n_eos_ids; i++)
        if (s->model->eos_ids[i] == id) return true;
    return s->model->tok && tok_is_end(s->model->tok, id);
}

static int32_t finish(infer_session *s, infer_finish why, infer_error *err)
{
    s->stats.finish = why;
    drop_drafts(s, false);
    error_clear(err);
    return -1;
}

/* id is what comes next: a row that is there already, or one that is owed. */
static void go_on(infer_session *s, int32_t id)
{
    // Counted by positions: the id just made takes one, whether or not it will be fed.
    if (s->seq->kv.length - s->n_drafts + 1 >= s->engine->n_ctx)
        s->stats.finish = INFER_FINISH_LENGTH;
    s->is_drafted = s->n_drafts && s->rows[s->last_row + 1].token == id;
    if (s->is_drafted) {
        s->last_row++;
        s->n_drafts--;
        s->n_held++;
        s->stats.n_accepted++;
        return;
    }
    drop_drafts(s, s->n_drafts > 0);
    s->rows[0] = choosing_row(s, id);
    s->last_row = -1;
}

int32_t infer_session_next_id(infer_session *s, infer_error *err)
{
    if (s->stats.finish != INFER_FINISH_NONE) return finish(s, s->stats.finish, err);
    if (!s->have_logits) {
        error_set(err, INFER_ARGUMENT, "session: no prompt was given");
        return -1;
    }
    if (atomic_load(&s->cancel)) { // it came between two steps
        forget_cancel(s);
        return finish(s, INFER_FINISH_CANCELLED, err);
    }
    if (s->o.max_tokens && s->n_generated >= s->o.max_tokens)
        return finish(s, INFER_FINISH_LENGTH, err);
    // A prompt that fills the context leaves no position for an answer.
    if (s->last_row >= 0 && s->seq->kv.length - s->n_drafts >= s->engine->n_ctx)
        return finish(s, INFER_FINISH_LENGTH, err);
    double from = clock_seconds();
    if (s->last_row < 0) { // the last id is not yet in the sequence
        infer_status st = feed_owed(s, err);
        if (st == INFER_CANCELLED) {
            forget_cancel(s);
            return finish(s, INFER_FINISH_CANCELLED, err);
        }
        if (st) return -1;
    }
    int32_t id = choose(s);
    s->is_drafted = false;
    if (id < 0) {
        error_set(err, INFER_INTERNAL, "%s: every logit is not a number", s->model->path);
        return -1;
    }
    double to = clock_seconds();
    if (!s->n_generated) s->stats.first_token_s = to - s->started;
    s->stats.generate_s += to - from;
    if (ends(s, id)) return finish(s, INFER_FINISH_STOP, err);
    s->n_generated++;
    s->stats.n_generated++;
    infer_sampler_accept(s->sampler, id);
    go_on(s, id);
    error_clear(err);
    return id;
}

/* First stop string in pending, its place; n_pending: none. */
static size_t find_stop(const infer_session *s)
{
    size_t at = s->n_pending;
    for (int i = 0; i < s->n_stops; i++) {
        const char *p = memmem(s->pending, s->n_pending, s->stops[i], strlen(s->stops[i]));
        if (p && (size_t)(p - s->pending) < at) at = (size_t)(p - s->pending);
    }
    return at;
}

/* Bytes at the end of pending that may be the beginning of a stop string. */
static size_t held_back(const infer_session *s)
{
    size_t most = 0;
    for (int i = 0; i < s->n_stops; i++) {
        size_t n = strlen(s->stops[i]) - 1;
        if (n > s->n_pending) n = s->n_pending;
        while (n && memcmp(s->pending + s->n_pending - n, s->stops[i], n))
            n--;
        if (n > most) most = n;
    }
    return most;
}

static const char *give(infer_session *s, size_t n)
{
    memcpy(s->piece, s->pending, n);
    s->piece[n] = 0;
    s->n_pending -= n;
    memmove(s->pending, s->pending + n, s->n_pending);
    return s->piece;
}

const char *infer_session_next(infer_session *s, infer_error *err)
{
    if (!s->stream) {
        error_set(err, INFER_UNSUPPORTED, "%s: the file has no vocabulary: ask for ids",
                  s->model->path);
        return NULL;
    }
    while (!s->flushed) {
        int32_t id = infer_session_next_id(s, err);
        if (id < 0 && s->stats.finish == INFER_FINISH_NONE) return NULL;
        size_t n;
        const char *text =
            id < 0 ? tok_stream_flush(s->stream, &n) : tok_stream_push(s->stream, id, &n);
        if (n > s->pending_cap - s->n_pending) {
            error_set(err, INFER_INTERNAL, "session: a token's text of %zu bytes is too long", n);
            return NULL;
        }
        memcpy(s->pending + s->n_pending, text, n);
        s->n_pending += n;
        size_t stop = find_stop(s);
        if (stop < s->n_pending) {
            s->n_pending = stop;
            finish(s, INFER_FINISH_STOP, err);
            id = -1;
        }
        s->flushed = id < 0;
        size_t ready = s->flushed ? s->n_pending : s->n_pending - held_back(s);
        error_clear(err);
        if (ready) return give(s, ready);
    }
    error_clear(err);
    return NULL;
}

infer_finish infer_session_finish(const infer_session *s) { return s->stats.finish; }
infer_engine *infer_session_engine(infer_session *s) { return s->engine; }
infer_sequence *infer_session_sequence(infer_session *s)
{
    drop_drafts(s, false);
    if (s->is_drafted) { // as without drafts: the last token is yet to be fed
        infer_sequence_truncate(s->seq, s->seq->kv.length - 1, NULL);
        s->rows[0] = s->rows[s->last_row];
        s->last_row = -1;
        s->is_drafted = false;
    }
    return s->seq;
}
infer_stats infer_session_stats(const infer_session *s)
{
    infer_stats stats = s->stats;
    stats.repacked_bytes = infer_model_describe(s->model).repacked_bytes +
                           infer_engine_describe(s->engine).repacked_bytes;
    return stats;
}

void infer_session_cancel(infer_session *s)
{
    atomic_store(&s->cancel, 1);
    infer_engine_cancel(s->engine);
}
