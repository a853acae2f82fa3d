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
