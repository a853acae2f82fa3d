"""A crash at any call that changes a file: the base stays as it was, and what was being written is the old or the new.

tests/tools/crash_at.c kills the program before its N-th such call, N = 1, 2, …, until it comes to its end; it also tells
of what was renamed and not flushed.
"""
import hashlib
import json
import os
import shutil
import subprocess

import pytest

from conftest import GGUF, INFER, PROMPT, ROOT, infer

FAMILIES = ROOT / "tests/golden/families"


@pytest.fixture(scope="session")
def crash_at(tmp_path_factory):
    tool = tmp_path_factory.mktemp("tool") / "crash_at"
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-O1", "-o", tool, ROOT / "tests/tools/crash_at.c"],
                   check=True)

    def run(n, *args, torn=False):
        """The number of calls, None where it was killed."""
        p = subprocess.run([tool, *["-t"] * torn, str(n), INFER, *map(str, args)], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=120)
        if p.returncode == 125:
            pytest.skip("a program cannot be traced here")
        lines = p.stdout.decode().splitlines()
        assert p.returncode == 0 and lines, p.stderr
        loose = [l for l in lines if l.startswith("unsynced")]
        assert not loose, loose
        end = [l for l in lines if not l.startswith("unsynced")]
        if end == ["killed"]:
            return None
        word, calls, status = end[0].split()
        assert word == "done" and status == "0", (lines, p.stderr)
        return int(calls)
    return run


