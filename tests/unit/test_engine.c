/*
 * test_engine.c: steps, sequences and sessions on the tiny model: a row's bits do not depend on its
 * neighbours, threads or chunks; forks and truncation; limits; no allocation while generating.
 */
#include "test.h"

#include "base/mem.h"
#include "infer.h"

#define TINY "tests/golden/tiny/control_gguf_bpe_f32.gguf"

static const int32_t prompt[] = { 116, 257, 32, 258, 110, 261, 32 }; // "the inner "
static const int32_t answer[] = { 261, 97, 98, 259, 118, 120, 118, 114 };
enum { N_PROMPT = 7, N_ANSWER = 8, N_VOCAB = 263 };

static infer_model *model;

static int open_model(void **state)
{
    (void)state;
    infer_error err;
    if (infer_model_open(&model, TINY, NULL, &err)) fprintf(stderr, "%s\n", err.msg);
    return model ? 0 : -1;
}
static int close_model(void **state)
{
    (void)state;
    infer_model_close(model);
    return 0;
}

static infer_engine *engine(infer_engine_options o)
{
    infer_error err;
    infer_engine *e;
    if (infer_engine_new(&e, model, &o, &err)) fail_msg("%s", err.msg);
    return e;
}

/* Feeds ids to s, `chunk` a step, beside `others`; the last row's logits to z [N_VOCAB]. */
static void feed(infer_engine *e, infer_sequence *s, const int32_t *ids, int n, int chunk,
                 infer_sequence **others, int n_others, float *z)
{
    infer_error err;
    for (int done = 0; done < n;) {
        infer_row rows[64];
        int n_rows = 0, mine = n - done < chunk ? n - done : chunk;
        for (int i = 0; i < n_others / 2; i++)
            rows[n_rows++] = (infer_row){ .seq = others[i], .token = 40 + i };
        for (int i = 0; i < mine; i++)
            rows[n_rows++] = (infer_row){ .seq = s, .token = ids[done + i],
                                          .want = INFER_WANT_LOGITS };
        int last = n_rows - 1;
        for (int i = n_others / 2; i < n_others; i++)
            rows[n_rows++] = (infer_row){ .seq = others[i], .token = 60 + i };
        assert_int_equal(infer_step(e, rows, n_rows, &err), INFER_OK);
        done += mine;
        assert_non_null(infer_logits(e, last));
        memcpy(z, infer_logits(e, last), N_VOCAB * sizeof *z);
    }
}

static void a_row_depends_on_its_sequence_alone(void **state)
{
    (void)state;
    int32_t ids[100];
    for (int i = 0; i < 100; i++) ids[i] = (i * 37 + 11) % N_VOCAB;
    for (int exact = 0; exact < 2; exact++) {
        float want[N_VOCAB], z[N_VOCAB];
        bool have = false;
        for (int level = 0; infer_cpu_level(level, NULL); level++) {
            bool here;
            const char *name = infer_cpu_level(level, &here);
            for (int threads = 1; here && threads <= 4; threads++) {
                const int chunks[] = { 1, 7, 13, 50, 100 };
                for (int c = 0; c < 5; c++) {
                    if (chunks[c] == 100 && threads > 2) continue;
                    int beside = (threads - 1) * 2;
                    infer_engine *e = engine((infer_engine_options){
                        .n_threads = threads, .cpu_level = name, .exact = exact, .max_rows = 128,
                        .n_kv_tokens = 2048 });
                    infer_sequence *s = infer_sequence_new(e, NULL), *others[8];
                    for (int i = 0; i < beside; i++) others[i] = infer_sequence_new(e, NULL);
                    if (chunks[c] > 50) beside = 0; // 64 rows are the helper's most
                    if (chunks[c] <= 50)
                        feed(e, s, ids, 100, chunks[c], others, beside, z);
                    else
                        feed(e, s, ids, 60, 60, NULL, 0, z), feed(e, s, ids + 60, 40, 40, NULL, 0, z);
                    // Every level computes the same bits too.
                    if (!have) memcpy(want, z, sizeof want);
                    have = true;
                    assert_memory_equal(z, want, sizeof want);
                    infer_sequence_free(s);
                    for (int i = 0; i < (threads - 1) * 2; i++) infer_sequence_free(others[i]);
                    infer_engine_free(e);
                }
            }
        }
    }
}

