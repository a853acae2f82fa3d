/* test_gguf.c: GGUF directories, right and wrong. */
#include "tiny_model.h"

#include "base/mem.h"
#include "models/gguf.h"

static char folder[1000], path[1100];

static int setup(void **state)
{
    (void)state;
    test_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    test_remove_folder(folder);
    return 0;
}

/* Writes b, frees it, opens the file. */
static gguf *open_blob(blob b, infer_error *err)
{
    gguf *g;
    test_write(path, b.n ? (const void *)b.p : "", b.n);
    blob_free(&b);
    gguf_open(&g, path, NULL, NULL, err);
    return g;
}

/* The file must be refused with a message that has part in it. */
static void refuse_blob(blob b, const char *part)
{
    infer_error err;
    gguf *g = open_blob(b, &err);
    if (g || !strstr(err.msg, part)) fail_msg("'%s' not in '%s'", part, g ? "success" : err.msg);
    assert_non_null(strstr(err.msg, "m.gguf"));
}

static void reads_values(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        gguf_out w = { .version = version };
        gg_u32(&w, "n", 4000000000u);
        gg_f32(&w, "f", 0.5f);
        gg_string(&w, "s", "héllo");
        gg_strings(&w, "names", (const char *[]){ "a", "", "ccc" }, 3);
        gg_raw(&w, "neg", T_I8, "\xfb", 1);
        gg_raw(&w, "yes", T_BOOL, "\1", 1);
        uint64_t big = UINT64_MAX;
        gg_raw(&w, "big", T_U64, &big, 8);
        gg_raw(&w, "ints", T_ARRAY, "\2\0\0\0\2\0\0\0\0\0\0\0\x01\x02\xff\xff", 16);
        float v[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
        gg_tensor(&w, "t", 4, 2, v);
        gg_tensor(&w, "u", 3, 0, v);
        infer_error err;
        gguf *g = open_blob(gg_finish(&w), &err);
        assert_non_null(g);
        assert_int_equal(gguf_version(g), version);
        assert_int_equal(gguf_n_values(g), 8);

        int64_t n = -1;
        double d = -1;
        bool found, b = false;
        gguf_text t;
        assert_int_equal(gguf_int(g, "n", &n, &found, &err), INFER_OK);
        assert_true(found && n == 4000000000);
        assert_int_equal(gguf_int(g, "neg", &n, NULL, &err), INFER_OK);
        assert_true(n == -5);
        assert_int_equal(gguf_int(g, "absent", &n, &found, &err), INFER_OK);
        assert_true(!found && n == -5);
        assert_int_equal(gguf_float(g, "f", &d, &found, &err), INFER_OK);
        assert_true(d == 0.5);
        assert_int_equal(gguf_bool(g, "yes", &b, &found, &err), INFER_OK);
        assert_true(b);
        assert_int_equal(gguf_string(g, "s", &t, &found, &err), INFER_OK);
        assert_true(t.n == 6 && memcmp(t.s, "héllo", 6) == 0);
        const gguf_value *a;
        assert_int_equal(gguf_array(g, "names", GGUF_STRING, &a, &err), INFER_OK);
        assert_true(a->count == 3 && a->strings[1].n == 0 && a->strings[2].n == 3);
        assert_int_equal(gguf_array(g, "ints", GGUF_U16, &a, &err), INFER_OK);
        assert_true(gguf_array_number(a, 0) == 513 && gguf_array_number(a, 1) == 65535);

        // the wrong type, or a number that does not fit, names key, type and value
        assert_int_equal(gguf_int(g, "s", &n, NULL, &err), INFER_FORMAT);
        assert_non_null(strstr(err.msg, "key 's': expected an integer, found string 'héllo'"));
        assert_int_equal(gguf_int(g, "big", &n, NULL, &err), INFER_FORMAT);
        assert_non_null(strstr(err.msg, "18446744073709551615"));
        assert_int_equal(gguf_array(g, "names", GGUF_F32, &a, &err), INFER_FORMAT);
        assert_non_null(strstr(err.msg, "found array of string"));

        const gguf_tensor *x = gguf_find_tensor(g, "t");
        assert_non_null(x);
        assert_true(x->dims[0] == 4 && x->dims[1] == 2 && x->bytes == 32);
        assert_memory_equal(x->data, v, 32);
        x = gguf_find_tensor(g, "u");
        assert_true(x && x->n_dims == 1 && x->bytes == 12);
        assert_memory_equal(x->data, v, 12);
        assert_null(gguf_find_tensor(g, "v"));
        gguf_close(g);
    }
}

static void refuses_headers(void **state)
{
    (void)state;
    blob b = { 0 };
    refuse_blob(b, "empty");
    blob_put(&b, "GGUF", 4);
    refuse_blob(b, "file ends in the header");
    b = (blob){ 0 };
    blob_put(&b, "GGUX\3\0\0\0", 8);
    refuse_blob(b, "not a GGUF file");
    refuse_blob(gg_finish(&(gguf_out){ .version = 999 }), "version 999");
    refuse_blob(gg_finish(&(gguf_out){ .version = 1 }), "version 1");
    refuse_blob(gg_finish(&(gguf_out){ .version = 3u << 24 }), "big-endian");
    refuse_blob(gg_finish(&(gguf_out){ .n_tensors = 1ull << 63 }), "9223372036854775808 tensors");
    refuse_blob(gg_finish(&(gguf_out){ .n_kv = UINT64_MAX }), "18446744073709551615 keys");
}

