"""`infer convert`: folders to GGUF, against llama.cpp's converter and against the folder itself."""
import json
import shutil

import gguf
import numpy as np
import pytest

from conftest import ROOT, ST, infer

CONVERT = ROOT / "tests/golden/convert"
FAMILIES = ROOT / "tests/golden/families"
IDS = "5,17,33,90,12,40,7,61,88,19,4"
# the reference has these otherwise, and they change nothing
OTHER = {"general.name", "general.size_label", "tokenizer.ggml.scores", "tokenizer.ggml.add_sep_token",
         "tokenizer.ggml.padding_token_id", "general.file_type"}


def convert(folder, out, *args):
    r = infer("convert", folder, out, *args)
    assert r.rc == 0, r.err
    return gguf.GGUFReader(out)


def logits(model, tmp):
    r = infer("eval", model, "--ids", IDS, "--exact", "--logits", tmp / "l", "--greedy", 8)
    assert r.rc == 0, r.err
    return json.loads(r.text)["greedy"], np.fromfile(tmp / "l", "<f4")


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_reference(tmp_path, name):
    got = convert(CONVERT / name, tmp_path / "out.gguf", "--type", "Q8_0")
    want = gguf.GGUFReader(CONVERT / name / "reference.gguf")
    a = {t.name: t for t in want.tensors}
    b = {t.name: t for t in got.tensors}
    assert set(a) == set(b)
    for n in a:
        assert a[n].tensor_type == b[n].tensor_type and list(a[n].shape) == list(b[n].shape), n
        if n == "rope_freqs.weight":
            assert np.abs(a[n].data / b[n].data - 1).max() < 1e-6
        else:
            assert a[n].data.tobytes() == b[n].data.tobytes(), n
    for k, f in want.fields.items():
        if not k.startswith("GGUF.") and k not in OTHER:
            assert got.fields[k].contents() == f.contents(), k
    if name == "qwen3":
        assert got.fields["tokenizer.ggml.pre"].contents() == "qwen2"


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_scores_order_merges_as_the_reference(tmp_path, name):
    got = convert(CONVERT / name, tmp_path / "out.gguf").fields["tokenizer.ggml.scores"].contents()
    merges = json.loads((CONVERT / name / "tokenizer.json").read_text())["model"]
    ranks = [merges["vocab"]["".join(m)] for m in merges["merges"]]
    seen = list(dict.fromkeys(ranks))
    normal = [i for i in seen if got[i] > -1000]
    assert len(normal) > 100 and [got[i] for i in normal] == sorted((got[i] for i in normal), reverse=True)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_text_gives_the_same_ids_and_logits(tmp_path, name):
    convert(CONVERT / name, tmp_path / "out.gguf")
    for text in ["Hello there,  world! 12345\n\nint x = y->z; na\u00efve \u4f60\u597d \U0001f600", "it's THE end'll"]:
        a, b = (json.loads(infer("tokenize", m, "--json", stdin=json.dumps(text) + "\n").text)
                for m in (CONVERT / name, tmp_path / "out.gguf"))
        assert a == b and len(a) > 5
    a, b = logits(CONVERT / name, tmp_path), logits(tmp_path / "out.gguf", tmp_path)
    assert a[0] == b[0] and np.abs(a[1] - b[1]).max() < 1e-4


@pytest.mark.parametrize("name", ["cohere2", "granite", "granitemoeshared", "olmo2", "phi3", "qwen2_moe"])
def test_families(tmp_path, name):
    convert(FAMILIES / name, tmp_path / "out.gguf")
    a, b = logits(FAMILIES / name, tmp_path), logits(tmp_path / "out.gguf", tmp_path)
    assert a[0] == b[0] and np.abs(a[1] - b[1]).max() < 1e-4


@pytest.mark.parametrize("name,word", [("deepseek_v3", "latent attention|no name"), ("gpt2", "transposed"),
                                       ("gpt_neox", "head by head"), ("gemma3n_text", "per-layer"), ("gpt_oss_mxfp4", "tensor")])
def test_families_that_need_more_are_refused_by_name(tmp_path, name, word):
    r = infer("convert", FAMILIES / name, tmp_path / "out.gguf")
    assert r.rc == 1 and any(w in r.err for w in word.split("|")), r.err
    assert not list(tmp_path.iterdir())


def test_what_gguf_cannot_say_is_refused(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(CONVERT / "gemma3", folder)
    c = json.loads((folder / "config.json").read_text())
    c["query_pre_attn_scalar"] = 50
    (folder / "config.json").write_text(json.dumps(c))
    r = infer("convert", folder, tmp_path / "out.gguf")
    assert r.rc == 1 and "would lose its attention" in r.err
    shutil.rmtree(folder)
    shutil.copytree(CONVERT / "qwen3", folder)
    t = json.loads((folder / "tokenizer.json").read_text())
    t["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{L}+|\\s+|."
    (folder / "tokenizer.json").write_text(json.dumps(t))
    r = infer("convert", folder, tmp_path / "out.gguf")
    assert r.rc == 1 and "GGUF has no name for this pre-tokenization" in r.err and "\\p{L}+|\\s+|." in r.err
    assert not (tmp_path / "out.gguf").exists()


def test_quantised_while_converted(tmp_path):
    a = convert(CONVERT / "llama", tmp_path / "a.gguf")
    b = convert(CONVERT / "llama", tmp_path / "b.gguf", "--type", "Q5_0")
    assert a.fields["general.file_type"].contents() in (0, 1, 32) and b.fields["general.file_type"].contents() == 8
    infer("quantize", tmp_path / "a.gguf", tmp_path / "c.gguf", "Q5_0")
    c = {t.name: t for t in gguf.GGUFReader(tmp_path / "c.gguf").tensors}
    for t in b.tensors:
        assert t.tensor_type == c[t.name].tensor_type and t.data.tobytes() == c[t.name].data.tobytes(), t.name


def test_without_a_tokenizer(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(ST, folder)
    for n in ("tokenizer.json", "tokenizer_config.json"):
        (folder / n).unlink(missing_ok=True)
    r = infer("convert", folder, tmp_path / "out.gguf")
    assert r.rc == 0 and "no vocabulary" in r.err
    assert not [k for k in gguf.GGUFReader(tmp_path / "out.gguf").fields if k.startswith("tokenizer.")]
