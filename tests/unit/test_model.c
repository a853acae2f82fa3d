/* test_model.c: opening models of both containers: plans, weights, faults. */
#include "tiny_model.h"

#include <math.h>

#include "base/mem.h"
#include "models/model.h"

static char folder[1000], path[1100];
static char logged[1000];

static int setup(void **state)
{
    (void)state;
    test_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    logged[0] = 0;
    return 0;
}
static int teardown(void **state)
{
    (void)state;
    test_remove_folder(folder);
    return 0;
}

static void keep_line(infer_log_level level, const char *line, void *user)
{
    (void)user;
    assert_int_equal(level, INFER_LOG_WARN);
    snprintf(logged, sizeof logged, "%s", line);
}

static infer_model *open_path(const char *p, infer_error *err)
{
    infer_model *m;
    const infer_model_options o = { .log = { .fn = keep_line } };
    infer_model_open(&m, p, &o, err);
    return m;
}

static infer_model *open_ok(const char *p)
{
    infer_error err;
    infer_model *m = open_path(p, &err);
    if (!m) fail_msg("%s", err.msg);
    assert_int_equal(err.code, INFER_OK);
    return m;
}

static void refuse(const char *p, infer_status code, const char *part)
{
    infer_error err;
    infer_model *m = open_path(p, &err);
    if (m || !strstr(err.msg, part)) fail_msg("'%s' not in '%s'", part, m ? "success" : err.msg);
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.msg, folder));
}

static void write_gguf(gguf_out *w)
{
    blob b = gg_finish(w);
    test_write(path, b.p, b.n);
    blob_free(&b);
}

static void write_tiny(const char *family, bool gemma)
{
    gguf_out w = { 0 };
    tiny_keys(&w, family);
    tiny_data(&w, gemma, NULL);
    write_gguf(&w);
}

static void write_text(const char *file, const char *text)
{
    char full[1200];
    snprintf(full, sizeof full, "%s/%s", folder, file);
    test_write(full, text, strlen(text));
}

#define SIZES                                                                                      \
    "\"num_hidden_layers\":2,\"hidden_size\":32,\"intermediate_size\":64,\"head_dim\":16,"         \
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"max_position_embeddings\":128,"         \
    "\"rms_norm_eps\":1e-5"

/* Row r of a tensor is that of the tiny model's tensor `name`. */
static void same_row(const tensor *t, const char *name, bool gemma, int r)
{
    tiny_tensor all[40];
    int n = tiny_tensors(all, gemma), i = 0;
    while (i < n && strcmp(all[i].gguf, name) != 0)
        i++;
    assert_true(i < n);
    assert_int_equal(t->n_rows, all[i].rows);
    assert_int_equal(t->n_cols, all[i].cols);
    float *want = tiny_values(i, tiny_count(&all[i])), row[TINY_FF];
    tensor_row(row, t, r);
    assert_memory_equal(row, want + r * all[i].cols, (size_t)all[i].cols * sizeof(float));
    free(want);
}

static void opens_llama_gguf(void **state)
{
    (void)state;
    write_tiny("llama", false);
    infer_model *m = open_ok(path);
    infer_model_info info = infer_model_describe(m);
    assert_string_equal(info.arch, "llama");
    assert_string_equal(info.name, "tiny");
    assert_string_equal(info.quant, "f32");
    assert_string_equal(info.path, path);
    assert_true(info.n_layers == 2 && info.d_model == 32 && info.n_heads == 2);
    assert_true(info.n_kv_heads == 1 && info.head_dim == 16 && info.d_ff == 64);
    assert_true(info.n_vocab == TINY_VOCAB && info.n_ctx_train == 128 && info.window == 0);
    assert_true(info.weight_bytes == info.n_params * 4 && info.file_bytes > info.weight_bytes);
    assert_false(info.has_tokenizer);
    assert_true(m->n_eos_ids == 1 && m->eos_ids[0] == 7);
    assert_false(model_broken(m));

    const layer_plan *p = &m->layers[1];
    same_row(&p->q.w, "blk.1.attn_q.weight", false, 3);
    same_row(&p->v.w, "blk.1.attn_v.weight", false, 15);
    same_row(&p->down.w, "blk.1.ffn_down.weight", false, 31);
    assert_ptr_equal(m->head.w.data, m->embed.data);
    assert_true(p->attn_norm.kind == NORM_RMS && p->attn_norm.offset == 0);
    assert_true(p->attn_norm.eps == 1e-5f && (uintptr_t)p->attn_norm.weight % 64 == 0);
    assert_true(p->attn_scale == 0.25f && p->kv_source == 1 && p->rope == 0 && p->window == 0);
    assert_true(p->ffn == FFN_GATED && p->act == ACT_SILU && p->residual_scale == 1);
    assert_int_equal(m->ropes[0].pairing, ROPE_ADJACENT);
    assert_true(m->max_heads_width == 32 && m->max_d_ff == 64 && m->embed_scale == 1);
    infer_model_close(m);
    assert_string_equal(logged, "");
}