static int32_t best(const float *z)
{
    infer_prediction p;
    assert_int_equal(infer_top_k(z, N_VOCAB, 1, &p), 1);
    return p.id;
}

static void greedy_ids_are_known(void **state)
{
    (void)state;
    infer_engine *e = engine((infer_engine_options){ 0 });
    infer_sequence *s = infer_sequence_new(e, NULL);
    float z[N_VOCAB];
    feed(e, s, prompt, N_PROMPT, 64, NULL, 0, z);
    for (int i = 0; i < N_ANSWER; i++) {
        assert_int_equal(best(z), answer[i]);
        feed(e, s, &answer[i], 1, 1, NULL, 0, z);
    }
    assert_int_equal(infer_sequence_length(s), N_PROMPT + N_ANSWER);
    infer_sequence_free(s);
    infer_engine_free(e);
}

static void forks_and_truncation_change_no_bit(void **state)
{
    (void)state;
    infer_engine *e = engine((infer_engine_options){ 0 });
    infer_sequence *a = infer_sequence_new(e, NULL);
    float want[N_VOCAB], z[N_VOCAB];
    feed(e, a, prompt, N_PROMPT, 64, NULL, 0, z);
    infer_sequence *b = infer_sequence_fork(a, NULL);
    feed(e, a, answer, N_ANSWER, 3, NULL, 0, want);
    int32_t other[] = { 5, 6, 7 };
    feed(e, b, other, 3, 3, NULL, 0, z);
    assert_memory_not_equal(z, want, sizeof want);
    assert_int_equal(infer_sequence_truncate(b, N_PROMPT, NULL), INFER_OK);
    feed(e, b, answer, N_ANSWER, 1, NULL, 0, z);
    assert_memory_equal(z, want, sizeof want);
    infer_sequence_truncate(a, 2, NULL);
    feed(e, a, prompt + 2, N_PROMPT - 2, 2, NULL, 0, z);
    feed(e, a, answer, N_ANSWER, 8, NULL, 0, z);
    assert_memory_equal(z, want, sizeof want);
    infer_sequence_free(a);
    infer_sequence_free(b);
    infer_engine_free(e);
}

static void bad_steps_change_nothing(void **state)
{
    (void)state;
    infer_error err;
    infer_engine *e = engine((infer_engine_options){ .n_ctx = 8, .max_rows = 16 });
    infer_sequence *s = infer_sequence_new(e, NULL), *t = infer_sequence_new(e, NULL);
    infer_row rows[17];
    for (int i = 0; i < 17; i++) rows[i] = (infer_row){ .seq = s, .token = i };
    assert_int_equal(infer_step(e, rows, 9, &err), INFER_LIMIT);
    assert_non_null(strstr(err.msg, "context of 8"));
    assert_int_equal(infer_step(e, rows, 17, &err), INFER_ARGUMENT);
    assert_int_equal(infer_step(e, rows, 0, &err), INFER_ARGUMENT);
    rows[1].token = N_VOCAB;
    assert_int_equal(infer_step(e, rows, 3, &err), INFER_ARGUMENT);
    assert_non_null(strstr(err.msg, "263"));
    rows[1].token = -1;
    assert_int_equal(infer_step(e, rows, 3, &err), INFER_ARGUMENT);
    rows[1].token = 1;
    rows[1].seq = t; // s, t, s
    assert_int_equal(infer_step(e, rows, 3, &err), INFER_ARGUMENT);
    assert_int_equal(infer_sequence_length(s), 0);
    assert_null(infer_logits(e, 0));
    assert_int_equal(infer_step(e, rows, 2, &err), INFER_OK);
    assert_int_equal(infer_sequence_length(s), 1);
    assert_int_equal(infer_sequence_length(t), 1);
    infer_sequence_free(s);
    infer_sequence_free(t);
    infer_engine_free(e);
}

