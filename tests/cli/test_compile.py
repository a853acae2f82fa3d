"""infer compile into GGUF and safetensors: the files say what the index with its patch says, here and elsewhere."""
import base64
import json

import numpy as np
import pytest

from conftest import GGUF, ST, infer, refused
from test_vindex_extract import FAMILIES, extract, layers_differ, states

WRITTEN = ["cohere2", "deepseek_v3", "gemma3n_text", "gpt2", "gpt_neox", "granite", "olmo2", "phi3", "qwen2_moe"]
NOT_GGUF = {"deepseek_v3": "GGUF has no name", "gemma3n_text": "per-layer", "gpt2": "transposed", "gpt_neox": "head by head",
            "cohere2": None, "granite": None, "olmo2": None, "phi3": None, "qwen2_moe": None}


def make_patch(v, path, seed=1):
    """Random rows for a feature of each layer, and one that is deleted."""
    index = json.loads((v / "index.json").read_text())
    rng, d = np.random.default_rng(seed), index["hidden_size"]

    def vector():
        return base64.b64encode(rng.standard_normal(d).astype("<f4").tobytes()).decode()

    ops = []
    for layer in index["layers"]:
        if layer["num_features"]:
            ops.append({"op": "update", "layer": layer["layer"], "feature": layer["num_features"] - 2,
                        "gate_vector_b64": vector(), "up_vector_b64": vector(), "down_vector_b64": vector()})
            ops.append({"op": "delete", "layer": layer["layer"], "feature": 1})
    path.write_text(json.dumps({"version": 1, "base_model": "m", "created_at": "", "operations": ops}))
    return path


@pytest.mark.parametrize("name", ["gguf", "st"] + WRITTEN)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_files_say_what_the_index_says(tmp_path, name, dtype):
    v = tmp_path / "v"
    extract({"gguf": GGUF, "st": ST}.get(name) or FAMILIES / name, v, "--dtype", dtype)
    patch = make_patch(v, tmp_path / "p.vlp")
    assert infer("compile", v, patch, "-o", tmp_path / "c").rc == 0
    plain, _ = states(v, tmp_path / "h0", tmp_path)
    want, ids = states(tmp_path / "c", tmp_path / "h1", tmp_path)
    n = json.loads((v / "index.json").read_text())["num_layers"] + 1
    assert layers_differ(plain, want, n) > 1e-3  # the patch is seen
    r = infer("compile", v, patch, "-o", tmp_path / "s", "--format", "safetensors")
    assert r.rc == 0, r.err
    assert not list(tmp_path.glob("*.index*")) and not list(tmp_path.glob("*.partial"))
    got, found = states(tmp_path / "s", tmp_path / "h2", tmp_path)
    assert layers_differ(want, got, n) <= 1e-5 and ids == found
    r = infer("compile", v, patch, "-o", tmp_path / "m.gguf")
    if NOT_GGUF.get(name):
        refused(r, NOT_GGUF[name], rc=1)
        assert not (tmp_path / "m.gguf").exists()
    else:
        assert r.rc == 0, r.err
        got, found = states(tmp_path / "m.gguf", tmp_path / "h3", tmp_path)
        # norms with 1 added are rounded once more
        assert layers_differ(want, got, n) <= 2e-5 and ids == found
    assert not list(tmp_path.glob("*.index*"))


