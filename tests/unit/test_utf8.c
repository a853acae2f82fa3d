/*
 * test_utf8.c: every code point, every sequence of up to three bytes against a naive decoder, and
 * replacement as Python's bytes.decode("utf-8", "replace") does it.
 */
#include "test.h"

#include "base/utf8.h"

/* The definition without cleverness: the value by length, then refused if overlong or excluded. */
static int naive_decode(const uint8_t *s, size_t n, uint32_t *cp)
{
    int len = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    if (!len || n < (size_t)len) return 0;
    uint32_t v = len == 1 ? s[0] : s[0] & (0xffu >> (len + 1));
    for (int i = 1; i < len; i++) {
        if (s[i] >> 6 != 2) return 0;
        v = v << 6 | (s[i] & 63);
    }
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    if (v < least[len] || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff)) return 0;
    *cp = v;
    return len;
}

static void every_code_point(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x120000; cp++) {
        char s[4];
        uint32_t back = 0;
        int n = utf8_encode(cp, s);
        if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) {
            assert_int_equal(n, 0);
            continue;
        }
        assert_int_equal(naive_decode((uint8_t *)s, (size_t)n, &back), n);
        assert_int_equal(back, cp);
        assert_int_equal(utf8_decode(s, 4, &back), n);
        assert_int_equal(back, cp);
        for (int k = 0; k < n; k++) {
            assert_int_equal(utf8_decode(s, (size_t)k, &back), 0);
            assert_int_equal(utf8_whole(s, (size_t)k), 0);
        }
        assert_int_equal(utf8_whole(s, (size_t)n), n);
    }
}

static void every_short_sequence(void **state)
{
    (void)state;
    static const uint8_t fourth[] = { 0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff };
    for (uint32_t u = 0; u < 1u << 24; u++) {
        uint8_t s[4] = { (uint8_t)(u >> 16), (uint8_t)(u >> 8), (uint8_t)u, fourth[u % 6] };
        uint32_t a = 0, b = 0;
        int n = naive_decode(s, 4, &a);
        if (utf8_decode((char *)s, 4, &b) != n || a != b) fail_msg("%06x%02x", u, s[3]);
    }
}

static void check_replace(const char *in, size_t n, const char *expected)
{
    char out[100];
    size_t k = utf8_replace(in, n, out);
    out[k] = 0;
    assert_string_equal(out, expected);
    assert_int_equal(k, strlen(expected));
    assert_int_equal(utf8_valid(in, n), strcmp(in, expected) == 0);
}

#define R "\xef\xbf\xbd"
#define CHECK(in, expected) check_replace(in, sizeof(in) - 1, expected)

/* Expected values printed by Python 3.11. */
static void replacement(void **state)
{
    (void)state;
    CHECK("", "");
    CHECK("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z", "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");
    CHECK("\x80", R);
    CHECK("\xff\xfe", R R);
    CHECK("\xc3", R);
    CHECK("\xc3(", R "(");
    CHECK("\xe2\x82", R); // one maximal subpart
    CHECK("\xe2\x82z", R "z");
    CHECK("\xf0\x9f\x98", R);
    CHECK("\xf0\x9f\x98z", R "z");
    CHECK("\xc0\xaf", R R); // overlong
    CHECK("\xe0\x80\xaf", R R R);
    CHECK("\xf0\x80\x80\xaf", R R R R);
    CHECK("\xed\xa0\x80", R R R);       // a surrogate
    CHECK("\xf4\x90\x80\x80", R R R R); // over U+10FFFF
    CHECK("\xf5\x80\x80\x80", R R R R);
    CHECK("\xe2\x82\xe2\x82\xac", R "\xe2\x82\xac");
    CHECK("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64", "a" R R R "b" R "c" R R "d");
}

static void whole_holds_back_only_what_may_grow(void **state)
{
    (void)state;
    assert_int_equal(utf8_whole("", 0), 0);
    assert_int_equal(utf8_whole("ab", 2), 2);
    assert_int_equal(utf8_whole("ab\xc3", 3), 2);
    assert_int_equal(utf8_whole("ab\xe2\x82", 4), 2);
    assert_int_equal(utf8_whole("ab\xf0\x9f\x98", 5), 2);
    assert_int_equal(utf8_whole("ab\xf0\x9f\x98\x80", 6), 6);
    assert_int_equal(utf8_whole("ab\x80", 3), 3);
    assert_int_equal(utf8_whole("ab\xff", 3), 3);
    assert_int_equal(utf8_whole("ab\xe0\x80", 4), 4); // overlong already: cannot be completed
    assert_int_equal(utf8_whole("ab\xed\xa0", 4), 4);
    assert_int_equal(utf8_whole("\x80\x80\x80\x80", 4), 4);
    assert_int_equal(utf8_whole("\xe2\x82\xac\x82", 4), 4);
}

/* A stream cut anywhere, shown as whole prefixes, gives the text. */
static void whole_prefixes_join(void **state)
{
    (void)state;
    const char *text = "a\xc3\xa9\xff\xe2\x82\xac\xf0\x9f\x98\x80\xe2\x82z";
    size_t n = strlen(text);
    for (size_t cut = 0; cut <= n; cut++) {
        size_t k = utf8_whole(text, cut);
        char a[100], b[100];
        size_t x = utf8_replace(text, k, a);
        x += utf8_replace(text + k, n - k, a + x);
        size_t y = utf8_replace(text, n, b);
        assert_int_equal(x, y);
        assert_memory_equal(a, b, y);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point),
        cmocka_unit_test(every_short_sequence),
        cmocka_unit_test(replacement),
        cmocka_unit_test(whole_holds_back_only_what_may_grow),
        cmocka_unit_test(whole_prefixes_join),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
