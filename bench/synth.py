#!/usr/bin/env python3
"""Writes a model of a real one's shapes, filled with noise: for speed and memory, which do not depend on values.

    synth.py llama3-1b OUT.gguf --type Q8_0         a GGUF file, all matrices of one type
    synth.py gemma3-4b OUT --safetensors            a Hugging Face folder, bfloat16, in shards of 1 GB
    synth.py llama3-1b OUT --safetensors --dtype f32 --layers 4 --vocab 32000

--tokenizer FOLDER or FILE.gguf takes the vocabulary from a model; without one there is none. Needs numpy; GGUF files
also the package gguf.
"""
import argparse
import json
import pathlib
import shutil

import numpy as np

FIELDS = "kind width layers heads kv_heads head_dim ffn vocab window experts used tied".split()
SHAPES = {
    "gemma3-270m": ("gemma3", 640, 18, 4, 1, 256, 2048, 262144, 512, 0, 0, True),
    "gemma3-1b": ("gemma3", 1152, 26, 4, 1, 256, 6912, 262144, 512, 0, 0, True),
    "gemma3-4b": ("gemma3", 2560, 34, 8, 4, 256, 10240, 262144, 1024, 0, 0, True),
    "llama3-1b": ("llama", 2048, 16, 32, 8, 64, 8192, 128256, 0, 0, 0, False),
    "llama3-8b": ("llama", 4096, 32, 32, 8, 128, 14336, 128256, 0, 0, 0, False),
    "qwen3-4b": ("qwen3", 2560, 36, 32, 8, 128, 9728, 151936, 0, 0, 0, True),
    "qwen3-30b-a3b": ("qwen3moe", 2048, 48, 32, 4, 128, 768, 151936, 0, 128, 8, False),
}
SHARD = 1 << 30
rng = np.random.default_rng(1)
POOL = rng.standard_normal(1 << 22, dtype=np.float32)  # noise is cut from here: fresh numbers take longer than writing


class Shape:
    def __init__(self, name, layers, vocab):
        self.__dict__.update(zip(FIELDS, SHAPES[name]))
        self.layers, self.vocab = layers or self.layers, vocab or self.vocab


def tensors(s):
    """(GGUF name, Hugging Face name, shape) of each; vectors are norms."""
    gemma = s.kind == "gemma3"
    yield "token_embd", "model.embed_tokens", (s.vocab, s.width)
    for i in range(s.layers):
        g, h = f"blk.{i}.", f"model.layers.{i}."
        yield g + "attn_norm", h + "input_layernorm", (s.width,)
        yield g + "attn_q", h + "self_attn.q_proj", (s.heads * s.head_dim, s.width)
        yield g + "attn_k", h + "self_attn.k_proj", (s.kv_heads * s.head_dim, s.width)
        yield g + "attn_v", h + "self_attn.v_proj", (s.kv_heads * s.head_dim, s.width)
        yield g + "attn_output", h + "self_attn.o_proj", (s.width, s.heads * s.head_dim)
        if s.kind != "llama":
            yield g + "attn_q_norm", h + "self_attn.q_norm", (s.head_dim,)
            yield g + "attn_k_norm", h + "self_attn.k_norm", (s.head_dim,)
        if gemma:
            yield g + "post_attention_norm", h + "post_attention_layernorm", (s.width,)
            yield g + "post_ffw_norm", h + "post_feedforward_layernorm", (s.width,)
        yield g + "ffn_norm", h + ("pre_feedforward_layernorm" if gemma else "post_attention_layernorm"), (s.width,)
        if s.experts:
            yield g + "ffn_gate_inp", h + "mlp.gate", (s.experts, s.width)
        for part, hf, shape in (("gate", "gate_proj", (s.ffn, s.width)), ("up", "up_proj", (s.ffn, s.width)),
                                ("down", "down_proj", (s.width, s.ffn))):
            if s.experts:
                yield g + f"ffn_{part}_exps", h + f"mlp.experts.{{}}.{hf}", (s.experts, *shape)
            else:
                yield g + f"ffn_{part}", h + f"mlp.{hf}", shape
    yield "output_norm", "model.norm", (s.width,)
    if not s.tied:
        yield "output", "lm_head", (s.vocab, s.width)


