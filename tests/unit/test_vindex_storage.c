/*
 * test_vindex_storage.c: the FFN from files that other tools make: interleaved float32 and Q4_0,
 * FP4 and FP8 by features. A small index is written by hand; what is opened decodes to what was
 * encoded.
 */
#include "test.h"

#include "compute/quant.h"
#include "infer_vindex.h"
#include "vindex/vindex.h"

#define D 256
#define F 3
#define L 2
#define V 4

static char folder[1000], path[1200];
static float gate[L][F][D], up[L][F][D], down[L][F][D], embed[V][D];

static void put(const char *name, const void *data, size_t size)
{
    snprintf(path, sizeof path, "%.900s/%s", folder, name);
    test_write(path, data, size);
}

static void take(const char *name)
{
    snprintf(path, sizeof path, "%.900s/%s", folder, name);
    unlink(path);
}

static void put_index(const char *more)
{
    char text[2000];
    snprintf(text, sizeof text,
             "{\"version\":2,\"model\":\"m\",\"family\":\"generic\",\"num_layers\":%d,"
             "\"hidden_size\":%d,\"intermediate_size\":%d,\"vocab_size\":%d,\"embed_scale\":1,"
             "\"dtype\":\"f32\",\"down_top_k\":1,\"layers\":["
             "{\"layer\":0,\"num_features\":%d,\"offset\":0,\"length\":%d},"
             "{\"layer\":1,\"num_features\":%d,\"offset\":%d,\"length\":%d}]%s}",
             L, D, F, V, F, F * D * 4, F, F * D * 4, F * D * 4, more);
    put("index.json", text, strlen(text));
}

static int make(void **state)
{
    (void)state;
    test_folder(folder, sizeof folder);
    float *all[] = { gate[0][0], up[0][0], down[0][0] };
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < L * F * D; i++)
            all[k][i] = (float)((i * (37 + 6 * k)) % 101 - 50) / 64;
    put_index("");
    put("gate_vectors.bin", gate, sizeof gate);
    put("embeddings.bin", embed, sizeof embed);
    return 0;
}

static int take_away(void **state)
{
    (void)state;
    test_remove_folder(folder);
    return 0;
}

static void rows_are(const tensor *t, dtype type, const float *want, float step)
{
    float row[D];
    assert_true(tensor_present(t));
    assert_int_equal(t->type, type);
    assert_int_equal(t->n_rows, F);
    for (int f = 0; f < F; f++) {
        tensor_row(row, t, f);
        for (int i = 0; i < D; i++)
            if (!(row[i] - want[f * D + i] <= step && want[f * D + i] - row[i] <= step))
                fail_msg("row %d, column %d: %g, expected %g", f, i, (double)row[i],
                         (double)want[f * D + i]);
    }
}

static infer_vindex *reopen(void)
{
    infer_vindex *v;
    infer_error err;
    if (infer_vindex_open(&v, folder, NULL, &err)) fail_msg("%s", err.msg);
    return v;
}

static void interleaved(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        dtype type;
        float step;
    } kinds[] = { { "interleaved.bin", DT_F32, 0 },
                  { "interleaved_q4.bin", DT_LARQL_Q4_0, 0.06f } };
    for (int k = 0; k < 2; k++) {
        static uint8_t out[L * 3 * F * D * 4];
        size_t part = quant_row_bytes(kinds[k].type, D) * F;
        for (int l = 0; l < L; l++) {
            quant_formats[kinds[k].type]->quantize(out + (size_t)(3 * l) * part, gate[l][0], NULL,
                                                   F * D);
            quant_formats[kinds[k].type]->quantize(out + (size_t)(3 * l + 1) * part, up[l][0], NULL,
                                                   F * D);
            quant_formats[kinds[k].type]->quantize(out + (size_t)(3 * l + 2) * part, down[l][0],
                                                   NULL, F * D);
        }
        put(kinds[k].file, out, 3 * L * part);
        infer_vindex *v = reopen();
        for (int l = 0; l < L; l++) {
            rows_are(&v->layers[l].gate, kinds[k].type, gate[l][0], kinds[k].step);
            rows_are(&v->layers[l].up, kinds[k].type, up[l][0], kinds[k].step);
            rows_are(&v->layers[l].down_rows, kinds[k].type, down[l][0], kinds[k].step);
        }
        infer_vindex_close(v);
        put(kinds[k].file, out, 3 * L * part - 1);
        infer_error err = { 0 };
        assert_int_equal(infer_vindex_open(&v, folder, NULL, &err), INFER_FORMAT);
        assert_non_null(strstr(err.msg, kinds[k].file));
        take(kinds[k].file);
    }
}

static void fp4_and_fp8(void **state)
{
    (void)state;
    static uint8_t a[L * F * 137], b[L * F * 257];
    for (int l = 0; l < L; l++) {
        quant_formats[DT_VINDEX_FP4]->quantize(a + l * F * 137, up[l][0], NULL, F * D);
        quant_formats[DT_VINDEX_FP8]->quantize(b + l * F * 257, down[l][0], NULL, F * D);
    }
    put_index(",\"fp4\":{\"projections\":{\"gate\":{\"precision\":\"f32\",\"file\":"
              "\"gate_vectors.bin\"},\"up\":{\"precision\":\"fp4\",\"file\":\"u.bin\"},"
              "\"down\":{\"precision\":\"fp8\",\"file\":\"d.bin\"}}}");
    put("u.bin", a, sizeof a);
    put("d.bin", b, sizeof b);
    infer_vindex *v = reopen();
    for (int l = 0; l < L; l++) {
        rows_are(&v->layers[l].gate, DT_F32, gate[l][0], 0);
        rows_are(&v->layers[l].up, DT_VINDEX_FP4, up[l][0], 0.14f);
        rows_are(&v->layers[l].down_rows, DT_VINDEX_FP8, down[l][0], 0.05f);
    }
    infer_vindex_close(v);
    infer_error err = { 0 };
    put("d.bin", b, sizeof b - 1);
    assert_int_equal(infer_vindex_open(&v, folder, NULL, &err), INFER_FORMAT);
    assert_non_null(strstr(err.msg, "d.bin"));
    put_index("");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interleaved),
        cmocka_unit_test(fp4_and_fp8),
    };
    return cmocka_run_group_tests(tests, make, take_away);
}
