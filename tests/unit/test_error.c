/* test_error.c: messages stay one clean line, whatever goes into them. */
#include "test.h"

#include "base/error.h"
#include "base/utf8.h"

static void statuses_have_texts(void **state)
{
    (void)state;
    assert_string_equal(infer_status_str(INFER_OK), "success");
    assert_string_equal(infer_status_str(INFER_NOMEM), "out of memory");
    assert_string_equal(infer_status_str(INFER_INTERNAL), "internal error");
    for (int i = 0; i < INFER_STATUS_COUNT; i++)
        assert_true(strlen(infer_status_str((infer_status)i)) > 3);
    assert_string_equal(infer_status_str((infer_status)99), "unknown status");
    assert_string_equal(infer_status_str((infer_status)-1), "unknown status");
}

static void version_has_three_numbers(void **state)
{
    (void)state;
    int a, b, c, end = 0;
    assert_int_equal(sscanf(infer_version(), "%d.%d.%d%n", &a, &b, &c, &end), 3);
    assert_int_equal((size_t)end, strlen(infer_version()));
}

static void set_and_prefix(void **state)
{
    (void)state;
    infer_error err = { 0 };
    assert_int_equal(error_set(&err, INFER_FORMAT, "%s: expected %d", "m.gguf", 7), INFER_FORMAT);
    assert_int_equal(err.code, INFER_FORMAT);
    assert_string_equal(err.msg, "m.gguf: expected 7");
    assert_int_equal(error_prefix(&err, "layer %d", 3), INFER_FORMAT);
    assert_string_equal(err.msg, "layer 3: m.gguf: expected 7");
    error_set(&err, INFER_IO, "again: %s", err.msg); // an argument inside err
    assert_string_equal(err.msg, "again: layer 3: m.gguf: expected 7");
    assert_int_equal(error_clear(&err), INFER_OK);
    assert_int_equal(err.code, INFER_OK);
    assert_string_equal(err.msg, "");
}

static void null_is_allowed(void **state)
{
    (void)state;
    assert_int_equal(error_set(NULL, INFER_LIMIT, "x"), INFER_LIMIT);
    assert_int_equal(error_prefix(NULL, "x"), INFER_INTERNAL);
    assert_int_equal(error_clear(NULL), INFER_OK);
    fault_list f = { 0 };
    fault_add(&f, "a");
    assert_int_equal(fault_status(&f, NULL, INFER_FORMAT, "m"), INFER_FORMAT);
    log_line(NULL, INFER_LOG_WARN, "x");
    log_line(&(infer_log){ 0 }, INFER_LOG_WARN, "x");
}

static void control_characters_go(void **state)
{
    (void)state;
    infer_error err;
    error_set(&err, INFER_IO, "a\nb\x1b[31mc\x7f\td");
    assert_string_equal(err.msg, "a?b?[31mc??d");
    error_set(&err, INFER_IO, "%s",
              "\xc2\x9b"
              "2J"); // C1: a terminal's CSI
    assert_string_equal(err.msg, "?2J");
    error_set(&err, INFER_IO, "%s", "caf\xc3\xa9 \xff\xfe \xe2\x82");
    assert_string_equal(err.msg, "caf\xc3\xa9 ?? ??");
}

static void long_messages_are_cut_at_a_character(void **state)
{
    (void)state;
    infer_error err;
    char text[3000];
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'a', shift);
        for (size_t i = shift; i + 3 < sizeof text; i += 3)
            memcpy(text + i, "\xe2\x82\xac", 4);
        error_set(&err, INFER_IO, "%s", text);
        size_t n = strlen(err.msg);
        assert_true(n <= 1023 && n > 1020);
        assert_int_equal((n - shift) % 3, 0);
        assert_true(utf8_valid(err.msg, n));
        error_prefix(&err, "%s", text);
        assert_true(utf8_valid(err.msg, strlen(err.msg)));
    }
}

static void faults_are_joined(void **state)
{
    (void)state;
    infer_error err;
    fault_list f = { 0 };
    assert_int_equal(fault_status(&f, &err, INFER_FORMAT, "m"), INFER_OK);
    assert_int_equal(err.code, INFER_OK);
    fault_add(&f, "a %d", 1);
    fault_add(&f, "b");
    assert_int_equal(fault_status(&f, &err, INFER_FORMAT, "m"), INFER_FORMAT);
    assert_string_equal(err.msg, "m: a 1; b");
}

static void many_faults_end_with_a_count(void **state)
{
    (void)state;
    infer_error err;
    fault_list f = { 0 };
    char expected[2000] = "m: ";
    for (int i = 0; i < 500; i++)
        fault_add(&f, "tensor %03d: missing", i);
    assert_int_equal(f.n, 500);
    assert_in_range(f.n_shown, 30, 60);
    for (int i = 0; i < f.n_shown; i++)
        sprintf(expected + strlen(expected), "tensor %03d: missing; ", i);
    sprintf(expected + strlen(expected), "and %d more", 500 - f.n_shown);
    fault_status(&f, &err, INFER_FORMAT, "m");
    assert_string_equal(err.msg, expected);
}

static void one_huge_fault_is_cut(void **state)
{
    (void)state;
    infer_error err;
    fault_list f = { 0 };
    char text[4000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    fault_add(&f, "%s", text);
    fault_add(&f, "%s", text);
    fault_add(&f, "z"); // shown faults are the first ones
    assert_int_equal(f.n_shown, 1);
    fault_status(&f, &err, INFER_FORMAT, "m");
    assert_non_null(strstr(err.msg, "x; and 2 more"));
}

static void keep_line(infer_log_level level, const char *line, void *user)
{
    snprintf(user, 64, "%d %s", level, line);
}

static void log_lines_reach_the_callback(void **state)
{
    (void)state;
    char got[64] = "";
    infer_log log = { keep_line, got };
    log_line(&log, INFER_LOG_WARN, "n %d\r", 4);
    assert_string_equal(got, "1 n 4?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_have_texts),
        cmocka_unit_test(version_has_three_numbers),
        cmocka_unit_test(set_and_prefix),
        cmocka_unit_test(null_is_allowed),
        cmocka_unit_test(control_characters_go),
        cmocka_unit_test(long_messages_are_cut_at_a_character),
        cmocka_unit_test(faults_are_joined),
        cmocka_unit_test(many_faults_end_with_a_count),
        cmocka_unit_test(one_huge_fault_is_cut),
        cmocka_unit_test(log_lines_reach_the_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
