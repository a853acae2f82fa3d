/*
 * test_vindex_files.c: broken indexes. A small index is made; each of its files is cut at every
 * 64th byte, and every number of index.json and of the manifest is set to extremes. Opening it, as
 * an index and as a model, is an error with a message or a success; whatever opens can be read.
 */
#include "test.h"

#include <dirent.h>

#include <jansson.h>

#include "base/map.h"
#include "base/mem.h"
#include "infer_vindex.h"
#include "vindex/patch.h"

#define MODEL "tests/golden/tiny/control_gguf_bpe_f32.gguf"
#define MAX_CUTS 400 // of a file: beyond that the step grows

static char folder[1000], path[1200];

static void read_all(const infer_vindex *v)
{
    float *row = mem_alloc((size_t)v->d_model + 1, sizeof *row);
    assert_non_null(row);
    for (int l = 0; l < v->n_layers; l++) {
        const vindex_layer *x = &v->layers[l];
        if (tensor_present(&x->gate) && x->n_features) tensor_row(row, &x->gate, x->n_features - 1);
        if (tensor_present(&x->up) && x->n_features) tensor_row(row, &x->up, x->up.n_rows - 1);
        infer_token_score best[4];
        for (int f = 0; f < x->n_features; f++)
            infer_vindex_feature(v, NULL, l, f, best, 4);
    }
    mem_free(row);
}

/* Whether both ways of opening succeed. */
static bool opens(const char *what)
{
    infer_error err = { 0 };
    infer_vindex *v = NULL;
    infer_model *m = NULL;
    bool both = true;
    if (infer_vindex_open(&v, folder, NULL, &err)) {
        if (!err.msg[0]) fail_msg("%s: refused without a word", what);
        both = false;
    } else {
        read_all(v);
    }
    infer_vindex_close(v);
    if (infer_model_open(&m, folder, NULL, &err)) {
        if (!err.msg[0]) fail_msg("%s: refused without a word", what);
        both = false;
    }
    infer_model_close(m);
    return both;
}

/* Facts by key beside the index, in the folder `to`. */
static void add_facts(const char *from, const char *to)
{
    infer_error err;
    infer_vindex *v;
    if (infer_vindex_open(&v, from, NULL, &err)) fail_msg("%s", err.msg);
    infer_patch *p = infer_patch_new(v, &err);
    for (int i = 0; i < 3; i++) {
        patch_op op = { .kind = PATCH_INSERT_KNN,
                        .layer = i / 2,
                        .token = 100 + i,
                        .gate = mem_zero((size_t)v->d_model, sizeof(float)),
                        .entity = mem_strdup("entity"),
                        .relation = mem_strdup("relation"),
                        .target = mem_strdup("target") };
        op.gate[i] = 1;
        assert_int_equal(patch_add(p, &op, &err), INFER_OK);
    }
    if (infer_patch_compile(p, to, &err)) fail_msg("%s", err.msg);
    infer_patch_free(p);
    infer_vindex_close(v);
}

static int make(void **state)
{
    (void)state;
    char out[1100];
    infer_error err = { 0 };
    test_folder(folder, sizeof folder - 10);
    snprintf(out, sizeof out, "%s/w", folder);
    infer_extract_options o = {
        .struct_size = sizeof o, .dtype = "f16", .n_threads = 1, .n_clusters = 3
    };
    if (infer_extract(MODEL, out, &o, &err)) fail_msg("%s", err.msg);
    strcat(folder, "/v");
    add_facts(out, folder);
    assert_true(opens("the whole index"));
    return 0;
}

static int take_away(void **state)
{
    (void)state;
    folder[strlen(folder) - 2] = 0;
    test_remove_folder(folder);
    return 0;
}

static void cut_file(const char *name)
{
    char *data, what[300];
    size_t n;
    infer_error err;
    snprintf(path, sizeof path, "%.900s/%.200s", folder, name);
    if (file_read(path, 64 << 20, &data, &n, &err)) fail_msg("%s", err.msg);
    size_t step = (n / 64 / MAX_CUTS + 1) * 64;
    for (size_t at = 0; at < n; at += step) {
        snprintf(what, sizeof what, "%.200s cut at %zu of %zu", name, at, n);
        assert_int_equal(truncate(path, (off_t)at), 0);
        bool whole = opens(what);
        bool needed = !strcmp(name + strlen(name) - 4, ".bin");
        if (whole && needed) fail_msg("%s: opens", what);
        test_write(path, data, n);
    }
    mem_free(data);
}

