"""Malformed model files: each ends in an error that says what is wrong, soon, and in little memory.

tests/badfiles/expectations.json lists them with what is wrong with each; the controls, which differ from
them in that alone, load and give known ids. INFER_SANITIZED lifts the limits of time and memory.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import pytest

from conftest import INFER, infer

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "badfiles"
EXPECTED = json.loads((FOLDER / "expectations.json").read_text())
SLOW = 10 if os.environ.get("INFER_SANITIZED") else 1


def cases(expect):
    found = [c for c in EXPECTED["cases"] if c["expect"] == expect]
    return pytest.mark.parametrize("case", found, ids=[c["id"] for c in found])


def measured(*args):
    """Exit status (negative: signal), both outputs, seconds, and peak memory in MB, of this child alone."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        p = subprocess.Popen([INFER, *map(str, args)], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        signal.signal(signal.SIGALRM, lambda *_: p.kill())
        signal.alarm(20 * SLOW)
        _, status, usage = os.wait4(p.pid, 0)
        signal.alarm(0)
        p.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        return (p.returncode, out.read(), err.read().decode(errors="replace"), time.monotonic() - start,
                usage.ru_maxrss / 1024)


@cases("error")
@pytest.mark.parametrize("command", ["run", "inspect", "eval", "tokenize"])
def test_refused(case, command):
    path = FOLDER / case["path"]
    rest = {"run": ["hello", "-n", "2"], "inspect": [], "eval": ["--ids", "1,2"], "tokenize": ["hello"]}[command]
    rc, out, err, seconds, megabytes = measured(command, path, *rest)
    assert "Sanitizer" not in err and "runtime error" not in err, err
    # Some faults are outside what inspect and tokenize look at; they may then do their work.
    if rc == 0 and command in ("inspect", "tokenize"):
        return
    assert 1 <= rc <= 125, (rc, err)
    assert out.strip() == b""
    assert 1 <= len(err.splitlines()) <= 2 and err.startswith("infer: "), err
    assert pathlib.Path(case["path"]).name in err or re.search(r"'[^']+'", err), f"names nothing: {err}"
    assert seconds < EXPECTED["limits"]["max_seconds"] * SLOW
    if SLOW == 1:
        assert megabytes < EXPECTED["limits"]["max_rss_mb"]


@cases("load")
def test_control(case):
    path = FOLDER / case["path"]
    ids = ",".join(map(str, case["prompt_ids"]))
    r = infer("eval", path, "--ids", ids, "--greedy", len(case["greedy_ids"]))
    assert r.rc == 0, r.err
    assert json.loads(r.text)["greedy"] == case["greedy_ids"]


# A whole file cut anywhere is refused by the tensor that it lacks, or by its header.
@pytest.mark.parametrize("part", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999, -1])
def test_truncated(part, tmp_path):
    whole = (FOLDER / "control_gguf_bpe_f32.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:-1] if part == -1 else whole[:int(len(whole) * part)])
    rc, out, err, seconds, _ = measured("run", cut, "hello", "-n", "2")
    assert 1 <= rc <= 125 and out == b"" and "cut.gguf" in err, (rc, err)
    assert seconds < 5 * SLOW
