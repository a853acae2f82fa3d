"""`infer tokenize`: lines in, lines out; tables; tokenizers changed on purpose."""
import json
import shutil
import subprocess

import pytest

from conftest import GGUF, IDS, INFER, PROMPT, ST, infer, refused


def lines(model, items, *extra):
    r = infer("tokenize", model, "--json", *extra, stdin="".join(json.dumps(x) + "\n" for x in items))
    assert r.rc == 0 and r.err == ""
    out = r.text.split("\n")
    assert out.pop() == "" and len(out) == len(items)
    return [json.loads(x) for x in out]


TEXTS = ["", PROMPT, "the", "a\0b", "\n", "line\r\nline", "\u2028", "é e\u0301 🦙", "<|endoftext|>", "  x  ", "\x7f"]


@pytest.mark.parametrize("model", [GGUF, ST])
def test_lines(model):
    ids = lines(model, TEXTS)
    assert ids[1] == IDS and ids[8] == [262]
    assert lines(model, TEXTS, "--no-special") == ids  # this model adds neither BOS nor EOS
    assert lines(model, ids, "--decode") == TEXTS
    assert lines(model, [[262] + IDS], "--decode") == ["<|endoftext|>" + PROMPT]
    assert lines(model, [[262] + IDS], "--decode", "--skip-special") == [PROMPT]


@pytest.mark.parametrize("bad", ["", "the", "5", "[1]", "{", '"a" "b"', '"\\ud800"', b'"\xff"', "null"])
def test_bad_line_is_answered_on_its_line(bad):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    r = infer("tokenize", GGUF, "--json", stdin=b'"the"\n' + bad + b'\n"he"\n')
    assert r.rc == 0 and r.err == ""
    first, middle, last = r.text.splitlines()
    assert json.loads(first) == [116, 257] and json.loads(last) == [257]
    assert list(json.loads(middle)) == ["error"] and json.loads(middle)["error"]


@pytest.mark.parametrize("bad", ['"x"', "[-1]", "[263]", "[2147483648]", "[1.5]", '["a"]', "[[1]]", "[1e3]"])
def test_bad_ids_are_answered_on_their_line(bad):
    r = infer("tokenize", GGUF, "--json", "--decode", stdin=f"{bad}\n[257]\n")
    assert r.rc == 0
    first, last = r.text.splitlines()
    assert "error" in json.loads(first) and json.loads(last) == "he"


def test_last_line_without_newline_and_no_lines():
    assert infer("tokenize", GGUF, "--json", stdin='"he"').text == "[257]\n"
    r = infer("tokenize", GGUF, "--json", stdin="")
    assert r.rc == 0 and r.out == b""


def test_each_line_is_answered_at_once():
    p = subprocess.Popen([INFER, "tokenize", GGUF, "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for _ in range(3):
        p.stdin.write(b'"he"\n')
        p.stdin.flush()
        assert p.stdout.readline() == b"[257]\n"
    p.stdin.close()
    assert p.wait(10) == 0


def test_long_line():
    assert len(lines(GGUF, ["the inner " * 50000])[0]) > 100000


def test_table_and_back():
    r = infer("tokenize", GGUF, PROMPT)
    assert r.rc == 0 and [int(x.split()[0]) for x in r.text.splitlines()] == IDS
    assert infer("tokenize", GGUF, stdin=PROMPT).out == r.out
    assert infer("tokenize", GGUF, "--decode", ",".join(map(str, IDS))).text == PROMPT + "\n"
    assert infer("tokenize", GGUF, "--decode", stdin="[116, 257]\n").text == "the\n"
    refused(infer("tokenize", GGUF, "--decode", "5,x"), "--decode", "'x'")
    refused(infer("tokenize", GGUF, "--json", "text"), "--json")
    refused(infer("tokenize", GGUF, "--skip-special", "x"), "--decode")
    assert "special" in infer("tokenize", GGUF, "<|endoftext|>").text


def changed(tmp_path, change):
    d = tmp_path / "model"
    shutil.copytree(ST, d)
    t = json.loads((d / "tokenizer.json").read_text())
    change(t)
    (d / "tokenizer.json").write_text(json.dumps(t))
    return d


def test_folder_with_only_a_tokenizer(tmp_path):
    shutil.copy(ST / "tokenizer.json", tmp_path)
    assert lines(tmp_path, [PROMPT]) == [IDS]


# T08: spaces at an added token
def test_lstrip(tmp_path):
    def lstrip(t):
        t["added_tokens"][0]["lstrip"] = True
    assert lines(changed(tmp_path, lstrip), ["the  <|endoftext|>"]) == [[116, 257, 262]]
    assert lines(ST, ["the  <|endoftext|>"]) == [[116, 257, 32, 32, 262]]


# T10: a whole word in the vocabulary is taken before merges
@pytest.mark.parametrize("ignore,want", [(True, [263]), (False, [258, 110, 261])])
def test_ignore_merges(tmp_path, ignore, want):
    def add(t):
        t["model"]["vocab"]["inner"] = 263
        t["model"]["ignore_merges"] = ignore
    assert lines(changed(tmp_path, add), ["inner"]) == [want]
