/*
 * test_tokenizer.c: the pipelines of tests/golden/tok against Hugging Face tokenizers; each kind of
 * step on its own; GGUF vocabularies; what malformed files are told.
 */
#include "tiny_model.h"

#include <jansson.h>
#include <pthread.h>

#include "base/map.h"
#include "infer.h"
#include "models/tok.h"

static char folder[1000];

static int setup(void **state)
{
    (void)state;
    test_folder(folder, sizeof folder);
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    test_remove_folder(folder);
    return 0;
}

static tokenizer *load(const char *json)
{
    infer_error err;
    tokenizer *t = NULL;
    if (tok_load_json_text(&t, json, strlen(json), &err)) fail_msg("%s", err.msg);
    return t;
}

/* ids as "1 2 3", in a buffer of the call's own until the next. */
static const char *show(const int32_t *ids, size_t n)
{
    static char s[4096];
    size_t k = 0;
    s[0] = 0;
    for (size_t i = 0; i < n && k < sizeof s - 16; i++)
        k += (size_t)snprintf(s + k, sizeof s - k, i ? " %d" : "%d", ids[i]);
    return s;
}

static void encodes(const tokenizer *t, const char *s, size_t n, const tok_options *o,
                    const char *want)
{
    infer_error err;
    int32_t *ids;
    size_t k;
    if (tok_encode(t, &ids, &k, s, n, o, &err)) fail_msg("%s", err.msg);
    if (strcmp(show(ids, k), want)) fail_msg("'%s': %s, expected %s", s, show(ids, k), want);
    mem_free(ids);
}

static void decodes(const tokenizer *t, const int32_t *ids, size_t n, bool skip, const char *want,
                    size_t n_want)
{
    infer_error err;
    char *s;
    size_t len, at = 0, k;
    tok_stream *st;
    assert_int_equal(tok_decode(t, &s, &len, ids, n, skip, &err), INFER_OK);
    if (len != n_want || memcmp(s, want, len)) fail_msg("'%s', expected '%s'", s, want);
    assert_int_equal(tok_stream_new(&st, t, skip, &err), INFER_OK);
    uint64_t allocations = mem_count();
    for (size_t i = 0; i <= n; i++) {
        const char *p = i < n ? tok_stream_push(st, ids[i], &k) : tok_stream_flush(st, &k);
        assert_true(at + k <= len && !memcmp(s + at, p, k) && utf8_valid(p, k) && !p[k]);
        at += k;
    }
    assert_int_equal(at, len);
    assert_int_equal(mem_count(), allocations);
    tok_stream_free(st);
    mem_free(s);
}

/* ---- golden cases --------------------------------------------------------------------------- */