static void refuses_values(void **state)
{
    (void)state;
    gguf_out w = { 0 };
    blob_u64(&w.kv, 1ull << 62);
    w.n_kv = 1;
    blob_put(&w.kv, "0123456789", 10);
    refuse_blob(gg_finish(&w), "name of key 0 has 4611686018427387904 bytes");

    w = (gguf_out){ 0 };
    gg_u32(&w, "", 1);
    refuse_blob(gg_finish(&w), "key 0 is empty");

    w = (gguf_out){ 0 };
    gg_u32(&w, "twice", 1);
    gg_u32(&w, "twice", 2);
    refuse_blob(gg_finish(&w), "key 'twice' occurs twice");

    w = (gguf_out){ 0 };
    gg_raw(&w, "odd", 99, "1234", 4);
    refuse_blob(gg_finish(&w), "key 'odd': value type 99");

    w = (gguf_out){ 0 };
    uint64_t long_string = 1000;
    gg_raw(&w, "general.name", T_STRING, &long_string, 8);
    refuse_blob(gg_finish(&w), "key 'general.name': a string of 1000 runs past the end");

    // counts that do not fit: bytes, strings, arrays
    for (uint32_t item = T_U8; item <= T_F64; item++) {
        w = (gguf_out){ 0 };
        blob a = { 0 };
        blob_u32(&a, item);
        blob_u64(&a, 1ull << 63);
        gg_raw(&w, "blob", T_ARRAY, a.p, a.n);
        blob_free(&a);
        refuse_blob(gg_finish(&w), "key 'blob': an array of 9223372036854775808");
    }

    // arrays in arrays in …
    w = (gguf_out){ 0 };
    blob nested = { 0 };
    for (int i = 0; i < 100; i++) {
        blob_u32(&nested, T_ARRAY);
        blob_u64(&nested, 1);
    }
    gg_raw(&w, "deep", T_ARRAY, nested.p, nested.n);
    blob_free(&nested);
    refuse_blob(gg_finish(&w), "key 'deep': arrays nested deeper");

    for (uint32_t alignment = 0; alignment < 50; alignment += 24) {
        w = (gguf_out){ 0 };
        gg_u32(&w, "general.alignment", alignment);
        refuse_blob(gg_finish(&w), "general.alignment");
    }
    w = (gguf_out){ 0 };
    gg_string(&w, "general.alignment", "32");
    refuse_blob(gg_finish(&w), "general.alignment");
}

