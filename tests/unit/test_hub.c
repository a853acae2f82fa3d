/* test_hub.c: names of the hub, paths of strangers, and which files of a listing make a model. */
#include "test.h"

#include "models/hub.h"
#include "models/hub_http.h"

static void names(void **state)
{
    (void)state;
    arena mem = { 0 };
    hub_name n;
    infer_error err;
    assert_int_equal(hub_name_parse(&n, "hf://o.w-n_r/n.a-m_e@re/v.1:a/b.gguf", &mem, &err),
                     INFER_OK);
    assert_string_equal(n.repo, "o.w-n_r/n.a-m_e");
    assert_string_equal(n.revision, "re/v.1");
    assert_string_equal(n.file, "a/b.gguf");
    assert_int_equal(hub_name_parse(&n, "o/n:Q4_K_M", &mem, &err), INFER_OK);
    assert_null(n.revision);
    assert_string_equal(n.file, "Q4_K_M");
    static const char *const bad[] = { "",        "/",          "o",     "o/",       "/n",
                                       "o/n/x",   "o/n@",       "o/n:",  "o/n@a..b", "o/..",
                                       "../n",    ".o/n",       "-o/n",  "o/n:../x", "o/n:/x",
                                       "o/n@a b", "http://o/n", "hf://", "hf:///",   "o /n",
                                       "o/n\n" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (hub_name_parse(&n, bad[i], &mem, &err) != INFER_ARGUMENT) fail_msg("'%s'", bad[i]);
        assert_false(infer_hub_is_name(bad[i]));
    }
    arena_free(&mem);
}

