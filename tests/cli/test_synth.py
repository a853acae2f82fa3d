"""bench/synth.py's models open, and extracting one takes a memory that does not grow with it."""
import importlib.util
import json
import subprocess
import sys

import pytest

from conftest import INFER, ROOT, infer


def synth(*args):
    subprocess.run([sys.executable, ROOT / "bench/synth.py", *map(str, args)], check=True)


@pytest.mark.parametrize("name, args", [("gemma3-270m", []), ("llama3-1b", []), ("qwen3-4b", ["--dtype", "f16"]),
                                        ("qwen3-30b-a3b", [])])
@pytest.mark.parametrize("folder", [True, False])
def test_opens(name, args, folder, tmp_path):
    if not folder:
        pytest.importorskip("gguf")
    out = tmp_path / ("m" if folder else "m.gguf")
    synth(name, out, "--layers", 1, "--vocab", 512, *(["--safetensors", *args] if folder else ["--type", "Q4_K"] if
                                                      name != "gemma3-270m" else []))
    r = infer("eval", out, "--ids", "1,2,3", "--greedy", 2)
    assert r.rc == 0, r.err
    assert len(json.loads(r.text)["greedy"]) == 2


def test_memory_of_extract(tmp_path):
    """A quarter of a gigabyte of safetensors, of which at most 100 MB are ever in memory of our own."""
    spec = importlib.util.spec_from_file_location("extract_memory", ROOT / "bench/extract_memory.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    synth("llama3-1b", tmp_path / "m", "--safetensors", "--layers", 2, "--vocab", 1024)
    assert (tmp_path / "m/model.safetensors").stat().st_size > 250e6
    peak = tool.watch([INFER, "extract", tmp_path / "m", "-o", tmp_path / "v", "--threads", "2"])
    assert 0 < peak["anon"] + peak["shmem"] < 100e6, peak


def resident(pid, name):
    """Bytes of the file that are resident in the process."""
    total, ours = 0, False
    try:
        for line in open(f"/proc/{pid}/smaps"):
            if "-" in line.split()[0] and not line.split()[0].endswith(":"):
                ours = line.rstrip().endswith(name)
            elif ours and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return total


def test_walk_only_leaves_the_ffn_out(tmp_path):
    """The model's own FFN weights are not in memory; they are where it runs from them."""
    synth("llama3-1b", tmp_path / "m", "--safetensors", "--layers", 2, "--vocab", 1024)
    r = infer("extract", tmp_path / "m", "-o", tmp_path / "v", "--top-k", 1)
    assert r.rc == 0, r.err
    ffn, most = 2 * 3 * 2048 * 8192 * 2, {}
    for how in ([], ["--ffn", tmp_path / "v"], ["--ffn", tmp_path / "v", "--walk-only"]):
        args = [INFER, "bench", tmp_path / "m", *how, "-p", "16", "-n", "16", "-r", "1"]
        p = subprocess.Popen(list(map(str, args)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        peak = index = 0
        while p.poll() is None:
            peak = max(peak, resident(p.pid, "model.safetensors"))
            index = max(index, resident(p.pid, "gate_vectors.bin"))
        assert p.returncode == 0, p.stderr.read()
        most[len(how)] = peak
        assert (index > 0) == bool(how)
    size = (tmp_path / "m/model.safetensors").stat().st_size
    assert most[0] > 0.9 * size and most[3] < size - 0.98 * ffn, (most, size, ffn)


def test_weights_laid_anew(tmp_path):
    """Generation that goes on for long enough lays weights anew: a walk's too, with the same bits."""
    synth("llama3-1b", tmp_path / "m", "--safetensors", "--layers", 1, "--vocab", 512)
    r = infer("extract", tmp_path / "m", "-o", tmp_path / "v", "--quant", "q4k", "--top-k", 1)
    assert r.rc == 0, r.err
    found = []
    for how in ([], ["--ffn", tmp_path / "v"], ["--ffn", tmp_path / "v", "--walk-only"]):
        r = infer("eval", tmp_path / "v", "--ids", "1,2,3", "--greedy", 40, "--logits", tmp_path / "l", *how)
        assert r.rc == 0, r.err
        found.append((json.loads(r.text)["greedy"], (tmp_path / "l").read_bytes()))
    assert found[1] == found[0] and found[2] == found[0]