static void cancelling_leaves_the_sequence_as_it_was(void **state)
{
    (void)state;
    infer_error err;
    infer_engine *e = engine((infer_engine_options){ 0 });
    infer_sequence *s = infer_sequence_new(e, NULL);
    infer_row row = { .seq = s, .token = 1, .want = INFER_WANT_LOGITS };
    infer_engine_cancel(e);
    assert_int_equal(infer_step(e, &row, 1, &err), INFER_CANCELLED);
    assert_int_equal(infer_sequence_length(s), 0);
    assert_int_equal(infer_step(e, &row, 1, &err), INFER_OK);
    infer_sequence_free(s);
    infer_engine_free(e);
}

static void capture_gives_the_residual_stream_and_attention(void **state)
{
    (void)state;
    infer_error err;
    infer_engine *e = engine((infer_engine_options){ .exact = true });
    infer_sequence *s = infer_sequence_new(e, NULL);
    infer_model_info info = infer_model_describe(model);
    size_t layer = (size_t)N_PROMPT * info.d_model;
    float *hidden = mem_zero((size_t)(info.n_layers + 1) * layer, sizeof *hidden);
    float *att = mem_zero((size_t)info.n_heads * N_PROMPT * N_PROMPT, sizeof *att);
    infer_capture c = { .hidden = hidden, .attention = att, .layer = 1 };
    assert_int_equal(infer_engine_capture(e, &c, &err), INFER_OK);
    infer_row rows[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        rows[i] = (infer_row){ .seq = s, .token = prompt[i],
                               .want = INFER_WANT_LOGITS | INFER_WANT_HIDDEN };
    assert_int_equal(infer_step(e, rows, N_PROMPT, &err), INFER_OK);
    for (int r = 0; r < N_PROMPT; r++)
        assert_memory_equal(infer_hidden(e, r),
                            hidden + (size_t)info.n_layers * layer + (size_t)r * info.d_model,
                            (size_t)info.d_model * sizeof(float));
    for (int h = 0; h < info.n_heads; h++)
        for (int r = 0; r < N_PROMPT; r++) {
            const float *row = att + ((size_t)h * N_PROMPT + r) * N_PROMPT;
            double sum = 0;
            for (int k = 0; k < N_PROMPT; k++) {
                if (k > r) assert_true(row[k] == 0);
                sum += row[k];
            }
            assert_true(sum > 1 - 1e-5 && sum < 1 + 1e-5);
        }
    // attention of a continuation is refused
    assert_int_equal(infer_step(e, rows, 1, &err), INFER_ARGUMENT);
    assert_int_equal(infer_engine_capture(e, NULL, &err), INFER_OK);
    assert_int_equal(infer_step(e, rows, 1, &err), INFER_OK);
    mem_free(hidden);
    mem_free(att);
    infer_sequence_free(s);
    infer_engine_free(e);
}

/* ---- sessions ---- */

static void collect(infer_session *s, char *text, size_t size)
{
    infer_error err;
    text[0] = 0;
    for (const char *piece; (piece = infer_session_next(s, &err));)
        snprintf(text + strlen(text), size - strlen(text), "%s", piece);
    assert_int_equal(err.code, INFER_OK);
}

static void sessions_stop_where_they_should(void **state)
{
    (void)state;
    const struct {
        infer_session_options o;
        const char *text;
        infer_finish finish;
    } cases[] = {
        { { .max_tokens = 8 }, "erabrevxvr", INFER_FINISH_LENGTH },
        { { .max_tokens = 1 }, "er", INFER_FINISH_LENGTH },
        { { .max_tokens = 8, .stop = (const char *const[]){ "brev", NULL } }, "era", INFER_FINISH_STOP },
        { { .max_tokens = 8, .stop = (const char *const[]){ "zzz", "xv", NULL } }, "erabrev",
          INFER_FINISH_STOP },
        { { .max_tokens = 8, .stop = (const char *const[]){ "vrz", NULL } }, "erabrevxvr",
          INFER_FINISH_LENGTH }, // held back, then given out at the end
        { { .max_tokens = 8, .stop = (const char *const[]){ "er", NULL } }, "", INFER_FINISH_STOP },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        infer_session *s;
        char text[256];
        assert_int_equal(infer_session_new(&s, model, &cases[i].o, NULL), INFER_OK);
        assert_int_equal(infer_session_prompt(s, "the inner ", NULL), INFER_OK);
        collect(s, text, sizeof text);
        assert_string_equal(text, cases[i].text);
        assert_int_equal(infer_session_finish(s), cases[i].finish);
        infer_session_free(s);
    }
}

static void the_context_is_the_end(void **state)
{
    (void)state;
    infer_error err;
    infer_session *s;
    infer_session_options o = { .ignore_eos = true };
    assert_int_equal(infer_session_new(&s, model, &o, &err), INFER_OK);
    int32_t ids[200] = { 0 };
    assert_int_equal(infer_session_prompt_ids(s, ids, 129, &err), INFER_LIMIT);
    assert_non_null(strstr(err.msg, "129"));
    assert_int_equal(infer_session_prompt(s, "the inner ", &err), INFER_OK);
    int n = 0;
    while (infer_session_next_id(s, &err) >= 0) n++;
    assert_int_equal(n, 128 - N_PROMPT);
    assert_int_equal(infer_session_finish(s), INFER_FINISH_LENGTH);
    infer_session_free(s);
    // A prompt that fills it leaves room for none.
    assert_int_equal(infer_session_new(&s, model, &o, &err), INFER_OK);
    assert_int_equal(infer_session_prompt_ids(s, ids, 128, &err), INFER_OK);
    assert_int_equal(infer_session_next_id(s, &err), -1);
    assert_int_equal(err.code, INFER_OK);
    assert_int_equal(infer_session_finish(s), INFER_FINISH_LENGTH);
    infer_session_free(s);
}

static void a_second_prompt_continues_the_text(void **state)
{
    (void)state;
    infer_error err;
    infer_session *s;
    infer_session_options o = { .max_tokens = 3, .ignore_eos = true };
    assert_int_equal(infer_session_new(&s, model, &o, &err), INFER_OK);
    assert_int_equal(infer_session_prompt_ids(s, prompt, N_PROMPT, &err), INFER_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(infer_session_next_id(s, &err), answer[i]);
    assert_int_equal(infer_session_next_id(s, &err), -1);
    // The ids so far and the fourth of the answer: what follows is the fifth.
    assert_int_equal(infer_session_prompt_ids(s, answer + 3, 1, &err), INFER_OK);
    assert_int_equal(infer_sequence_length(infer_session_sequence(s)), N_PROMPT + 4);
    assert_int_equal(infer_session_next_id(s, &err), answer[4]);
    infer_session_free(s);
}

static infer_template *plain_template(void)
{
    infer_template *t;
    infer_error err;
    const char *source = "{% for m in messages %}{{ m.content }}{% endfor %}";
    assert_int_equal(infer_template_new(&t, infer_model_tokenizer(model), source, &err), INFER_OK);
    return t;
}

static void a_conversation_computes_only_what_is_new(void **state)
{
    (void)state;
    infer_error err;
    infer_session *s, *fresh;
    infer_template *t = plain_template();
    infer_session_options o = { .max_tokens = 8, .sampling = { .repeat_penalty = 1.3f } };
    infer_message m[] = { { "user", "the inner " }, { "assistant", "er" }, { "user", "the inner " } };
    char text[256], want[256];
    assert_int_equal(infer_session_new(&s, model, &o, &err), INFER_OK);
    assert_int_equal(infer_session_new(&fresh, model, &o, &err), INFER_OK);
    assert_int_equal(infer_session_chat(s, m, 1, t, &err), INFER_OK);
    collect(s, text, sizeof text);
    // Another conversation in between leaves no trace, neither in the cache nor in the penalties.
    assert_int_equal(infer_session_chat(s, m, 2, t, &err), INFER_OK);
    collect(s, text, sizeof text);
    int before = infer_session_stats(s).n_prompt;
    assert_int_equal(infer_session_chat(s, m, 3, t, &err), INFER_OK);
    assert_int_equal(infer_session_stats(s).n_prompt - before, N_PROMPT);
    collect(s, text, sizeof text);
    assert_int_equal(infer_session_chat(fresh, m, 3, t, &err), INFER_OK);
    collect(fresh, want, sizeof want);
    assert_string_equal(text, want);
    infer_session_clear(s);
    assert_int_equal(infer_sequence_length(infer_session_sequence(s)), 0);
    assert_null(infer_session_next(s, &err));
    assert_int_equal(err.code, INFER_ARGUMENT);
    assert_int_equal(infer_session_chat(s, m, 3, t, &err), INFER_OK);
    collect(s, text, sizeof text);
    assert_string_equal(text, want);
    infer_session_free(fresh);
    infer_session_free(s);
    infer_template_free(t);
}

static void a_conversation_too_long_changes_nothing(void **state)
{
    (void)state;
    infer_error err;
    infer_session *s;
    infer_template *t = plain_template();
    char text[256], many[1024] = "";
    for (int i = 0; i < 40; i++) strcat(many, "the inner ");
    infer_session_options o = { .max_tokens = 8 };
    assert_int_equal(infer_session_new(&s, model, &o, &err), INFER_OK);
    assert_int_equal(infer_session_chat(s, &(infer_message){ "user", "the inner " }, 1, t, &err), INFER_OK);
    int n = infer_sequence_length(infer_session_sequence(s));
    assert_int_equal(infer_session_chat(s, &(infer_message){ "user", many }, 1, t, &err), INFER_LIMIT);
    assert_non_null(strstr(err.msg, "128"));
    assert_int_equal(infer_sequence_length(infer_session_sequence(s)), n);
    collect(s, text, sizeof text);
    assert_string_equal(text, "erabrevxvr");
    // The tiny model has no template of its own.
    assert_int_equal(infer_session_chat(s, &(infer_message){ "user", "x" }, 1, NULL, &err), INFER_NOT_FOUND);
    assert_int_equal(infer_session_chat(s, &(infer_message){ "user", "\xff" }, 1, t, &err), INFER_ARGUMENT);
    infer_session_free(s);
    infer_template_free(t);
}

static void a_cancel_ends_one_answer_alone(void **state)
{
    (void)state;
    infer_error err;
    infer_session *s;
    infer_session_options o = { .max_tokens = 8 };
    char text[256];
    assert_int_equal(infer_session_new(&s, model, &o, &err), INFER_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(infer_session_prompt(s, "the inner ", &err), INFER_OK);
        assert_non_null(infer_session_next(s, &err));
        infer_session_cancel(s);
        collect(s, text, sizeof text);
        assert_string_equal(text, "");
        assert_int_equal(infer_session_finish(s), INFER_FINISH_CANCELLED);
        infer_session_clear(s);
        assert_int_equal(infer_session_prompt(s, "the inner ", &err), INFER_OK);
        collect(s, text, sizeof text);
        assert_string_equal(text, "erabrevxvr");
        infer_session_cancel(s); // too late for this answer, and not meant for the next
        if (!round) infer_session_prompt(s, "x", &err);
        infer_session_clear(s);
    }
    infer_session_cancel(s); // before a prompt
    assert_int_equal(infer_session_prompt(s, "the inner ", &err), INFER_CANCELLED);
    assert_int_equal(infer_session_prompt(s, "the inner ", &err), INFER_OK);
    collect(s, text, sizeof text);
    assert_string_equal(text, "erabrevxvr");
    infer_session_free(s);
}

static void generating_allocates_nothing(void **state)
{
    (void)state;
    infer_error err;
    infer_session *s;
    infer_session_options o = { .ignore_eos = true, .sampling = { .temperature = 1, .top_p = 0.9f,
                                .repeat_penalty = 1.1f, .seed = 3 } };
    assert_int_equal(infer_session_new(&s, model, &o, &err), INFER_OK);
    assert_int_equal(infer_session_prompt(s, "the inner ", &err), INFER_OK);
    assert_non_null(infer_session_next(s, &err));
    uint64_t before = mem_count();
    for (int i = 0; i < 32; i++) assert_non_null(infer_session_next(s, &err));
    assert_int_equal(mem_count(), before);
    infer_session_free(s);
}

static void a_profile_counts_and_changes_no_bit(void **state)
{
    (void)state;
    infer_engine *e = engine((infer_engine_options){ .n_threads = 3 });
    float want[N_VOCAB], z[N_VOCAB];
    infer_profile_row rows[64];
    assert_int_equal(infer_profile(e, rows, 64), 0);
    for (int on = 0; on < 2; on++) {
        infer_sequence *s = infer_sequence_new(e, NULL);
        if (on) assert_int_equal(infer_engine_profile(e, true, NULL), INFER_OK);
        feed(e, s, prompt, N_PROMPT, 4, NULL, 0, on ? z : want);
        infer_sequence_free(s);
    }
    assert_memory_equal(z, want, sizeof want);
    infer_engine_profile(e, false, NULL);
    int n = infer_profile(e, rows, 64);
    uint64_t bytes = 0;
    bool attention = false, barrier = false;
    for (int i = 0; i < n; i++) {
        if (i) assert_true(rows[i].seconds <= rows[i - 1].seconds);
        assert_true(rows[i].calls > 0 && rows[i].seconds >= 0);
        if (!strcmp(rows[i].op, "matmul")) {
            assert_string_equal(rows[i].type, "f32");
            assert_true(rows[i].what[0] && rows[i].ops > 0);
            bytes += rows[i].bytes;
        }
        attention |= !strcmp(rows[i].op, "attention");
        barrier |= !strcmp(rows[i].op, "barrier");
    }
    assert_true(attention && barrier);
    // Two steps, each of which read every matrix.
    assert_true(bytes == 2 * infer_model_describe(model).bytes_per_token);
    assert_int_equal(infer_engine_profile(e, true, NULL), INFER_OK);
    assert_int_equal(infer_profile(e, rows, 64), 0);
    infer_engine_free(e);
}

static void a_session_survives_every_failing_allocation(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        infer_error err;
        infer_session *s = NULL;
        mem_fail_at(mem_count() + n);
        infer_session_options o = { .max_tokens = 2 };
        infer_status st = infer_session_new(&s, model, &o, &err);
        if (!st) st = infer_session_prompt(s, "the inner ", &err);
        mem_fail_at(0);
        infer_session_free(s);
        if (!st) break;
        assert_true(err.code == INFER_NOMEM);
        assert_true(n < 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_depends_on_its_sequence_alone),
        cmocka_unit_test(greedy_ids_are_known),
        cmocka_unit_test(forks_and_truncation_change_no_bit),
        cmocka_unit_test(bad_steps_change_nothing),
        cmocka_unit_test(cancelling_leaves_the_sequence_as_it_was),
        cmocka_unit_test(capture_gives_the_residual_stream_and_attention),
        cmocka_unit_test(sessions_stop_where_they_should),
        cmocka_unit_test(the_context_is_the_end),
        cmocka_unit_test(a_second_prompt_continues_the_text),
        cmocka_unit_test(a_conversation_computes_only_what_is_new),
        cmocka_unit_test(a_conversation_too_long_changes_nothing),
        cmocka_unit_test(a_cancel_ends_one_answer_alone),
        cmocka_unit_test(a_profile_counts_and_changes_no_bit),
        cmocka_unit_test(generating_allocates_nothing),
        cmocka_unit_test(a_session_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