static void every_file_cut(void **state)
{
    (void)state;
    DIR *d = opendir(folder);
    char names[40][64];
    int n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) && n < 40;)
        if (e->d_name[0] != '.' && strlen(e->d_name) < 64) strcpy(names[n++], e->d_name);
    closedir(d);
    assert_true(n >= 8);
    for (int i = 0; i < n; i++)
        cut_file(names[i]);
    assert_true(opens("the index again"));
}

static json_t *extreme(int k)
{
    switch (k) {
    case 0: return json_integer(-1);
    case 1: return json_integer(0);
    case 2: return json_integer(INT32_MAX);
    case 3: return json_integer((json_int_t)1 << 40);
    case 4: return json_integer(INT64_MAX);
    case 5: return json_integer(INT64_MIN);
    case 6: return json_real(1e300);
    case 7: return json_string("x");
    case 8: return json_null();
    case 9: return json_array();
    default: return json_object();
    }
}

static void write_json(const json_t *root)
{
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    test_write(path, text, strlen(text));
    free(text);
}

/* Each member, at any depth but within the source's own settings, to each extreme. */
static void spoil(json_t *root, json_t *at, int depth)
{
    const char *key;
    void *tmp;
    json_t *value;
    char what[200];
    if (json_is_array(at)) {
        for (size_t i = 0; i < json_array_size(at) && i < 2; i++)
            spoil(root, json_array_get(at, i), depth + 1);
        return;
    }
    json_object_foreach_safe(at, tmp, key, value)
    {
        if (depth < 4 && (json_is_object(value) || json_is_array(value)))
            spoil(root, value, depth + 1);
        char *name = strdup(key);
        json_incref(value);
        for (int k = 0; k < 11; k++) {
            snprintf(what, sizeof what, "%.100s as extreme %d", name, k);
            json_object_set_new(at, name, extreme(k));
            write_json(root);
            opens(what);
        }
        json_object_set_new(at, name, value);
        free(name);
    }
}

static void spoil_file(const char *name)
{
    char *text;
    size_t n;
    infer_error err;
    snprintf(path, sizeof path, "%.900s/%.200s", folder, name);
    if (file_read(path, 64 << 20, &text, &n, &err)) fail_msg("%s", err.msg);
    json_t *root = json_loadb(text, n, 0, NULL);
    assert_non_null(root);
    spoil(root, root, 0);
    json_decref(root);
    test_write(path, text, n);
    mem_free(text);
    assert_true(opens("the index again"));
}

static void extremes(void **state)
{
    (void)state;
    spoil_file("index.json");
    spoil_file("weight_manifest.json");
}

/* Each of the first words of a file to each extreme. */
static void spoil_words(const char *name, size_t n_words)
{
    char *data, what[100];
    size_t n;
    infer_error err;
    static const uint32_t values[] = { 0, 1, 2, 3, 10, 0x7fffffff, 0x80000000u, 0xffffffffu };
    snprintf(path, sizeof path, "%.900s/%.200s", folder, name);
    if (file_read(path, 64 << 20, &data, &n, &err)) fail_msg("%s", err.msg);
    for (size_t at = 0; at < 4 * n_words; at += 4)
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            char old[4];
            memcpy(old, data + at, 4);
            memcpy(data + at, &values[k], 4);
            snprintf(what, sizeof what, "%.60s: word %zu is %x", name, at / 4, values[k]);
            test_write(path, data, n);
            opens(what);
            memcpy(data + at, old, 4);
        }
    test_write(path, data, n);
    mem_free(data);
}

static void headers(void **state)
{
    (void)state;
    spoil_words("down_meta.bin", 5);
    spoil_words("knn_store.bin", 60); // header, a list's head, keys, ids, a fact's length
    assert_true(opens("the index again"));
}

static void a_file_is_missing(void **state)
{
    (void)state;
    static const char *const needed[] = { "embeddings.bin",       "norms.bin",
                                          "attn_weights.bin",     "gate_vectors.bin",
                                          "up_weights.bin",       "index.json",
                                          "weight_manifest.json", "infer_metadata.gguf" };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        char away[1300];
        infer_error err = { 0 };
        infer_model *m = NULL;
        snprintf(path, sizeof path, "%s/%s", folder, needed[i]);
        snprintf(away, sizeof away, "%s.away", path);
        assert_int_equal(rename(path, away), 0);
        if (!infer_model_open(&m, folder, NULL, &err)) fail_msg("opens without %s", needed[i]);
        assert_true(err.msg[0]);
        assert_int_equal(rename(away, path), 0);
    }
    assert_true(opens("the index again"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_cut),
        cmocka_unit_test(extremes),
        cmocka_unit_test(headers),
        cmocka_unit_test(a_file_is_missing),
    };
    return cmocka_run_group_tests(tests, make, take_away);
}