static void opens_gemma3(void **state)
{
    (void)state;
    write_tiny("gemma3", true);
    infer_model *m = open_ok(path);
    const layer_plan *p = &m->layers[0];
    assert_true(p->q_norm.kind == NORM_RMS && p->post_attn_norm.kind == NORM_RMS);
    assert_true(p->ffn_norm.offset == 0 && m->final_norm.offset == 0);
    assert_true(p->act == ACT_GELU_TANH && m->embed_scale == sqrtf(32));
    assert_true(p->window == 4096 && p->rope == 1 && m->n_ropes == 2);
    assert_true(m->ropes[0].base == 1e6 && m->ropes[1].base == 1e4);
    assert_int_equal(m->ropes[0].pairing, ROPE_HALVES);
    infer_model_close(m);

    // the same as a folder, under a multimodal checkpoint's prefix and with a foreign tensor
    tiny_st(folder, "model.safetensors", true, "language_model.model.", 0, 100,
            ",\"vision_tower.x.weight\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[0,0]}");
    write_text("config.json", "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],"
                              "\"text_config\":{\"model_type\":\"gemma3_text\"," SIZES
                              ",\"query_pre_attn_scalar\":64,\"eos_token_id\":1}}");
    write_text("generation_config.json", "{\"eos_token_id\":106}");
    m = open_ok(folder);
    p = &m->layers[1];
    same_row(&p->gate.w, "blk.1.ffn_gate.weight", true, 5);
    assert_true(p->attn_norm.offset == 1 && p->q_norm.offset == 1 && p->attn_scale == 0.125f);
    tiny_tensor t[40];
    tiny_tensors(t, true);
    assert_string_equal(p->gate.w.name, "language_model.model.layers.1.mlp.gate_proj.weight");
    assert_true(m->n_eos_ids == 2 && m->eos_ids[0] == 106 && m->eos_ids[1] == 1);
    infer_model_close(m);
    assert_string_equal(logged, "");
}

static void opens_folders(void **state)
{
    (void)state;
    refuse(folder, INFER_NOT_FOUND, "no config.json");
    write_text("config.json", "{\"model_type\":\"llama\"," SIZES "}");
    refuse(folder, INFER_NOT_FOUND, "config.json without model.safetensors");

    // one GGUF is taken, several are listed, a split set's later files do not count
    write_tiny("llama", false);
    infer_model_close(open_ok(folder));
    write_text("x-00002-of-00002.gguf", "");
    infer_model_close(open_ok(folder));
    write_text("b.gguf", "");
    refuse(folder, INFER_ARGUMENT, "b.gguf, m.gguf");

    // safetensors win; untied is Llama's default, so a head is needed
    tiny_st(folder, "model.safetensors", false, "model.", 0, 100, "");
    refuse(folder, INFER_FORMAT, "lm_head.weight missing");
    write_text("config.json", "{\"model_type\":\"llama\",\"tie_word_embeddings\":true," SIZES "}");
    infer_model *m = open_ok(folder);
    assert_int_equal(m->ropes[0].pairing, ROPE_HALVES);
    same_row(&m->layers[0].o.w, "blk.0.attn_output.weight", false, 9);
    assert_ptr_equal(m->head.w.data, m->embed.data);
    assert_null(m->layers[0].q.bias);
    infer_model_close(m);

    write_text("config.json", "{\"model_type\":\"qwen2\",\"tie_word_embeddings\":true," SIZES "}");
    refuse(folder, INFER_FORMAT,
           "model.layers.0.self_attn.q_proj.bias missing; "
           "model.layers.0.self_attn.k_proj.bias missing");
    write_text("config.json", "{\"model_type\":\"mystery\"," SIZES "}");
    refuse(folder, INFER_UNSUPPORTED, "architecture 'mystery' is not supported (supported: llama");
    write_text("config.json", "{" SIZES "}");
    refuse(folder, INFER_FORMAT, "model_type missing");
    write_text("config.json", "{\"model_type\":\"llama\",}");
    refuse(folder, INFER_FORMAT, "config.json: line 1");
    write_text("config.json", "{\"model_type\":\"llama\",\"num_hidden_layers\":2}");
    refuse(folder, INFER_FORMAT, "hidden_size missing; intermediate_size missing");
    snprintf(path, sizeof path, "%s/none.gguf", folder);
    refuse(path, INFER_NOT_FOUND, "none.gguf: no such file or folder");
}

