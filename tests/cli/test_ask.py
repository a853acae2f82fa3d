"""Asking a vindex: describe, walk, select, relations, neighbours, stats, hnsw."""
import json
import pathlib
import shutil
import struct

import numpy as np
import pytest

from conftest import GGUF, infer, refused


@pytest.fixture(scope="module")
def vindex(tmp_path_factory):
    out = tmp_path_factory.mktemp("v") / "v"
    r = infer("extract", GGUF, "-o", out, "--dtype", "f32")
    assert r.rc == 0, r.err
    return out


class Index:
    """The folder's arrays, read here."""

    def __init__(self, path):
        j = json.loads((path / "index.json").read_text())
        self.d, self.v, self.scale, self.k = j["hidden_size"], j["vocab_size"], j["embed_scale"], j["down_top_k"]
        g = (path / "gate_vectors.bin").read_bytes()
        self.gates = [np.frombuffer(g, "<f4", x["num_features"] * self.d, x["offset"]).reshape(-1, self.d)
                      for x in sorted(j["layers"], key=lambda x: x["layer"])]
        self.embed = np.fromfile(path / "embeddings.bin", "<f4").reshape(self.v, self.d)
        self.meta = []
        b, at = (path / "down_meta.bin").read_bytes(), 16
        k = struct.unpack_from("<I", b, 12)[0]
        for _ in self.gates:
            n = struct.unpack_from("<I", b, at)[0]
            at += 4
            rows = []
            for _ in range(n):
                top = struct.unpack_from("<If", b, at)
                rows.append((top, [struct.unpack_from("<If", b, at + 8 + 8 * i) for i in range(k)]))
                at += 8 + 8 * k
            self.meta.append(rows)


def ask(*args):
    r = infer(*args, "--json")
    assert r.rc == 0 and r.err == "", r.err
    return json.loads(r.text)


def ids_of(text):
    r = infer("tokenize", GGUF, text)
    assert r.rc == 0, r.err
    return [int(line.split()[0]) for line in r.text.splitlines() if line.split()[0].isdigit()]


def test_walk_is_a_scan_of_the_last_embedding(vindex):
    x = Index(vindex)
    prompt = "the inner "
    q = x.embed[ids_of(prompt)[-1]].astype(np.float64) * x.scale
    hits = ask("walk", vindex, prompt, "--top", "7")["hits"]
    for layer, gates in enumerate(x.gates):
        got = [h for h in hits if h["layer"] == layer]
        scores = gates.astype(np.float64) @ q
        want = np.argsort(-np.abs(scores), kind="stable")[:7]
        assert [h["feature"] for h in got] == want.tolist()
        assert np.allclose([h["score"] for h in got], scores[want], rtol=1e-4, atol=1e-6)
    one = ask("walk", vindex, prompt, "--top", "3", "--layers", "1")["hits"]
    assert one == [h for h in hits if h["layer"] == 1][:3]
    assert ask("walk", vindex, prompt, "--top", "3", "--layers", "0")["hits"] == \
        [h for h in hits if h["layer"] == 0][:3]
    strong = ask("walk", vindex, prompt, "--top", "7", "--min-score", str(abs(hits[2]["score"])))["hits"]
    assert all(abs(h["score"]) >= abs(hits[2]["score"]) * 0.999999 for h in strong) and len(strong) >= 3
    many = ask("walk", vindex, prompt, "--top", "1000000")["hits"]
    assert len(many) == sum(len(g) for g in x.gates)


def test_graphs_find_what_scans_find(vindex):
    r = infer("hnsw", vindex, "--check")
    assert r.rc == 0 and "built and saved" in r.text, r.err
    assert (vindex / "hnsw.bin").exists()
    j = ask("hnsw", vindex, "--check", "--queries", "20")
    assert not j["built"] and min(j["recall"]) >= 0.95
    a = ask("walk", vindex, "the inner ", "--top", "5")
    b = ask("walk", vindex, "the inner ", "--top", "5", "--hnsw")
    assert a == b


