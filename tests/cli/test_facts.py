"""Facts by key: knn_store.bin written by hand, asked by infer predict, laid over and taken away by patches."""
import base64
import json
import struct

import numpy as np
import pytest

from conftest import GGUF, PROMPT, infer, refused
from test_vindex_extract import extract


def store(path, d, layers):
    """layers: [(layer, [(key, token, {...})])]"""
    out = b"LKNN" + struct.pack("<3I", 1, d, len(layers))
    for layer, facts in layers:
        out += struct.pack("<2I", layer, len(facts))
        out += b"".join(np.asarray(k, "<f2").tobytes() for k, _, _ in facts)
        out += b"".join(struct.pack("<I", t) for _, t, _ in facts)
        for _, _, about in facts:
            text = json.dumps(about).encode()
            out += struct.pack("<I", len(text)) + text
    path.write_bytes(out)


def about(entity):
    return {"confidence": 0.5, "entity": entity, "relation": "capital", "target_token": "x"}


@pytest.fixture
def index(tmp_path):
    """An index, and the FFN's inputs of both layers at the prompt's end, told by infer insert --key."""
    v = tmp_path / "v"
    extract(GGUF, v, "--dtype", "f32")
    inputs = []
    for layer in (0, 1):
        r = infer("insert", v, "a", "b", "c", "--key", "--layers", layer, "--prompt", PROMPT, "--patch", tmp_path / "k")
        assert r.rc == 0, r.err
        op = json.loads((tmp_path / "k").read_text())["operations"][-1]
        assert op["op"] == "insert_knn" and op["layer"] == layer
        inputs.append(np.frombuffer(base64.b64decode(op["key_vector_b64"]), "<f4").astype("f8"))
    return v, inputs


def predict(v, *args):
    r = infer("predict", v, PROMPT, "--json", "--exact", *args)
    assert r.rc == 0, r.err
    return json.loads(r.text)


def turned(x, cosine, seed):
    """A unit vector with this cosine to x."""
    x = x / np.linalg.norm(x)
    y = np.random.default_rng(seed).standard_normal(len(x))
    y -= (y @ x) * x
    return cosine * x + np.sqrt(1 - cosine ** 2) * y / np.linalg.norm(y)


def test_first_layer_above_the_threshold(index):
    v, (a, b) = index
    plain = predict(v)["predictions"]
    keys = [turned(a, 0.7, 1), turned(a, -0.9, 2), turned(b, 0.8, 3), turned(b, 0.9, 4)]
    store(v / "knn_store.bin", 32, [(1, [(keys[2], 50, about("two")), (keys[3], 51, about("Three"))]),
                                    (0, [(keys[0], 52, about("zero")), (keys[1], 53, about("one"))])])
    j = predict(v)
    want = np.asarray(keys[3], "<f2").astype("f8") @ b / np.linalg.norm(b)
    assert j["fact"]["entity"] == "Three" and j["fact"]["layer"] == 1 and abs(j["fact"]["cosine"] - want) < 1e-6
    assert j["fact"]["confidence"] == 0.5 and j["fact"]["relation"] == "capital"
    assert j["predictions"][0]["id"] == 51 and j["predictions"][0]["probability"] == 1
    assert j["predictions"][1:] == [p for p in plain if p["id"] != 51][:4]
    assert predict(v, "--fact-cosine", 0.6)["predictions"][0]["id"] == 52  # an earlier layer
    for args in (["--no-facts"], ["--fact-cosine", 0.95]):
        j = predict(v, *args)
        assert "fact" not in j and j["predictions"] == plain
    assert "fact by key: Three / capital / x" in infer("predict", v, PROMPT).text
    # the model as it is with the index beside it
    assert predict(GGUF, "--ffn", v)["predictions"][0]["id"] == 51


def test_patches_over_the_store(index, tmp_path):
    v, (a, _) = index
    store(v / "knn_store.bin", 32, [(0, [(turned(a, 0.9, 1), 50, about("one")), (turned(a, 0.8, 2), 51, about("two"))])])
    patch = tmp_path / "p.vlp"
    r = infer("delete", v, "ONE", "capital", "x", "--patch", patch)
    assert r.rc == 0, r.err
    assert predict(v, "--patch", patch)["predictions"][0]["id"] == 51
    assert infer("insert", v, "new", "capital", "er", "--key", "--layers", 0, "--prompt", PROMPT, "--patch", patch).rc == 0
    j = predict(v, "--patch", patch)
    assert j["fact"]["entity"] == "new" and j["fact"]["cosine"] > 0.99999
    assert infer("compile", v, patch, "-o", tmp_path / "c").rc == 0
    j = predict(tmp_path / "c")
    assert j["fact"]["entity"] == "new" and j["fact"]["cosine"] > 0.999
    assert b'"one"' not in (tmp_path / "c/knn_store.bin").read_bytes()
    assert infer("delete", tmp_path / "c", "new", "capital", "er", "--patch", tmp_path / "q.vlp").rc == 0
    assert infer("delete", tmp_path / "c", "two", "capital", "x", "--patch", tmp_path / "q.vlp").rc == 0
    assert infer("compile", tmp_path / "c", tmp_path / "q.vlp", "-o", tmp_path / "d").rc == 0
    assert not (tmp_path / "d/knn_store.bin").exists()
    assert "fact" not in predict(tmp_path / "d")


def test_other_facts_of_the_entity_stay(index, tmp_path):
    v, (a, b) = index
    other = dict(about("one"), relation="ruler")
    store(v / "knn_store.bin", 32, [(0, [(turned(a, 0.9, 1), 50, about("one"))]), (1, [(turned(b, 0.9, 2), 51, other)])])
    assert infer("delete", v, "one", "capital", "x", "--patch", tmp_path / "p").rc == 0
    j = predict(v, "--patch", tmp_path / "p")
    assert j["fact"]["relation"] == "ruler" and j["predictions"][0]["id"] == 51


@pytest.mark.parametrize("what,word", [
    ("magic", "magic LKNN"), ("version", "version 1"), ("dim", "expected 32"), ("layer", "expected 0 to 1"),
    ("token", "expected below 263"), ("json", "JSON object"), ("list", "JSON object"), ("confidence", "confidence"),
    ("entity", "entity: expected a string"), ("key", "not finite"), ("count", "keys and targets"), ("length", "a fact")])
def test_broken_stores(index, what, word):
    v, (a, _) = index
    path = v / "knn_store.bin"
    key, token, said, layer = turned(a, 0.9, 1), 50, about("one"), 0
    if what == "token":
        token = 263
    if what == "layer":
        layer = 2
    if what == "key":
        key[3] = np.nan
    if what == "list":
        said = [1]
    if what in ("confidence", "entity"):
        said = dict(said, **{what: [1]})
    store(path, 31 if what == "dim" else 32, [(layer, [(key, token, said)])])
    data = bytearray(path.read_bytes())
    at = {"magic": 0, "version": 4, "count": 20, "length": 24 + 64 + 4, "json": 24 + 64 + 8}.get(what)
    if at is not None:
        data[at] ^= 0x40
        data[at + 2] ^= 0x40
        path.write_bytes(data)
    refused(infer("predict", v, PROMPT), "knn_store.bin", word, "make it anew", rc=1)
