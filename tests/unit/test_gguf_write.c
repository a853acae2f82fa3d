/* gguf_write: what is written is read back; nothing is left of a file that was not finished. */
#include "test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "models/gguf_write.h"

static char folder[] = "/tmp/gguf_write_XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof(path), "%s/m.gguf", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static int n_files(void)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static gguf_writer *writer(void)
{
    gguf_writer *w;
    infer_error err;
    assert_int_equal(gguf_writer_new(&w, path, &err), INFER_OK);
    gguf_text words[] = { { "a", 1 }, { "", 0 }, { "long\0nul", 8 } };
    int32_t numbers[] = { -1, 2, 300 };
    gguf_put_string(w, "general.architecture", "test", 4);
    gguf_put_u32(w, "n", 7);
    gguf_put_u32(w, "n", 8); // the first stays
    gguf_put_f32(w, "x", 0.5f);
    gguf_put_bool(w, "yes", true);
    gguf_put_strings(w, "words", words, 3);
    gguf_put_array(w, "numbers", GGUF_I32, numbers, 3);
    gguf_put_tensor(w, "a", DT_F32, (int64_t[]){ 3 }, 1, 12);
    gguf_put_tensor(w, "b", DT_Q8_0, (int64_t[]){ 32, 2 }, 2, 68);
    return w;
}

static void write_data(gguf_writer *w)
{
    infer_error err;
    float a[3] = { 1, 2, 3 };
    uint8_t b[68];
    for (int i = 0; i < 68; i++)
        b[i] = (uint8_t)i;
    assert_int_equal(gguf_begin(w, &err), INFER_OK);
    assert_int_equal(gguf_write(w, a, 12, &err), INFER_OK);
    assert_int_equal(gguf_write(w, b, 40, &err), INFER_OK);
    assert_int_equal(gguf_write(w, b + 40, 28, &err), INFER_OK);
}

static void check_keys(const gguf *g)
{
    infer_error err;
    int64_t n = 0;
    double x = 0;
    bool yes = false;
    const gguf_value *v;
    assert_int_equal(gguf_n_values(g), 6);
    assert_int_equal(gguf_int(g, "n", &n, NULL, &err), INFER_OK);
    assert_int_equal(n, 7);
    assert_int_equal(gguf_float(g, "x", &x, NULL, &err), INFER_OK);
    assert_true(x == 0.5);
    assert_int_equal(gguf_bool(g, "yes", &yes, NULL, &err), INFER_OK);
    assert_true(yes);
    assert_int_equal(gguf_array(g, "words", GGUF_STRING, &v, &err), INFER_OK);
    assert_int_equal(v->count, 3);
    assert_int_equal(v->strings[2].n, 8);
    assert_memory_equal(v->strings[2].s, "long\0nul", 8);
    assert_int_equal(v->size, 3 * 8 + 9);
    assert_int_equal(gguf_array(g, "numbers", GGUF_I32, &v, &err), INFER_OK);
    assert_true(gguf_array_number(v, 0) == -1 && gguf_array_number(v, 2) == 300);
}

static void test_round_trip(void **state)
{
    (void)state;
    gguf_writer *w = writer();
    infer_error err;
    write_data(w);
    assert_int_equal(gguf_finish(w, &err), INFER_OK);
    gguf_writer_free(w);
    assert_int_equal(n_files(), 1);
    gguf *g;
    assert_int_equal(gguf_open(&g, path, NULL, NULL, &err), INFER_OK);
    check_keys(g);
    assert_int_equal(gguf_n_tensors(g), 2);
    const gguf_tensor *a = gguf_find_tensor(g, "a"), *b = gguf_find_tensor(g, "b");
    float f;
    memcpy(&f, a->data + 8, 4);
    assert_true(a->type == DT_F32 && f == 3);
    assert_true(b->type == DT_Q8_0 && b->n_dims == 2 && b->dims[1] == 2);
    for (int i = 0; i < 68; i++)
        assert_int_equal(b->data[i], i);

    // values as another file has them
    gguf_writer *copy;
    assert_int_equal(gguf_writer_new(&copy, path, &err), INFER_OK);
    for (int i = 0; i < gguf_n_values(g); i++)
        gguf_put_value(copy, gguf_value_at(g, i));
    assert_int_equal(gguf_begin(copy, &err), INFER_OK);
    assert_int_equal(gguf_finish(copy, &err), INFER_OK);
    gguf_writer_free(copy);
    gguf_close(g);
    assert_int_equal(gguf_open(&g, path, NULL, NULL, &err), INFER_OK);
    check_keys(g);
    gguf_close(g);
    unlink(path);
}

static void test_unfinished(void **state)
{
    (void)state;
    infer_error err;
    gguf_writer *w = writer();
    write_data(w);
    assert_int_equal(n_files(), 1);
    assert_int_not_equal(access(path, F_OK), 0);
    gguf_writer_free(w);
    assert_int_equal(n_files(), 0);

    w = writer(); // data missing
    assert_int_equal(gguf_begin(w, &err), INFER_OK);
    assert_int_equal(gguf_finish(w, &err), INFER_INTERNAL);
    gguf_writer_free(w);
    assert_int_equal(n_files(), 0);
}

static void test_paths(void **state)
{
    (void)state;
    infer_error err;
    gguf_writer *w;
    assert_int_equal(gguf_writer_new(&w, folder, &err), INFER_ARGUMENT);
    assert_int_equal(gguf_writer_new(&w, "", &err), INFER_ARGUMENT);
    assert_int_equal(gguf_writer_new(&w, "/nowhere/at/all.gguf", &err), INFER_OK);
    assert_int_equal(gguf_begin(w, &err), INFER_IO);
    assert_non_null(strstr(err.msg, "No such file"));
    gguf_writer_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_unfinished),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
