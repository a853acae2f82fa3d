"""`infer perplexity --kl`: against numpy on the logits of `infer eval`."""
import json
import struct

import numpy as np
import pytest

from conftest import GGUF, ST, infer, refused

CTX, CHUNKS, VOCAB = 16, 3, 263
TEXT = "the inner parts of the outer ring are where the others were, said the miner in the red inn. " * 4


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("kl")
    (tmp / "text").write_text(TEXT)
    assert infer("quantize", GGUF, tmp / "q.gguf", "Q4_0").rc == 0
    args = [tmp / "text", "--ctx", CTX, "--chunks", CHUNKS, "--json"]
    r = infer("perplexity", GGUF, *args, "--save-base", tmp / "base")
    assert r.rc == 0, r.err
    return tmp, args, json.loads(r.text)


def log_probabilities(model, ids, tmp):
    assert infer("eval", model, "--ids", ",".join(map(str, ids)), "--logits", tmp / "l").rc == 0
    x = np.fromfile(tmp / "l", "<f4").reshape(len(ids), VOCAB).astype(float)
    return x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)


def test_figures(made):
    tmp, args, base = made
    raw = (tmp / "base").read_bytes()
    assert raw[:8] == b"INFERKL1" and struct.unpack_from("<III", raw, 8) == (VOCAB, CTX, CHUNKS)
    ids = np.frombuffer(raw, "<i4", CHUNKS * CTX, 32).reshape(CHUNKS, CTX)
    kl, same, ratio, nll = [], [], [], []
    for chunk in ids:
        a, b = (log_probabilities(m, chunk.tolist(), tmp)[CTX // 2:CTX - 1] for m in (GGUF, tmp / "q.gguf"))
        want = chunk[CTX // 2 + 1:]
        kl += list((np.exp(a) * (a - b)).sum(1))
        same += list(a.argmax(1) == b.argmax(1))
        n = np.arange(len(want))
        ratio += list(a[n, want] - b[n, want])
        nll += list(-a[n, want])
    r = infer("perplexity", tmp / "q.gguf", *args, "--kl", tmp / "base")
    got = json.loads(r.text)["kl"]
    assert r.rc == 0 and json.loads(r.text)["scored"] == len(kl) == 21
    for name, want in [("mean", np.mean(kl)), ("median", np.median(kl)), ("p99", np.quantile(kl, 0.99)), ("max", max(kl)),
                       ("same_top", np.mean(same)), ("perplexity_ratio", np.exp(np.mean(ratio))),
                       ("base_perplexity", np.exp(np.mean(nll))), ("error", np.std(kl) / np.sqrt(20))]:
        assert abs(got[name] - want) < 1e-4 * abs(want) + 1e-6, (name, got[name], want)
    assert got["mean"] > 1e-4 and abs(got["base_perplexity"] / base["perplexity"] - 1) < 1e-6


def test_a_model_as_the_base_gives_the_same(made):
    tmp, args, _ = made
    a, b = (json.loads(infer("perplexity", tmp / "q.gguf", *args, "--kl", base).text) for base in (tmp / "base", GGUF))
    assert a["kl"] == b["kl"] and a["perplexity"] == b["perplexity"]
    c = json.loads(infer("perplexity", ST, *args, "--kl", tmp / "base").text)
    assert c["kl"]["mean"] < 1e-6 and c["kl"]["same_top"] == 1
    r = infer("perplexity", tmp / "q.gguf", *args[:-1], "--kl", tmp / "base")
    assert r.rc == 0 and [line.split()[0] for line in r.text.splitlines()] == ["perplexity", "base", "KL", "same"]


def test_bases_that_do_not_fit(made, tmp_path):
    tmp, args, _ = made
    raw = (tmp / "base").read_bytes()
    text, ctx = args[0], ["--json", "--chunks", CHUNKS]
    for content, words in [(raw[:-1], "bytes"), (raw + b"x", "bytes"), (raw[:20], "header"),
                           (raw[:8] + struct.pack("<I", 264) + raw[12:], "264"),
                           (raw[:8] + struct.pack("<III", VOCAB, CTX, 2**32 - 1) + raw[20:], "bytes"),
                           (raw[:32] + b"\1" + raw[33:], "another text")]:
        (tmp_path / "b").write_bytes(content)
        refused(infer("perplexity", GGUF, text, "--ctx", CTX, *ctx, "--kl", tmp_path / "b"), words, rc=1)
    refused(infer("perplexity", GGUF, text, "--ctx", 20, *ctx, "--kl", tmp / "base"), "chunks of 16", rc=1)
    refused(infer("perplexity", GGUF, text, "--ctx", CTX, "--chunks", 4, "--kl", tmp / "base"), "at least 4", rc=1)
    refused(infer("perplexity", GGUF, text, "--ctx", CTX, *ctx, "--save-base", tmp_path / "no" / "b"), "No such file", rc=1)
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
