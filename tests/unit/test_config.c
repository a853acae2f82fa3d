/* test_config.c: settings from both containers, their faults, and rotary frequencies. */
#include "tiny_model.h"

#include <math.h>

#include "models/arch.h"

static arena mem;
static config_source source;
static json_t *json;

/* Reads text as a config.json of the family. */
static config read_text(const char *family, const char *text)
{
    json_error_t why;
    arena_free(&mem);
    json_decref(json);
    json = json_loads(text, 0, &why);
    if (!json) fail_msg("%s", why.text);
    const arch *a = arch_find_hf(family);
    assert_non_null(a);
    source = (config_source){ .path = "config.json", .json = json, .outer = json, .mem = &mem };
    config c;
    config_init(&c, a, false);
    config_read(&source, &c);
    if (a->read_config) a->read_config(&source, &c);
    config_check(&source, &c);
    return c;
}

#define SIZES                                                                                      \
    "\"num_hidden_layers\":4,\"hidden_size\":64,\"intermediate_size\":128,"                        \
    "\"num_attention_heads\":4,\"max_position_embeddings\":256"

static void accept_faults(const char *part)
{
    if (!strstr(source.faults.text, part)) fail_msg("'%s' not in '%s'", part, source.faults.text);
}

static void defaults_of_families(void **state)
{
    (void)state;
    config c = read_text("llama", "{" SIZES "}");
    assert_string_equal(source.faults.text, "");
    assert_true(c.n_kv_heads == 4 && c.head_dim == 16 && c.head_dim_v == 16 && !c.tied);
    assert_true(c.norm_eps == 1e-6 && c.act == ACT_SILU && c.rope.base == 10000 && c.window == 0);
    assert_true(c.rope.dim == 16 && c.rope.scaling == ROPE_PLAIN && !c.has_local);

    c = read_text("mistral", "{" SIZES "}");
    assert_int_equal(c.window, 4096);
    c = read_text("mistral", "{" SIZES ",\"sliding_window\":null,\"head_dim\":null}");
    assert_true(c.window == 0 && c.head_dim == 16);

    c = read_text("qwen2", "{" SIZES ",\"sliding_window\":10,\"max_window_layers\":2}");
    assert_true(c.window == 0 && c.qkv_bias);
    c = read_text("qwen2", "{" SIZES ",\"sliding_window\":10,\"max_window_layers\":2,"
                           "\"use_sliding_window\":true}");
    assert_int_equal(c.window, 10);
    assert_memory_equal(c.sliding, "\0\0\1\1", 4);
    assert_int_equal(read_text("qwen3", "{" SIZES "}").head_dim, 128);

    c = read_text("gemma", "{" SIZES ",\"hidden_act\":\"gelu\"}");
    assert_true(c.act == ACT_GELU_TANH && c.tied && c.norm_offset == 1 && c.embed_scale == 8);
    c = read_text("gemma2", "{" SIZES "}");
    assert_true(c.attn_softcap == 50 && c.final_softcap == 30 && c.query_scalar == 256);
    assert_memory_equal(c.sliding, "\1\0\1\0", 4);
    c = read_text("gemma2", "{" SIZES ",\"attn_logit_softcapping\":null,"
                            "\"final_logit_softcapping\":null}");
    assert_true(c.attn_softcap == 0 && c.final_softcap == 0);

    // a real multimodal file states little more than this
    c = read_text("gemma3", "{\"hidden_size\":2560,\"intermediate_size\":10240,"
                            "\"num_hidden_layers\":34,\"sliding_window\":1024,"
                            "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}}");
    assert_string_equal(source.faults.text, "");
    assert_true(c.n_heads == 8 && c.n_kv_heads == 4 && c.head_dim == 256 && c.window == 1024);
    assert_true(c.rope.base == 1e6 && c.rope.scaling == ROPE_LINEAR && c.rope.factor == 8);
    assert_true(c.has_local && c.rope_local.base == 1e4 && c.rope_local.scaling == ROPE_PLAIN);
    assert_true(c.sliding[4] == 1 && c.sliding[5] == 0 && c.sliding[11] == 0);
}