static int32_t *ids_of(const json_t *a, size_t *n)
{
    *n = json_array_size(a);
    int32_t *v = malloc((*n + 1) * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < *n; i++)
        v[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return v;
}

static void golden_text(const tokenizer *t, const json_t *c, const char *key, bool no_special)
{
    size_t n, k;
    int32_t *want = ids_of(json_object_get(c, key), &n), *got;
    const json_t *src = json_object_get(c, "text");
    tok_options o = { .no_special = no_special };
    assert_int_equal(
        tok_encode(t, &got, &k, json_string_value(src), json_string_length(src), &o, NULL),
        INFER_OK);
    if (n != k || memcmp(want, got, n * sizeof *want))
        fail_msg("'%s': %s", json_string_value(src), show(got, k));
    free(want);
    mem_free(got);
}

static void golden_decode(const tokenizer *t, const json_t *c, const char *ids, const char *key,
                          bool skip)
{
    size_t n;
    int32_t *v = ids_of(json_object_get(c, ids), &n);
    const json_t *want = json_object_get(c, key);
    decodes(t, v, n, skip, json_string_value(want), json_string_length(want));
    free(v);
}

static void test_golden(void **state)
{
    static const char *const names[] = { "deepseek3", "gemma", "gpt2",   "llama2", "llama3",
                                         "o200k",     "qwen2", "smollm", "unigram" };
    (void)state;
    for (int i = 0; i < COUNT_OF(names); i++) {
        char path[128];
        tokenizer *t = NULL;
        infer_error err;
        size_t k;
        json_t *c;
        snprintf(path, sizeof path, "tests/golden/tok/%s", names[i]);
        if (tokenizer_from_folder(&t, path, &err)) fail_msg("%s", err.msg);
        snprintf(path, sizeof path, "tests/golden/tok/%s/cases.json", names[i]);
        json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
        assert_non_null(root);
        assert_true(json_array_size(json_object_get(root, "cases")) > 90);
        json_array_foreach(json_object_get(root, "cases"), k, c)
        {
            golden_text(t, c, "ids", false);
            golden_text(t, c, "ids_no_special", true);
            golden_decode(t, c, "ids_no_special", "decoded", false);
            golden_decode(t, c, "ids_no_special", "decoded_skip", true);
        }
        json_array_foreach(json_object_get(root, "decode_cases"), k, c)
        {
            golden_decode(t, c, "ids", "decoded", false);
            golden_decode(t, c, "ids", "decoded_skip", true);
        }
        json_decref(root);
        tokenizer_free(t);
    }
}

/* ---- single steps --------------------------------------------------------------------------- */

/* With one entry for all words, the number of ids is the number of pieces. */
static void pieces(const char *pre_tokenizer, const char *src, const char *want)
{
    char json[2048];
    snprintf(json, sizeof json,
             "{\"pre_tokenizer\":%s,\"model\":{\"type\":\"WordLevel\",\"vocab\":"
             "{\"[UNK]\":0},\"unk_token\":\"[UNK]\"}}",
             pre_tokenizer);
    tokenizer *t = load(json);
    encodes(t, src, strlen(src), NULL, want);
    tokenizer_free(t);
}

static void test_patterns(void **state)
{
    static const struct {
        const char *pattern, *text, *want;
    } rows[] = {
        { "\\\\h+", "xyzabc019g", "0 0 0" },  // hexadecimal digits
        { "\\\\p{N}{1,3}+", "1234567", "0" }, // repeated, not possessive
        { "^a", "a\na", "0 0 0" },            // lines
        { "(?m:a.b)", "a\nb", "0" },          // the dot matches newlines
        { "a.b", "a\nb", "0" },               // and here it does not: no cut
        { "[a-z&&[^c]]+", "abcde", "0 0 0" }, // ab c de
        { "[[a-c][x]]+", "abxd", "0 0" },
        { "[^\\\\S\\n]+", " \n\t x", "0 0 0 0" },
        { "\\\\p{Han}+", "\xE4\xB8\xAD\xE3\x80\x81", "0 0" }, // U+3001 is not of the script
        { "\\\\s",
          "a\xE1\xA0\x8E"
          "b\xC2\x85"
          "c",
          "0 0 0" }, // not U+180E, but U+0085
        { "\\\\p{^L}+", "a12b", "0 0 0" },
        { "(?=(\\\\d{3})+(?!\\\\d))", "1234567", "0 0 0" }, // empty matches cut
        { "\\\\w+", "a\xC2\xB2-", "0 0" },
        { "[[:punct:]]+", "a$+b", "0 0 0" },
        { "{", "a{b", "0 0 0" },
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        char json[512];
        snprintf(json, sizeof json,
                 "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":"
                 "\"Isolated\"}",
                 rows[i].pattern);
        pieces(json, rows[i].text, rows[i].want);
    }
}

static void test_behaviors(void **state)
{
    static const struct {
        const char *behavior, *want;
    } rows[] = { { "Removed", "0 0 0" },
                 { "Isolated", "0 0 0 0 0 0" },
                 { "MergedWithPrevious", "0 0 0 0" },
                 { "MergedWithNext", "0 0 0 0" },
                 { "Contiguous", "0 0 0 0 0" } };
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        char json[256];
        snprintf(json, sizeof json,
                 "{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":"
                 "\"%s\"}",
                 rows[i].behavior);
        pieces(json, "a-b--c", rows[i].want);
    }
    pieces("{\"type\":\"Digits\",\"individual_digits\":false}", "a12b3", "0 0 0 0");
    pieces("{\"type\":\"WhitespaceSplit\"}",
           " a  b\xE3\x80\x80"
           "c",
           "0 0 0");
    pieces("{\"type\":\"Whitespace\"}", "a.b, c", "0 0 0 0 0");
    pieces("{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"-\"}", "a-b--c", "0 0 0");
    pieces("{\"type\":\"FixedLength\",\"length\":2}", "abcde", "0 0 0");
}

