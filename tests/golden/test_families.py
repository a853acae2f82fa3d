"""Families' layers against transformers' states, from both containers, on every CPU level; and that the bits do not
depend on how rows are put into steps. See families/README.md."""
import json
import os
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
INFER = os.path.abspath(os.environ.get("INFER", HERE.parents[1] / "build/infer"))
FAMILIES = sorted(p.parent.name for p in HERE.glob("families/*/golden.json"))
LEVELS = next(l for l in subprocess.run([INFER, "doctor"], capture_output=True, text=True).stdout.splitlines()
              if l.startswith("levels")).replace(",", "").split()[1:]


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
        x = np.frombuffer(data[begin:end], {"F32": "<f4", "BF16": "<u2"}[t["dtype"]]).reshape(t["shape"])
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
    return x @ w.T * c.get("logit_scale", 1) / c.get("logits_scaling", 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("container", ["safetensors", "gguf"])
@pytest.mark.parametrize("name", FAMILIES)
def test_states_and_logits(models, tmp_path, name, container, level):
    logits, hidden = evaluate(models[name, container], name, tmp_path, "--exact", "--cpu", level)
    truth = np.fromfile(HERE / "families" / name / "hidden.bin", "<f4").reshape(hidden.shape)
    assert np.abs(hidden - truth).max() <= 1e-3 * max(1.0, np.abs(truth).max())
    assert np.abs(logits - head(name, truth[-1])).max() <= 1e-3


@pytest.mark.parametrize("mode", [(), ("--exact",)], ids=["fast", "exact"])
@pytest.mark.parametrize("name", FAMILIES)
def test_bits_do_not_depend_on_steps(models, tmp_path, name, mode):
    first = evaluate(models[name, "safetensors"], name, tmp_path, "--threads", "1", *mode)[0].tobytes()
    for options in (("--chunk", "1"), ("--chunk", "7", "--threads", "2"), ("--beside", "7"), ("--threads", "2")):
        again = evaluate(models[name, "safetensors"], name, tmp_path, *options, *mode)[0].tobytes()
        assert again == first, options


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
