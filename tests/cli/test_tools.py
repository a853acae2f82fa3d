"""`infer inspect`, `bench`, `perplexity` and `doctor` on the tiny model."""
import csv
import io
import json
import math
import re
import shutil

import gguf
import numpy as np
import pytest

from conftest import GGUF, ST, infer, refused


@pytest.mark.parametrize("model,form", [(GGUF, "GGUF"), (ST, "safetensors")])
def test_inspect(model, form):
    r = infer("inspect", model)
    assert r.rc == 0 and form in r.text and "2 layers" in r.text and "KV cache" in r.text
    assert max(map(len, r.text.splitlines())) <= 120
    j = json.loads(infer("inspect", model, "--json").text)
    assert form in j["format"] and j["model"]["n_layers"] == 2 and j["model"]["arch"] == "llama"
    assert j["model"]["n_ctx_train"] == 128 and len(j["tensors"]) >= 20
    assert j["tensor_bytes"] == sum(t["bytes"] for t in j["tensors"])
    for t in j["tensors"]:
        assert t["type"] == "f32" and t["bytes"] == 4 * math.prod(t["shape"])


def test_inspect_does_not_dump_arrays():
    text = infer("inspect", GGUF).text
    assert "tokenizer.ggml.tokens" in text and len(text) < 20000