/* One entry per text shows what a normalizer makes of it. */
static void normalizes(const char *normalizer, const char *src, const char *want)
{
    char json[2048];
    snprintf(json, sizeof json,
             "{\"normalizer\":%s,\"model\":{\"type\":\"WordLevel\",\"vocab\":"
             "{\"[UNK]\":0,\"%s\":1},\"unk_token\":\"[UNK]\"}}",
             normalizer, want);
    tokenizer *t = load(json);
    encodes(t, src, strlen(src), NULL, "1");
    tokenizer_free(t);
}

static void test_normalizers(void **state)
{
    (void)state;
    normalizes("{\"type\":\"NFC\"}", "e\xCC\x81", "\xC3\xA9");
    normalizes("{\"type\":\"NFD\"}", "\xE1\xB9\xA9", "s\xCC\xA3\xCC\x87");
    normalizes("{\"type\":\"NFKC\"}", "\xEF\xAC\x81\xC2\xBD",
               "fi1\xE2\x81\x84"
               "2");
    normalizes("{\"type\":\"NFD\"}", "a\xCC\x87\xCC\xA3", "a\xCC\xA3\xCC\x87"); // marks in order
    normalizes("{\"type\":\"Lowercase\"}", "\xC4\xB0\xCE\xA3", "i\xCC\x87\xCF\x83");
    normalizes("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", " \tx ", "x ");
    normalizes("{\"type\":\"StripAccents\"}", "e\xCC\x81x", "ex");
    normalizes("{\"type\":\"Prepend\",\"prepend\":\"_\"}", "x", "_x");
    normalizes("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"$1\"}",
               "a   b", "a$1b");
    normalizes("{\"type\":\"Nmt\"}",
               "a\x01\xE2\x80\x8B"
               "b",
               "a b");
    normalizes(
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"},"
        "{\"type\":\"Lowercase\"}]}",
        "\xC3\x89", "e");
    normalizes("{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
               "\"strip_accents\":null,\"lowercase\":true}",
               "\xC3\x89\xE4\xB8\xAD\x01", "e \xE4\xB8\xAD ");
}

static void test_added_tokens(void **state)
{
    static const char json[] =
        "{\"added_tokens\":["
        "{\"id\":3,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
        "{\"id\":4,\"content\":\"<s>x\",\"special\":true,\"normalized\":false},"
        "{\"id\":5,\"content\":\"<l>\",\"lstrip\":true,\"special\":false,\"normalized\":false},"
        "{\"id\":6,\"content\":\"<r>\",\"rstrip\":true,\"special\":false,\"normalized\":false},"
        "{\"id\":7,\"content\":\"word\",\"single_word\":true,\"special\":false,\"normalized\":true}"
        "],"
        "\"normalizer\":{\"type\":\"Lowercase\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\" \":1,\"[UNK]\":2},\"merges\":[],"
        "\"unk_token\":\"[UNK]\",\"fuse_unk\":true}}";
    (void)state;
    tokenizer *t = load(json);
    tok_options plain = { .plain_text = true };
    encodes(t, "a<s>xa<s>a", 10, NULL, "0 4 0 3 0"); // the longest at the leftmost place
    encodes(t, "a  <l> a", 8, NULL, "0 5 1 0");
    encodes(t, "a <r>  a", 8, NULL, "0 1 6 0");
    encodes(t, "WORD words", 10, NULL, "7 1 2"); // matched after lowercasing, as a whole word
    encodes(t, "<s><l>", 6, &plain, "2 5");      // special tokens in user text are text
    encodes(t, "", 0, NULL, "");
    encodes(t, "a\0a", 3, NULL, "0 2 0");
    assert_true(tok_is_special(t, 3) && !tok_is_special(t, 5) && !tok_is_special(t, 99));
    assert_int_equal(tok_find(t, "<l>"), 5);
    assert_int_equal(tok_find(t, "none"), -1);
    assert_string_equal(tok_token(t, 7, NULL), "word");
    assert_null(tok_token(t, 8, NULL));
    assert_int_equal(tok_n_vocab(t), 8);
    int32_t *ids;
    char *s;
    size_t n;
    infer_error err;
    assert_int_equal(tok_encode(t, &ids, &n, "\xFF", 1, NULL, &err), INFER_ARGUMENT);
    assert_int_equal(tok_decode(t, &s, &n, (int32_t[]){ 8 }, 1, false, &err), INFER_ARGUMENT);
    assert_int_equal(tok_decode(t, &s, &n, (int32_t[]){ -1 }, 1, false, &err), INFER_ARGUMENT);
    tokenizer_free(t);
}

