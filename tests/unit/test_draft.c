/*
 * test_draft.c: drafts change nothing but the time: sessions with and without them give the same ids
 * and leave the same state, on every family of tests/golden/families (windows and rings, experts,
 * latent attention among them); and the guesser itself.
 */
#include "test.h"

#include <dirent.h>

#include "inference/draft.h"
#include "infer.h"

#define FOLDER "tests/golden/families"

enum { N_PROMPT = 60, N_ANSWER = 80, N_CTX = 240 };

typedef struct outcome {
    int32_t ids[2 * N_ANSWER];
    int n, n_prompt, length;
    float logits[8]; // of one more token after all
    infer_finish finish[2];
    infer_stats stats;
} outcome;

/* Two prompts and answers, and the state after them. */
static void generate(outcome *out, const infer_model *m, infer_session_options o, int n_ctx)
{
    infer_error err;
    infer_session *s;
    int n_vocab = infer_model_describe(m).n_vocab;
    int32_t ids[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++) // repeats itself, not quite
        ids[i] = (i % 12 * 31 + (i % 17 == 0) + 3) % n_vocab;
    memset(out, 0, sizeof *out);
    o.n_ctx = n_ctx;
    o.n_threads = 2;
    if (infer_session_new(&s, m, &o, &err)) fail_msg("%s", err.msg);
    int room = n_ctx - 1;
    for (int turn = 0; turn < 2 && room > 8; turn++) {
        int n = room / 2 < N_PROMPT >> turn ? room / 2 : N_PROMPT >> turn;
        if (infer_session_prompt_ids(s, ids, (size_t)n, &err)) fail_msg("%s", err.msg);
        int32_t id;
        while ((id = infer_session_next_id(s, &err)) >= 0) out->ids[out->n++] = id;
        assert_int_equal(err.code, INFER_OK);
        out->finish[turn] = infer_session_finish(s);
        out->n_prompt += n;
        room = n_ctx - 1 - out->n_prompt - out->n;
    }
    out->stats = infer_session_stats(s);
    assert_int_equal(out->stats.n_generated, out->n);
    infer_sequence *seq = infer_session_sequence(s);
    out->length = infer_sequence_length(seq);
    if (out->length < n_ctx) {
        infer_row row = { .seq = seq, .token = 1, .want = INFER_WANT_LOGITS };
        assert_int_equal(infer_step(infer_session_engine(s), &row, 1, &err), INFER_OK);
        memcpy(out->logits, infer_logits(infer_session_engine(s), 0), sizeof out->logits);
    }
    infer_session_free(s);
}

static int n_drafted, n_accepted, n_models;

static void compare(const char *path)
{
    infer_model *m;
    infer_error err;
    if (infer_model_open(&m, path, NULL, &err)) fail_msg("%s", err.msg);
    int trained = infer_model_describe(m).n_ctx_train;
    const infer_session_options cases[] = {
        { .ignore_eos = true },
        { .sampling = { .temperature = 0.6f, .seed = 11, .top_k = 12 }, .ignore_eos = true },
        { .sampling = { .temperature = 0.3f, .seed = 5, .repeat_penalty = 1.1f } },
    };
    for (int c = 0; c < 3; c++) {
        static outcome want, got;
        infer_session_options o = cases[c];
        o.max_tokens = N_ANSWER;
        int n_ctx = trained > 0 && trained < N_CTX ? trained : N_CTX;
        o.draft = -1;
        generate(&want, m, o, n_ctx);
        assert_int_equal(want.stats.n_drafted, 0);
        const int most[] = { 0, 3, 15 };
        for (int i = 0; i < 3; i++) {
            o.draft = most[i];
            generate(&got, m, o, n_ctx);
            if (got.n != want.n || memcmp(got.ids, want.ids, sizeof got.ids))
                fail_msg("%s: case %d, drafts of %d: other ids", path, c, most[i]);
            assert_int_equal(got.length, want.length);
            assert_memory_equal(got.logits, want.logits, sizeof got.logits);
            assert_memory_equal(got.finish, want.finish, sizeof got.finish);
            assert_true(got.stats.n_accepted <= got.stats.n_drafted);
            n_drafted += got.stats.n_drafted;
            n_accepted += got.stats.n_accepted;
        }
    }
    n_models++;
    infer_model_close(m);
}

