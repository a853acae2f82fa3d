"""Runs the built program. INFER names another binary than build/infer.

Model files: tests/golden/tiny for most; the two real models are found through scripts/fetch_model.sh,
which fetches them once and prints their folder (INFER_TEST_MODELS names a folder instead).
"""
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INFER = os.path.abspath(os.environ.get("INFER", ROOT / "build/infer"))
GGUF = ROOT / "tests/golden/tiny/control_gguf_bpe_f32.gguf"
ST = ROOT / "tests/golden/tiny/control_st_single_f32"
PROMPT = "the inner "
IDS = [116, 257, 32, 258, 110, 261, 32]
GREEDY_IDS = [261, 97, 98, 259, 118, 120, 118, 114]
GREEDY = "erabrevxvr"


class Result:
    def __init__(self, p):
        self.rc, self.out, self.raw_err = p.returncode, p.stdout, p.stderr
        self.err = p.stderr.decode("utf-8", "replace") if p.stderr is not None else ""
        self.text = p.stdout.decode() if p.stdout is not None else ""


def infer(*args, stdin=b"", env=None, timeout=120, prefix=(), **kw):
    e = {k: v for k, v in os.environ.items() if k not in ("INFER_HOME", "NO_COLOR")}
    e.update(env or {})
    if isinstance(stdin, str):
        stdin = stdin.encode()
    kw.setdefault("stdout", subprocess.PIPE)
    return Result(subprocess.run([*prefix, INFER, *map(str, args)], input=stdin, env=e,
                                 stderr=subprocess.PIPE, timeout=timeout, **kw))


def refused(r, *words, rc=2):
    """One line `infer: what: why` that holds the words, nothing on standard output."""
    assert r.rc == rc, (r.rc, r.err)
    assert r.out == b"" and r.err.startswith("infer: ") and r.err.count("\n") == 1, r.err
    for w in words:
        assert w in r.err, r.err


def but_context(err):
    """Standard error less the warning that the context passes the trained one."""
    return b"".join(l for l in err.splitlines(True) if b"a context of" not in l)


@pytest.fixture(scope="session")
def models():
    folder = os.environ.get("INFER_TEST_MODELS")
    if not folder:
        p = subprocess.run([ROOT / "scripts/fetch_model.sh", "all"], stdout=subprocess.PIPE, check=True)
        folder = p.stdout.decode().strip().splitlines()[-1]
    folder = pathlib.Path(folder)
    g3, sm = folder / "gemma-3-270m-q4_k_m.gguf", folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert g3.exists() and sm.exists(), f"{folder}: expected the two test models"
    return g3, sm