static void test_ignore_merges(void **state)
{
    (void)state;
    for (int on = 0; on < 2; on++) {
        char json[512];
        snprintf(json, sizeof json,
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,"
                 "\"c\":3,\"abc\":4},\"merges\":[\"a b\"],\"ignore_merges\":%s}}",
                 on ? "true" : "false");
        tokenizer *t = load(json);
        encodes(t, "abc", 3, NULL, on ? "4" : "2 3");
        tokenizer_free(t);
    }
}

/* ---- long texts on a small stack ------------------------------------------------------------ */

static void *encode_long(void *path)
{
    tokenizer *t;
    int32_t *ids;
    size_t n, total = 0, size = 300000;
    char *s = malloc(size);
    if (!s || tokenizer_from_folder(&t, path, NULL)) return NULL;
    for (int k = 0; k < 3; k++) {
        memset(s, "a \n"[k], size);
        if (tok_encode(t, &ids, &n, s, size, NULL, NULL)) return NULL;
        total += n;
        mem_free(ids);
    }
    tokenizer_free(t);
    free(s);
    return (void *)(uintptr_t)total;
}

static void test_long_runs(void **state)
{
    static const char *const names[] = { "tests/golden/tok/llama2", "tests/golden/tok/llama3",
                                         "tests/golden/tok/unigram" };
    (void)state;
    for (int i = 0; i < COUNT_OF(names); i++) {
        pthread_t thread;
        pthread_attr_t attr;
        void *total = NULL;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, 256 << 10);
        assert_int_equal(pthread_create(&thread, &attr, encode_long, (void *)(uintptr_t)names[i]),
                         0);
        pthread_join(thread, &total);
        pthread_attr_destroy(&attr);
        assert_true((uintptr_t)total > 1000);
    }
}

/* ---- tokenizer_config.json ------------------------------------------------------------------ */

static const char small[] =
    "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true},{\"id\":3,\"content\":\"</"
    "s>\","
    "\"special\":true},{\"id\":4,\"content\":\"<|im_end|>\",\"special\":true}],"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}%s}";
static const char template_bos[] = ",\"post_processor\":{\"type\":\"TemplateProcessing\","
                                   "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
                                   "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
                                   "\"pair\":[],\"special_tokens\":{\"<s>\":"
                                   "{\"id\":\"<s>\",\"ids\":[2],\"tokens\":[\"<s>\"]}}}";

static void write_in(const char *name, const char *src)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    test_write(path, src, strlen(src));
}

static tokenizer *with_config(const char *more, const char *config)
{
    char json[2048];
    tokenizer *t;
    infer_error err;
    snprintf(json, sizeof json, small, more);
    write_in("tokenizer.json", json);
    write_in("tokenizer_config.json", config);
    if (tokenizer_from_folder(&t, folder, &err)) fail_msg("%s", err.msg);
    return t;
}

