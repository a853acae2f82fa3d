"""Families' layers against transformers' states, from both containers, on every CPU level; and that the bits do not
depend on how rows are put into steps. See families/README.md."""
import json
import os
import pathlib
import struct
import re
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
INFER = os.path.abspath(os.environ.get("INFER", HERE.parents[1] / "build/infer"))
FAMILIES = sorted(p.parent.name for p in HERE.glob("families/*/golden.json"))
LEVELS = next(l for l in subprocess.run([INFER, "doctor"], capture_output=True, text=True).stdout.splitlines()
              if l.startswith("levels"))
LEVELS = re.sub(r"\w+ \(not on this machine\)", "", LEVELS).replace(",", "").split()[1:]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(family, container) -> path"""
    out, folder = {}, tmp_path_factory.mktemp("gguf")
    for name in FAMILIES:
        out[name, "safetensors"] = HERE / "families" / name
        out[name, "gguf"] = folder / f"{name}.gguf"
        subprocess.run([sys.executable, HERE / "make/to_gguf.py", HERE / "families" / name, out[name, "gguf"]], check=True)
    return out


def evaluate(model, name, tmp_path, *options):
    """logits, hidden"""
    golden = json.loads((HERE / "families" / name / "golden.json").read_text())
    r = subprocess.run([INFER, "eval", model, "--ids", ",".join(map(str, golden["ids"])), "--logits", tmp_path / "l",
                        "--hidden", tmp_path / "h", *options], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return np.fromfile(tmp_path / "l", "<f4").reshape(len(golden["ids"]), -1), \
        np.fromfile(tmp_path / "h", "<f4").reshape(golden["shape"])


def tensors(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(data[8:8 + n]).items():
        begin, end = (8 + n + at for at in t["data_offsets"])
        x = np.frombuffer(data[begin:end], {"F32": "<f4", "BF16": "<u2", "U8": "u1"}[t["dtype"]]).reshape(t["shape"])
        yield name, (x.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else x


def head(name, states):
    """Final norm and head, in float64."""
    folder = HERE / "families" / name
    c, t = json.loads((folder / "config.json").read_text()), dict(tensors(folder / "model.safetensors"))
    find = lambda *ends: next((t[k].astype(np.float64) for e in ends for k in t if k.endswith(e)), None)
    x = states.astype(np.float64)
    eps = next(c[k] for k in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon") if k in c)
    if "rms_norm_eps" not in c: x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    finals = ("model.norm.", "ln_f.", "final_layer_norm.")
    x = x * find(*(f + "weight" for f in finals))
    bias = find(*(f + "bias" for f in finals))
    if bias is not None: x = x + bias
    w = find("lm_head.weight", "embed_out.weight", "embed_tokens.weight", "wte.weight")
    x = x @ w.T * c.get("logit_scale", 1) / c.get("logits_scaling", 1)
    cap = c.get("final_logit_softcapping")
    return cap * np.tanh(x / cap) if cap else x


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("container", ["safetensors", "gguf"])
@pytest.mark.parametrize("name", FAMILIES)
def test_states_and_logits(models, tmp_path, name, container, level):
    if name == "gpt_oss_mxfp4" and container == "gguf": pytest.skip("GGUF has no key for its swiglu_limit")
    logits, hidden = evaluate(models[name, container], name, tmp_path, "--exact", "--cpu", level)
    folder = HERE / "families" / name
    if (folder / "logits.bin").exists():
        assert np.abs(logits - np.fromfile(folder / "logits.bin", "<f4").reshape(logits.shape)).max() <= 1e-3
        return
    truth = np.fromfile(folder / "hidden.bin", "<f4").reshape(hidden.shape)
    assert np.abs(hidden - truth).max() <= 1e-3 * max(1.0, np.abs(truth).max())
    assert np.abs(logits - head(name, truth[-1])).max() <= 1e-3


def divergence(of, to):
    """KL of each row, in float64."""
    a, b = (x.astype(np.float64) - x.max(-1, keepdims=True) for x in (of, to))
    a, b = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (a, b))
    return (np.exp(a) * (a - b)).sum(-1)


@pytest.mark.parametrize("path", sorted(HERE.glob("convert/*/reference.gguf")), ids=lambda p: p.parent.name)
def test_rounding_is_small(path, tmp_path):
    """Activations of 16 bits, as these narrow rows have, and a float16 cache beside float32, on Q8_0 weights. Eight bits would miss
    this bound."""
    out, ids = [], ",".join(str(5 + 7 * i % 90) for i in range(33))
    for mode in ((), ("--exact",)):
        subprocess.run([INFER, "eval", path, "--ids", ids, "--logits", tmp_path / "l", *mode], check=True, capture_output=True)
        out.append(np.fromfile(tmp_path / "l", "<f4").reshape(33, -1))
    assert not np.array_equal(*out)
    assert divergence(out[1], out[0]).max() <= 1e-5


@pytest.mark.parametrize("mode", [(), ("--exact",)], ids=["fast", "exact"])
@pytest.mark.parametrize("name", FAMILIES)
def test_bits_do_not_depend_on_steps(models, tmp_path, name, mode):
    first = evaluate(models[name, "safetensors"], name, tmp_path, "--threads", "1", *mode)[0].tobytes()
    for options in (("--chunk", "1"), ("--chunk", "7", "--threads", "2"), ("--beside", "7"), ("--threads", "2")):
        again = evaluate(models[name, "safetensors"], name, tmp_path, *options, *mode)[0].tobytes()
        assert again == first, options


def test_gguf_of_gpt_oss(models, tmp_path):
    """GGUF means a swiglu_limit of 7; with that the folder gives the same bits."""
    name, folder = "gpt_oss_mxfp4", tmp_path / "seven"
    folder.mkdir()
    for f in (HERE / "families" / name).iterdir(): (folder / f.name).write_bytes(f.read_bytes())
    c = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**c, "swiglu_limit": 7.0}))
    for mode in ((), ("--exact",)):
        assert evaluate(folder, name, tmp_path, *mode)[0].tobytes() == \
            evaluate(models[name, "gguf"], name, tmp_path, *mode)[0].tobytes()


def refused(folder, tmp_path, change):
    """What is said of a family's folder with other settings."""
    for f in (HERE / "families" / folder).iterdir(): (tmp_path / f.name).write_bytes(f.read_bytes())
    c = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**c, **change}))
    r = subprocess.run([INFER, "eval", tmp_path, "--ids", "5"], capture_output=True, text=True)
    assert r.returncode == 1 and r.stderr.count("\n") == 1, r.stderr
    return r.stderr


