"""`infer run` and `infer predict` on the tiny model."""
import collections
import json
import math
import re

import pytest

from conftest import GGUF, GREEDY, PROMPT, ST, infer, refused


@pytest.mark.parametrize("model", [GGUF, ST])
@pytest.mark.parametrize("extra", [[], ["--exact"], ["--no-mmap"], ["--mlock"], ["--threads", "1"],
                                   ["--threads", "3"], ["--cpu", "ref"], ["--kv-type", "f32"],
                                   ["--cache-type-k", "bf16"], ["--kv-type", "f32", "--cache-type-v", "f16"],
                                   ["--backend", "cpu"], ["--backend", "auto"]])
def test_greedy(model, extra):
    r = infer("run", model, PROMPT, "-n", 8, *extra)
    assert r.rc == 0 and r.text == GREEDY, r.err


def test_prompt_from_standard_input():
    assert infer("run", GGUF, "-n", 8, stdin=PROMPT).text == GREEDY
    assert infer("run", GGUF, "-n", 8, stdin=PROMPT + "\n").text == GREEDY
    assert infer("run", GGUF, "-n", 8, stdin=PROMPT + "\n\n").text != GREEDY
    r = infer("run", GGUF, "-n", 2, stdin=b"a\0b")
    assert r.rc == 0
    for empty in (b"", b"\n"):  # X07
        refused(infer("run", GGUF, stdin=empty), "standard input is empty", "prompt", rc=2)


def test_cache_types_that_cannot_be_are_refused():  # M07
    refused(infer("run", GGUF, PROMPT, "--kv-type", "q4_0"), "K as q4_0", "q8_0", "only V takes q4_0", rc=1)
    refused(infer("run", GGUF, PROMPT, "--cache-type-v", "q8_0"), "V as q8_0", "multiple of 32", "found 16", rc=1)
    refused(infer("run", GGUF, PROMPT, "--exact", "--cache-type-k", "bf16"), "bf16 rounds")


def test_cuda_is_refused_where_the_build_has_none():
    r = infer("run", GGUF, PROMPT, "--backend", "cuda")
    assert r.rc in (0, 1) and (r.rc == 0 or "cuda" in r.err)


# P01: the edges of the sampling options
@pytest.mark.parametrize("extra", [["--top-p", "0", "--temp", "1"], ["--temp", "1e-30"], ["--temp", "0"],
                                   ["--temp", "1e-50"], ["--temp", "1", "--top-k", "1"],
                                   ["--repeat-window", "0", "--repeat-penalty", "9"],
                                   ["--top-k", "100000", "--temp", "0"]])
def test_greedy_by_other_ways(extra):
    assert infer("run", GGUF, PROMPT, "-n", 8, *extra).text == GREEDY


def test_idle_options_are_told():
    r = infer("run", GGUF, PROMPT, "-n", 8, "--top-k", 40)
    assert r.text == GREEDY and "warning: --top-k" in r.err


def test_draws_follow_the_softmax():
    seen = collections.Counter(
        infer("run", GGUF, PROMPT, "-n", 1, "--temp", 1, "--top-k", 0, "--top-p", 1, "--seed", s,
              "--threads", 1).text for s in range(1, 501))
    for text, p in (("er", 0.332), (" the", 0.097), ("y", 0.083)):
        assert abs(seen[text] / 500 - p) < 4 * math.sqrt(p * (1 - p) / 500), seen.most_common(5)


def test_top_k_past_the_vocabulary_is_off():
    a = infer("run", GGUF, PROMPT, "-n", 20, "--temp", 1, "--seed", 5, "--top-k", 100000)
    b = infer("run", GGUF, PROMPT, "-n", 20, "--temp", 1, "--seed", 5)
    assert a.rc == 0 and a.out == b.out


# P03: one seed, one text
def test_seeds():
    def text(seed, temp=1):
        return infer("run", GGUF, PROMPT, "-n", 16, "--temp", temp, "--seed", seed).text
    assert len({text(42) for _ in range(20)}) == 1
    assert text(42) != text(43)
    assert {infer("run", GGUF, PROMPT, "-n", 8, "--temp", 0, "--seed", s).text for s in range(1, 6)} == {GREEDY}


