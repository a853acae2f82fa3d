#!/usr/bin/env python3
"""Write a Hugging Face model folder as GGUF, under the names and keys that llama.cpp's converter gives.

    to_gguf.py FOLDER OUT.gguf [--vocab-none]

For the small random models of the golden data: matrices keep their type, vectors become float32, no vocabulary is
written (--vocab-none: tokenizer.ggml.model "none", which llama.cpp asks for). What the converter changes in a family's
tensors is changed here too: rows of q and k permuted to adjacent rope pairs, Conv1D transposed, q k v by head put one
after the other, 1 added to norms, experts stacked, gpt-oss' gates and ups taken apart, DeepSeek's keys transposed by
head. Needs numpy and gguf; written against gguf 0.19 and llama.cpp's converter of
llama-cpp-python 0.3.36.
"""
import argparse, json, math, pathlib, re, statistics, struct
import gguf
import numpy as np
from gguf import MODEL_ARCH as A

# model_type: architecture, whether q and k rows are permuted
FAMILIES = {
    "llama": (A.LLAMA, True), "mistral": (A.LLAMA, True), "qwen2": (A.QWEN2, False), "qwen3": (A.QWEN3, False),
    "phi": (A.PHI2, False), "phi3": (A.PHI3, False), "gpt2": (A.GPT2, False), "gpt_neox": (A.GPTNEOX, False),
    "starcoder2": (A.STARCODER2, False), "stablelm": (A.STABLELM, False), "cohere": (A.COMMAND_R, False),
    "cohere2": (A.COHERE2, False), "granite": (A.GRANITE, True), "olmo": (A.OLMO, True), "olmo2": (A.OLMO2, False),
    "olmo3": (A.OLMO2, False), "glm": (A.CHATGLM, False), "glm4": (A.GLM4, False), "smollm3": (A.SMOLLM3, True),
    "exaone4": (A.EXAONE4, False), "nemotron": (A.NEMOTRON, False), "seed_oss": (A.SEED_OSS, False),
    "ernie4_5": (A.ERNIE4_5, False), "hunyuan_v1_dense": (A.HUNYUAN_DENSE, False),
    "mixtral": (A.LLAMA, True), "qwen2_moe": (A.QWEN2MOE, False), "qwen3_moe": (A.QWEN3MOE, False),
    "olmoe": (A.OLMOE, False), "granitemoe": (A.GRANITE_MOE, True), "granitemoeshared": (A.GRANITE_MOE, True),
    "deepseek_v2": (A.DEEPSEEK2, False), "deepseek_v3": (A.DEEPSEEK2, False), "gpt_oss": (A.GPT_OSS, False),
    "glm4_moe": (A.GLM4_MOE, False), "gemma3n_text": (A.GEMMA3N, False), "gemma4_text": (A.GEMMA4, False),
}
PARTIAL = {"phi": 0.5, "stablelm": 0.25, "glm": 0.5, "glm4": 0.5, "nemotron": 0.5}  # what a silent config means


def tensors_of(folder):
    """name, array (bfloat16 as uint16), is it bfloat16"""
    types = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "u1"}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__": continue
            begin, end = t["data_offsets"]
            x = np.frombuffer(data[8 + n + begin:8 + n + end], types[t["dtype"]]).reshape(t["shape"])
            yield name, x, t["dtype"] == "BF16"


def stacked(tensors):
    """StableLM's norms of each head, a tensor each, as one."""
    heads = {}
    for name, x, is_bf16 in tensors:
        if ".norms." not in name:
            yield name, x, is_bf16
            continue
        begin, end = name.split(".norms.")
        heads.setdefault(begin, {})[int(end.split(".")[0])] = as_f32(x, is_bf16)
    for begin, rows in heads.items():
        yield begin + ".weight", np.stack([rows[i] for i in range(len(rows))]), False


def as_f32(x, is_bf16):
    return (x.astype(np.uint32) << 16).view(np.float32) if is_bf16 else x.astype(np.float32)


def permute(x, n_heads):
    """Rows of a head from two halves to adjacent pairs."""
    return x.reshape(n_heads, 2, x.shape[0] // n_heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def llama3_divisors(rope, head_dim):
    base, old = rope["rope_theta"], rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    out = []
    for f in 1.0 / (np.float32(base) ** (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))):
        wave = 2 * math.pi / float(f)
        if wave < old / high: out.append(1)
        elif wave > old / low: out.append(factor)
        else:
            smooth = (old / wave - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def stack_experts(tensors):
    """Experts' matrices of one kind put together, in the order of their numbers."""
    parts = {}
    for name, x, is_bf16 in tensors:
        m = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+\.weight)", name)
        if m:
            parts.setdefault(f"{m[1]}.{m[3]}", {})[int(m[2])] = (x, is_bf16)
        else:
            yield name, x, is_bf16
    for name, p in parts.items():
        yield name, np.stack([p[i][0] for i in sorted(p)]), p[0][1]


