"""`infer quantize` and `infer convert`: bytes, formats by tensor, importance, and files that never half exist."""
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import time

import gguf
import gguf.quants
import numpy as np
import pytest

from conftest import GGUF, INFER, ST, infer, refused

Q = gguf.GGMLQuantizationType
LEGACY = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"]


def write(path, tensors, layers=4, heads=4, kv_heads=2, **keys):
    """A GGUF file of matrices by name, without a vocabulary."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(layers)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    for k, v in keys.items():
        w.add_string(k, v)
    for name, t in tensors.items():
        w.add_tensor(name, t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def model(cols=256, layers=4):
    rng = np.random.default_rng(cols)
    def m(rows): return rng.standard_normal((rows, cols)).astype(np.float32) * 0.05
    t = {"token_embd.weight": m(64), "output_norm.weight": np.ones(cols, np.float32)}
    for i in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            t[f"blk.{i}.{part}.weight"] = m(8)
        t[f"blk.{i}.attn_norm.weight"] = np.ones(cols, np.float32)
    return t


def types(path):
    return {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}


def left(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("name", LEGACY)
def test_bytes_are_those_of_gguf_py(tmp_path, name):
    src = model()
    write(tmp_path / "in.gguf", src)
    r = infer("quantize", tmp_path / "in.gguf", tmp_path / "out.gguf", name.lower(), "--json", "--threads", 3)
    assert r.rc == 0 and r.err == "", r.err
    j = json.loads(r.text)
    assert j["tensors"] == len(src) and j["out_bytes"] == os.path.getsize(tmp_path / "out.gguf")
    n = 0
    for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors:
        if t.tensor_type.name == name:
            assert (np.array(t.data).view(np.uint8).ravel() == gguf.quants.quantize(src[t.name], Q[name]).view(np.uint8).ravel()).all()
            n += 1
        else:
            assert "norm" in t.name and t.tensor_type == Q.F32 or t.name == "token_embd.weight" and t.tensor_type == Q.Q6_K
    assert n >= 28


def test_keys_are_kept(tmp_path):
    infer("quantize", GGUF, tmp_path / "out.gguf", "Q8_0")
    a, b = (gguf.GGUFReader(p).fields for p in (GGUF, tmp_path / "out.gguf"))
    for k in a:
        if not k.startswith(("GGUF.", "general.file_type", "general.quantization_version", "general.alignment")):
            assert a[k].contents() == b[k].contents(), k
    assert b["general.file_type"].contents() == 7 and b["general.quantization_version"].contents() == 2
    r = infer("eval", tmp_path / "out.gguf", "--prompt", "the inner ", "--greedy", 8)
    assert json.loads(r.text)["greedy"] == [261, 97, 98, 259, 118, 120, 118, 114]


def test_convert_without_a_type_keeps_every_tensor(tmp_path):
    write(tmp_path / "in.gguf", model())
    infer("quantize", tmp_path / "in.gguf", tmp_path / "q.gguf", "Q4_K_M")
    r = infer("convert", tmp_path / "q.gguf", tmp_path / "same.gguf")
    assert r.rc == 0 and r.err == ""
    a, b = (gguf.GGUFReader(tmp_path / p).tensors for p in ("q.gguf", "same.gguf"))
    assert [(t.name, t.tensor_type, t.data.tobytes()) for t in a] == [(t.name, t.tensor_type, t.data.tobytes()) for t in b]


def test_mix_gives_more_bits_where_they_matter(tmp_path):
    write(tmp_path / "in.gguf", model(layers=16), layers=16)
    assert infer("quantize", tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_K_M").rc == 0
    t = types(tmp_path / "out.gguf")
    more = [i for i in range(16) if i < 2 or i >= 14 or (i - 2) % 3 == 2]
    for i in range(16):
        want = "Q6_K" if i in more else "Q4_K"
        assert t[f"blk.{i}.attn_v.weight"] == want and t[f"blk.{i}.ffn_down.weight"] == want
        assert t[f"blk.{i}.attn_q.weight"] == "Q4_K" and t[f"blk.{i}.attn_norm.weight"] == "F32"
    assert t["token_embd.weight"] == "Q6_K"


@pytest.mark.parametrize("name,want", [("Q4_K_S", "Q5_0"), ("Q5_K_S", "Q5_1"), ("Q6_K", "Q8_0"), ("IQ4_XS", "IQ4_NL")])
def test_rows_that_do_not_fit_fall_back_and_say_so(tmp_path, name, want):
    write(tmp_path / "in.gguf", model(cols=576))
    r = infer("quantize", tmp_path / "in.gguf", tmp_path / "out.gguf", name, "--json")
    assert r.rc == 0 and "no multiple" in r.err and f"-> {want.lower()} (" in r.err
    assert json.loads(r.text)["fallbacks"] >= 24
    assert types(tmp_path / "out.gguf")["blk.3.attn_q.weight"] == want


def test_quantised_input_is_warned_of(tmp_path):
    write(tmp_path / "in.gguf", model())
    infer("quantize", tmp_path / "in.gguf", tmp_path / "q.gguf", "Q4_0")
    r = infer("quantize", tmp_path / "q.gguf", tmp_path / "r.gguf", "Q8_0")
    assert r.rc == 0 and "quantised already (q4_0)" in r.err
    assert infer("quantize", tmp_path / "q.gguf", tmp_path / "f.gguf", "F32").err == ""
    f = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "f.gguf").tensors}
    for t in gguf.GGUFReader(tmp_path / "q.gguf").tensors:
        assert (gguf.quants.dequantize(t.data, t.tensor_type) == f[t.name].reshape(f[t.name].shape)).all()


def binary_imatrix(path, entries, chunks=5):
    b = struct.pack("<i", len(entries))
    for name, v in entries.items():
        b += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 2, len(v)) + (2 * v).astype("<f4").tobytes()
    path.write_bytes(b + struct.pack("<ii", chunks, 4) + b"text")


def gguf_imatrix(path, entries):
    w = gguf.GGUFWriter(path, "none")
    w.add_type("imatrix")
    w.add_uint32("imatrix.chunk_count", 5)
    for name, v in entries.items():
        w.add_tensor(name + ".in_sum2", (4 * v)[None].astype(np.float32))
        w.add_tensor(name + ".counts", np.full((1, 1), 4, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.mark.parametrize("name", ["Q4_K_S", "Q4_0", "IQ4_NL", "Q3_K_S"])
def test_importance_lowers_the_weighted_error(tmp_path, name):
    src = model()
    write(tmp_path / "in.gguf", src)
    rng = np.random.default_rng(1)
    imp = {n: np.exp(2 * rng.standard_normal(256)).astype(np.float32) for n, t in src.items() if "blk" in n and t.ndim == 2}
    binary_imatrix(tmp_path / "imp.dat", imp)
    gguf_imatrix(tmp_path / "imp.gguf", imp)
    errors, data = [], []
    for extra in ([], ["--imatrix", tmp_path / "imp.dat"], ["--imatrix", tmp_path / "imp.gguf"]):
        r = infer("quantize", tmp_path / "in.gguf", tmp_path / "out.gguf", name, *extra)
        assert r.rc == 0, r.err
        t = [t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors if t.name == "blk.3.attn_q.weight"][0]
        data.append(t.data.tobytes())
        d = gguf.quants.dequantize(t.data, t.tensor_type) - src[t.name]
        errors.append((d * d * imp[t.name]).sum())
    assert data[1] == data[2]
    assert errors[1] < 0.9 * errors[0], errors
    f = gguf.GGUFReader(tmp_path / "out.gguf").fields
    assert f["quantize.imatrix.entries_count"].contents() == len(imp) and f["quantize.imatrix.chunks_count"].contents() == 5


def test_bad_importance(tmp_path):
    write(tmp_path / "in.gguf", model())
    out = tmp_path / "out.gguf"
    one = np.ones(256, np.float32)
    for content, words in [({"blk.0.attn_q.weight": one[:100]}, ["blk.0.attn_q.weight", "100", "256"]),
                           ({"blk.0.attn_q.weight": -one}, ["blk.0.attn_q.weight", "-1"])]:
        binary_imatrix(tmp_path / "imp", content)
        refused(infer("quantize", tmp_path / "in.gguf", out, "Q4_0", "--imatrix", tmp_path / "imp"), *words, rc=1)
    (tmp_path / "imp").write_bytes(b"hello, this is no matrix at all")
    refused(infer("quantize", tmp_path / "in.gguf", out, "Q4_0", "--imatrix", tmp_path / "imp"), "entries", rc=1)
    refused(infer("quantize", tmp_path / "in.gguf", out, "Q4_0", "--imatrix", tmp_path / "in.gguf"), "in_sum2", rc=1)
    assert not out.exists()


def test_weights_that_are_no_numbers(tmp_path):
    for value in (np.nan, np.inf):
        t = model()
        t["blk.2.ffn_up.weight"][3, 7] = value
        write(tmp_path / "in.gguf", t)
        refused(infer("quantize", tmp_path / "in.gguf", tmp_path / "out.gguf", "Q4_0"), "blk.2.ffn_up.weight", "finite", rc=1)
    t = model()
    t["blk.2.ffn_up.weight"][3, 7] = 1e6
    write(tmp_path / "in.gguf", t)
    refused(infer("quantize", tmp_path / "in.gguf", tmp_path / "out.gguf", "F16"), "blk.2.ffn_up.weight", "f16", rc=1)
    assert infer("quantize", tmp_path / "in.gguf", tmp_path / "b.gguf", "BF16").rc == 0
    assert left(tmp_path) == ["b.gguf", "in.gguf"]


def test_usage(tmp_path):
    out = tmp_path / "out.gguf"
    refused(infer("quantize", GGUF, out, "Q4_Z"), "Q4_Z", "Q4_K_M")
    refused(infer("quantize", GGUF, out), "IN OUT TYPE")
    refused(infer("quantize", tmp_path / "none.gguf", out, "Q4_0"), "none.gguf", rc=1)
    refused(infer("quantize", GGUF, tmp_path / "no" / "out.gguf", "F16"), "No such file", rc=1)
    refused(infer("quantize", GGUF, tmp_path, "F16"), "no regular file")
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(GGUF.read_bytes())
    refused(infer("quantize", copy, copy, "Q4_0"), "the output is the input")
    assert copy.read_bytes() == GGUF.read_bytes() and left(tmp_path) == ["copy.gguf"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """About 130 MB of F32, which takes a moment."""
    rng = np.random.default_rng(0)
    t = {f"blk.{i}.ffn_up.weight": rng.standard_normal((2048, 4096)).astype(np.float32) for i in range(4)}
    return write(tmp_path_factory.mktemp("large") / "in.gguf", t)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ended_halfway(tmp_path, large, how):
    out = tmp_path / "out.gguf"
    out.write_bytes(b"what was there")
    p = subprocess.Popen([INFER, "quantize", large, out, "Q3_K_S"], stderr=subprocess.PIPE)
    end = time.time() + 20
    while not list(tmp_path.glob("*.tmp")) and time.time() < end:
        time.sleep(0.005)
    p.send_signal(how)
    p.communicate(timeout=60)
    assert p.returncode == (-9 if how == signal.SIGKILL else 130)
    assert out.read_bytes() == b"what was there"
    if how == signal.SIGINT:
        assert left(tmp_path) == ["out.gguf"]


def test_limit_on_file_size(tmp_path, large):
    r = infer("quantize", large, tmp_path / "out.gguf", "Q8_0",
              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20)))
    refused(r, "No space left", "out.gguf", rc=1)
    assert left(tmp_path) == []


def test_disk_full(tmp_path, large):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", disk], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        refused(infer("quantize", large, disk / "out.gguf", "Q8_0"), "No space left", "out.gguf", rc=1)
        assert left(disk) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_memory_is_bounded(tmp_path, large):
    """Less than the file: resident pages of input and output are not kept."""
    code = ("import resource, subprocess, sys; p = subprocess.run(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    p = subprocess.run(["python3", "-c", code, INFER, "quantize", large, tmp_path / "out.gguf", "Q8_0", "--threads", "2"],
                       stdout=subprocess.PIPE, check=True)
    assert int(p.stdout.split()[-1]) < 64 << 10


def test_what_a_killed_process_left_is_removed(tmp_path):
    write(tmp_path / "in.gguf", model())
    dead = subprocess.Popen(["true"])
    dead.wait()
    stale = [f"out.gguf.{dead.pid}.0.tmp", f"out.gguf.{dead.pid}.tmp"]
    kept = [f"out.gguf.{os.getpid()}.0.tmp", f"other.gguf.{dead.pid}.0.tmp", "out.gguf.x.tmp", f"out.gguf.{dead.pid}.0.tmpx"]
    for name in stale + kept:
        (tmp_path / name).write_bytes(b"x")
    assert infer("quantize", tmp_path / "in.gguf", tmp_path / "out.gguf", "q8_0").rc == 0
    assert left(tmp_path) == sorted(kept + ["in.gguf", "out.gguf"])
