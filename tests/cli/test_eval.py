"""`infer eval`: files, shapes, and that rows, chunks, threads and neighbours change no bit."""
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from conftest import GGUF, GREEDY_IDS, IDS, INFER, PROMPT, ROOT, ST, but_context, infer, refused

LAYERS, WIDTH, HEADS, VOCAB = 2, 32, 2, 263
TEXT = ",".join(map(str, IDS))


def floats(path, *shape):
    a = np.fromfile(path, "<f4")
    assert a.size == np.prod(shape), (path, a.size, shape)
    return a.reshape(shape)


def eval_all(tmp, model, *extra, ids=IDS, attention=True):
    files = ["--logits", tmp / "l", "--hidden", tmp / "h"] + (["--attention", 1, tmp / "a"] if attention else [])
    r = infer("eval", model, "--ids", ",".join(map(str, ids)), *files, *extra)
    assert r.rc == 0 and r.err == "", r.err
    n = len(ids)
    return (json.loads(r.text), floats(tmp / "l", n, VOCAB), floats(tmp / "h", LAYERS + 1, n, WIDTH),
            floats(tmp / "a", HEADS, n, n) if attention else None)


@pytest.mark.parametrize("model", [GGUF, ST])
def test_numbers(model, tmp_path):
    j, logits, hidden, attention = eval_all(tmp_path, model, "--exact", "--greedy", 8)
    assert j == {"ids": IDS, "n_vocab": VOCAB, "greedy": GREEDY_IDS}
    p = np.log(np.exp(logits[-1].astype(float)) / np.exp(logits[-1].astype(float)).sum())
    assert abs(p[[261, 260, ord("y")]] - [-1.1015, -2.3318, -2.4945]).max() < 1e-3
    assert np.isfinite(hidden).all() and (hidden[1] != hidden[0]).any()
    assert abs(attention.sum(-1) - 1).max() < 1e-5
    assert (attention[:, *np.triu_indices(len(IDS), 1)] == 0).all() and (attention.diagonal(0, 1, 2) > 0).all()


def test_last_and_prompt(tmp_path):
    _, logits, _, _ = eval_all(tmp_path, GGUF)
    r = infer("eval", GGUF, "--prompt", PROMPT, "--logits", tmp_path / "last", "--last")
    assert json.loads(r.text) == {"ids": IDS, "n_vocab": VOCAB, "greedy": []}
    assert (floats(tmp_path / "last", VOCAB) == logits[-1]).all()


@pytest.mark.parametrize("exact", [[], ["--exact"]])
def test_the_way_of_computing_changes_no_bit(tmp_path, exact):
    ids = [i * 37 % 263 for i in range(70)]
    j, logits, hidden, _ = eval_all(tmp_path, GGUF, "--greedy", 12, *exact, ids=ids, attention=False)
    for extra in (["--chunk", 1], ["--chunk", 2], ["--chunk", 33], ["--chunk", 64], ["--chunk", 999], ["--threads", 1],
                  ["--threads", 4], ["--beside", 1], ["--beside", 7], ["--beside", 3, "--chunk", 5, "--threads", 3]):
        other = eval_all(tmp_path, GGUF, "--greedy", 12, *exact, *extra, ids=ids, attention=False)
        assert other[0] == j, extra
        assert (other[1].view("u4") == logits.view("u4")).all(), extra
        assert (other[2].view("u4") == hidden.view("u4")).all(), extra


def test_greedy_goes_past_the_end_token_and_the_trained_context():
    j = json.loads(infer("eval", GGUF, "--ids", TEXT, "--greedy", 150).text)
    assert len(j["greedy"]) == 150