def test_fresh_seed_is_told_and_can_be_given_again():
    a = json.loads(infer("run", GGUF, PROMPT, "-n", 16, "--temp", 1, "--json").text)
    b = json.loads(infer("run", GGUF, PROMPT, "-n", 16, "--temp", 1, "--json", "--seed", a["seed"]).text)
    assert a["text"] == b["text"] and a["seed"] == b["seed"] > 0


# M09: prompt and answer together stop at the context
@pytest.mark.parametrize("n", [["-n", 1000], []])
def test_stops_at_the_context(n):
    j = json.loads(infer("run", GGUF, PROMPT, *n, "--ignore-eos", "--json", timeout=60).text)
    assert j["n_prompt"] + j["n_generated"] == 128 and j["finish"] == "length"


def test_ctx_and_long_prompts():
    j = json.loads(infer("run", GGUF, PROMPT, "--ctx", 10, "--ignore-eos", "--json").text)
    assert j["n_generated"] == 3 and j["finish"] == "length"
    assert infer("run", GGUF, "t" * 127, "-n", 1).rc == 0
    refused(infer("run", GGUF, "t" * 129, "-n", 1), "129", "128", rc=1)
    refused(infer("run", GGUF, "t" * 100000, "-n", 1), "100000", "128", rc=1)


def test_stop_strings():
    for stop, want in (("bre", "era"), ("r", "e"), ("zzz", GREEDY), ("er", "")):
        r = infer("run", GGUF, PROMPT, "-n", 8, "--stop", stop)
        assert r.rc == 0 and r.text == want
    assert infer("run", GGUF, PROMPT, "-n", 8, "--stop", "vx", "--stop", "ab").text == "er"


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_counts_are_kept(n):
    j = json.loads(infer("run", GGUF, PROMPT, "-n", n, "--json").text)
    assert j["n_generated"] == n and j["finish"] == "length" and j["n_prompt"] == 7


def test_json_and_stats():
    r = infer("run", GGUF, PROMPT, "-n", 8, "--json", "--stats")
    j = json.loads(r.text)
    assert r.text.count("\n") == 1 and j["text"] == GREEDY
    assert 1e6 < j["resident_bytes"] < 1e9 and j["generate_s"] > 0 and j["mapped_bytes"] >= 110000 and j["cpu"] and j["threads"] >= 1
    for word in ("prompt", "generation", "first token", "KV cache", "tok/s", "GB/s", "finish"):
        assert word in r.err


def test_predict():
    r = infer("predict", GGUF, PROMPT, "--top", 3)
    assert r.rc == 0 and len(r.text.splitlines()) == 4
    j = json.loads(infer("predict", GGUF, PROMPT, "--top", 3, "--json", "--exact").text)
    got = [(p["token"], round(math.log(p["probability"]), 3)) for p in j["predictions"]]
    assert [g[0] for g in got] == ["er", " the", "y"]
    for (_, lp), want in zip(got, (-1.1015, -2.3318, -2.4945)):
        assert abs(lp - want) < 2e-3
    full = json.loads(infer("predict", GGUF, PROMPT, "--top", 99999, "--json").text)["predictions"]
    assert len(full) == 263 and abs(sum(p["probability"] for p in full) - 1) < 1e-6
    assert json.loads(infer("predict", GGUF, "--json", stdin=PROMPT).text)["predictions"][0]["token"] == "er"
    for mode in ("walk", "compare"):
        refused(infer("predict", GGUF, PROMPT, "--mode", mode), "no vindex", rc=1)
    refused(infer("predict", GGUF, PROMPT, "--top", 0), "--top")
    refused(infer("predict", GGUF, ""), "empty")


def test_profile():
    r = infer("run", GGUF, PROMPT, "-n", 8, "--profile")
    assert r.text == GREEDY and re.search(r"^ +matmul +down +f32 +\d+ +[\d.]+ +[\d.]+%", r.err, re.M), r.err
    assert sum(float(x) for x in re.findall(r" ([\d.]+)%", r.err)) > 99
