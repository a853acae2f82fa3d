"""The FFN from a vindex: the same bits as the model's own, patches that reach the output, the base untouched."""
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from conftest import GGUF, GREEDY, INFER, PROMPT, ROOT, ST, infer, refused

FAMILIES = ROOT / "tests/golden/families"
IDS = "3,5,7,11,13,17"


def extract(model, out, *args):
    r = infer("extract", model, "-o", out, "--dtype", "f32", *args)
    assert r.rc == 0, r.err
    return out


def logits(path, model, *args):
    r = infer("eval", model, "--ids", IDS, "--exact", "--logits", path, "--greedy", 6, *args)
    assert r.rc == 0, r.err
    return path.read_bytes(), json.loads(r.text)["greedy"]


def hashes(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


@pytest.mark.parametrize("name", ["tiny_gguf", "tiny_st", "gpt2", "phi3", "qwen2_moe", "olmo2", "gemma3n_text"])
def test_index_is_the_model(name, tmp_path):
    """Extracted in float32 and run from the folder alone, and as the model's FFN: equal to the bit. But for norms of
    GGUF files, which count from another zero than the index's."""
    model = {"tiny_gguf": GGUF, "tiny_st": ST}.get(name, FAMILIES / name)
    v = extract(model, tmp_path / "v")
    want = logits(tmp_path / "a", model)
    got = logits(tmp_path / "b", v)
    if model == GGUF:
        a, b = (np.frombuffer(x[0], "<f4") for x in (got, want))
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max() and got[1] == want[1]
    else:
        assert got == want
    assert logits(tmp_path / "c", model, "--ffn", v) == want
    if name not in ("qwen2_moe",):
        assert logits(tmp_path / "d", model, "--ffn", v, "--walk-only") == want


def add_down_features(v):
    """down_features.bin as the format has it, made here."""
    ix = json.loads((v / "index.json").read_text())
    n, d, f = ix["num_layers"], ix["hidden_size"], ix["intermediate_size"]
    w = np.fromfile(v / "down_weights.bin", "<f4").reshape(n, d, f)
    np.ascontiguousarray(w.transpose(0, 2, 1)).tofile(v / "down_features.bin")


def test_down_by_features(tmp_path):
    """Without down_weights.bin the walk sums rows of down_features.bin: another order of sums, the same values; and
    a row's result does not depend on threads or on how the prompt is cut."""
    v = extract(GGUF, tmp_path / "v")
    want = np.frombuffer(logits(tmp_path / "a", GGUF)[0], "<f4")
    add_down_features(v)
    (v / "down_weights.bin").unlink()
    manifest = json.loads((v / "weight_manifest.json").read_text())
    (v / "weight_manifest.json").write_text(json.dumps([e for e in manifest if e["file"] != "down_weights.bin"]))
    got = [logits(tmp_path / "b", GGUF, "--ffn", v, *a)[0]
           for a in ([], ["--threads", 1], ["--chunk", 1], ["--chunk", 4], ["--beside", 3])]
    assert all(g == got[0] for g in got)
    assert np.abs(np.frombuffer(got[0], "<f4") - want).max() <= 1e-4 * np.abs(want).max()


def test_boundaries(tmp_path):
    """Layers before B from the model, the others from the index: the same bits at every B."""
    v = extract(GGUF, tmp_path / "v")
    layers = json.loads((v / "index.json").read_text())["num_layers"]
    want = logits(tmp_path / "a", GGUF)
    for b in range(layers + 1):
        assert logits(tmp_path / "b", GGUF, "--ffn", v, "--walk-from", b) == want, b
    refused(infer("eval", GGUF, "--ids", IDS, "--ffn", v, "--walk-from", layers + 1), "walk_from")


def predict(model, prompt, *args):
    r = infer("predict", model, prompt, "--json", "--top", 3, *args)
    assert r.rc == 0, r.err
    return [p["token"] for p in json.loads(r.text)["predictions"]]


def test_edit(tmp_path):
    """insert changes what is predicted, delete takes it back, compile bakes it in; the base's files stay as they are.
    (A random model of four layers cannot be made to say everything: the strength is given.)"""
    v = extract(GGUF, tmp_path / "v")
    before, patch = hashes(v), tmp_path / "p.vlp"
    prompt = "ab c"
    usual = predict(v, prompt)
    target = next(t for t in "xyzwv" if t not in usual)
    r = infer("insert", v, "ab", "c", target, "--patch", patch, "--prompt", "{entity} {relation}", "--layers", "0-1",
              "--alpha", 50)
    assert r.rc == 0, r.err
    edited = predict(v, prompt, "--patch", patch)
    assert edited != usual and predict(v, prompt) == usual
    operations = json.loads(infer("patch", v, patch, "--json").text)
    assert [o["op"] for o in operations] == ["insert", "insert"] and operations[0]["target"] == target
    # the model's own file with the index, and the index alone, agree
    assert predict(GGUF, prompt, "--ffn", v, "--patch", patch) == edited
    baked = tmp_path / "baked"
    r = infer("compile", v, patch, "-o", baked)
    assert r.rc == 0, r.err
    assert predict(baked, prompt) == edited
    r = infer("delete", v, "ab", "c", target, "--patch", patch)
    assert r.rc == 0, r.err
    after = predict(v, prompt, "--patch", patch)
    assert after != edited
    assert hashes(v) == before
    refused(infer("compile", v, patch, "-o", baked), "is there already")


def test_insert_into_a_real_model(models, tmp_path):
    """The new fact comes first, others stay, delete takes it away."""
    v, patch = tmp_path / "v", tmp_path / "p.vlp"
    r = infer("extract", models[1], "-o", v, "--level", "inference", timeout=900)
    assert r.rc == 0, r.err
    other = predict(v, "The capital of France is")
    usual = predict(v, "The capital of Atlantis is")
    r = infer("insert", v, "Atlantis", "capital", "Poseidon", "--patch", patch)
    assert r.rc == 0, r.err
    edited = predict(v, "The capital of Atlantis is", "--patch", patch)
    assert " Poseidon".startswith(edited[0]) and edited[0] not in usual, edited
    assert predict(v, "The capital of France is", "--patch", patch)[0] == other[0]
    assert infer("delete", v, "Atlantis", "capital", "Poseidon", "--patch", patch).rc == 0
    assert predict(v, "The capital of Atlantis is", "--patch", patch) == usual


def test_delete_feature(tmp_path):
    """A deleted feature is as if its gate row were zero."""
    v, patch = extract(GGUF, tmp_path / "v"), tmp_path / "p.vlp"
    for f in (0, 3):
        assert infer("delete", v, "--patch", patch, "--layer", 1, "--feature", f).rc == 0
    got = logits(tmp_path / "a", v, "--patch", patch)
    ix = json.loads((v / "index.json").read_text())
    g = np.fromfile(v / "gate_vectors.bin", "<f4").reshape(ix["num_layers"], -1, ix["hidden_size"])
    g[1, [0, 3]] = 0
    zeroed = tmp_path / "z"
    shutil.copytree(v, zeroed)
    g.tofile(zeroed / "gate_vectors.bin")
    want = logits(tmp_path / "b", zeroed)
    a, b = np.frombuffer(got[0], "<f4"), np.frombuffer(want[0], "<f4")
    assert np.abs(a - b).max() <= 1e-6 * np.abs(b).max()
    assert not np.array_equal(a, np.frombuffer(logits(tmp_path / "c", v)[0], "<f4"))


def test_stack_and_conflicts(tmp_path):
    v = extract(GGUF, tmp_path / "v")
    for name, feature in (("a", 1), ("b", 1), ("c", 2)):
        assert infer("delete", v, "--patch", tmp_path / f"{name}.vlp", "--layer", 0, "--feature", feature).rc == 0
    a, b, c = (tmp_path / f"{n}.vlp" for n in "abc")
    assert len(json.loads(infer("patch", v, a, c, "--json").text)) == 2
    refused(infer("patch", v, a, b, "--conflict", "fail"), "layer 0, feature 1")
    out = tmp_path / "all.vlp"
    assert infer("patch", v, a, b, c, "-o", out).rc == 0
    assert len(json.loads(infer("patch", v, out, "--json").text)) == 3


@pytest.mark.parametrize("change, words", [
    (lambda j: j.update(version=2), "version"),
    (lambda j: j.update(operations={}), "operations"),
    (lambda j: j["operations"].append({"op": "explode"}), "operations[1].op"),
    (lambda j: j["operations"][0].update(layer=99), "layer"),
    (lambda j: j["operations"][0].update(feature=-1), "feature"),
    (lambda j: j["operations"][0].update(feature=1 << 30), "feature"),
    (lambda j: j["operations"].append({"op": "update", "layer": 0, "feature": 0, "gate_vector_b64": "AAAA"}), "length"),
    (lambda j: j["operations"].append({"op": "update", "layer": 0, "feature": 0, "gate_vector_b64": "*" * 4}), "gate"),
])
def test_bad_patches(change, words, tmp_path):
    v, patch = extract(GGUF, tmp_path / "v"), tmp_path / "p.vlp"
    assert infer("delete", v, "--patch", patch, "--layer", 0, "--feature", 0).rc == 0
    j = json.loads(patch.read_text())
    change(j)
    patch.write_text(json.dumps(j))
    r = infer("predict", v, "ab", "--patch", patch)
    assert r.rc in (1, 2), r.err
    refused(r, words, rc=r.rc)
    text = patch.read_bytes()
    for at in range(0, len(text), 64):
        patch.write_bytes(text[:at])
        refused(infer("patch", v, patch), "p.vlp", rc=1)


def test_compile_killed(tmp_path):
    """Killed at any moment, compile leaves the base and either nothing or a whole index under the final name."""
    v, patch = extract(GGUF, tmp_path / "v"), tmp_path / "p.vlp"
    assert infer("delete", v, "--patch", patch, "--layer", 0, "--feature", 0).rc == 0
    before, out = hashes(v), tmp_path / "out"
    for delay in (0, 0.002, 0.004, 0.006, 0.01, 0.02):
        p = subprocess.Popen([INFER, "compile", v, patch, "-o", out], stdout=subprocess.DEVNULL)
        time.sleep(delay)
        p.send_signal(signal.SIGKILL)
        p.wait()
        if out.exists():
            assert predict(out, PROMPT)
            shutil.rmtree(out)
        assert hashes(v) == before
    assert infer("compile", v, patch, "-o", out).rc == 0
    assert not os.path.exists(f"{out}.partial")


def test_sparse(tmp_path):
    """walk-calibrate reports the frontier; everything kept is exact; --sparse says what it costs."""
    v = extract(GGUF, tmp_path / "v")
    refused(infer("walk-calibrate", v, "--text", ROOT / "README.md"), "build-down-features", rc=1)
    add_down_features(v)
    text = tmp_path / "t.txt"
    text.write_text("the inner voice of a tree in the wind and the rain " * 6)
    out, svg = tmp_path / "s.json", tmp_path / "s.svg"
    r = infer("walk-calibrate", v, "--text", text, "--tokens", 64, "--held", 48, "--threads", 1, "--json", "-o", out, "--svg", svg)
    assert r.rc == 0, r.err
    points = json.loads(r.text)["points"]
    by = {c: [p for p in points if p["choice"] == c] for c in ("product", "gate")}
    assert len(by["product"]) == len(by["gate"]) == 10
    assert by["product"][0]["kept"] == 1 and by["product"][0]["kl"] < 1e-6 and by["product"][0]["top1"] == 1
    kept = [p["kept"] for p in by["product"]]
    assert kept == sorted(kept, reverse=True) and abs(kept[5] - 0.5) < 0.05
    assert by["product"][9]["kl"] > by["product"][1]["kl"] >= 0
    assert svg.read_text().startswith("<svg") and svg.read_text().count("<circle") == 20
    r = infer("run", v, PROMPT, "-n", 8, "--temp", 0, "--sparse", out, "--sparse-kl", 100)
    assert r.rc == 0 and "approximate" in r.err
    r = infer("run", v, PROMPT, "-n", 8, "--temp", 0)
    assert r.rc == 0 and r.text.strip().startswith(GREEDY[:4])
    refused(infer("run", v, PROMPT, "--sparse", text), "thresholds", rc=1)


def test_no_model(tmp_path):
    refused(infer("predict", GGUF, "ab", "--ffn", tmp_path), "no vindex", rc=1)
    refused(infer("predict", GGUF, "ab", "--walk-only"), rc=1)