static void refuses_shapes(void **state)
{
    (void)state;
    const float v[TINY_D * (TINY_FF + 1)] = { 0 };
    gguf_out w = { 0 };
    tiny_keys(&w, "llama");
    tiny_data(&w, false, "blk.1.ffn_up.weight");
    gg_tensor(&w, "blk.1.ffn_up.weight", TINY_D, TINY_FF + 1, v);
    write_gguf(&w);
    refuse(path, INFER_FORMAT,
           "m.gguf: tensor 'blk.1.ffn_up.weight': expected [32, 64], found [32, 65]");

    w = (gguf_out){ 0 };
    tiny_keys(&w, "llama");
    tiny_data(&w, false, "blk.1.ffn_up.weight");
    gg_entry(&w, "blk.1.ffn_up.weight", 2, (uint64_t[]){ TINY_D, TINY_FF }, 1000, 0);
    write_gguf(&w);
    refuse(path, INFER_FORMAT, "tensor 'blk.1.ffn_up.weight': type 1000 is not supported");

    w = (gguf_out){ 0 };
    tiny_keys(&w, "llama");
    gg_tensor(&w, "token_embd.weight", TINY_D, 5, v);
    write_gguf(&w);
    refuse(path, INFER_FORMAT, "output_norm.weight missing; blk.0.attn_norm.weight missing");

    w = (gguf_out){ 0 };
    tiny_keys(&w, "llama");
    write_gguf(&w);
    refuse(path, INFER_FORMAT, "no tensors");
    w = (gguf_out){ 0 };
    tiny_data(&w, false, NULL);
    write_gguf(&w);
    refuse(path, INFER_FORMAT, "key 'general.architecture' missing");
    w = (gguf_out){ 0 };
    tiny_keys(&w, "mystery");
    write_gguf(&w);
    refuse(path, INFER_UNSUPPORTED, "architecture 'mystery'");
    w = (gguf_out){ 0 };
    gg_string(&w, "general.architecture", "llama");
    gg_string(&w, "llama.block_count", "2");
    gg_u32(&w, "llama.attention.head_count", 0);
    write_gguf(&w);
    refuse(path, INFER_FORMAT, "key 'llama.block_count': expected an integer, found string; ");
    refuse(path, INFER_FORMAT, "key 'llama.attention.head_count': expected 1 to");
}

static void warns_of_unknown_tensors(void **state)
{
    (void)state;
    const float v[16] = { 0 };
    gguf_out w = { 0 };
    tiny_keys(&w, "llama");
    tiny_data(&w, false, NULL);
    gg_tensor(&w, "blk.0.mystery.weight", 8, 0, v);
    write_gguf(&w);
    infer_model_close(open_ok(path));
    assert_non_null(strstr(logged, "1 tensors are unknown to llama"));
    assert_non_null(strstr(logged, "blk.0.mystery.weight"));
}

/* A layer count too small would answer nonsense in silence; prediction layers are no such case. */
static void warns_of_layers_left_out(void **state)
{
    (void)state;
    const float v[16] = { 0 };
    for (int predicts = 0; predicts < 2; predicts++) {
        gguf_out w = { 0 };
        tiny_keys(&w, "llama");
        tiny_data(&w, false, NULL);
        gg_tensor(&w, "blk.9.attn_norm.weight", 8, 0, v);
        if (predicts) gg_tensor(&w, "blk.9.nextn.eh_proj.weight", 8, 0, v);
        write_gguf(&w);
        logged[0] = 0;
        infer_model_close(open_ok(path));
        assert_int_equal(strstr(logged, "blk.9.attn_norm.weight") == NULL, predicts);
    }
}