@pytest.mark.parametrize("name", ["gpt_oss_mxfp4", "granitemoeshared"])
def test_stacks_are_refused(tmp_path, name):
    extract(FAMILIES / name, tmp_path / "v")
    r = infer("compile", tmp_path / "v", "-o", tmp_path / "s", "--format", "safetensors")
    refused(r, "all experts in one tensor", rc=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["v"]


def test_safetensors_are_read_by_others(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    extract(FAMILIES / "phi3", tmp_path / "v", "--dtype", "f32")
    assert infer("compile", tmp_path / "v", "-o", tmp_path / "s", "--format", "safetensors").rc == 0
    old = safetensors.load_file(FAMILIES / "phi3/model.safetensors")
    new = safetensors.load_file(tmp_path / "s/model.safetensors")
    assert old.keys() == new.keys()
    for k in old:
        assert new[k].dtype == np.float32 and (new[k] == old[k].astype("f4")).all(), k


def test_usage(tmp_path):
    extract(GGUF, tmp_path / "v")
    refused(infer("compile", tmp_path / "v", "-o", tmp_path / "x", "--format", "gguf"), ".gguf")
    refused(infer("compile", tmp_path / "v", "-o", tmp_path / "x.gguf", "--format", "safetensors"), ".gguf")
    refused(infer("compile", tmp_path / "v", "-o", tmp_path / "x", "--model", GGUF), "--model")
    refused(infer("compile", tmp_path / "v", "-o", tmp_path / "v", "--format", "safetensors"), "is there already")


def block_model(path):
    """A random model whose rows are whole blocks of every format."""
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(3)
    w = gguf.GGUFWriter(path, "llama")
    for key, n in [("block_count", 2), ("context_length", 64), ("embedding_length", 256), ("feed_forward_length", 512),
                   ("attention.head_count", 4), ("attention.head_count_kv", 2), ("vocab_size", 64)]:
        w.add_uint32(f"llama.{key}", n)
    w.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    shapes = {"token_embd": (64, 256), "output_norm": (256,)}
    for l in range(2):
        shapes |= {f"blk.{l}.{k}": s for k, s in {
            "attn_norm": (256,), "ffn_norm": (256,), "attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256),
            "attn_output": (256, 256), "ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512)}.items()}
    for name, shape in shapes.items():
        w.add_tensor(name + ".weight", rng.standard_normal(shape).astype("f4") * (1 if len(shape) == 1 else 0.06))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def test_blocks(tmp_path):
    """An index of blocks becomes a GGUF file of the same numbers, where rows are whole blocks."""
    gguf = pytest.importorskip("gguf")
    block_model(tmp_path / "m.gguf")
    extract(tmp_path / "m.gguf", tmp_path / "v", "--quant", "q4k")
    assert infer("compile", tmp_path / "v", "-o", tmp_path / "o.gguf").rc == 0
    a, ids = states(tmp_path / "v", tmp_path / "a", tmp_path)
    b, found = states(tmp_path / "o.gguf", tmp_path / "b", tmp_path)
    assert layers_differ(a, b, 3) <= 1e-5 and ids == found
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "o.gguf").tensors}
    assert types["blk.1.ffn_down.weight"] == types["blk.0.attn_v.weight"] == "Q6_K"
    assert types["blk.0.ffn_up.weight"] == types["blk.1.attn_q.weight"] == "Q4_K"
    gates = np.fromfile(tmp_path / "v/interleaved_q4k.bin", np.uint8)
    rows = json.loads((tmp_path / "v/interleaved_q4k_manifest.json").read_text())
    got = {t.name: t for t in gguf.GGUFReader(tmp_path / "o.gguf").tensors}["blk.0.ffn_up.weight"].data.reshape(-1)
    assert (got == gates[rows[1]["offset"]:rows[1]["offset"] + rows[1]["length"]]).all()


def blocks_of(path):
    gguf = pytest.importorskip("gguf")
    return {t.name: (t.tensor_type.name, t.data) for t in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("which", [0, 1])
def test_fact_in_real_models(tmp_path, models, which):
    """A fact put into a model is what llama.cpp says too, and what was not edited keeps its bytes."""
    llama_cpp = pytest.importorskip("llama_cpp")
    v, patch, prompt = tmp_path / "v", tmp_path / "p.vlp", "The capital of Atlantis is"
    extract(models[which], v, "--top-k", 1, timeout=900)
    r = infer("insert", v, "Atlantis", "capital", "Poseidon", "--patch", patch)
    assert r.rc == 0, r.err
    said = json.loads(infer("predict", v, prompt, "--ffn", v, "--patch", patch, "--json").text)["predictions"][0]
    edited = {op["layer"] for op in json.loads(patch.read_text())["operations"]}
    for name, args in (("a.gguf", []), ("b.gguf", ["--model", models[which]])):
        r = infer("compile", v, patch, "-o", tmp_path / name, *args)
        assert r.rc == 0, r.err
        for path, same in ((models[which], False), (tmp_path / name, True)):
            llm = llama_cpp.Llama(str(path), n_ctx=64, verbose=False)
            text = llm.create_completion(prompt, max_tokens=1, temperature=0)["choices"][0]["text"]
            assert (text == said["token"]) == same, text
            llm.close()
    old, new = blocks_of(models[which]), blocks_of(tmp_path / "b.gguf")
    assert old.keys() == new.keys()
    for k in old:
        touched = k.startswith("blk.") and int(k.split(".")[1]) in edited and ".ffn_" in k and "norm" not in k
        if touched:
            assert new[k][0] == "F16", k
        else:
            assert new[k][0] == old[k][0] and (new[k][1] == old[k][1]).all(), k
    other = infer("compile", v, patch, "-o", tmp_path / "c.gguf", "--model", models[1 - which])
    assert other.rc != 0 and not (tmp_path / "c.gguf").exists()


@pytest.mark.parametrize("name", ["qwen2_moe", "granitemoeshared", "gpt_oss_mxfp4", "gemma4_moe"])
def test_patches_on_experts(tmp_path, name):
    """Run as an overlay, and baked in: the same bits from a float32 index; beside experts, of the dense FFN."""
    v = tmp_path / "v"
    extract(FAMILIES / name, v, "--dtype", "f32")
    patch = make_patch(v, tmp_path / "p.vlp")
    assert infer("compile", v, patch, "-o", tmp_path / "c").rc == 0
    want, ids = states(tmp_path / "c", tmp_path / "a", tmp_path)
    for i, model in enumerate([v, FAMILIES / name]):
        r = infer("eval", model, "--ids", "3,17,5,9,42,7", "--hidden", tmp_path / "b", "--exact", "--greedy", 8,
                  "--ffn", v, "--patch", patch)
        assert r.rc == 0, r.err
        got = np.fromfile(tmp_path / "b", "<f4")
        if name == "gemma4_moe":
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()  # edits are added after the base's sum
        else:
            assert (got == want).all()
        assert json.loads(r.text)["greedy"] == ids
    plain, _ = states(v, tmp_path / "d", tmp_path)
    assert np.abs(plain - want).max() > 1e-3