def mxfp4(blocks, scales):
    """Byte i of a block holds elements 2i and 2i + 1; GGUF's holds i and i + 16, after the scale."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return np.concatenate([scales[..., None], packed], -1).reshape(*blocks.shape[:2], -1)


def gpt_oss(tensors):
    """Stacks [experts, in, out] to [experts, out, in]; even rows are gates, odd ones ups."""
    tensors = list(tensors)
    scales = {name: x for name, x, _ in tensors if name.endswith("_scales")}
    for name, x, is_bf16 in tensors:
        if ".experts." not in name:
            yield name + (".weight" if name.endswith("sinks") else ""), x, is_bf16
            continue
        if name.endswith("_scales"): continue
        stem, kind = re.fullmatch(r"(.*(?:down|gate_up)_proj)(|_bias|_blocks)", name).groups()
        end = ".bias" if kind == "_bias" else ".weight"
        if kind == "": x = x.swapaxes(1, 2)
        if kind == "_blocks": x, is_bf16 = mxfp4(x, scales[stem + "_scales"]), "MXFP4"
        if stem.endswith("down_proj"):
            yield stem + end, x, is_bf16
        else:
            yield stem.replace("gate_up", "gate") + end, x[:, ::2], is_bf16
            yield stem.replace("gate_up", "up") + end, x[:, 1::2], is_bf16


def renamed(tensors, c, kind):
    """Tensors that the converter splits, joins or renames."""
    streams = {}
    for name, x, is_bf16 in tensors:
        layer = (re.search(r"layers\.(\d+)\.", name) or [None, None])[1]
        if name.endswith("kv_b_proj.weight"):
            both = x.reshape(c["num_attention_heads"], -1, x.shape[-1])
            nope = c["qk_nope_head_dim"]
            yield name.replace("kv_b", "k_b"), both[:, :nope].swapaxes(1, 2), is_bf16
            yield name.replace("kv_b", "v_b"), both[:, nope:], is_bf16
        elif name.endswith("e_score_correction_bias"):
            yield name.replace("correction_bias", "correction.bias"), x, is_bf16
        elif name.endswith("input_linear.weight"):
            half, what = x.shape[-2] // 2, "shexp" if "shared_mlp" in name else "exps"
            yield f"blk.{layer}.ffn_gate_{what}.weight", x[..., :half, :], is_bf16
            yield f"blk.{layer}.ffn_up_{what}.weight", x[..., half:, :], is_bf16
        elif m := re.fullmatch(r"model\.(altup_(?:unembed_)?projections)\.(\d+)\.weight", name):
            streams.setdefault(m[1], {})[int(m[2])] = (x, is_bf16)
        elif name.endswith("embed_tokens_per_layer.weight") and x.shape[0] < c["vocab_size"]:
            yield name, np.concatenate([x, np.zeros((c["vocab_size"] - x.shape[0], x.shape[1]), x.dtype)]), is_bf16
        elif name.endswith("router.scale"):
            yield f"blk.{layer}.ffn_gate_inp.scale", x, is_bf16
        elif name.endswith("router.per_expert_scale"):
            yield f"blk.{layer}.ffn_down_exps.scale", x, is_bf16
        elif name.endswith(("_scale", "layer_scalar")) or kind == "gemma4_text" and ".experts." in name:
            yield name + ".weight", x, is_bf16
        else:
            yield name, x, is_bf16
    for name, p in streams.items():
        yield f"model.{name}.weight", np.stack([p[i][0] for i in sorted(p)]), p[0][1]


def write_expert_keys(w, c, kind):
    first = lambda *keys: next((c[k] for k in keys if c.get(k) is not None), None)
    if kind == "gemma4_text" and not c["enable_moe_block"]: return
    if n := first("num_local_experts", "num_experts", "n_routed_experts"): w.add_expert_count(n)
    if n := first("num_experts_per_tok", "top_k_experts"): w.add_expert_used_count(n)
    if n := c.get("n_group"): w.add_expert_group_count(n)
    if n := c.get("topk_group"): w.add_expert_group_used_count(n)
    if f := c.get("scoring_func"):
        w.add_expert_gating_func(getattr(gguf.ExpertGatingFuncType, f.upper()))
    if kind == "glm4_moe": w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    n = c["intermediate_size"] if kind == "gpt_oss" else c.get("moe_intermediate_size")
    if n: w.add_expert_feed_forward_length(n)
    if n := first("shared_expert_intermediate_size", "shared_intermediate_size"):
        w.add_expert_shared_feed_forward_length(n)
    if c.get("n_shared_experts") is not None: w.add_expert_shared_count(c["n_shared_experts"])
    if c.get("first_k_dense_replace") is not None: w.add_leading_dense_block_count(c["first_k_dense_replace"])
    if c.get("routed_scaling_factor") is not None: w.add_expert_weights_scale(c["routed_scaling_factor"])
    if kind in ("deepseek_v2", "deepseek_v3", "glm4_moe") and c.get("norm_topk_prob"): w.add_expert_weights_norm(True)


def write_latent_keys(w, c, rope):
    if c.get("q_lora_rank"): w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    w.add_value_length(c["kv_lora_rank"])
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    if "mscale_all_dim" in rope: w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def write_gemma_keys(w, c, kind, extra):
    sliding = [t == "sliding_attention" for t in c["layer_types"]]
    w.add_sliding_window_pattern(sliding)
    w.add_shared_kv_layers(c["num_kv_shared_layers"])
    w.add_embedding_length_per_layer_input(c.get("hidden_size_per_layer_input") or 0)
    if c.get("final_logit_softcapping"): w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if kind == "gemma3n_text":
        w.add_altup_active_idx(c["altup_active_idx"])
        w.add_altup_num_inputs(c["altup_num_inputs"])
        w.add_rope_freq_base_swa(c["rope_local_base_freq"])
        cut = statistics.NormalDist().inv_cdf
        w.add_activation_sparsity_scale([cut(s) if s else -math.inf for s in c["activation_sparsity_pattern"]])
        return
    rope, wide = c["rope_parameters"], c["global_head_dim"]
    w.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    w.add_key_length(wide)
    w.add_value_length(wide)
    w.add_key_length_swa(c["head_dim"])
    w.add_value_length_swa(c["head_dim"])
    w.add_rope_dimension_count(wide)
    w.add_rope_dimension_count_swa(c["head_dim"])
    if c.get("use_double_wide_mlp"):
        first = len(sliding) - c["num_kv_shared_layers"]
        w.add_feed_forward_length([c["intermediate_size"] * (1 + (i >= first)) for i in range(len(sliding))])
    if c.get("num_global_key_value_heads"):
        w.add_head_count_kv([c["num_key_value_heads"] if s else c["num_global_key_value_heads"] for s in sliding])
    turning = int(wide * rope["full_attention"]["partial_rotary_factor"] / 2)
    extra["rope_freqs.weight"] = np.array([1] * turning + [1e30] * (wide // 2 - turning), np.float32)


def write_keys(w, c, kind, rope, extra):
    n_heads = c.get("num_attention_heads", c.get("n_head"))
    d_model = c.get("hidden_size", c.get("n_embd"))
    head_dim = c.get("head_dim") or d_model // n_heads
    w.add_block_count(c.get("num_hidden_layers", c.get("n_layer")))
    w.add_context_length(c.get("max_position_embeddings", c.get("n_positions")))
    w.add_embedding_length(d_model)
    w.add_feed_forward_length(c.get("intermediate_size") or 4 * d_model)
    w.add_head_count(n_heads)
    latent = "kv_lora_rank" in c # files hold one KV head then
    if kind not in ("gpt2", "gpt_neox"): w.add_head_count_kv(1 if latent else c.get("num_key_value_heads") or n_heads)
    if latent:
        head_dim = c["qk_rope_head_dim"]
        write_latent_keys(w, c, rope)
    w.add_vocab_size(c["vocab_size"])
    if "head_dim" in c:
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    if "rope_theta" in c: w.add_rope_freq_base(c["rope_theta"])
    if "rotary_emb_base" in c: w.add_rope_freq_base(float(c["rotary_emb_base"]))
    fraction = c.get("partial_rotary_factor", c.get("rotary_pct", PARTIAL.get(kind, 1.0)))
    if kind != "gpt2": w.add_rope_dimension_count(int(head_dim * fraction))
    for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"):
        if key in c: w.add_layer_norm_eps(c[key])
    if "norm_eps" in c:
        w.add_layer_norm_rms_eps(c["norm_eps"])
        w.add_layer_norm_eps(c["norm_eps"])
    if "rms_norm_eps" in c: w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if kind == "olmo": w.add_layer_norm_eps(1e-5)
    if c.get("clip_qkv"): w.add_clamp_kqv(c["clip_qkv"])
    if kind == "gpt_neox": w.add_parallel_residual(c.get("use_parallel_residual", True))
    if kind == "stablelm": w.add_parallel_residual(c.get("use_parallel_residual", True))
    if "logit_scale" in c: w.add_logit_scale(c["logit_scale"])
    write_expert_keys(w, c, kind)
    if kind in ("gemma3n_text", "gemma4_text"): write_gemma_keys(w, c, kind, extra)
    if kind.startswith("granite"):
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if kind == "phi3":
        w.add_sliding_window(c.get("sliding_window") or 0)
    elif c.get("sliding_window") and kind in ("cohere2", "olmo3", "exaone4", "gpt_oss", "gemma3n_text", "gemma4_text"):
        w.add_sliding_window(c["sliding_window"])
        if "layer_types" in c and kind not in ("gpt_oss", "gemma3n_text", "gemma4_text"):
            w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])

    what = rope.get("rope_type", rope.get("type", "default"))
    if what == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    elif what == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope: w.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
        if "beta_fast" in rope: w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        if "beta_slow" in rope: w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    elif what == "llama3":
        extra["rope_freqs.weight"] = llama3_divisors({"rope_theta": c.get("rope_theta", 10000.0), **rope}, head_dim)
    elif what == "longrope":
        old = c["original_max_position_embeddings"]
        scale = c["max_position_embeddings"] / old
        w.add_rope_scaling_orig_ctx_len(old)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(old)) if scale > 1 else 1.0)
        extra["rope_factors_long.weight"] = np.array(rope["long_factor"], np.float32)
        extra["rope_factors_short.weight"] = np.array(rope["short_factor"], np.float32)
    elif what != "default":
        raise SystemExit(f"rope type {what} is not written")


def change(name, x, c, kind, permuted):
    """What the converter does to a tensor's values."""
    n_heads = c.get("num_attention_heads", c.get("n_head"))
    if permuted and ".q_proj." in name: return permute(x, n_heads)
    if permuted and ".k_proj." in name: return permute(x, c.get("num_key_value_heads") or n_heads)
    if kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")): return x.T
    if kind == "gpt_neox" and ".query_key_value." in name:
        parts = x.reshape(n_heads, 3, -1, *x.shape[1:])
        return np.concatenate([parts[:, i].reshape(-1, *x.shape[1:]) for i in range(3)])
    return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("out")
    ap.add_argument("--vocab-none", action="store_true")
    args = ap.parse_args()
    c = json.loads((args.folder / "config.json").read_text())
    kind = c["model_type"]
    arch, permuted = FAMILIES[kind]
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if "rope_theta" in rope: c["rope_theta"] = rope["rope_theta"]
    w = gguf.GGUFWriter(args.out, gguf.MODEL_ARCH_NAMES[arch])
    w.add_name(args.folder.name)
    extra = {}
    write_keys(w, c, kind, rope, extra)
    if args.vocab_none: w.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(arch, c.get("num_hidden_layers", c.get("n_layer")))
    llama_names = gguf.get_tensor_name_map(A.LLAMA, c.get("num_hidden_layers", c.get("n_layer")))
    for name, x in extra.items(): w.add_tensor(name, x)
    tensors = stacked(tensors_of(args.folder))
    tensors = gpt_oss(tensors) if kind == "gpt_oss" else renamed(stack_experts(tensors), c, kind)
    for name, x, is_bf16 in tensors:
        new = name if name.startswith("blk.") else names.get_name(name, try_suffixes=(".weight", ".bias"))
        # a dense layer among experts, which the converter does not know of every family
        if new is None: new = llama_names.get_name(name, try_suffixes=(".weight",))
        if new is None: raise SystemExit(f"no GGUF name for {name}")
        x = np.ascontiguousarray(change(name, x, c, kind, permuted))
        if kind == "nemotron" and name.endswith("norm.weight"):
            w.add_tensor(new, as_f32(x, is_bf16) + 1)
        elif is_bf16 == "MXFP4":
            w.add_tensor(new, x, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        elif new.endswith("ffn_gate_inp_shexp.weight"):
            w.add_tensor(new, as_f32(x, is_bf16).reshape(-1))
        elif x.ndim == 1 or new.endswith(("_norm.weight", ".bias", ".ffn_gate_inp.weight")) or new == "position_embd.weight":
            w.add_tensor(new, as_f32(x, is_bf16))
        elif is_bf16:
            w.add_tensor(new, x.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            w.add_tensor(new, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
