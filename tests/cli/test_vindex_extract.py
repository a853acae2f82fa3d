"""infer extract: an index is a model of its own, whole or not there, and says what is wrong with it."""
import json
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from conftest import GGUF, GREEDY, INFER, PROMPT, ROOT, ST, infer, refused

FAMILIES = ROOT / "tests/golden/families"
NAMES = ["cohere2", "deepseek_v3", "gemma3n_text", "gemma4_moe", "gemma4_text", "gpt2", "gpt_neox", "gpt_oss_mxfp4", "granite",
         "granitemoeshared", "olmo2", "phi3", "qwen2_moe"]
IDS = "3,17,5,9,42,7"


def extract(model, out, *args, **kw):
    r = infer("extract", model, "-o", out, *args, **kw)
    assert r.rc == 0, r.err
    return r


def states(model, file, cwd):
    r = infer("eval", model, "--ids", IDS, "--hidden", file, "--exact", "--greedy", 8, cwd=cwd)
    assert r.rc == 0, r.err
    return np.fromfile(file, "<f4"), json.loads(r.text)["greedy"]


def layers_differ(a, b, n):
    a, b = a.reshape(n, -1), b.reshape(n, -1)
    return (np.abs(a - b).max(axis=1) / np.abs(a).max(axis=1)).max()


@pytest.mark.parametrize("name", NAMES + ["gguf", "st"])
@pytest.mark.parametrize("dtype,bound", [("f32", 1e-5), ("f16", 2e-2)])
def test_index_is_the_model(tmp_path, name, dtype, bound):
    model = {"gguf": GGUF, "st": ST}.get(name) or FAMILIES / name
    extract(model, tmp_path / "v", "--dtype", dtype)
    empty = tmp_path / "empty"
    empty.mkdir()
    a, ids = states(model, tmp_path / "a", empty)
    b, found = states(tmp_path / "v", tmp_path / "b", empty)
    n = json.loads((tmp_path / "v/index.json").read_text())["num_layers"] + 1
    assert layers_differ(a, b, n) <= bound
    assert found == ids


@pytest.mark.parametrize("name", ["gemma4_moe", "gpt_oss_mxfp4"])
def test_experts_to_the_bit(tmp_path, name):
    """Experts beside a dense FFN, and biased ones: from a float32 index the source's own bits."""
    extract(FAMILIES / name, tmp_path / "v", "--dtype", "f32")
    a, ids = states(FAMILIES / name, tmp_path / "a", tmp_path)
    b, found = states(tmp_path / "v", tmp_path / "b", tmp_path)
    assert (a == b).all() and ids == found
    index = json.loads((tmp_path / "v/index.json").read_text())
    assert index["model_config"]["moe"]["hybrid"] == (name == "gemma4_moe")
    assert ("num_experts" in index["layers"][0]) == (name != "gemma4_moe")
    for args in ([], ["--ffn", tmp_path / "v"]):
        r = infer("eval", FAMILIES / name, "--ids", IDS, "--exact", "--greedy", 8, *args)
        assert r.rc == 0 and json.loads(r.text)["greedy"] == ids, r.err


@pytest.mark.parametrize("model", ["file", "folder", "st"])
def test_text_from_the_index_alone(tmp_path, model):
    (tmp_path / "in").mkdir()
    shutil.copy(GGUF, tmp_path / "in/model.gguf")
    path = {"file": tmp_path / "in/model.gguf", "folder": tmp_path / "in", "st": ST}[model]
    extract(path, tmp_path / "v", "--dtype", "f32")
    shutil.rmtree(tmp_path / "in")
    empty = tmp_path / "empty"
    empty.mkdir()
    r = infer("run", tmp_path / "v", PROMPT, "--temp", 0, "-n", 8, cwd=empty)
    assert r.rc == 0, r.err
    assert GREEDY in r.text


# ---- unknown and missing tensors --------------------------------------------------------------