static void settings_of_dense_families(void **state)
{
    (void)state;
    config c = read_text("gpt2", "{\"n_layer\":4,\"n_embd\":64,\"n_head\":4}");
    assert_string_equal(source.faults.text, "");
    assert_true(c.d_ff == 256 && c.n_ctx == 1024 && c.unrotated && c.tied && c.ffn == FFN_PLAIN);
    c = read_text("gpt2", "{" SIZES ",\"scale_attn_weights\":false}");
    assert_true(c.attn_scale == 1 && c.d_ff == 128);
    c = read_text("gpt_neox", "{" SIZES ",\"rotary_emb_base\":20}");
    assert_true(c.parallel && !c.shared_norm && c.rope.dim == 4 && c.rope.base == 20);
    c = read_text("stablelm", "{" SIZES ",\"num_key_value_heads\":4,\"qk_layernorm\":true,"
                              "\"use_parallel_residual\":true}");
    assert_true(c.parallel && c.shared_norm && c.qk_norm == QK_NORM_EACH_HEAD && !c.qkv_bias);
    assert_true(read_text("phi", "{" SIZES ",\"qk_layernorm\":true}").qk_norm == QK_NORM_HEAD);
    assert_true(!read_text("starcoder2", "{" SIZES ",\"use_bias\":false}").attention_bias);

    c = read_text("cohere2", "{" SIZES "}");
    assert_true(c.logit_scale == 0.0625 && c.window == 4096 && c.parallel && c.shared_norm);
    assert_memory_equal(c.sliding, "\1\1\1\0", 4);
    assert_memory_equal(c.no_rope, "\0\0\0\1", 4);
    c = read_text("exaone4", "{" SIZES ",\"num_key_value_heads\":4,"
                             "\"sliding_window_pattern\":\"LG\"}");
    assert_memory_equal(c.sliding, "\1\0\1\0", 4);
    assert_memory_equal(c.no_rope, "\0\1\0\1", 4);
    c = read_text("exaone4", "{" SIZES ",\"num_key_value_heads\":4,\"sliding_window\":null}");
    assert_true(c.window == 0 && !c.no_rope);
    c = read_text("smollm3", "{" SIZES ",\"no_rope_layers\":[0,1,1,0]}");
    assert_memory_equal(c.no_rope, "\1\0\0\1", 4);
    assert_memory_equal(read_text("smollm3", "{" SIZES "}").no_rope, "\0\0\0\1", 4);

    c = read_text("granite", "{" SIZES ",\"logits_scaling\":8,\"residual_multiplier\":0.25}");
    assert_true(c.logit_scale == 0.125 && c.residual_scale == 0.25 && c.attn_scale == 1);
    c = read_text("olmo", "{" SIZES ",\"clip_qkv\":8}");
    assert_true(c.bare_norms && c.norm == NORM_LAYER && c.norm_eps == 1e-5 && c.clip_qkv == 8);
    assert_true(read_text("olmo2", "{" SIZES ",\"sliding_window\":8}").window == 0);
    c = read_text("olmo3", "{" SIZES ",\"sliding_window\":8,\"rope_scaling\":"
                           "{\"rope_type\":\"linear\",\"factor\":2}}");
    assert_true(c.has_local && c.rope.factor == 2 && c.rope_local.factor == 1);
    c = read_text("glm", "{" SIZES "}");
    assert_true(c.qkv_bias && !c.attention_bias && c.head_dim == 128 && c.rope.dim == 64);
    c = read_text("seed_oss", "{" SIZES ",\"num_key_value_heads\":4,"
                              "\"attention_out_bias\":true,\"attention_bias\":false}");
    assert_true(!c.qkv_bias && c.attention_bias);
    // Hunyuan's alpha: 10000 * 1000^(16/14), then nothing dynamic
    c = read_text("hunyuan_v1_dense",
                  "{" SIZES
                  ",\"rope_scaling\":{\"type\":\"dynamic\",\"alpha\":1000,\"factor\":1}}");
    assert_true(c.qk_norm_after_rope && c.rope.scaling == ROPE_PLAIN);
    assert_true(fabs(c.rope.base / (1e4 * pow(1000, 16.0 / 14)) - 1) < 1e-12);

    static const struct {
        const char *family, *settings, *part;
    } cases[] = {
        { "gpt2", "\"scale_attn_by_inverse_layer_idx\":true", "scaled by layer is not supported" },
        { "phi3", "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}",
          "type 'yarn' of early Phi 3" },
        { "granite", "\"logits_scaling\":0", "logits_scaling: expected a number other than 0" },
        { "granite", "\"embedding_multiplier\":1e300", "embedding_multiplier: expected a finite" },
        { "granite", "\"attention_multiplier\":-1", "attention_multiplier: expected a finite" },
        { "olmo", "\"clip_qkv\":-8", "clip_qkv: expected a finite number of at least 0" },
        { "smollm3", "\"no_rope_layers\":[1,1,1]",
          "no_rope_layers: expected a list of 4, found 3" },
        { "smollm3", "\"no_rope_layers\":[1,1,1,2]", "no_rope_layers: expected a list of 0 and 1" },
        { "smollm3", "\"no_rope_layers\":1", "no_rope_layers: expected a list of 4" },
        { "smollm3", "\"no_rope_layer_interval\":0", "no_rope_layer_interval: expected 1 to" },
        { "exaone4", "\"sliding_window_pattern\":\"LLX\"", "letters L and G, found 'LLX'" },
        { "exaone4", "\"sliding_window_pattern\":\"\"", "letters L and G, found ''" },
        { "cohere2", "\"sliding_window_pattern\":0", "sliding_window_pattern: expected 1 to" },
        { "stablelm", "\"use_qkv_bias\":1", "use_qkv_bias: expected true or false" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[700];
        snprintf(text, sizeof text, "{" SIZES ",%s}", cases[i].settings);
        read_text(cases[i].family, text);
        accept_faults(cases[i].part);
    }
}

static void rope_of_both_styles(void **state)
{
    (void)state;
    config c = read_text("llama", "{" SIZES ",\"rope_parameters\":{\"rope_theta\":500.0,"
                                  "\"rope_type\":\"linear\",\"factor\":4}}");
    assert_true(c.rope.base == 500 && c.rope.scaling == ROPE_LINEAR && c.rope.factor == 4);
    c = read_text("gemma3",
                  "{" SIZES ",\"layer_types\":[\"sliding_attention\",\"full_attention\","
                  "\"sliding_attention\",\"full_attention\"],"
                  "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":7.5,"
                  "\"rope_type\":\"linear\",\"factor\":2},"
                  "\"sliding_attention\":{\"rope_theta\":3.5,\"rope_type\":\"default\"}}}");
    assert_string_equal(source.faults.text, "");
    assert_true(c.rope.base == 7.5 && c.rope_local.base == 3.5);
    assert_memory_equal(c.sliding, "\1\0\1\0", 4);
    c = read_text("llama", "{" SIZES ",\"rope_scaling\":{\"type\":\"yarn\","
                           "\"original_max_position_embeddings\":64}}");
    assert_true(c.rope.scaling == ROPE_YARN && c.rope.factor == 4);
}

static void tells_every_fault(void **state)
{
    (void)state;
    read_text("llama", "{\"num_hidden_layers\":0,\"hidden_size\":\"64\",\"intermediate_size\":-1,"
                       "\"num_attention_heads\":4.5}");
    accept_faults("num_hidden_layers: expected 1 to");
    accept_faults("hidden_size: expected an integer, found a string");
    accept_faults("intermediate_size: expected 1 to");
    accept_faults("num_attention_heads: expected an integer");
    read_text("llama", "{}");
    accept_faults("num_hidden_layers missing; hidden_size missing; intermediate_size missing");

    static const struct {
        const char *settings, *part;
    } cases[] = {
        { "\"num_key_value_heads\":3", "num_attention_heads 4 is no multiple of "
                                       "num_key_value_heads 3" },
        { "\"num_attention_heads\":3", "hidden_size 64 is no multiple" },
        { "\"num_attention_heads\":1000000,\"head_dim\":1000000", "wider than" },
        { "\"rms_norm_eps\":0", "rms_norm_eps" },
        { "\"rms_norm_eps\":-1e-5", "rms_norm_eps" },
        { "\"rope_theta\":0", "base 0, expected a finite number above 0" },
        { "\"rope_theta\":-1", "base -1" },
        { "\"rope_scaling\":{\"rope_type\":\"magic\",\"factor\":2}",
          "rope_scaling: rope type 'magic' is not supported (supported: default, linear" },
        { "\"rope_scaling\":{\"rope_type\":\"linear\"}", "rope_scaling: factor 0" },
        { "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":-2}", "factor -2" },
        { "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":\"2\"}",
          "factor: expected a number, found a string" },
        { "\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1],"
          "\"long_factor\":[1,1]}",
          "2 short and long factors, expected 8" },
        { "\"rope_scaling\":[]", "rope_scaling: expected an object" },
        { "\"layer_types\":[\"full_attention\"]", "layer_types: expected 4 entries, found 1" },
        { "\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\",1]",
          "layer_types: entry 1 is 'linear_attention'" },
        { "\"head_dim\":15", "15 rotated dimensions, expected an even number" },
        { "\"partial_rotary_factor\":1.5", "partial_rotary_factor" },
        { "\"hidden_act\":\"mish\"", "activation 'mish' is not supported" },
        { "\"num_hidden_layers\":2147483647", "num_hidden_layers: expected 1 to" },
        { "\"num_attention_heads\":[4,4,2,4]", "differs from layer to layer" },
        { "\"intermediate_size\":[128,96,128]", "expected a number or 4 of them, found 3" },
        { "\"num_key_value_heads\":[4,4,3,4]", "no multiple of num_key_value_heads 3" },
        { "\"tie_word_embeddings\":\"yes\"", "tie_word_embeddings: expected true or false" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[700];
        // JSON takes the last of two equal keys
        snprintf(text, sizeof text, "{" SIZES ",%s}", cases[i].settings);
        read_text("llama", text);
        accept_faults(cases[i].part);
    }
}

/* ---- frequencies ----------------------------------------------------------------------------- */

static rope_plan build(const char *settings)
{
    char text[700];
    snprintf(text, sizeof text, "{" SIZES ",%s}", settings);
    config c = read_text("llama", text);
    assert_string_equal(source.faults.text, "");
    rope_plan p;
    infer_error err;
    assert_int_equal(rope_build(&p, &c.rope, ROPE_HALVES, c.n_ctx, &mem, &err), INFER_OK);
    assert_true(p.n_pairs == 8 && p.dim == 16);
    return p;
}

static void near(const float *f, const double *want, int n)
{
    for (int i = 0; i < n; i++)
        if (fabs(f[i] - want[i]) > 2e-7 * fabs(want[i]))
            fail_msg("frequency %d: %.9g, expected %.9g", i, (double)f[i], want[i]);
}

static void frequencies(void **state)
{
    (void)state;
    double plain[8], want[8];
    for (int i = 0; i < 8; i++)
        plain[i] = pow(10000, -i / 8.0);
    rope_plan p = build("\"rope_scaling\":null");
    near(p.inv_freq, plain, 8);
    assert_true(p.attention_factor == 1 && p.gap == 0 && p.original_len == 256);

    for (int i = 0; i < 8; i++)
        want[i] = plain[i] / 8;
    near(build("\"rope_scaling\":{\"type\":\"linear\",\"factor\":8}").inv_freq, want, 8);

    // llama3: wavelengths under 32/4 stay, over 32/1 are stretched, those between are blended
    for (int i = 0; i < 8; i++) {
        double wave = 2 * M_PI / plain[i], s = (32 / wave - 1) / (4 - 1);
        want[i] = wave < 8    ? plain[i]
                  : wave > 32 ? plain[i] / 8
                              : (1 - s) * plain[i] / 8 + s * plain[i];
    }
    near(build("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
               "\"high_freq_factor\":4,\"original_max_position_embeddings\":32}")
             .inv_freq,
         want, 8);

    // yarn: dims that turn 32 times within 64 positions stay, those under one turn are stretched
    double low = 16 * log(64 / (32 * 2 * M_PI)) / (2 * log(10000)); // below 0
    double high = ceil(16 * log(64 / (2 * M_PI)) / (2 * log(10000)));
    assert_true(low < 0 && high == 3);
    for (int i = 0; i < 8; i++) {
        double ramp = i / high > 1 ? 1 : i / high;
        want[i] = plain[i] / 4 * ramp + plain[i] * (1 - ramp);
    }
    p = build("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
              "\"original_max_position_embeddings\":64}");
    near(p.inv_freq, want, 8);
    assert_true(fabs(p.attention_factor - (0.1 * log(4) + 1)) < 1e-6);
    p = build("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":1,"
              "\"mscale_all_dim\":1,\"original_max_position_embeddings\":64}");
    assert_true(p.attention_factor == 1);
    high = 16 * log(64 / (2 * M_PI)) / (2 * log(10000));
    for (int i = 0; i < 8; i++) {
        double ramp = i / high > 1 ? 1 : i / high;
        want[i] = plain[i] / 4 * ramp + plain[i] * (1 - ramp);
    }
    near(build("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":false,"
               "\"original_max_position_embeddings\":64}")
             .inv_freq,
         want, 8);

    p = build("\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}");
    near(p.inv_freq, plain, 8);
    assert_true(p.scaling == ROPE_DYNAMIC && p.original_len == 256 && p.factor == 2);

    p = build("\"original_max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"longrope\","
              "\"short_factor\":[1,1,1,1,2,2,2,2],\"long_factor\":[4,4,4,4,4,4,4,8]}");
    for (int i = 0; i < 8; i++)
        want[i] = plain[i] / (i < 4 ? 1 : 2);
    near(p.inv_freq, want, 8);
    for (int i = 0; i < 8; i++)
        want[i] = plain[i] / (i < 7 ? 4 : 8);
    near(p.inv_freq_long, want, 8);
    assert_true(p.original_len == 64);
    assert_true(fabs(p.attention_factor - sqrt(1 + log(4) / log(64))) < 1e-6);
}

/* ---- the table of families ------------------------------------------------------------------- */

static void table_of_families(void **state)
{
    (void)state;
    for (int i = 0; archs[i]; i++) {
        assert_ptr_equal(arch_find_hf(archs[i]->hf_names[0]), archs[i]);
        for (const char *const *n = archs[i]->gguf_names; *n; n++)
            assert_ptr_equal(arch_find_gguf(*n, strlen(*n)), archs[i]);
        assert_non_null(archs[i]->defaults);
        assert_non_null(archs[i]->plan_layer);
    }
    assert_null(arch_find_hf("nothing"));
    assert_null(arch_find_gguf("llam", 4));
    char text[640];
    arch_list(text, sizeof text);
    assert_non_null(strstr(text, "llama, "));
    assert_non_null(strstr(text, ", gemma3"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_of_families), cmocka_unit_test(rope_of_both_styles),
        cmocka_unit_test(tells_every_fault),    cmocka_unit_test(frequencies),
        cmocka_unit_test(table_of_families),    cmocka_unit_test(settings_of_dense_families),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(json);
    arena_free(&mem);
    return failed;
}