static void scales_rope_of_gguf(void **state)
{
    (void)state;
    gguf_out w = { 0 };
    tiny_keys(&w, "llama");
    gg_string(&w, "llama.rope.scaling.type", "linear");
    gg_f32(&w, "llama.rope.scaling.factor", 8);
    tiny_data(&w, false, NULL);
    write_gguf(&w);
    infer_model *m = open_ok(path);
    assert_true(m->ropes[0].inv_freq[0] == 0.125f && m->ropes[0].scaling == ROPE_LINEAR);
    infer_model_close(m);

    // llama3's factors arrive as divisors
    const float divisors[8] = { 1, 1, 1, 2, 4, 8, 8, 8 };
    w = (gguf_out){ 0 };
    tiny_keys(&w, "llama");
    tiny_data(&w, false, NULL);
    gg_tensor(&w, "rope_freqs.weight", 8, 0, divisors);
    write_gguf(&w);
    m = open_ok(path);
    assert_true(m->ropes[0].inv_freq[0] == 1);
    assert_true(fabsf(m->ropes[0].inv_freq[4] - 0.01f / 4) < 1e-9f);
    infer_model_close(m);
    assert_string_equal(logged, "");

    w = (gguf_out){ 0 };
    tiny_keys(&w, "llama");
    tiny_data(&w, false, NULL);
    gg_tensor(&w, "rope_freqs.weight", 4, 0, divisors);
    write_gguf(&w);
    refuse(path, INFER_FORMAT, "4 frequency divisors, expected 8");
    w = (gguf_out){ 0 };
    tiny_keys(&w, "llama");
    gg_string(&w, "llama.rope.scaling.type", "magic");
    write_gguf(&w);
    refuse(path, INFER_FORMAT, "key 'llama.rope.scaling.type': rope type 'magic'");
}

static void looks_into_files(void **state)
{
    (void)state;
    gguf_out w = { 0 };
    gg_string(&w, "general.architecture", "mystery");
    gg_strings(&w, "names", (const char *[]){ "a", "b\xff", "c", "d", "e", "f", "g", "h", "i" }, 9);
    gg_u32(&w, "n", 7);
    gg_entry(&w, "t", 2, (uint64_t[]){ 3, 2 }, 1000, 0);
    write_gguf(&w);
    infer_error err;
    infer_file *f;
    assert_int_equal(infer_file_open(&f, path, &err), INFER_OK);
    assert_string_equal(infer_file_format(f), "GGUF v3");
    assert_int_equal(infer_file_n_meta(f), 3);
    assert_string_equal(infer_file_meta(f, 0).value, "mystery");
    assert_string_equal(infer_file_meta(f, 1).type, "array of string");
    assert_string_equal(infer_file_meta(f, 1).value,
                        "[\"a\", \"b\xef\xbf\xbd\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\", …] (9)");
    assert_string_equal(infer_file_meta(f, 2).value, "7");
    assert_string_equal(infer_file_meta(f, 2).type, "u32");
    assert_null(infer_file_meta(f, 3).key);
    infer_tensor_info t = infer_file_tensor(f, 0);
    assert_string_equal(t.type, "type 1000");
    assert_true(t.n_dims == 2 && t.dims[0] == 2 && t.dims[1] == 3);
    infer_file_close(f);

    tiny_st(folder, "model.safetensors", false, "model.", 0, 2, "");
    write_text("config.json", "{\"model_type\":\"x\",\"a\":{\"b\":[1,2],\"c\":null}}");
    assert_int_equal(infer_file_open(&f, folder, &err), INFER_OK);
    assert_string_equal(infer_file_format(f), "safetensors");
    assert_int_equal(infer_file_n_meta(f), 3);
    assert_string_equal(infer_file_meta(f, 1).key, "a.b");
    assert_string_equal(infer_file_meta(f, 1).value, "[1, 2]");
    assert_int_equal(infer_file_n_tensors(f), 2);
    assert_string_equal(infer_file_tensor(f, 0).type, "f32");
    infer_file_close(f);
}

static void survives_no_memory(void **state)
{
    (void)state;
    write_tiny("gemma3", true);
    infer_error err;
    infer_model *m = NULL;
    int refused = 0;
    for (uint64_t i = 1; !m; i++, refused++) {
        mem_fail_at(mem_count() + i);
        m = open_path(path, &err);
        assert_true(m ? err.code == INFER_OK : err.code == INFER_NOMEM);
    }
    mem_fail_at(0);
    assert_true(refused > 5);
    infer_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(opens_llama_gguf, setup, teardown),
        cmocka_unit_test_setup_teardown(opens_gemma3, setup, teardown),
        cmocka_unit_test_setup_teardown(opens_folders, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_shapes, setup, teardown),
        cmocka_unit_test_setup_teardown(warns_of_unknown_tensors, setup, teardown),
        cmocka_unit_test_setup_teardown(warns_of_layers_left_out, setup, teardown),
        cmocka_unit_test_setup_teardown(scales_rope_of_gguf, setup, teardown),
        cmocka_unit_test_setup_teardown(looks_into_files, setup, teardown),
        cmocka_unit_test_setup_teardown(survives_no_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
