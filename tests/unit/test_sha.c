/* test_sha.c: the examples of FIPS 180-4, a million a's, and every split of a text. */
#include "test.h"

#include "base/sha.h"

static void check(const char *text, size_t repeat, const char *sha256, const char *sha1)
{
    char hex[65];
    sha_state s;
    sha256_init(&s);
    for (size_t i = 0; i < repeat; i++)
        sha_add(&s, text, strlen(text));
    sha_end(&s, hex);
    assert_string_equal(hex, sha256);
    sha1_init(&s);
    for (size_t i = 0; i < repeat; i++)
        sha_add(&s, text, strlen(text));
    sha_end(&s, hex);
    assert_string_equal(hex, sha1);
}

static void examples(void **state)
{
    (void)state;
    check("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
          "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    check("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
          "a9993e364706816aba3e25717850c26c9cd0d89d");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
          "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    check("a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
          "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

/* Lengths around a block, cut anywhere, give what one piece gives. */
static void pieces(void **state)
{
    (void)state;
    char text[200], whole[65], parts[65];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 7 + 1);
    for (size_t n = 0; n <= sizeof text; n++) {
        sha_state s;
        sha256_init(&s);
        sha_add(&s, text, n);
        sha_end(&s, whole);
        for (size_t cut = 0; cut <= n; cut += 1 + n / 17) {
            sha256_init(&s);
            sha_add(&s, text, cut);
            sha_add(&s, text + cut, n - cut);
            sha_end(&s, parts);
            assert_string_equal(whole, parts);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(examples), cmocka_unit_test(pieces) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
