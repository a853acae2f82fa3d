"""Files that stand in for others of an index: what runs from them is what numpy decodes of them."""
import json
import shutil
import struct

import numpy as np
import pytest

from conftest import infer, refused
from test_compile import block_model, make_patch
from test_vindex_extract import extract, layers_differ, states

D, F, L = 256, 512, 2


def q4_0(data, n):
    """LARQL's: elements 2j and 2j + 1 in byte j."""
    b = np.frombuffer(data, np.uint8).reshape(-1, 18)
    d = b[:, :2].copy().view("<f2").astype("f4")
    q = np.stack([b[:, 2:] & 15, b[:, 2:] >> 4], axis=2).reshape(-1, 32).astype("f4") - 8
    return (q * d).reshape(-1)[:n]


def q6_k(data):
    """LARQL's: bits in the order of the elements."""
    b = np.frombuffer(data, np.uint8).reshape(-1, 210)
    e = np.arange(256)
    lo = b[:, e // 2] >> (4 * (e & 1)) & 15
    hi = b[:, 128 + e // 4] >> (2 * (e & 3)) & 3
    sc = b[:, 192:208].copy().view(np.int8).astype("f4")[:, e // 16]
    d = b[:, 208:].copy().view("<f2").astype("f4")
    return ((lo | hi << 4).astype("f4") - 32) * (d * sc)


def q4_k(data):
    gguf = pytest.importorskip("gguf")
    return gguf.quants.dequantize(np.frombuffer(data, np.uint8).reshape(-1, 144), gguf.GGMLQuantizationType.Q4_K)


@pytest.fixture
def index(tmp_path):
    pytest.importorskip("gguf")
    block_model(tmp_path / "m.gguf")
    extract(tmp_path / "m.gguf", tmp_path / "v", "--dtype", "f32")
    return tmp_path / "v"


def drop(v, *names):
    """Takes files away, and their rows out of the manifest."""
    for name in names:
        (v / name).unlink()
    path = v / "weight_manifest.json"
    path.write_text(json.dumps([e for e in json.loads(path.read_text()) if e["file"] not in names]))


def build(v, kind):
    r = infer("build-storage", v, kind)
    assert r.rc == 0, r.err


def agrees(tmp_path, v, change):
    """v without the originals says what a float32 index with the decoded values says."""
    shutil.copytree(tmp_path / "whole", tmp_path / "ref")
    change(tmp_path / "ref")
    want, ids = states(tmp_path / "ref", tmp_path / "a", tmp_path)
    got, found = states(v, tmp_path / "b", tmp_path)
    assert layers_differ(want, got, L + 1) <= 1e-5 and ids == found
    plain, _ = states(tmp_path / "whole", tmp_path / "c", tmp_path)
    return layers_differ(plain, got, L + 1)


def test_gates_q4(tmp_path, index):
    build(index, "gates-q4")
    shutil.copytree(index, tmp_path / "whole")
    (index / "gate_vectors.bin").unlink()
    data = (index / "gate_vectors_q4.bin").read_bytes()
    assert len(data) == L * F * D // 32 * 18
    change = lambda ref: q4_0(data, L * F * D).astype("<f4").tofile(ref / "gate_vectors.bin")
    assert agrees(tmp_path, index, change) > 1e-3
    r = infer("eval", tmp_path / "m.gguf", "--ids", "3,5,7", "--ffn", index, "--greedy", 4)
    assert r.rc == 0, r.err
    assert infer("walk", index, "x").rc in (0, 1)  # it has no tokenizer
    (index / "gate_vectors_q4.bin").write_bytes(data[:-1])
    refused(infer("run", index, "x"), "gate_vectors_q4.bin", rc=1)
    refused(infer("stats", index), "gate_vectors_q4.bin", rc=1)


def entries(v):
    return [e for e in json.loads((v / "weight_manifest.json").read_text())
            if e["file"] == "attn_weights.bin" and e["kind"] == "tensor"]


@pytest.mark.parametrize("bits", [8, 4])
def test_attention(tmp_path, index, bits):
    build(index, f"attention-q{bits}")
    shutil.copytree(index, tmp_path / "whole")
    data = (index / f"attn_weights_q{bits}.bin").read_bytes()
    rows = json.loads((index / f"attn_weights_q{bits}_manifest.json").read_text())
    assert [r["key"] for r in rows] == [e["key"] for e in entries(index)] and len(rows) == 4 * L
    floats = np.fromfile(index / "attn_weights.bin", "<f4")
    decoded = floats.copy()
    for r, e in zip(rows, entries(index)):
        n, at = int(np.prod(r["shape"])), e["offset"] // 4
        if bits == 8:
            o = r["q8_offset"]
            q = np.frombuffer(data, np.int8, n, o).reshape(-1, 32).astype("f4")
            s = np.frombuffer(data, "<f4", n // 32, o + r["q8_vals_len"])
            x = floats[at:at + n].reshape(-1, 32)
            assert (s == (np.abs(x).max(1) / np.float32(127))).all() and r["q8_scales_len"] == n // 8
            assert np.abs(q - x / s[:, None]).max() <= 0.5001
            decoded[at:at + n] = (q * s[:, None]).reshape(-1)
        else:
            decoded[at:at + n] = q4_0(data[r["q4_offset"]:r["q4_offset"] + r["q4_length"]], n)
    drop(index, "attn_weights.bin")
    assert agrees(tmp_path, index, lambda ref: decoded.tofile(ref / "attn_weights.bin")) > 1e-4
    for broken in (rows[:-1], [dict(rows[0], **{f"q{bits}_offset": 1 << 40})] + rows[1:],
                   [dict(rows[0], **{"q8_total_len" if bits == 8 else "q4_length": 7})] + rows[1:], {}, [1] * 4 * L):
        (index / f"attn_weights_q{bits}_manifest.json").write_text(json.dumps(broken))
        refused(infer("run", index, "x"), f"attn_weights_q{bits}_manifest.json", "make it anew", rc=1)


def test_down_rows(tmp_path, index):
    r = infer("build-storage", index, "down-q4k")
    refused(r, "build-down-features", rc=1)
    assert infer("build-down-features", index).rc == 0
    build(index, "down-q4k")
    shutil.copytree(index, tmp_path / "whole")
    data = (index / "down_features_q4k.bin").read_bytes()
    decoded = q6_k(data).reshape(L, F, D)
    floats = np.fromfile(index / "down_features.bin", "<f4").reshape(L, F, D)
    assert np.abs(decoded - floats).max() < 0.02
    drop(index, "down_features.bin", "down_weights.bin")
    ref = tmp_path / "ref"
    shutil.copytree(tmp_path / "whole", ref)
    np.ascontiguousarray(decoded.transpose(0, 2, 1)).astype("<f4").tofile(ref / "down_weights.bin")
    want, ids = states(ref, tmp_path / "a", tmp_path)
    r = infer("eval", tmp_path / "m.gguf", "--ids", "3,17,5,9,42,7", "--hidden", tmp_path / "b", "--exact", "--greedy",
              8, "--ffn", index)
    assert r.rc == 0, r.err
    assert layers_differ(want, np.fromfile(tmp_path / "b", "<f4"), L + 1) <= 1e-5
    assert json.loads(r.text)["greedy"] == ids
    rows = json.loads((index / "down_features_q4k_manifest.json").read_text())
    for broken in (rows[:1], [dict(rows[0], shape=[F, 2 * D], length=2 * rows[0]["length"])] + rows[1:], [1, 2], None):
        path = index / "down_features_q4k_manifest.json"
        path.unlink() if broken is None else path.write_text(json.dumps(broken))
        refused(infer("stats", index), "down_features_q4k_manifest.json", rc=1)


@pytest.mark.parametrize("kind", ["f32", "q4k"])
def test_layers(tmp_path, index, kind):
    build(index, f"layers-{kind}")
    shutil.copytree(index, tmp_path / "whole")
    gates, ups, downs = [], [], []
    for l in range(L):
        data = (index / f"layers/layer_{l:02d}.weights").read_bytes()
        head = struct.unpack_from("<4s5I4Q", data)
        assert head[:6] == (b"LYRW", 1, 0 if kind == "f32" else 4, 1, F, D)
        both, n, down, n_down = head[6:]
        assert both == 56 and down == both + n and len(data) == down + n_down
        decode = (lambda b: np.frombuffer(b, "<f4")) if kind == "f32" else (lambda b: q4_k(b).reshape(-1))
        x = decode(data[both:both + n]).reshape(2, F, D)
        gates.append(x[0])
        ups.append(x[1])
        downs.append(decode(data[down:]).reshape(D, F))
    drop(index, "gate_vectors.bin", "up_weights.bin", "down_weights.bin")

    def change(ref):
        for name, x in (("gate_vectors.bin", gates), ("up_weights.bin", ups), ("down_weights.bin", downs)):
            np.array(x, "<f4").tofile(ref / name)
    differs = agrees(tmp_path, index, change)
    assert differs == 0 if kind == "f32" else differs > 1e-3
    r = infer("eval", tmp_path / "m.gguf", "--ids", "3,5,7", "--ffn", index, "--greedy", 4)
    assert r.rc == 0, r.err
    path = index / "layers/layer_01.weights"
    whole = path.read_bytes()
    for at, value in [(0, b"WRYL"), (4, b"\2"), (8, b"\x63"), (12, b"\0"), (12, b"\xff\xff"), (16, b"\1\0\0\0"),
                      (20, b"\1"), (24, b"\xff" * 8), (32, b"\7"), (40, b"\xff" * 8), (48, b"\1")]:
        path.write_bytes(whole[:at] + value + whole[at + len(value):])
        refused(infer("run", index, "x"), "layer_01.weights", "make it anew", rc=1)
    for n in [*range(0, 64, 8), len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:n])
        refused(infer("run", index, "x"), "layer_01.weights", rc=1)
        refused(infer("stats", index), "layer_01.weights", rc=1)
    path.unlink()
    refused(infer("run", index, "x"), "layer_01.weights", rc=1)


@pytest.mark.parametrize("brief", [False, True])
def test_metadata_as_lines(tmp_path, index, brief):
    raw = (index / "down_meta.bin").read_bytes()
    n_features = json.loads((index / "index.json").read_text())["layers"][0]["num_features"]
    size, lines, at = 88, ['{"_header": true}'], 16
    for l in range(L):
        at += 4
        for f in range(n_features):
            r = raw[at:at + size]
            pairs = [struct.unpack_from("<If", r, 8 * i) for i in range(11)]
            at += size
            if brief:
                o = {"l": l, "f": f, "t": "x", "i": pairs[0][0], "c": pairs[0][1],
                     "k": [{"t": "x", "i": i, "s": s} for i, s in pairs[1:]]}
            else:
                o = {"layer": l, "feature": f, "top_token_id": pairs[0][0], "c_score": pairs[0][1],
                     "top_k": [{"token_id": i, "logit": s} for i, s in pairs[1:]]}
            lines.append(json.dumps(o))
    want = infer("stats", index, "--json").text
    (index / "down_meta.bin").unlink()
    assert json.loads(infer("stats", index, "--json").text) != json.loads(want)
    (index / "down_meta.jsonl").write_text("\n".join(lines) + "\n")
    got, old = json.loads(infer("stats", index, "--json").text), json.loads(want)
    got.pop("bytes", None), old.pop("bytes", None)
    assert got == old
    for bad in ("{", "[]", '{"layer":9,"feature":0}', '{"l":0,"f":0,"i":99999,"c":1}', '{"l":0,"f":0,"i":1,"c":"x"}',
                '{"l":0,"f":0,"i":1,"c":1,"k":[3]}', '{"l":0,"f":-1,"i":1,"c":1}', '{"l":0,"f":0,"i":1,"c":1,"k":7}'):
        (index / "down_meta.jsonl").write_text(lines[1] + "\n" + bad + "\n")
        refused(infer("stats", index), "down_meta.jsonl", "line 2", rc=1)


def test_nothing_else_is_built(index):
    refused(infer("build-storage", index, "gates-q5"), "gates-q5", rc=2)


def test_compiled_without_what_is_stale(tmp_path, index):
    assert infer("build-down-features", index).rc == 0
    for kind in ("gates-q4", "down-q4k", "attention-q8", "layers-q4k"):
        build(index, kind)
    patch = make_patch(index, tmp_path / "p.vlp")
    assert infer("compile", index, patch, "-o", tmp_path / "c").rc == 0
    names = {p.name for p in (tmp_path / "c").iterdir()}
    assert "attn_weights_q8.bin" in names and "down_features.bin" in names
    assert not names & {"gate_vectors_q4.bin", "down_features_q4k.bin", "layers", "hnsw.bin"}
    assert "ffn_layout" not in json.loads((tmp_path / "c/index.json").read_text())
    want, ids = states(tmp_path / "c", tmp_path / "a", tmp_path)
    r = infer("eval", index, "--ids", "3,17,5,9,42,7", "--hidden", tmp_path / "b", "--exact", "--ffn", index, "--patch", patch)
    assert r.rc == 0, r.err
    assert layers_differ(want, np.fromfile(tmp_path / "b", "<f4"), L + 1) <= 1e-5
    drop(index, "up_weights.bin", "down_weights.bin")
    refused(infer("compile", index, patch, "-o", tmp_path / "d"), "layers", rc=1)