static void paths(void **state)
{
    (void)state;
    static const char *const good[] = {
        "a", "a/b", ".gitattributes", "a..b", "...", "a b/\xc3\xa9"
    };
    static const char *const bad[] = { "",     "/",    "/a",    "a/",   "a//b",   ".",
                                       "..",   "a/.",  "a/..",  "../a", "a/../b", "./a",
                                       "a\\b", "a\nb", "a\x7f", "\xff" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (!hub_path_ok(good[i])) fail_msg("'%s'", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (hub_path_ok(bad[i])) fail_msg("'%s'", bad[i]);
}

static void fits(void **state)
{
    (void)state;
    assert_int_equal(hub_file_fits("d/m.Q4_K_M.gguf", "d/m.Q4_K_M.gguf"), 3);
    assert_int_equal(hub_file_fits("d/m.Q4_K_M.gguf", "m.Q4_K_M.gguf"), 2);
    assert_int_equal(hub_file_fits("d/m.Q4_K_M.gguf", "q4_k_m"), 1);
    assert_int_equal(hub_file_fits("m-Q4_K_M-00001-of-00002.gguf", "Q4_K_M"), 1);
    assert_int_equal(hub_file_fits("m.Q4_K_M.gguf", "Q4_K"), 0);
    assert_int_equal(hub_file_fits("m.IQ4_XS.gguf", "Q4_XS"), 0);
    assert_int_equal(hub_file_fits("m.gguf", ""), 0);
    int of;
    assert_int_equal(hub_split_part("m-00002-of-00003.gguf", &of), 2);
    assert_int_equal(of, 3);
    assert_int_equal(hub_split_part("m-00004-of-00003.gguf", &of), 0);
    assert_int_equal(hub_split_part("m-00000-of-00003.gguf", &of), 0);
    assert_int_equal(hub_split_part("-00001-of-00003.gguf", &of), 0);
    assert_int_equal(hub_split_part("m-0000a-of-00003.gguf", &of), 0);
}

/* The chosen paths in order, separated by spaces; the message where it is refused. */
static const char *choose(const char *const *files, const char *wanted)
{
    static char out[1200];
    char json[4000] = "[";
    arena mem = { 0 };
    hub_tree t = { 0 };
    hub_choice c;
    hub_name name = { .repo = "o/n", .file = wanted };
    infer_error err;
    for (int i = 0; files[i]; i++) {
        size_t n = strlen(json);
        snprintf(json + n, sizeof json - n,
                 "%s{\"type\":\"file\",\"path\":\"%s\",\"size\":%d000000,\"oid\":\"%040d\"}",
                 i ? "," : "", files[i], i + 1, i);
    }
    strcat(json, "]");
    assert_int_equal(hub_tree_add(&t, json, strlen(json), &mem, &err), INFER_OK);
    assert_int_equal(hub_tree_end(&t, &err), INFER_OK);
    *out = 0;
    if (hub_choose(&c, &t, &name, &mem, &err)) {
        strcpy(out, err.msg);
    } else {
        for (int i = 0; i < c.n; i++)
            sprintf(out + strlen(out), "%s%s", i ? " " : "", c.v[i]->path);
        if (c.file) assert_string_equal(c.file, c.v[0]->path);
    }
    hub_tree_free(&t);
    arena_free(&mem);
    return out;
}
#define FILES(...)                                                                                 \
    (const char *const[]) { __VA_ARGS__, NULL }

static void choices(void **state)
{
    (void)state;
    assert_string_equal(choose(FILES("README.md", "m.gguf", "mmproj-m.gguf"), NULL), "m.gguf");
    assert_string_equal(choose(FILES("m-00002-of-00002.gguf", "m-00001-of-00002.gguf"), NULL),
                        "m-00001-of-00002.gguf m-00002-of-00002.gguf");
    assert_string_equal(choose(FILES("m-00002-of-00002.gguf", "m-00001-of-00002.gguf", "x.gguf"),
                               "m-00002-of-00002.gguf"),
                        "m-00001-of-00002.gguf m-00002-of-00002.gguf");
    assert_string_equal(choose(FILES("m-00002-of-00003.gguf", "m-00001-of-00003.gguf"), NULL),
                        "m-00001-of-00003.gguf: part 3 of 3 is missing in the repository");
    assert_string_equal(choose(FILES("config.json", "model.safetensors", "m.gguf", "x/config.json",
                                     "tokenizer.json", "pytorch_model.bin"),
                               NULL),
                        "config.json model.safetensors tokenizer.json");
    assert_string_equal(
        choose(FILES("config.json", "model.safetensors.index.json",
                     "model-00001-of-00001.safetensors", "consolidated.safetensors",
                     "x/model-1.safetensors"),
               NULL),
        "config.json model-00001-of-00001.safetensors model.safetensors.index.json");
    assert_string_equal(choose(FILES("m.Q8_0.gguf", "config.json", "model.safetensors"), "Q8_0"),
                        "m.Q8_0.gguf");
    assert_non_null(
        strstr(choose(FILES("a.gguf", "b.gguf"), NULL), "a.gguf (1 MB), b.gguf (2 MB)"));
    assert_non_null(strstr(choose(FILES("a.gguf", "b.gguf"), "c"), "no file fits 'c'"));
    assert_non_null(strstr(choose(FILES("x.bin"), "c"), "no GGUF file"));
    assert_non_null(strstr(choose(FILES("config.json", "x.bin"), NULL), "2 files"));
}

/* What the token depends on, and that no redirect gives up encryption. */
static void addresses(void **state)
{
    (void)state;
    assert_true(http_same_origin("https://h.co/a", "https://H.co:443/b?c"));
    assert_true(http_same_origin("http://h.co:8080", "http://h.co:8080/x"));
    assert_false(http_same_origin("https://h.co/a", "http://h.co/a"));
    assert_false(http_same_origin("https://h.co/a", "https://h.co:444/a"));
    assert_false(http_same_origin("https://h.co/a", "https://cdn.h.co/a"));
    assert_false(http_same_origin("https://h.co/a", "https://h.co.evil/a"));
    assert_false(http_same_origin("https://h.co/a", "https://h.co@evil/a"));
    assert_false(http_same_origin("https://h.co/a", "h.co"));
    assert_false(http_same_origin("https://h.co/a", ""));
    assert_true(http_may_follow("https://a/", "HTTPS://b/"));
    assert_true(http_may_follow("http://a/", "http://b/"));
    assert_true(http_may_follow("http://a/", "https://b/"));
    assert_false(http_may_follow("https://a/", "http://a/"));
    assert_false(http_may_follow("HTTPS://a/", "http://a/"));
    assert_false(http_may_follow("http://a/", "file:///etc/passwd"));
    assert_false(http_may_follow("http://a/", "a/b"));
}

/* What is tried again, and when. */
static void patience(void **state)
{
    (void)state;
    http_head none = { .retry_after = -1 }, asked = { .retry_after = 7 },
              long_ = { .retry_after = 1e6 };
    assert_true(http_delay(CURLE_RECV_ERROR, 0, &none, 1) > 0);
    assert_true(http_delay(CURLE_OK, 503, &none, 2) > http_delay(CURLE_OK, 503, &none, 1));
    assert_true(http_delay(CURLE_OK, 429, &asked, 1) == 7);
    assert_true(http_delay(CURLE_OK, 429, &long_, 1) < 0);
    assert_true(http_delay(CURLE_OK, 500, &none, HTTP_MAX_TRIES) < 0);
    static const long final[] = { 400, 401, 403, 404, 416, 451 };
    for (size_t i = 0; i < sizeof final / sizeof *final; i++)
        assert_true(http_delay(CURLE_OK, final[i], &none, 1) < 0);
    assert_true(http_delay(CURLE_PEER_FAILED_VERIFICATION, 0, &none, 1) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),   cmocka_unit_test(paths),     cmocka_unit_test(fits),
        cmocka_unit_test(choices), cmocka_unit_test(addresses), cmocka_unit_test(patience),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
