"""The programs of examples/, on a tiny model and its index."""
import os
import pathlib
import re
import subprocess

import pytest

from conftest import GGUF, INFER, ROOT, infer


@pytest.fixture(scope="module")
def programs():
    build = os.path.dirname(INFER)
    subprocess.run(["make", "-s", "-C", ROOT, f"BUILD={build}", "examples"], check=True, stdout=subprocess.DEVNULL)
    return pathlib.Path(build) / "examples"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    v = tmp_path_factory.mktemp("index") / "v"
    assert infer("extract", GGUF, "-o", v, "--dtype", "f32").rc == 0
    return v


def run(*args, rc=0):
    p = subprocess.run(list(map(str, args)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    assert p.returncode == rc, p.stderr
    return p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")


def test_inference(programs):
    out, _ = run(programs / "demo_inference", GGUF, "the inner ")
    assert out.strip()


def test_vindex(programs, index):
    out, _ = run(programs / "demo_vindex", index, "ab", "c", "x", 50)
    parts = re.findall(r"^(describe|walk|predict|insert) (.*)$", out, re.M)
    assert [p[0] for p in parts] == ["describe", "walk", "predict", "insert", "predict"], out
    assert len(re.findall(r"^  layer ", out, re.M)) == 2
    before, after = (re.findall(r"[\d.]+%", out[m.start():])[:3] for m in re.finditer("^predict", out, re.M))
    assert before != after


def test_boundary_sweep(programs, index):
    out, _ = run(programs / "bench_walk_boundary_sweep", GGUF, index, "the inner ", "a tree in the")
    assert re.findall(r"^ +(\d+) +(\d+) +(\d)/2 ", out, re.M) == [("0", "2", "2"), ("1", "1", "2"), ("2", "0", "2")]
    assert "equal at every boundary" in out and "not equal" not in out


def test_walk_inference(programs, index):
    out, _ = run(programs / "bench_walk_inference", GGUF, index, 2, 4)
    assert re.search(r"^dense +prompt +[\d.]+ tok/s +generation +[\d.]+ tok/s", out, re.M), out
    assert "walk / dense, prompt" in out and "walk / dense, generation" in out
    assert float(re.search(r"it finds ([\d.]+)%", out)[1]) > 90


@pytest.mark.parametrize("name", ["demo_vindex", "bench_walk_boundary_sweep", "bench_walk_inference"])
def test_bad_use(programs, index, name, tmp_path):
    assert "usage" in run(programs / name, rc=2)[1]
    args = [tmp_path / "none"] if name == "demo_vindex" else [GGUF, tmp_path / "none"]
    assert "none" in run(programs / name, *args, rc=1)[1]