def test_mistakes(tmp_path):
    refused(infer("eval", GGUF), "--ids", "--prompt")
    refused(infer("eval", GGUF, "--ids", "5", "--prompt", "x"), "--ids", "--prompt")
    for bad in ("", "x", "5,", ",5", "5,,6", "-1", "5 6", "5.5", "99999999999"):
        refused(infer("eval", GGUF, f"--ids={bad}"), "--ids")
    refused(infer("eval", GGUF, "--ids", "263"), "263")
    refused(infer("eval", GGUF, "--prompt", ""), "--prompt")
    refused(infer("eval", GGUF, "--ids", "5", "--last"), "--logits")
    a = tmp_path / "a"
    refused(infer("eval", GGUF, "--ids", TEXT, "--chunk", 2, "--attention", 0, a), "--attention", "--chunk")
    refused(infer("eval", GGUF, "--ids", TEXT, "--beside", 2, "--attention", 0, a), "--attention", "--beside")
    refused(infer("eval", GGUF, "--ids", TEXT, "--attention", 2, a), "--attention", "2")
    refused(infer("eval", GGUF, "--ids", TEXT, "--attention", "x", a), "--attention", "'x'")
    refused(infer("eval", GGUF, "--ids", TEXT, "--attention", 0), "--attention")
    assert not a.exists()


def test_files_that_cannot_be_written(tmp_path):
    refused(infer("eval", GGUF, "--ids", "5", "--logits", tmp_path / "no" / "l"), "no/l", "No such file", rc=1)
    refused(infer("eval", GGUF, "--ids", TEXT, "--logits", "/dev/full"), "/dev/full", "No space left", rc=1)
    refused(infer("eval", GGUF, "--ids", TEXT, "--hidden", "/dev/full"), "/dev/full", "No space left", rc=1)
    assert os.path.exists("/dev/full")


def test_two_outputs_are_two_files(tmp_path):
    l, h = tmp_path / "l", tmp_path / "h"
    refused(infer("eval", GGUF, "--ids", "5", "--logits", l, "--hidden", l), "--logits and --hidden", "both are")
    refused(infer("eval", GGUF, "--ids", "5", "--logits", l, "--hidden", f"{tmp_path}/./l"), "--logits and --hidden")
    assert not l.exists()
    l.write_text("old")
    os.link(l, h)
    refused(infer("eval", GGUF, "--ids", "5", "--logits", l, "--attention", 0, h), "--logits and --attention")
    assert l.read_text() == "old"
    assert infer("eval", GGUF, "--ids", "5", "--logits", "/dev/null", "--hidden", "/dev/null").rc == 0


def test_interrupted_run_leaves_no_file(tmp_path):
    p = subprocess.Popen([INFER, "eval", GGUF, "--ids", TEXT, "--greedy", "1000000", "--logits", tmp_path / "l"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.7)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=20)
    assert p.returncode == 130 and out == b"" and but_context(err) == b"" and not (tmp_path / "l").exists()


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Rows long enough to be laid anew."""
    model = tmp_path_factory.mktemp("wide") / "m.gguf"
    subprocess.run([sys.executable, ROOT / "bench/synth.py", "gemma3-270m", model, "--layers", "2", "--vocab", "263", "--type", "F16",
                    "--tokenizer", GGUF], check=True)
    return model


@pytest.mark.parametrize("type", ["f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
def test_weights_laid_anew_change_no_bit(type, wide, tmp_path):
    """Steps of few rows lay the weights out anew after a while: prompts row by row and at once, at levels with and without."""
    model = wide
    if type != "f16":
        model = tmp_path / "m.gguf"
        r = infer("quantize", wide, model, type)
        assert r.rc == 0, r.err
    ids = [i * 53 % 263 for i in range(40)]
    same = None
    for extra in (["--chunk", 64], ["--chunk", 1], ["--chunk", 2], ["--chunk", 4, "--threads", 3], ["--chunk", 1, "--cpu", "ref"],
                  ["--chunk", 1, "--no-mmap"]):
        r = infer("eval", model, "--ids", ",".join(map(str, ids)), "--logits", tmp_path / "l", "--hidden", tmp_path / "h", *extra)
        assert r.rc == 0, r.err
        now = (tmp_path / "l").read_bytes() + (tmp_path / "h").read_bytes()
        assert same in (None, now), extra
        same = now
    stats = [json.loads(infer("run", model, PROMPT, "-n", n, "--ignore-eos", "--json").text)["repacked_bytes"] for n in (4, 40)]
    assert stats[0] == 0 < stats[1], stats