def test_damaged_graphs_are_refused(vindex, tmp_path):
    infer("hnsw", vindex)
    folder = tmp_path / "v"
    folder.mkdir()
    for f in pathlib.Path(vindex).iterdir():
        (folder / f.name).symlink_to(f)
    whole = (vindex / "hnsw.bin").read_bytes()
    (folder / "hnsw.bin").unlink()
    for cut in (0, 3, 63, 64, 200, len(whole) - 1):
        (folder / "hnsw.bin").write_bytes(whole[:cut])
        refused(infer("walk", folder, "a", "--hnsw"), "hnsw.bin", "delete the file", rc=1)
    assert infer("walk", folder, "a").rc == 0  # a scan needs no graphs
    (folder / "hnsw.bin").write_bytes(whole)
    gates = bytearray((vindex / "gate_vectors.bin").read_bytes())
    gates[5] ^= 0x55
    (folder / "gate_vectors.bin").unlink()
    (folder / "gate_vectors.bin").write_bytes(gates)
    refused(infer("walk", folder, "a", "--hnsw"), "hnsw.bin", "other gates", rc=1)


def test_describe_joins_targets(vindex):
    e = ask("describe", vindex, "inner", "--band", "all", "--top", "1000")["edges"]
    targets = [x["target"].lower() for x in e]
    assert len(targets) == len(set(targets)) and "inner" not in targets
    assert [x["score"] for x in e] == sorted((x["score"] for x in e), reverse=True)
    assert all(x["score"] > 0 and x["first_layer"] <= x["layer"] <= x["last_layer"] for x in e)
    most = ask("describe", vindex, "inner", "--band", "all", "--min-score", "1e9")["edges"]
    assert most == []


def test_select_finds_tokens(vindex):
    x = Index(vindex)
    e = ask("select", vindex, "--band", "all", "--top", "100000")["edges"]
    labelled = sum(bool(t[0] or t[1]) for rows in x.meta for t, _ in rows)
    assert len(e) == labelled
    for y in e[:20]:
        top, score = x.meta[y["layer"]][y["feature"]][0]
        assert y["score"] == pytest.approx(score)
    text = next(y["target"] for y in e if len(y["target"]) == 1 and y["target"].isalpha())
    some = ask("select", vindex, text.upper(), "--top", "100000")["edges"]
    assert 0 < len(some) <= len(e)
    assert all(any(text.lower() in t.lower() for t in [y["target"], *y["also"]]) or len(y["also"]) >= 5
               for y in some)
    layers = [y["layer"] for y in ask("select", vindex, text, "--order", "layer", "--top", "100000")["edges"]]
    assert layers == sorted(layers)
    refused(infer("select", vindex), "expected TEXT")


def test_labels(vindex, tmp_path):
    r = infer("relations", vindex)
    assert r.rc == 0 and "no labels" in r.err
    folder = tmp_path / "v"
    folder.mkdir()
    for f in pathlib.Path(vindex).iterdir():
        (folder / f.name).symlink_to(f)
    (folder / "feature_labels.json").write_text(json.dumps(
        {"L0_F3": "capital", "L1_F2": "capital", "L0_F4": "language", "L0F5": "x", "L9_F1": "y", "L0_F1": 3}))
    (folder / "relation_clusters.json").write_text(json.dumps(
        {"k": 2, "centres": [], "labels": ["colour", "capital"], "counts": [1, 1], "top_tokens": [[], []]}))
    (folder / "feature_clusters.jsonl").write_text('{"c":0,"f":3,"l":0}\n{"c":0,"f":6,"l":1}\n')
    names = {x["name"]: (x["count"], x["first_layer"], x["last_layer"])
             for x in ask("relations", folder)["relations"]}
    assert names == {"capital": (2, 0, 1), "language": (1, 0, 0), "colour": (1, 1, 1)}
    e = ask("select", folder, "--relation", "Capital")["edges"]
    assert {(x["layer"], x["feature"]) for x in e} <= {(0, 3), (1, 2)}
    hits = ask("walk", folder, "a", "--top", "1000", "--relation", "capital")["hits"]
    assert {(h["layer"], h["feature"]) for h in hits} == {(0, 3), (1, 2)}
    (folder / "feature_labels.json").write_text("{")
    refused(infer("relations", folder), "feature_labels.json", rc=1)