static void drafts_change_nothing(void **state)
{
    (void)state;
    DIR *d = opendir(FOLDER);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, FOLDER "/%s", e->d_name);
        DIR *inner = e->d_name[0] == '.' ? NULL : opendir(path);
        if (!inner) continue;
        closedir(inner);
        compare(path);
    }
    closedir(d);
    assert_true(n_models >= 13);
    // Both ways were gone.
    assert_true(n_accepted > 100);
    assert_true(n_drafted - n_accepted > 100);
}

static draft *guesser(int n_ctx)
{
    draft *d;
    assert_int_equal(draft_new(&d, n_ctx, NULL), INFER_OK);
    return d;
}

static void the_longest_and_latest_repetition_is_followed(void **state)
{
    (void)state;
    draft *d = guesser(64);
    //                      0  1  2  3   4  5  6   7  8  9  10 11 12
    const int32_t ids[] = { 9, 1, 2, 70, 1, 2, 71, 8, 1, 2, 72, 9, 1, 2 };
    int32_t out[DRAFT_MOST];
    assert_int_equal(draft_propose(d, out, ids, 2, 4, true), 0); // nothing before
    assert_int_equal(draft_propose(d, out, ids, 10, 2, true), 2);
    assert_int_equal(out[0], 71); // the latest of equals
    assert_int_equal(draft_propose(d, out, ids, 14, 3, true), 3);
    assert_int_equal(out[0], 70); // "9 1 2" is longer
    assert_int_equal(out[1], 1);
    // A text of its own period goes on into the guess.
    const int32_t same[] = { 5, 6, 5, 6, 5, 6 };
    draft_cut(d, 0);
    assert_int_equal(draft_propose(d, out, same, 6, 5, true), 5);
    for (int i = 0; i < 5; i++) assert_int_equal(out[i], i % 2 ? 6 : 5);
    // What was cut off is not found again.
    const int32_t other[] = { 5, 6, 30, 31, 5, 6 };
    draft_cut(d, 2);
    assert_int_equal(draft_propose(d, out, other, 6, 2, true), 2);
    assert_int_equal(out[0], 30);
    assert_int_equal(draft_propose(d, out, other, 6, 0, true), 0);
    draft_free(d);
}

/* Plays a text whose drafts hold `held` tokens, where steps take 1 ms a token and `row` more for
 * each drafted one; returns the time over that of single steps. */
static double play(int held, double row)
{
    draft *d = guesser(4096);
    static int32_t ids[4096];
    int n = 200, n_made = 0;
    for (int i = 0; i < 4096; i++) ids[i] = i % 50;
    double time = 0;
    while (n_made < 2000) {
        int32_t out[DRAFT_MOST];
        int k = draft_propose(d, out, ids, n + n_made, DRAFT_MOST, false);
        double t = 0.001 + k * row;
        draft_timed(d, k, t);
        int right = held < k ? held : k;
        if (k) draft_held(d, right, right < k);
        time += t;
        n_made += right + 1;
    }
    draft_free(d);
    return time / (n_made * 0.001);
}

static void drafts_are_made_where_they_pay(void **state)
{
    (void)state;
    assert_true(play(0, 0.0002) < 1.03);  // never right
    assert_true(play(0, 0.002) < 1.03);   // and dear
    assert_true(play(1, 0.0009) < 1.03);  // hardly worth it
    assert_true(play(15, 0.0002) < 0.35); // always right
    assert_true(play(3, 0.0001) < 0.6);
    assert_true(play(15, 0.002) < 1.03); // right, but dearer than single steps
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_and_latest_repetition_is_followed),
        cmocka_unit_test(drafts_are_made_where_they_pay),
        cmocka_unit_test(drafts_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