def pieces(shape, zero_norm=False):
    """Float32 noise of length about 1 a row, some megabytes at a time; norms are near 1 (or 0)."""
    n = int(np.prod(shape))
    if len(shape) == 1:
        yield POOL[:n] * 0.1 + (0 if zero_norm else 1)
        return
    scale = np.float32(shape[-1] ** -0.5)
    while n:
        at = int(rng.integers(0, len(POOL) // 2))
        part = POOL[at:at + n] * scale
        n -= len(part)
        yield part


# ---- Hugging Face ------------------------------------------------------------------------------


def config(s, context):
    c = {"hidden_size": s.width, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
         "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "intermediate_size": s.ffn, "vocab_size": s.vocab,
         "rms_norm_eps": 1e-6, "max_position_embeddings": context, "tie_word_embeddings": s.tied, "hidden_act": "silu",
         "rope_theta": 500000.0, "bos_token_id": 1, "eos_token_id": 2,
         "model_type": {"gemma3": "gemma3_text", "qwen3moe": "qwen3_moe"}.get(s.kind, s.kind)}
    c["architectures"] = [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3moe": "Qwen3MoeForCausalLM",
                           "gemma3": "Gemma3ForCausalLM"}[s.kind]]
    if s.kind == "gemma3":
        c.update(hidden_activation="gelu_pytorch_tanh", sliding_window=s.window, sliding_window_pattern=6,
                 rope_local_base_freq=10000.0, rope_theta=1e6, query_pre_attn_scalar=256)
    if s.experts:
        c.update(num_experts=s.experts, num_experts_per_tok=s.used, moe_intermediate_size=s.ffn, norm_topk_prob=True,
                 decoder_sparse_step=1, mlp_only_layers=[])
    return c


def encode(x, dtype):
    if dtype == "F32":
        return x.astype("<f4").tobytes()
    if dtype == "F16":
        return x.astype("<f2").tobytes()
    bits = x.astype("<f4").view("<u4")
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def write_shard(path, entries, dtype, zero_norm):
    header, at, size = {"__metadata__": {"format": "pt"}}, 0, 4 if dtype == "F32" else 2
    for name, shape in entries:
        n = int(np.prod(shape)) * size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, shape in entries:
            for part in pieces(shape, zero_norm):
                f.write(encode(part, dtype))


def write_folder(s, out, dtype, context, tokenizer):
    out.mkdir(parents=True, exist_ok=True)
    all_entries = []
    for _, name, shape in tensors(s):
        if len(shape) == 3:
            all_entries += [(name.format(e) + ".weight", shape[1:]) for e in range(shape[0])]
        else:
            all_entries.append((name + ".weight", shape))
    size = 4 if dtype == "F32" else 2
    shards, full = [[]], 0
    for e in all_entries:
        n = int(np.prod(e[1])) * size
        if full and full + n > SHARD:
            shards.append([])
            full = 0
        shards[-1].append(e)
        full += n
    index = {}
    for i, entries in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        write_shard(out / name, entries, dtype, s.kind == "gemma3")
        index.update({n: name for n, _ in entries})
    if len(shards) > 1:
        total = sum(int(np.prod(shape)) for _, shape in all_entries) * size
        (out / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    (out / "config.json").write_text(json.dumps(config(s, context), indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if tokenizer and (pathlib.Path(tokenizer) / name).exists():
            shutil.copy(pathlib.Path(tokenizer) / name, out)


# ---- GGUF --------------------------------------------------------------------------------------

# Where a block's float16 scales lie, and what they are for values of variance 1 if all other bits are noise.
SCALES = {
    "Q4_0": [(0, 1 / 4.6)], "Q8_0": [(0, 1 / 74)], "Q5_0": [(0, 1 / 9.2)], "Q4_1": [(0, 1 / 4.6), (2, -7.5 / 4.6)],
    "Q4_K": [(0, 1 / 215), (2, 7.5 / 215)], "Q5_K": [(0, 1 / 430), (2, 15.5 / 430)], "Q6_K": [(208, 1 / 1370)],
}


def blocks(gguf, kind, shape):
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    if shape[-1] % block:
        raise SystemExit(f"rows of {shape[-1]} are no multiple of {kind}'s block of {block}")
    n = int(np.prod(shape)) // block
    some = rng.integers(0, 256, (min(n, 1 << 16), size), dtype=np.uint8)
    for at, scale in SCALES[kind]:
        some[:, at:at + 2] = np.float16(scale * shape[-1] ** -0.5).reshape(1).view(np.uint8)
    return np.resize(some, (n, size)).reshape(*shape[:-1], -1)


def write_gguf(s, out, kind, context, tokenizer):
    import gguf
    w = gguf.GGUFWriter(out, s.kind)
    w.add_context_length(context)
    w.add_embedding_length(s.width)
    w.add_block_count(s.layers)
    w.add_feed_forward_length(s.ffn)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv_heads)
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e6 if s.kind == "gemma3" else 5e5)
    w.add_vocab_size(s.vocab)
    if s.kind == "llama":
        w.add_rope_dimension_count(s.head_dim)
    if s.window:
        w.add_sliding_window(s.window)
    if s.experts:
        w.add_expert_count(s.experts)
        w.add_expert_used_count(s.used)
        w.add_expert_feed_forward_length(s.ffn)
    if not tokenizer:
        w.add_tokenizer_model("no_vocab")
    for f in gguf.GGUFReader(tokenizer).fields.values() if tokenizer else []:
        if f.name.startswith("tokenizer."):
            w.add_key_value(f.name, f.contents(), f.types[0],
                            f.types[-1] if f.types[0] == gguf.GGUFValueType.ARRAY else None)
    for name, _, shape in tensors(s):
        if len(shape) == 1 or name.endswith("gate_inp"):
            w.add_tensor(name + ".weight", np.concatenate(list(pieces(shape))).reshape(shape))
        elif kind == "F16":
            w.add_tensor(name + ".weight", np.concatenate([p.astype("f2") for p in pieces(shape)]).reshape(shape))
        else:
            w.add_tensor(name + ".weight", blocks(gguf, kind, shape), raw_dtype=gguf.GGMLQuantizationType[kind])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", choices=SHAPES)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--safetensors", action="store_true", help="a folder, not a GGUF file")
    ap.add_argument("--dtype", choices=["bf16", "f16", "f32"], default="bf16", help="of the folder's tensors")
    ap.add_argument("--type", choices=[*SCALES, "F16"], default="Q8_0", help="of the GGUF file's matrices")
    ap.add_argument("--layers", type=int)
    ap.add_argument("--vocab", type=int)
    ap.add_argument("--context", type=int, default=32768)
    ap.add_argument("--tokenizer", help="a folder (--safetensors) or a GGUF file to take the vocabulary from")
    a = ap.parse_args()
    s = Shape(a.model, a.layers, a.vocab)
    if a.safetensors:
        write_folder(s, a.out, a.dtype.upper(), a.context, a.tokenizer)
    else:
        write_gguf(s, a.out, a.type, a.context, a.tokenizer)


if __name__ == "__main__":
    main()