def test_neighbours(vindex):
    x = Index(vindex)
    i = ids_of("n")[-1]
    e = x.embed.astype(np.float64)
    cos = e @ e[i] / np.maximum(np.linalg.norm(e, axis=1) * np.linalg.norm(e[i]), 1e-30)
    got = ask("neighbours", vindex, "n", "--top", "5")["neighbours"]
    assert all(t["cosine"] == pytest.approx(cos[t["id"]], abs=1e-5) for t in got)
    better = [j for j in np.argsort(-cos) if j not in [t["id"] for t in got]]
    assert all(cos[better[k]] <= got[-1]["cosine"] + 1e-6 or cos[better[k]] > 0.99999 for k in range(3))


def test_stats_and_tables(vindex):
    j = ask("stats", vindex)
    x = Index(vindex)
    assert j["n_features"] == sum(len(g) for g in x.gates) and j["n_layers"] == len(x.gates)
    for args in (("stats",), ("walk", "the inner "), ("describe", "inner", "--band", "all"),
                 ("neighbours", "n"), ("select", "n")):
        r = infer(args[0], vindex, *args[1:])
        assert r.rc == 0 and r.text.strip(), (args, r.err)


def test_wrong_questions(vindex, tmp_path):
    refused(infer("walk", tmp_path, "a"), "no vindex", rc=1)
    refused(infer("walk", vindex, "a", "--layers", "7-9"), "layers 7-9")
    refused(infer("walk", vindex, "a", "--layers", "b"), "--layers")
    refused(infer("walk", vindex, "a", "--experts"), "no routers", rc=1)
    refused(infer("describe", vindex, "a", "--band", "x"), "--band")


def test_patches_are_laid_over(vindex, tmp_path):
    infer("hnsw", vindex)
    patch = tmp_path / "p.vlp"
    before = ask("walk", vindex, "the inner ", "--layers", "1", "--top", "6")["hits"]
    gone = before[0]["feature"]
    r = infer("delete", vindex, "--layer", 1, "--feature", gone, "--patch", patch)
    assert r.rc == 0, r.err
    for more in ((), ("--hnsw",)):
        after = ask("walk", vindex, "the inner ", "--layers", "1", "--top", "5", "--patch", patch, *more)["hits"]
        assert after == before[1:]
    e = ask("select", vindex, "--layers", "1", "--top", "100000", "--patch", patch)["edges"]
    assert e and gone not in [x["feature"] for x in e]
    e = ask("describe", vindex, "inner", "--layers", "1", "--patch", patch, "--top", "1000")["edges"]
    assert gone not in [x["feature"] for x in e]


def test_describe_ranks(vindex):
    x = Index(vindex)
    q = x.embed[[i for i in ids_of("inner")]].astype(np.float64).mean(0) * x.scale
    sample = x.embed[[x.v * i // 512 for i in range(512)]].astype(np.float64) * x.scale
    raw = ask("describe", vindex, "inner", "--rank", "raw", "--top", "1000")
    assert raw["rank"] == "raw" and raw["edges"]
    for e in raw["edges"]:
        assert e["score"] == pytest.approx(x.gates[e["layer"]][e["feature"]].astype(np.float64) @ q, rel=1e-4)
    for e in ask("describe", vindex, "inner", "--top", "1000")["edges"]:
        g = x.gates[e["layer"]][e["feature"]].astype(np.float64)
        s = sample @ g
        assert g @ q > 0 and e["score"] == pytest.approx((g @ q - s.mean()) / s.std(), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("gone", ["attn_weights.bin", "up_weights.bin", "down_weights.bin", "norms.bin"])
def test_weights_may_be_left_out(vindex, tmp_path, gone):
    """Who asks the index needs none of them; who runs the model is told which."""
    whole, less = tmp_path / "whole", tmp_path / "less"
    assert infer("extract", GGUF, "-o", whole, "--level", "all", "--dtype", "f32").rc == 0
    shutil.copytree(whole, less)
    (less / gone).unlink()
    for verb, text, key in (("walk", "the inner ", "hits"), ("describe", "the", "edges")):
        assert ask(verb, less, text)[key] == ask(verb, whole, text)[key]
    refused(infer("run", less, "the", "-n", "2"), gone, rc=1)
