"""Text methods and filters of templates on characters that are hard to split, against jinja2."""
import json
import random

from jinja2.sandbox import ImmutableSandboxedEnvironment

from conftest import infer

CHARS = ["你", "à", "\u00a0", "\u3000", "ß", "e\u0301", "\u2028", "x", " ", "𝄞", "\u1680", "Ǆ", "ﬁ", "İ", "\t", "-", "\n",
         "\x85", "σΣ"]
METHODS = ["split()", "split(None,1)", "rsplit(None,1)", "split('x')", "strip()", "title()", "capitalize()", "upper()", "lower()",
           "splitlines()", "swapcase()", "center(9)", "partition(' ')", "istitle()", "isspace()", "zfill(8)",
           "ljust(7,'你')", "find('x')", "rfind('x')", "count('x')", "replace('x','你')", "expandtabs()", "casefold()",
           "isalnum()", "isupper()"]
FILTERS = ["striptags", "wordcount", "title", "capitalize", "trim", "truncate(4,true,'.')", "center(9)", "indent(2)",
           "upper", "reverse", "list", "escape", "urlencode", "first", "last", "length"]


def test_text_like_jinja2(tmp_path):
    names = [f"s.{m}" for m in METHODS] + [f"s|{f}" for f in FILTERS]
    source = "\x1f".join("{{ %s }}" % n for n in names)
    file = tmp_path / "t.jinja"
    file.write_text(source)
    rng = random.Random(7)
    texts = ["".join(rng.choice(CHARS) for _ in range(rng.randint(1, 8))) for _ in range(500)]
    lines = "".join(json.dumps({"messages": [], "s": s}) + "\n" for s in texts)
    r = infer("template", file, "--json", stdin=lines)
    assert r.rc == 0, r.err
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    out = r.text.split("\n")
    for s, line in zip(texts, out, strict=False):
        want = template.render(messages=[], s=s)
        for name, a, b in zip(names, json.loads(line).split("\x1f"), want.split("\x1f"), strict=True):
            assert a == b, (name, s)
    assert len(out) >= len(texts)
