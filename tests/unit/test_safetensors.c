/* test_safetensors.c: weight folders, right and wrong. */
#include "tiny_model.h"

#include "base/mem.h"
#include "models/safetensors.h"

static char folder[1000], path[1100];

static int setup(void **state)
{
    (void)state;
    test_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    test_remove_folder(folder);
    return 0;
}

static void refuse(const char *part)
{
    infer_error err;
    safetensors *s;
    st_open(&s, folder, NULL, NULL, &err);
    if (s || !strstr(err.msg, part)) fail_msg("'%s' not in '%s'", part, s ? "success" : err.msg);
}

static void refuse_header(const char *header, size_t n_data, const char *part)
{
    static const uint8_t data[256];
    write_st(path, header, data, n_data);
    refuse(part);
}

static void reads_one_file(void **state)
{
    (void)state;
    const uint8_t data[24] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    write_st(path,
             "{\"__metadata__\":{\"format\":\"pt\"},"
             "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
             "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
             "\"fp8\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],\"data_offsets\":[16,24]},"
             "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[24,24]}}  ",
             data, sizeof data);
    infer_error err;
    safetensors *s;
    assert_int_equal(st_open(&s, folder, NULL, NULL, &err), INFER_OK);
    assert_int_equal(st_n_tensors(s), 4);
    const st_tensor *t = st_find(s, "a");
    assert_non_null(t);
    assert_true(t->type == DT_BF16 && t->n_dims == 2 && t->dims[0] == 2 && t->dims[1] == 3);
    assert_memory_equal(t->data, data, 12);
    t = st_find(s, "fp8");
    assert_true(t && t->type == -1 && t->bytes == 8);
    assert_string_equal(t->dtype_name, "F8_E4M3");
    assert_int_equal(st_find(s, "scalar")->n_dims, 0);
    assert_null(st_find(s, "b"));
    assert_false(st_broken(s));
    st_close(s);
}

static void refuses_headers(void **state)
{
    (void)state;
    refuse("model.safetensors");
    test_write(path, "12345", 5);
    refuse("5 bytes");
    uint64_t n = 1ull << 63;
    test_write(path, &n, 8);
    refuse("header length 9223372036854775808 exceeds the file");
    test_write(path, "\x03\0\0\0\0\0\0\0{}", 10);
    refuse("header length 3 exceeds the file");
    refuse_header("{{", 0, "not valid JSON");
    refuse_header("[]", 0, "expected a JSON object");
    refuse_header("", 0, "not valid JSON");
    refuse_header("{\"a\":1}", 0, "tensor 'a'");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                  "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                  4, "a");

    // deeper than any header is
    char deep[5000] = "{\"a\":";
    memset(deep + 5, '[', 4000);
    refuse_header(deep, 0, "not valid JSON");
}

static void refuses_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *dtype, *shape, *offsets, *part;
    } cases[] = {
        { "F99", "[1]", "[0,4]", "tensor 'x': unknown dtype 'F99'" },
        { "F32", "[1]", "[4,0]", "tensor 'x': data_offsets [4, 0] go backwards" },
        { "F32", "[1]", "[-4,0]", "tensor 'x'" },
        { "F32", "[1]", "[0,1000]", "bytes before the end of tensor 'x'" },
        { "F32", "[3]", "[0,4]", "tensor 'x': its shape in F32 takes 12 bytes" },
        { "F32", "[4294967296,4294967296]", "[0,4]", "tensor 'x': its shape overflows" },
        { "F32", "[-1]", "[0,4]", "tensor 'x': dimension 0" },
        { "F32", "[1.0]", "[0,4]", "tensor 'x': dimension 0" },
        { "F32", "[1,1,1,1,1,1]", "[0,4]", "tensor 'x': expected a shape of at most 5" },
        { "F32", "1", "[0,4]", "tensor 'x': expected a shape" },
        { "F32", "[1]", "[0]", "tensor 'x': expected dtype, shape and two data_offsets" },
        { "F32", "[1]", "[0,\"4\"]", "tensor 'x'" },
        { "F4", "[1]", "[0,1]", "tensor 'x'" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[300];
        snprintf(header, sizeof header,
                 "{\"x\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":%s}}", cases[i].dtype,
                 cases[i].shape, cases[i].offsets);
        refuse_header(header, 8, cases[i].part);
    }
}

static void write_index(const char *text)
{
    char full[1200];
    snprintf(full, sizeof full, "%s/model.safetensors.index.json", folder);
    test_write(full, text, strlen(text));
}

static void reads_shards(void **state)
{
    (void)state;
    char full[1200];
    static const float one = 1, two = 2;
    snprintf(full, sizeof full, "%s/one.safetensors", folder);
    write_st(full, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", &one, 4);
    write_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}");
    refuse("two.safetensors");
    snprintf(full, sizeof full, "%s/two.safetensors", folder);
    write_st(full, "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", &two, 4);
    infer_error err;
    safetensors *s;
    assert_int_equal(st_open(&s, folder, NULL, NULL, &err), INFER_OK);
    assert_int_equal(st_n_tensors(s), 2);
    assert_memory_equal(st_find(s, "b")->data, &two, 4);
    st_close(s);

    write_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}");
    refuse("tensor 'c' is not in 'two.safetensors'");
    write_st(full, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", &two, 4);
    refuse("tensor 'a' occurs twice");
    static const char *const outside[] = { "../one.safetensors", "/etc/passwd", "x/y", "..", "" };
    for (int i = 0; i < 5; i++) {
        char index[200];
        snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%s\"}}", outside[i]);
        write_index(index);
        refuse("expected the name of a file in the folder");
    }
    write_index("{\"weight_map\":{\"a\":7}}");
    refuse("expected the name of a file in the folder");
    write_index("{}");
    refuse("weight_map");
    write_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"one.safetensors\"}}");
    refuse("index.json: line 1");
}

static void refuses_truncation(void **state)
{
    (void)state;
    tiny_st(folder, "model.safetensors", false, "model.", 0, 100, "");
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    static char all[200000];
    size_t size = fread(all, 1, sizeof all, f);
    fclose(f);
    assert_true(size > 10000 && size < sizeof all);
    for (size_t n = 0; n < size; n += 61) {
        test_write(path, all, n);
        refuse("model.safetensors");
    }
}

static void survives_no_memory(void **state)
{
    (void)state;
    tiny_st(folder, "model.safetensors", false, "model.", 0, 100, "");
    infer_error err;
    safetensors *s = NULL;
    int refused = 0;
    for (uint64_t i = 1; !s; i++, refused++) {
        mem_fail_at(mem_count() + i);
        infer_status st = st_open(&s, folder, NULL, NULL, &err);
        assert_true(s ? st == INFER_OK : st == INFER_NOMEM);
    }
    mem_fail_at(0);
    assert_true(refused > 3);
    st_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_one_file, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_headers, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(reads_shards, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_truncation, setup, teardown),
        cmocka_unit_test_setup_teardown(survives_no_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