def hashes(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def moments(crash_at, args, check, least, torn=(False, True)):
    """Kills `args` at every call; check() afterwards. Returns how many there are."""
    for t in torn:
        n = 1
        while crash_at(n, *args, torn=t) is None:
            check()
            n += 1
        assert n > least, n
        check(done=True)
    return n - 1


@pytest.fixture
def base(tmp_path):
    r = infer("extract", GGUF, "-o", tmp_path / "v", "--dtype", "f32")
    assert r.rc == 0, r.err
    return tmp_path / "v"


def without_date(path):
    return {k: v for k, v in json.loads(path.read_text()).items() if k != "created_at"}


EDITS = {
    "insert": lambda v, p: ["insert", v, "ab", "c", "x", "--patch", p, "--prompt", "{entity} {relation}", "--layers", "0-1",
                            "--alpha", 50],
    "delete": lambda v, p: ["delete", v, "--patch", p, "--layer", 1, "--feature", 5],
    "update": lambda v, p: ["update", v, "--patch", p, "--layer", 1, "--feature", 3, "--target", "ab", "--alpha", 1],
    "patch": lambda v, p: ["patch", v, p.with_suffix(".a"), p.with_suffix(".b"), "-o", p],
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("old", [False, True])
def test_edit(name, old, base, tmp_path, crash_at):
    """The patch is not there, the old one or the new one, and opens."""
    patch = tmp_path / "p.vlp"
    for f, other in ((7, ".a"), (8, ".b")):
        assert infer("delete", base, "--patch", patch.with_suffix(other), "--layer", 0, "--feature", f).rc == 0
    before = None
    if old:
        assert infer("delete", base, "--patch", patch, "--layer", 0, "--feature", 2).rc == 0
        before = patch.read_bytes()
    args, files = EDITS[name](base, patch), hashes(base)
    assert infer(*args).rc == 0
    after = without_date(patch)
    assert before is None or after != without_date_of(before)

    def reset():
        patch.unlink(missing_ok=True)
        if before is not None:
            patch.write_bytes(before)
    reset()
    seen = set()

    def check(done=False):
        assert hashes(base) == files
        if patch.exists() and patch.read_bytes() != before:
            assert without_date(patch) == after
            seen.add("new")
        else:
            assert not done and patch.exists() == (before is not None)
            seen.add("old")
        if patch.exists():
            assert infer("patch", base, patch, "--json").rc == 0
            assert infer("predict", base, PROMPT, "--patch", patch).rc == 0
        reset()
    moments(crash_at, args, check, 4)
    assert seen == {"old", "new"}
    assert infer(*args).rc == 0  # what crashes left beside is in nobody's way, and is cleared
    assert not list(tmp_path.glob("p.vlp.*.tmp"))


def without_date_of(data):
    return {k: v for k, v in json.loads(data).items() if k != "created_at"}


def test_compile(base, tmp_path, crash_at):
    """Nothing or a whole index under the final name; the base, which it has hard links to, stays as it was."""
    patch, out = tmp_path / "p.vlp", tmp_path / "out"
    assert infer("delete", base, "--patch", patch, "--layer", 0, "--feature", 2).rc == 0
    args, files = ["compile", base, patch, "-o", out], hashes(base)
    assert infer(*args).rc == 0
    after = hashes(out)
    shutil.rmtree(out)

    def check(done=False):
        assert hashes(base) == files
        assert out.exists() or not done
        if out.exists():
            assert hashes(out) == after
            assert infer("inspect", "--verify", out).rc == 0
            shutil.rmtree(out)
    moments(crash_at, args, check, 20)
    assert not os.path.exists(f"{out}.partial")


@pytest.mark.parametrize("tool", ["convert-gates-f32", "build-down-features", "build-up-features"])
def test_tools(tool, tmp_path, crash_at):
    """An index that is changed in place opens at any moment, with its checksums, and the tool can be run again."""
    v = tmp_path / "v"
    assert infer("extract", GGUF, "-o", v).rc == 0
    shutil.copytree(v, tmp_path / "kept")
    old = hashes(v)
    assert infer(tool, v).rc == 0
    new = hashes(v)

    def check(done=False):
        now = hashes(v)
        assert now["index.json"] in (old["index.json"], new["index.json"])
        assert now == new or not done
        if tool == "convert-gates-f32":
            assert now in (old, new)
        assert infer("inspect", "--verify", v).rc == 0
        assert infer(tool, v).rc == 0
        now = hashes(v)
        assert {k: x for k, x in now.items() if not k.endswith(".tmp")} == new
        shutil.rmtree(v)
        shutil.copytree(tmp_path / "kept", v)
    check()
    moments(crash_at, [tool, v], check, 8, torn=[False])


@pytest.mark.parametrize("name", ["gguf", "qwen2_moe"])
def test_extract(name, tmp_path, crash_at):
    """Killed at every moment and gone on with: the files of one that was never stopped."""
    model, out = GGUF if name == "gguf" else FAMILIES / name, tmp_path / "v"
    args = ["extract", model, "-o", out, "--resume"]
    assert infer(*args[:-1]).rc == 0
    whole = {k: x for k, x in hashes(out).items() if k != "index.json"}
    index = json.loads((out / "index.json").read_text())
    index["source"].pop("extracted_at")
    shutil.rmtree(out)
    n, torn, alive = 1, False, True
    while alive:
        alive = crash_at(n, *args, torn=torn) is None
        if not out.exists():
            assert infer(*args).rc == 0
        now = json.loads((out / "index.json").read_text())
        now["source"].pop("extracted_at")
        assert now == index, n
        assert {k: x for k, x in hashes(out).items() if k != "index.json"} == whole, n
        assert not os.path.exists(f"{out}.partial")
        shutil.rmtree(out)
        n, torn = n + 1, not torn
    assert n > 60


def test_extract_killed_again_and_again(tmp_path, crash_at):
    """Each start gets a few calls further than the last; options of another extraction begin anew."""
    out = tmp_path / "v"
    args = ["extract", GGUF, "-o", out, "--dtype", "f32", "--resume"]
    assert infer(*args).rc == 0
    whole = {k: x for k, x in hashes(out).items() if k != "index.json"}
    shutil.rmtree(out)
    n, starts = 5, 0
    while crash_at(n, *args, torn=starts % 2 == 1) is None:
        n, starts = n + 5, starts + 1
        if starts == 3:  # another extraction leaves files that are none of ours
            assert crash_at(60, "extract", GGUF, "-o", out, "--quant", "q4k", "--resume") is None
        if starts == 5:  # and this one is killed while it clears them
            assert crash_at(3, "extract", GGUF, "-o", out, "--quant", "q4k", "--resume") is None
    assert starts > 9
    assert {k: x for k, x in hashes(out).items() if k != "index.json"} == whole


def test_extract_over_an_old_one(tmp_path, crash_at):
    """With --force the old index is there until the new one takes its place."""
    out = tmp_path / "v"
    assert infer("extract", GGUF, "-o", out).rc == 0
    old = hashes(out)
    args = ["extract", GGUF, "-o", out, "--dtype", "f32", "--force"]
    shutil.copytree(out, tmp_path / "kept")
    assert infer(*args).rc == 0
    new = hashes(out)
    seen = set()

    def check(done=False):
        now = hashes(out)
        assert (now == old and not done) or {**now, "index.json": ""} == {**new, "index.json": ""}
        assert infer("inspect", "--verify", out).rc == 0
        seen.add(now == old)
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "kept", out)
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "kept", out)
    moments(crash_at, args, check, 60, torn=[False])
    assert seen == {True, False}