def write_gguf(path, **keys):
    w = gguf.GGUFWriter(path, "unheard-of")
    for k, v in keys.items():
        w.add_string(k.replace("_", "."), v)
    w.add_tensor("thing.weight", np.zeros((4, 8), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def test_inspect_of_what_cannot_be_run(tmp_path):
    path = tmp_path / "x.gguf"
    write_gguf(path, a_long="y" * 5000, an_escape="\x1b[31mred\r\n")
    r = infer("inspect", path)
    assert r.rc == 0 and "unheard-of" in r.text and "thing.weight" in r.text
    assert b"\x1b" not in r.out and b"\r" not in r.out and "y" * 200 not in r.text
    j = json.loads(infer("inspect", path, "--json").text)
    assert j["model"] is None and "unheard-of" in j["error"]
    refused(infer("run", path, "x"), "unheard-of", rc=1)


def test_inspect_of_no_model(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGU")
    refused(infer("inspect", tmp_path / "x.gguf"), "x.gguf", rc=1)


def test_bench():
    j = json.loads(infer("bench", GGUF, "-p", 32, "-n", 8, "-r", 3, "--json", "--threads", 1).text)
    assert len(j["pp"]) == 3 and len(j["tg"]) == 3 and min(j["pp"] + j["tg"]) > 0
    assert j["threads"] == 1 and j["cpu"] and j["machine"] and j["read_gbs"] > 0.1
    assert 1 < j["rss_mb"] < 200
    r = infer("bench", GGUF, "-p", 32, "-n", 8, "-r", 2)
    assert re.search(r"^pp 32 ", r.text, re.M) and re.search(r"^tg 8 ", r.text, re.M)
    j = json.loads(infer("bench", GGUF, "-p", 0, "-n", 8, "-r", 2, "--json").text)
    assert j["pp"] == [] and len(j["tg"]) == 2
    refused(infer("bench", GGUF, "-p", 0, "-n", 0), "nothing to measure")
    refused(infer("bench", GGUF, "-r", 0), "-r")


def test_bench_at_depth_and_profile():
    j = json.loads(infer("bench", GGUF, "-p", 16, "-n", 8, "-d", 40, "-r", 2, "--json", "--profile").text)
    assert j["depth"] == 40 and len(j["pp"]) == len(j["tg"]) == 2 and j["pp_gbs"] > 0 and j["tg_gbs"] > 0
    tg = {(r["op"], r["what"]): r for r in j["profile"]["tg"]}
    assert tg["matmul", "head"]["calls"] == 9 and tg["attention", ""]["bytes"] > 0 and ("barrier", "") in tg
    assert sum(r["bytes"] for r in j["profile"]["tg"] if r["op"] == "matmul") == 9 * j["bytes_per_token"]
    rows = list(csv.DictReader(io.StringIO(infer("bench", GGUF, "-p", 16, "-n", 8, "-r", 2, "--csv").text)))
    assert [(r["test"], r["n"], r["depth"]) for r in rows] == [("pp", "16", "0"), ("tg", "8", "0")]
    assert all(float(r["tok_s"]) > 0 and float(r["share"]) >= 0 for r in rows)
    rows = list(csv.DictReader(io.StringIO(infer("bench", GGUF, "-p", 0, "-n", 8, "-r", 1, "--csv", "--profile").text)))
    assert {r["test"] for r in rows} == {"tg"} and 0.99 < sum(float(r["share"]) for r in rows) < 1.01
    r = infer("bench", GGUF, "-p", 16, "-n", 8, "-r", 1, "--profile")
    assert re.search(r"^ +matmul +head +f32 +1 ", r.text, re.M) and max(map(len, r.text.splitlines())) <= 100
    refused(infer("bench", GGUF, "--csv", "--json"), "--csv")


def test_perplexity(tmp_path):
    text = tmp_path / "text"
    text.write_text("the inner there in here er the " * 40)
    j = json.loads(infer("perplexity", GGUF, text, "--ctx", 32, "--json", "--exact").text)
    ids = json.loads(infer("tokenize", GGUF, "--json", stdin=json.dumps(text.read_text())).text)
    # The same figure from `infer eval`'s logits, by the definition.
    nll, n = 0.0, 0
    for c in range(len(ids) // 32):
        chunk = ids[c * 32:c * 32 + 32]
        infer("eval", GGUF, "--ids", ",".join(map(str, chunk)), "--exact", "--logits", tmp_path / "l")
        z = np.fromfile(tmp_path / "l", "<f4").reshape(32, 263).astype(float)
        z -= np.log(np.exp(z).sum(-1, keepdims=True))
        for i in range(16, 31):
            nll, n = nll - z[i, chunk[i + 1]], n + 1
    assert j["scored"] == n and j["chunks"] == len(ids) // 32
    assert abs(j["perplexity"] / math.exp(nll / n) - 1) < 1e-5
    r = infer("perplexity", GGUF, text, "--ctx", 32, "--exact", "--chunks", 2)
    assert re.fullmatch(r"perplexity \d+\.\d+ \+- \d+\.\d+\n", r.text)
    refused(infer("perplexity", GGUF, text, "--ctx", 100000), "100000", rc=1)
    refused(infer("perplexity", GGUF, tmp_path / "none"), "none", rc=1)
    refused(infer("perplexity", GGUF, text, "--chunks", 0), "--chunks")


def test_doctor():
    r = infer("doctor")
    assert r.rc == 0
    for word in ("processor", "levels", "chosen", "backends", "threads", "bandwidth", "GB/s"):
        assert re.search(rf"^{word}|{word}", r.text, re.M)
    r = infer("doctor", GGUF, "--cpu", "ref")
    assert r.rc == 0 and re.search(r"^f32 +\d+ ", r.text, re.M)


def test_doctor_warns_of_what_is_slow():
    r = infer("doctor", GGUF, "--cpu", "ref", "--threads", 200)
    assert r.rc == 0 and "slow       ref was asked for" in r.text and re.search(r"^slow +200 threads on ", r.text, re.M)
    assert re.search(r"^slow +f32 (takes 4 bytes a weight|has no kernel of its own on ref) \(\d+ % of", r.text, re.M)
    assert re.search(r"^needs +[\d.]+ .B of weights, [\d.]+ .B of KV cache for a context of 128$", r.text, re.M)
    r = infer("doctor", GGUF, "--tensors")
    names = re.findall(r"^f32 +\d+ x \d+ +float32 \S+ +(\S+)$", r.text, re.M)
    assert "token_embd.weight" in names and "blk.1.ffn_down.weight" in names and not any("norm" in n for n in names)
    refused(infer("doctor", "--tensors"), "--tensors")