def test_wrong_shapes_are_told(tmp_path):
    assert "gate_up_proj.weight': expected [240, 64], found [256, 64]" in refused("phi3", tmp_path, {"intermediate_size": 120})
    assert "qkv_proj.weight': expected [96, 64], found [128, 64]" in refused("phi3", tmp_path, {"num_key_value_heads": 1})
    assert "mlp.c_fc.weight': expected [64, 250], found [64, 256]" in refused("gpt2", tmp_path, {"n_inner": 250})
    assert "wpe.weight': expected [64, 64], found [128, 64]" in refused("gpt2", tmp_path, {"n_positions": 64})


@pytest.mark.parametrize("change, said", [
    ({"num_experts_per_tok": 9}, "num_experts_per_tok: expected 1 to 8 (num_experts), found 9"),
    ({"num_experts_per_tok": 5, "topk_group": 2}, "num_experts_per_tok 5: the groups used have only 4 experts"),
    ({"n_group": 3}, "num_experts 8 is no multiple of n_group 3"),
    ({"n_group": 8}, "groups of one expert have no second best"),
    ({"topk_group": 5}, "topk_group: expected 1 to 4, found 5"),
    ({"routed_scaling_factor": 0}, "routed_scaling_factor: expected a finite number above 0, found 0"),
    ({"scoring_func": "argmax"}, "scoring_func: expected softmax or sigmoid, found 'argmax'"),
    ({"moe_intermediate_size": 40}, "experts.0.gate_proj.weight': expected [40, 64], found [48, 64]"),
    ({"n_routed_experts": 9, "n_group": 1}, "experts.8.gate_proj.weight missing"),
    ({"kv_lora_rank": 24}, "kv_a_proj_with_mqa.weight': expected [32, 64], found [40, 64]"),
    ({"qk_nope_head_dim": 1 << 20}, "are wider than"),
])
def test_wrong_settings_of_experts(tmp_path, change, said):
    assert said in refused("deepseek_v3", tmp_path, change)


@pytest.mark.parametrize("change, said", [
    ({"num_kv_shared_layers": 4}, "num_kv_shared_layers 4: layer 2 has no earlier layer of its kind"),
    ({"num_kv_shared_layers": 7}, "num_kv_shared_layers: expected 0 to 6, found 7"),
    ({"global_head_dim": 24}, "q_proj.weight': expected [96, 64], found [128, 64]"),
    ({"per_layer_config": {"5": {"head_dim": 24}}}, "layer 5 has heads of 24, the keys it uses of layer 2 are of 32"),
    ({"hidden_size_per_layer_input": 4}, "embed_tokens_per_layer.weight': expected [any, 24], found [320, 48]"),
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention: 'all' is not supported"),
])
def test_wrong_settings_of_gemma4(tmp_path, change, said):
    assert said in refused("gemma4_text", tmp_path, change)


@pytest.mark.parametrize("change, said", [
    ({"altup_num_inputs": 1}, "altup_num_inputs: expected 2 to 8, found 1"),
    ({"altup_num_inputs": 4}, "altup_projections.2.weight missing"),
    ({"altup_active_idx": 1}, "altup_active_idx: expected 0 to 0, found 1"),
    ({"activation_sparsity_pattern": [0.95] * 5}, "activation_sparsity_pattern: expected a number or 6 of them, found 5"),
    ({"activation_sparsity_pattern": 1.0}, "activation_sparsity_pattern: expected numbers from 0 to below 1, found 1"),
    ({"intermediate_size": [96] * 5 + [95]}, "layers.5.mlp.gate_proj.weight': expected [95, 64], found [96, 64]"),
])
def test_wrong_settings_of_gemma3n(tmp_path, change, said):
    assert said in refused("gemma3n_text", tmp_path, change)


@pytest.mark.parametrize("change, said", [
    ({"swiglu_limit": 0}, "swiglu_limit: expected a number above 0, found 0"),
    ({"num_local_experts": 4}, "gate_up_proj_blocks': expected [4, 64, 2, 16], found [8, 64, 2, 16]"),
    ({"hidden_size": 48}, "experts of 48 inputs do not fit type mxfp4"),
])
def test_wrong_settings_of_gpt_oss(tmp_path, change, said):
    assert said in refused("gpt_oss_mxfp4", tmp_path, change)