static void test_config_file(void **state)
{
    (void)state;
    tokenizer *t =
        with_config("", "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\","
                        "\"add_bos_token\":true,\"add_eos_token\":true,\"chat_template\":\"T\"}");
    encodes(t, "ab", 2, NULL, "2 0 1 3");
    encodes(t, "ab", 2, &(tok_options){ .no_special = true }, "0 1");
    assert_int_equal(tok_bos(t), 2);
    assert_int_equal(tok_eos(t), 3);
    assert_true(tok_adds_bos(t) && tok_adds_eos(t));
    assert_true(tok_is_end(t, 3) && tok_is_end(t, 4) && !tok_is_end(t, 2));
    assert_string_equal(tok_chat_template(t), "T");
    tokenizer_free(t);
    t = with_config(
        template_bos,
        "{\"bos_token\":\"<s>\",\"add_bos_token\":false,\"chat_template\":"
        "[{\"name\":\"rag\",\"template\":\"R\"},{\"name\":\"default\",\"template\":\"D\"}]}");
    encodes(t, "ab", 2, NULL, "0 1");
    assert_string_equal(tok_chat_template(t), "D");
    assert_false(tok_adds_bos(t));
    tokenizer_free(t);
    write_in("chat_template.jinja", "J");
    t = with_config(template_bos, "{}");
    encodes(t, "ab", 2, NULL, "2 0 1");
    assert_int_equal(tok_bos(t), 2); // the template's
    assert_string_equal(tok_chat_template(t), "J");
    tokenizer_free(t);
    infer_tokenizer *pub;
    infer_error err;
    char *s;
    size_t n;
    assert_int_equal(infer_tokenizer_open(&pub, folder, &err), INFER_OK);
    assert_int_equal(infer_detokenize(pub, &s, &n, (int32_t[]){ 2, 0 }, 2, true, &err), INFER_OK);
    assert_string_equal(s, "a");
    infer_free(s);
    assert_int_equal(infer_tokenizer_n_vocab(pub), 5);
    infer_tokenizer_close(pub);
}

/* ---- GGUF
 * --------------------------------------------------------------------------------------------------
 */

static void gg_numbers(gguf_out *g, const char *key, uint32_t type, const void *v, size_t n)
{
    blob_string(&g->kv, key);
    blob_u32(&g->kv, T_ARRAY);
    blob_u32(&g->kv, type);
    blob_u64(&g->kv, n);
    blob_put(&g->kv, v, 4 * n);
    g->n_kv++;
}

static infer_status open_gguf(infer_tokenizer **t, gguf_out *g, infer_error *err)
{
    char path[1100];
    blob b = gg_finish(g);
    snprintf(path, sizeof path, "%s/v.gguf", folder);
    test_write(path, b.p, b.n);
    blob_free(&b);
    return infer_tokenizer_open(t, path, err);
}

static void spm_vocab(gguf_out *g, uint32_t bos)
{
    static const char *const tokens[] = {
        "<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "\xE2\x96\x81", "a", "b", "ab", "\u2581a", "  ",
    };
    static const int32_t types[] = { 2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 4 };
    static const float scores[] = { 0, 0, 0, 0, 0, -5, -5, -5, -1, -2, 0 };
    gg_string(g, "general.architecture", "llama");
    gg_string(g, "tokenizer.ggml.model", "llama");
    gg_strings(g, "tokenizer.ggml.tokens", tokens, COUNT_OF(tokens));
    gg_numbers(g, "tokenizer.ggml.token_type", T_I32, types, COUNT_OF(types));
    gg_numbers(g, "tokenizer.ggml.scores", T_F32, scores, COUNT_OF(scores));
    gg_u32(g, "tokenizer.ggml.bos_token_id", bos);
}

static void test_gguf_spm(void **state)
{
    gguf_out g = { 0 };
    infer_tokenizer *t;
    infer_error err;
    (void)state;
    spm_vocab(&g, 1);
    if (open_gguf(&t, &g, &err)) fail_msg("%s", err.msg);
    const tokenizer *in = (const tokenizer *)t;
    encodes(in, "ab", 2, NULL, "1 5 8");          // by score: ab before _a
    encodes(in, "a\xC3\xA9", 3, NULL, "1 9 3 4"); // bytes
    encodes(in, "a  b", 4, NULL, "1 9 10 5 7");   // the user's own token, then a prefix again
    encodes(in, "<0xC3>", 6, &(tok_options){ .no_special = true }, "5 0"); // text, not a byte
    decodes(in, (int32_t[]){ 1, 9, 3, 4, 8 }, 5, true,
            "a\xC3\xA9"
            "ab",
            5);
    decodes(in, (int32_t[]){ 3, 4, 3 }, 3, true, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 9);
    infer_tokenizer_close(t);
}