static void refuses_tensors(void **state)
{
    (void)state;
    const float v[64] = { 0 };
    static const struct {
        const char *part;
        uint32_t n_dims, type;
        uint64_t dims[9], offset;
    } cases[] = {
        { "tensor 'x': 9 dimensions", 9, 0, { 1, 1, 1, 1, 1, 1, 1, 1, 1 }, 0 },
        { "tensor 'x': 0 dimensions", 0, 0, { 0 }, 0 },
        { "tensor 'x': dimension 1 is 0", 2, 0, { 4, 0 }, 0 },
        { "tensor 'x': dimension 0 is 18446744073709551615", 1, 0, { UINT64_MAX }, 0 },
        { "tensor 'x': the product", 4, 0, { 1u << 31, 1u << 31, 1u << 31, 1u << 31 }, 0 },
        { "tensor 'x'", 2, 0, { 1ull << 61, 4 }, 0 },
        { "bytes before the end of tensor 'x'", 2, 0, { 65, 1 }, 0 },
        { "bytes before tensor 'x'", 2, 0, { 1, 1 }, 1ull << 40 },
        { "tensor 'x': offset 18446744073709551584 is outside", 1, 0, { 1 }, UINT64_MAX - 31 },
        { "tensor 'x': offset 4, expected a multiple of the alignment 32", 1, 0, { 1 }, 4 },
        { "tensor 'x': rows of 33 elements, expected a multiple of 32 for q8_0", 1, 8, { 33 }, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_out w = { 0 };
        blob_put(&w.data, v, sizeof v);
        gg_entry(&w, "x", cases[i].n_dims, cases[i].dims, cases[i].type, cases[i].offset);
        refuse_blob(gg_finish(&w), cases[i].part);
    }
    gguf_out w = { 0 };
    gg_tensor(&w, "same", 4, 0, v);
    gg_tensor(&w, "same", 4, 0, v);
    refuse_blob(gg_finish(&w), "tensor 'same' occurs twice");

    // a type that we do not know is the model's business
    w = (gguf_out){ 0 };
    gg_entry(&w, "x", 1, (uint64_t[]){ 1 }, 1000, 0);
    infer_error err;
    gguf *g = open_blob(gg_finish(&w), &err);
    assert_non_null(g);
    assert_int_equal(gguf_tensor_at(g, 0)->type, -1);
    assert_int_equal(gguf_tensor_at(g, 0)->ggml_type, 1000);
    gguf_close(g);
}

/* Every truncation is refused, at any byte. */
static void refuses_truncation(void **state)
{
    (void)state;
    gguf_out w = { 0 };
    tiny_keys(&w, "llama");
    gg_strings(&w, "tokens", (const char *[]){ "a", "b" }, 2);
    tiny_data(&w, false, NULL);
    blob b = gg_finish(&w);
    infer_error err;
    gguf *g;
    for (size_t n = 0; n < b.n; n += n < 3000 ? 1 : 509) {
        test_write(path, b.p, n);
        assert_int_not_equal(gguf_open(&g, path, NULL, NULL, &err), INFER_OK);
        assert_null(g);
        assert_non_null(strstr(err.msg, "m.gguf"));
    }
    blob_free(&b);
}

/* ---- split sets ------------------------------------------------------------------------------ */

static void write_part(const char *file, int no, int of, int n_tensors, const char *name)
{
    gguf_out w = { 0 };
    const float v[4] = { (float)no, 1, 2, 3 };
    if (no == 0) gg_string(&w, "general.architecture", "llama");
    uint16_t x = (uint16_t)no;
    gg_raw(&w, "split.no", T_U16, &x, 2);
    x = (uint16_t)of;
    gg_raw(&w, "split.count", T_U16, &x, 2);
    int32_t all = n_tensors;
    gg_raw(&w, "split.tensors.count", T_I32, &all, 4);
    gg_tensor(&w, name, 4, 0, v);
    char full[1200];
    snprintf(full, sizeof full, "%s/%s", folder, file);
    blob b = gg_finish(&w);
    test_write(full, b.p, b.n);
    blob_free(&b);
}

static gguf *open_part(const char *file, infer_error *err)
{
    gguf *g;
    char full[1200];
    snprintf(full, sizeof full, "%s/%s", folder, file);
    gguf_open(&g, full, NULL, NULL, err);
    return g;
}

static void reads_split_sets(void **state)
{
    (void)state;
    infer_error err;
    write_part("m-00001-of-00002.gguf", 0, 2, 2, "a");
    assert_null(open_part("m-00001-of-00002.gguf", &err));
    assert_int_equal(err.code, INFER_NOT_FOUND);
    assert_non_null(strstr(err.msg, "m-00002-of-00002.gguf"));

    write_part("m-00002-of-00002.gguf", 1, 2, 2, "b");
    gguf *g = open_part("m-00001-of-00002.gguf", &err);
    assert_non_null(g);
    assert_int_equal(gguf_n_tensors(g), 2);
    const gguf_tensor *t = gguf_find_tensor(g, "b");
    assert_true(t && *(const float *)(const void *)t->data == 1);
    assert_non_null(gguf_find(g, "general.architecture"));
    assert_false(gguf_broken(g));
    gguf_close(g);

    assert_null(open_part("m-00002-of-00002.gguf", &err));
    assert_non_null(strstr(err.msg, "file 2 of a split set of 2: open its first file"));

    write_part("m-00002-of-00002.gguf", 1, 2, 2, "a");
    assert_null(open_part("m-00001-of-00002.gguf", &err));
    assert_non_null(strstr(err.msg, "tensor 'a' occurs twice"));
    write_part("m-00002-of-00002.gguf", 0, 2, 2, "b");
    assert_null(open_part("m-00001-of-00002.gguf", &err));
    assert_non_null(strstr(err.msg, "expected file 2 of a split set of 2, found file 1 of 2"));
    write_part("m-00002-of-00002.gguf", 1, 2, 2, "b");
    write_part("m-00001-of-00002.gguf", 0, 2, 3, "a");
    assert_null(open_part("m-00001-of-00002.gguf", &err));
    assert_non_null(strstr(err.msg, "split.tensors.count"));
    write_part("renamed.gguf", 0, 2, 2, "a");
    assert_null(open_part("renamed.gguf", &err));
    assert_non_null(strstr(err.msg, "-00001-of-00002.gguf"));
}

/* Memory that runs out at any point is an error and loses nothing (the sanitizer looks on). */
static void survives_no_memory(void **state)
{
    (void)state;
    gguf_out w = { 0 };
    tiny_keys(&w, "llama");
    gg_strings(&w, "tokens", (const char *[]){ "a", "b" }, 2);
    tiny_data(&w, false, NULL);
    blob b = gg_finish(&w);
    test_write(path, b.p, b.n);
    blob_free(&b);
    infer_error err;
    gguf *g = NULL;
    int refused = 0;
    for (uint64_t i = 1; !g; i++, refused++) {
        mem_fail_at(mem_count() + i);
        infer_status s = gguf_open(&g, path, NULL, NULL, &err);
        assert_true(g ? s == INFER_OK : s == INFER_NOMEM);
    }
    mem_fail_at(0);
    assert_true(refused > 3);
    gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_values, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_headers, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_values, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_truncation, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_split_sets, setup, teardown),
        cmocka_unit_test_setup_teardown(survives_no_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