def with_tensors(out, add=(), drop=()):
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(GGUF)
    w = gguf.GGUFWriter(out, "llama")
    for f in reader.fields.values():
        if f.name.startswith("GGUF.") or f.name == "general.architecture":
            continue
        v = f.contents()
        kind = f.types[0]
        w.add_key_value(f.name, v, kind, f.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for t in reader.tensors:
        if t.name not in drop:
            w.add_tensor(t.name, np.array(t.data), raw_dtype=t.tensor_type)
    for name in add:
        w.add_tensor(name, np.ones(8, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def test_unknown_tensor_is_named(tmp_path):
    with_tensors(tmp_path / "m.gguf", add=["blk.0.mystery.weight"])
    r = extract(tmp_path / "m.gguf", tmp_path / "v", "--level", "attention")
    assert "blk.0.mystery.weight" in r.err


def test_missing_tensor_is_an_error(tmp_path):
    with_tensors(tmp_path / "m.gguf", drop=["blk.1.ffn_norm.weight"])
    refused(infer("extract", tmp_path / "m.gguf", "-o", tmp_path / "v"), "blk.1.ffn_norm.weight", rc=1)
    extract(GGUF, tmp_path / "v")
    path = tmp_path / "v/weight_manifest.json"
    rows = [r for r in json.loads(path.read_text()) if "layers.1.post_attention_layernorm" not in r["key"]]
    path.write_text(json.dumps(rows))
    refused(infer("run", tmp_path / "v", "x"), "layers.1.post_attention_layernorm.weight missing", rc=1)


def test_browse_says_what_is_missing(tmp_path):
    extract(GGUF, tmp_path / "v", "--level", "browse")
    r = infer("run", tmp_path / "v", "x")
    refused(r, "weight_manifest.json", "infer extract --level inference", rc=1)
    assert infer("inspect", tmp_path / "v").rc == 0


# ---- stopped and gone on with -----------------------------------------------------------------


def contents(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != "index.json"}


@pytest.mark.parametrize("clusters", [False, True])
def test_killed_and_resumed(tmp_path, models, clusters):
    model, rng, args = FAMILIES / "gemma4_text", random.Random(1), ["--dtype", "f32"]
    if clusters:
        model, args = tmp_path / "m.gguf", [*args, "--clusters", 20]
        with_vocabulary(model, models[1])
    extract(model, tmp_path / "whole", *args)
    out, begun = tmp_path / "v", []
    start = time.monotonic()
    extract(model, tmp_path / "timed", *args)
    length = time.monotonic() - start
    for i in range(10):
        p = subprocess.Popen([INFER, "extract", str(model), "-o", str(out), *map(str, args), "--resume"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, length))
        p.send_signal(signal.SIGKILL)
        p.wait()
        mark = tmp_path / "v.partial/.extract_checkpoint.json"
        if mark.exists():
            begun.append(json.loads(mark.read_text())["extracted_at"])
        else:
            begun = []  # killed before it began, or when only the rename was left: the next begins anew
        if out.exists():
            shutil.rmtree(out)  # it was faster
    extract(model, out, *args, "--resume")
    a, b = contents(out), contents(tmp_path / "whole")
    assert a.keys() == b.keys()
    assert [n for n in a if a[n] != b[n]] == []
    index = json.loads((out / "index.json").read_text())
    if begun:
        assert index["source"]["extracted_at"] == begun[0]
    assert not (tmp_path / "v.partial").exists()


def test_nothing_is_replaced_unasked(tmp_path):
    extract(GGUF, tmp_path / "v")
    refused(infer("extract", GGUF, "-o", tmp_path / "v"), "is there already", rc=2)
    extract(GGUF, tmp_path / "v", "--force")
    other = tmp_path / "mine"
    other.mkdir()
    (other / "keep").write_text("x")
    assert infer("extract", GGUF, "-o", other, "--force").rc != 0
    assert (other / "keep").read_text() == "x"


# ---- checking and tools -----------------------------------------------------------------------


def test_verify(tmp_path):
    extract(GGUF, tmp_path / "v")
    assert infer("inspect", "--verify", tmp_path / "v").rc == 0
    for name in ["gate_vectors.bin", "down_meta.bin", "norms.bin"]:
        path = tmp_path / "v" / name
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        refused(infer("inspect", "--verify", tmp_path / "v"), name, rc=1)
        data[-1] ^= 1
        path.write_bytes(data)
    (tmp_path / "v/down_weights.bin").unlink()
    r = infer("inspect", "--verify", tmp_path / "v")
    assert r.rc == 1 and "down_weights.bin" in r.err


def test_gates_as_f32(tmp_path):
    extract(GGUF, tmp_path / "v")
    old = np.fromfile(tmp_path / "v/gate_vectors.bin", "<f2")
    assert infer("convert-gates-f32", tmp_path / "v").rc == 0
    assert (np.fromfile(tmp_path / "v/gate_vectors.bin", "<f4") == old.astype("f4")).all()
    assert json.loads((tmp_path / "v/index.json").read_text())["dtype"] == "f32"
    assert infer("inspect", "--verify", tmp_path / "v").rc == 0
    assert infer("run", tmp_path / "v", PROMPT, "--temp", 0, "-n", 4).rc == 0
    assert [p.name for p in tmp_path.iterdir()] == ["v"]


@pytest.mark.parametrize("name", ["gguf", "qwen2_moe"])
def test_features(tmp_path, name):
    model = GGUF if name == "gguf" else FAMILIES / name
    extract(model, tmp_path / "v", "--dtype", "f32")
    for kind in ["down", "up"]:
        assert infer(f"build-{kind}-features", tmp_path / "v").rc == 0
    index = json.loads((tmp_path / "v/index.json").read_text())
    d = index["hidden_size"]
    rows = np.fromfile(tmp_path / "v/down_features.bin", "<f4").reshape(-1, d)
    down, at = np.fromfile(tmp_path / "v/down_weights.bin", "<f4"), 0
    for layer in index["layers"]:
        n = layer["num_features"]
        per = layer.get("num_features_per_expert", n)
        for first in range(0, n, per):
            want = down[(at + first) * d:(at + first + per) * d].reshape(d, per).T
            assert (rows[at + first:at + first + per] == want).all()
        at += n
    if name == "gguf":
        assert (tmp_path / "v/up_features.bin").read_bytes() == (tmp_path / "v/up_weights.bin").read_bytes()
    assert infer("inspect", "--verify", tmp_path / "v").rc == 0
    assert infer("build-down-features", tmp_path / "v", "--dtype", "f16").rc == 0
    half = np.fromfile(tmp_path / "v/down_features.bin", "<f2").reshape(-1, d).astype("f4")
    assert half.shape == rows.shape and (np.abs(half - rows) <= np.abs(rows) * 2**-10 + 2**-14).all()
    assert infer("inspect", "--verify", tmp_path / "v").rc == 0


def test_labels_are_the_largest_products(tmp_path):
    extract(ST, tmp_path / "v", "--dtype", "f32", "--top-k", 3)
    index = json.loads((tmp_path / "v/index.json").read_text())
    d, v = index["hidden_size"], index["vocab_size"]
    n = index["layers"][0]["num_features"]
    embed = np.fromfile(tmp_path / "v/embeddings.bin", "<f4").reshape(v, d).astype("f8")
    down = np.fromfile(tmp_path / "v/down_weights.bin", "<f4")[:d * n].reshape(d, n).astype("f8")
    best = (embed @ down).max(axis=0)
    raw = (tmp_path / "v/down_meta.bin").read_bytes()
    assert raw[:4] == b"TEMD" and np.frombuffer(raw, "<u4", 4, 0)[1:].tolist() == [1, len(index["layers"]), 3]
    records = np.frombuffer(raw, "<u4", n * 8, 20).reshape(n, 8)
    scores = records[:, 1].copy().view("<f4")
    assert (scores <= best + 1e-4).all() and (np.abs(scores - best) < 1e-4).mean() > 0.5


# ---- blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["st", "phi3", "qwen2_moe"])
def test_q4k(tmp_path, name):
    model = ST if name == "st" else FAMILIES / name
    extract(model, tmp_path / "v", "--quant", "q4k")
    index = json.loads((tmp_path / "v/index.json").read_text())
    n = index["num_layers"]
    assert index["quant"] == "q4k" and index["dtype"] == "f16"
    rows = json.loads((tmp_path / "v/attn_weights_q4k_manifest.json").read_text())
    assert len(rows) == 4 * n and [r["format"] for r in rows[:4]] == ["Q4_K", "Q4_K", "Q6_K", "Q4_K"]
    if name != "qwen2_moe":
        ffn = json.loads((tmp_path / "v/interleaved_q4k_manifest.json").read_text())
        assert len(ffn) == 3 * n and [r["format"] for r in ffn[:3]] == ["Q4_K", "Q4_K", "Q6_K"]
    a, _ = states(model, tmp_path / "a", tmp_path)
    b, _ = states(tmp_path / "v", tmp_path / "b", tmp_path)
    assert np.isfinite(b).all()
    a, b = a.reshape(n + 1, -1), b.reshape(n + 1, -1)
    cos = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert (cos > 0.9).all(), cos


# ---- tokenizers -------------------------------------------------------------------------------

TEXTS = ["Hello, world! It's 12345.67 tests; isn't it?", "  leading  spaces\n\n\nand\ttabs \r\n end ",
         "Привет 你好世界 こんにちは 한국 नमस्ते 😀👩‍💻", "int main(void) { return a[i]++ != b->c; }", " ", "the the"]


def with_vocabulary(out, model):
    """The tiny model with the vocabulary of a real one, and as many random rows."""
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(model)
    tiny = gguf.GGUFReader(GGUF)
    w = gguf.GGUFWriter(out, "llama")
    for source, wanted in ((tiny, False), (reader, True)):
        for f in source.fields.values():
            if f.name.startswith("GGUF.") or f.name == "general.architecture" or \
                    f.name.startswith("tokenizer.") != wanted:
                continue
            kind = f.types[0]
            w.add_key_value(f.name, f.contents(), kind, f.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    n = len(reader.fields["tokenizer.ggml.tokens"].data)
    d = tiny.fields["llama.embedding_length"].contents()
    rng = np.random.default_rng(1)
    for t in tiny.tensors:
        if t.name in ("token_embd.weight", "output.weight"):
            w.add_tensor(t.name, rng.standard_normal((n, d)).astype("f4"))
        else:
            w.add_tensor(t.name, np.array(t.data), raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.mark.parametrize("which", [0, 1])
def test_tokenizer_of_gguf(tmp_path, models, which):
    """A vocabulary of a real model on a tiny one: its tokenizer.json gives the GGUF file's ids."""
    tokenizers = pytest.importorskip("tokenizers")
    with_vocabulary(tmp_path / "m.gguf", models[which])
    r = extract(tmp_path / "m.gguf", tmp_path / "v", "--level", "browse", "--top-k", 1)
    assert "warn" not in r.err.lower(), r.err
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "v/tokenizer.json"))
    lines = "".join(json.dumps(t) + "\n" for t in TEXTS)
    r = infer("tokenize", tmp_path / "m.gguf", "--json", stdin=lines)
    assert r.rc == 0, r.err
    for text, ids in zip(TEXTS, r.text.splitlines()):
        assert other.encode(text).ids == json.loads(ids), text
    (tmp_path / "alone").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "v" / name, tmp_path / "alone")
    assert infer("tokenize", tmp_path / "alone", "--json", stdin=lines).text == r.text


# ---- clusters ---------------------------------------------------------------------------------


def k_means(x, k):
    """The longest point, then the farthest ones, then at most 50 rounds."""
    x = x.astype("f8")
    centres = [x[(x ** 2).sum(1).argmax()]]
    nearest = x @ centres[0]
    while len(centres) < k:
        centres.append(x[nearest.argmin()])
        nearest = np.maximum(nearest, x @ centres[-1])
    centres, cluster = np.array(centres), np.zeros(len(x), int)
    for _ in range(50):
        new = (x @ centres.T).argmax(1)
        if (new == cluster).all():
            break
        cluster = new
        centres = np.array([x[cluster == c].sum(0) for c in range(k)])
        size = np.linalg.norm(centres, axis=1, keepdims=True)
        centres = np.where(size > 1e-8, centres / np.maximum(size, 1e-30), 0)
    return centres, cluster


def test_clusters(tmp_path, models):
    """Against steps and k-means in numpy, of what the index holds and another tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    with_vocabulary(tmp_path / "m.gguf", models[1])
    K, args = 9, ["--dtype", "f32", "--top-k", 4, "--clusters", 9]
    for threads in (1, 3):
        extract(tmp_path / "m.gguf", tmp_path / f"v{threads}", *args, "--threads", threads)
    v = tmp_path / "v1"
    assert contents(v) == contents(tmp_path / "v3")
    index = json.loads((v / "index.json").read_text())
    d, n_vocab, F = index["hidden_size"], index["vocab_size"], index["layers"][0]["num_features"]
    embed = np.fromfile(v / "embeddings.bin", "<f4").reshape(n_vocab, d)
    gates = np.fromfile(v / "gate_vectors.bin", "<f4").reshape(-1, d)
    tok = tokenizers.Tokenizer.from_file(str(v / "tokenizer.json"))
    texts = [tok.decode([i]).strip() for i in range(n_vocab)]
    words = np.array([i for i, t in enumerate(texts) if len(t) >= 3 and t.isascii() and
                      all(c.isalnum() or c in "-'" for c in t)])
    meta = (v / "down_meta.bin").read_bytes()
    steps, where, spoken = [], [], []
    for l in range(index["num_layers"]):
        records = np.frombuffer(meta, "<u4", F * 10, 16 + (l + 1) * 4 + l * F * 40).reshape(F, 10)
        best = words[(embed[words] @ gates[l * F:(l + 1) * F].T).argmax(0)]
        for f in range(F):
            ids = [i for i in tok.encode(texts[best[f]], add_special_tokens=False).ids if i >= 3]
            if records[f, 0] < 3 or not ids:
                continue
            step = embed[records[f, 0]].astype("f8") - embed[ids].astype("f8").mean(0).astype("f4")
            if np.linalg.norm(step) > 1e-8:
                steps.append(step / np.linalg.norm(step))
                where.append((l, f))
                spoken.append([texts[i].lower() for i in records[f, 2::2]])
    centres, cluster = k_means(np.array(steps, "f4"), K)
    rows = [json.loads(r) for r in (v / "feature_clusters.jsonl").read_text().splitlines()]
    assert [(r["l"], r["f"]) for r in rows] == where
    assert [r["c"] for r in rows] == cluster.tolist()
    found = json.loads((v / "relation_clusters.json").read_text())
    assert found["k"] == K and found["counts"] == np.bincount(cluster, minlength=K).tolist()
    assert np.abs(np.array(found["centres"]) - centres).max() < 1e-5
    assert len(found["labels"]) == len(found["top_tokens"]) == K
    for c in range(K):
        said = {w for f, s in enumerate(spoken) if cluster[f] == c for w in s}
        assert found["top_tokens"][c] and set(found["top_tokens"][c]) <= said
        assert found["labels"][c] == "/".join(found["top_tokens"][c][:3])
    shown = json.loads(infer("relations", v, "--json").text)["relations"]
    by_label = {}
    for label, n in zip(found["labels"], found["counts"]):
        by_label[label] = by_label.get(label, 0) + n
    assert {r["name"]: r["count"] for r in shown} == by_label
    assert infer("inspect", "--verify", v).rc == 0