static void test_gguf_refused(void **state)
{
    static const char *const tokens[] = { "a", "b" };
    static const char *const merges[] = { "a c" };
    infer_tokenizer *t;
    infer_error err;
    (void)state;
    gguf_out g = { 0 };
    spm_vocab(&g, 11);
    assert_int_equal(open_gguf(&t, &g, &err), INFER_FORMAT);
    assert_non_null(strstr(err.msg, "bos_token_id: 11 is outside the vocabulary of 11"));
    g = (gguf_out){ 0 };
    gg_string(&g, "tokenizer.ggml.model", "rwkv");
    assert_int_equal(open_gguf(&t, &g, &err), INFER_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "'rwkv'"));
    g = (gguf_out){ 0 };
    gg_string(&g, "tokenizer.ggml.model", "gpt2");
    gg_string(&g, "tokenizer.ggml.pre", "future-model");
    gg_strings(&g, "tokenizer.ggml.tokens", tokens, 2);
    assert_int_equal(open_gguf(&t, &g, &err), INFER_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "'future-model'"));
    g = (gguf_out){ 0 };
    gg_string(&g, "tokenizer.ggml.model", "gpt2");
    gg_string(&g, "tokenizer.ggml.pre", "gpt-2");
    gg_strings(&g, "tokenizer.ggml.tokens", tokens, 2);
    gg_strings(&g, "tokenizer.ggml.merges", merges, 1);
    assert_int_equal(open_gguf(&t, &g, &err), INFER_FORMAT);
    assert_non_null(strstr(err.msg, "entry 0 'a c'"));
    g = (gguf_out){ 0 };
    gg_string(&g, "tokenizer.ggml.model", "llama");
    gg_strings(&g, "tokenizer.ggml.tokens", tokens, 2);
    gg_numbers(&g, "tokenizer.ggml.scores", T_F32, (float[]){ 0 }, 1);
    assert_int_equal(open_gguf(&t, &g, &err), INFER_FORMAT);
    assert_non_null(strstr(err.msg, "expected 2 values, one per token, found 1"));
}

/* Every name has patterns that compile. */
static void test_pre_names(void **state)
{
    static const char *const names[] = { "default",      "llama-bpe",      "gpt-2",       "qwen2",
                                         "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon",
                                         "bloom",        "viking",         "tekken",      "gpt-4o",
                                         "superbpe",     "bailingmoe",     "seed-coder",  "kimi-k2",
                                         "exaone-moe",   "qwen35",         "command-r",   "smollm",
                                         "mpt" };
    (void)state;
    for (int i = 0; i < COUNT_OF(names); i++) {
        const pre_name *p = pre_name_find(names[i], strlen(names[i]));
        assert_non_null(p);
        for (int k = 0; k < COUNT_OF(p->patterns) && p->patterns[k]; k++) {
            tok_regex *re;
            infer_error err;
            if (regex_new(&re, p->patterns[k], strlen(p->patterns[k]), false, &err))
                fail_msg("%s: %s", names[i], err.msg);
            regex_free(re);
        }
    }
    assert_null(pre_name_find("llama-", 6));
}

/* ---- malformed tokenizer.json --------------------------------------------------------------- */

static void test_refused(void **state)
{
#define BPE(vocab, merges)                                                                         \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":" vocab ",\"merges\":" merges "}}"
    static const struct {
        const char *json, *part;
    } rows[] = {
        { "", "ends within a value" },
        { "{\"a\":1", "expected ','" },
        { "[]", "expected an object, found an array" },
        { "{}", "model: expected an object, found nothing" },
        { "{\"model\":{\"type\":\"Magic\"}}", "model 'Magic' is not supported" },
        { BPE("{}", "[]"), "vocab is empty" },
        { BPE("[1]", "[]"), "model: vocab: expected an object" },
        { BPE("{\"a\":2147483648}", "[]"), "vocab 'a': expected an id below" },
        { BPE("{\"a\":-1}", "[]"), "found -1" },
        { BPE("{\"a\":1.5}", "[]"), "found 1.5" },
        { BPE("{\"a\":\"0\"}", "[]"), "found a string" },
        { BPE("{\"a\":0,\"b\":0}", "[]"), "vocab 'b': id 0 belongs to 'a'" },
        { BPE("{\"a\":4000000}", "[]"), "id 4000000 in a vocabulary of 1" },
        { BPE("{\"a\":0}", "[\"a b\"]"), "merges 0: 'b' is not in the vocabulary" },
        { BPE("{\"a\":0}", "[\"a\"]"), "merges 0: 'a' is no pair" },
        { BPE("{\"a\":0}", "[[\"a\"]]"), "merges 0: expected two tokens" },
        { BPE("{\"a\":0}", "[7]"), "merges 0: expected a pair, found a number" },
        { BPE("{\"a\":0}", "{}"), "merges: expected an array" },
        { BPE("{\"\\ud800\":0}", "[]"), "malformed \\u escape" },
        { "{\"normalizer\":{\"type\":\"Odd\"}}", "normalizer 'Odd' is not supported" },
        { "{\"pre_tokenizer\":{\"type\":\"Odd\"}}", "pre_tokenizer 'Odd' is not supported" },
        { "{\"post_processor\":{\"type\":\"Odd\"}}", "post_processor 'Odd' is not supported" },
        { "{\"decoder\":{\"type\":\"CTC\"}}", "decoder 'CTC' is not supported" },
        { "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}}", "pattern '('" },
        { "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":5}}", "expected a pattern" },
        { "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}}",
          "expected one character" },
        { "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":1}}",
          "use_regex: expected a boolean" },
        { "{\"added_tokens\":{},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
          "added_tokens: expected an array" },
        { "{\"added_tokens\":[{\"id\":0,\"content\":\"b\"}],\"model\":{\"type\":\"BPE\",\"vocab\":{"
          "\"a\":0},"
          "\"merges\":[]}}",
          "added token 'b': id 0 belongs to 'a'" },
        { "{\"model\":{\"type\":\"Unigram\",\"unk_id\":5,\"vocab\":[[\"a\",0]]}}", "unk_id 5" },
        { "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}}", "vocab 0: expected a score" },
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        tokenizer *t = NULL;
        infer_error err;
        if (tok_load_json_text(&t, rows[i].json, strlen(rows[i].json), &err) == INFER_OK)
            fail_msg("loaded: %s", rows[i].json);
        if (!strstr(err.msg, rows[i].part)) fail_msg("'%s' not in '%s'", rows[i].part, err.msg);
        assert_non_null(strstr(err.msg, "tokenizer.json"));
    }
    char deep[400];
    memset(deep, '[', sizeof deep);
    infer_error err;
    tokenizer *t;
    assert_int_equal(tok_load_json_text(&t, deep, sizeof deep, &err), INFER_FORMAT);
}

/* Whichever allocation fails, the error is INFER_NOMEM and nothing leaks (AddressSanitizer looks).
 */
static void test_no_memory(void **state)
{
    (void)state;
    char *s;
    size_t n, k;
    assert_int_equal(file_read("tests/fuzz/seeds/tokenizer/tok_llama2.json", 1 << 20, &s, &n, NULL),
                     INFER_OK);
    for (uint64_t i = 1;; i++) {
        tokenizer *t = NULL;
        int32_t *ids = NULL;
        infer_error err = { 0 };
        mem_fail_at(mem_count() + i);
        infer_status st = tok_load_json_text(&t, s, n, &err);
        if (!st) st = tok_encode(t, &ids, &k, "Hello <s> \xC3\xA9 w", 13, NULL, &err);
        mem_fail_at(0);
        if (!st) mem_free(ids);
        tokenizer_free(t);
        if (!st) break;
        assert_int_equal(st, INFER_NOMEM);
        assert_true(i < 10000);
    }
    mem_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_behaviors),
        cmocka_unit_test(test_normalizers),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test_setup_teardown(test_config_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gguf_spm, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gguf_refused, setup, teardown),
        cmocka_unit_test(test_pre_names),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
