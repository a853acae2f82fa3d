"""`infer chat`: through pipes and in a pseudo-terminal. The tiny model has no template of its own: it is given one."""
import json
import os
import pty
import select
import signal
import subprocess
import termios
import time

import pytest

from conftest import GGUF, GREEDY, INFER, PROMPT, but_context, infer, refused

LAST = ("--chat-template", "{{ messages[-1].content }}", "--temp", 0)
ALL = ("--chat-template", "{% for m in messages %}{{ m.content }}{% endfor %}", "--temp", 0)
LONG = ("--ctx", 100000)  # an answer that takes minutes


def chat(stdin, *args, template=LAST, model=GGUF):
    return infer("chat", model, *template, *args, stdin=stdin)


# X07
def test_end_of_input():
    r = chat("")
    assert (r.rc, r.out, r.err) == (0, b"", "")
    for text in (PROMPT, PROMPT + "\n", PROMPT + "\r\n", "\n \n" + PROMPT + "\n\n"):
        r = chat(text, "-n", 8)
        assert (r.rc, r.text, r.err) == (0, GREEDY + "\n", ""), text
    assert chat(f"{PROMPT}\n{PROMPT}\n", "-n", 8).text == f"{GREEDY}\n{GREEDY}\n"


def test_a_template_is_needed():
    for stdin in ("", "hi\n"):
        refused(infer("chat", GGUF, stdin=stdin), "no chat template", "--chat-template", rc=1)
    refused(infer("chat", GGUF, "--chat-template", "{% for"), "--chat-template", "line 1", rc=1)


def test_default_is_named(tmp_path):
    refused(infer("chat", "default", env={"INFER_HOME": str(tmp_path)}), "SmolLM2", "smollm2", rc=1)


def test_wrong_use():
    refused(infer("chat", GGUF, "-n", "0"), "-n")
    refused(infer("chat", GGUF, "--stop", ""), "--stop")
    refused(infer("chat", GGUF, "--temp", "-1"), "--temp")
    refused(infer("chat", GGUF, "--system", "\udcff"), "--system")
    refused(infer("chat", GGUF, "hi"), "hi")
    refused(infer("chat"), "MODEL")
    assert "0.7" in infer("chat", "--help").text


def test_the_history_is_fed(tmp_path):
    f = tmp_path / "talk.json"
    r = chat(f"{PROMPT}\nthe \n/save {f}\n", "-n", 8, "--system", "inner ", template=ALL)
    assert r.rc == 0 and r.err == f"5 messages written to {f}\n"
    talk = json.loads(f.read_text())
    first, second = r.text.splitlines()
    assert [m["role"] for m in talk] == ["system", "user", "assistant", "user", "assistant"]
    assert [m["content"] for m in talk] == ["inner ", PROMPT, first, "the ", second]
    # What was kept of the first turn gives the answer that the whole text gives.
    assert infer("run", GGUF, "inner " + PROMPT + first + "the ", "-n", 8).text == second
    # The saved conversation, less its last two messages, goes on in the same way.
    f.write_text(json.dumps(talk[:3]))
    r = chat(f"/load {f}\nthe \n/clear\n/system -\n{PROMPT}\n", "-n", 8, template=ALL)
    assert r.rc == 0 and r.text.splitlines() == [second, GREEDY]
    f.write_text(json.dumps({"messages": talk[1:3]}))
    r = chat(f"/load {f}\n/system inner \nthe \n/system\n", "-n", 8, template=ALL)
    assert r.rc == 0 and r.text == second + "\n" and r.err.endswith("\ninner \n")


def test_files(tmp_path):
    f = tmp_path / "talk.json"
    cases = ['', '{', '5', '[5]', '[{"role": "user"}]', '[{"role": "user", "content": 5}]',
             '[{"role": "tool", "content": "x"}]', '[{"role": "user", "content": "x\\u0000"}]',
             '[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]', '{"messages": {}}', "[" * 100000]
    for c in cases:
        f.write_text(c)
        r = chat(f"/load {f}\n{PROMPT}\n", "-n", 8, template=ALL)
        assert r.rc == 1 and r.text == GREEDY + "\n" and r.err.startswith(f"infer: {f}: "), (c, r.err)
        assert r.err.count("\n") == 1
    for name in (tmp_path, tmp_path / "none" / "x", "/dev/null"):
        r = chat(f"/save {name}\n")
        assert r.rc == 1 and r.err.startswith("infer: ") and f"{name}: " in r.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["talk.json"]
    r = chat(f"{PROMPT}\n/save {f}\n", "-n", 8)
    assert r.rc == 0 and len(json.loads(f.read_text())) == 2
    before = f.read_bytes()
    p = subprocess.run(["sh", "-c", f"ulimit -f 1; exec '{INFER}' chat '{GGUF}' --chat-template '{{{{ messages[-1].content }}}}'"],
                       input=f"/load {f}\n/system {'x' * 5000}\n/save {f}\n".encode(), stderr=subprocess.PIPE, timeout=60)
    assert p.returncode == 1 and b"File too large" in p.stderr and f.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["talk.json"]


def test_commands():
    r = chat("/help\n/nope\n/\n/clear now\n/save\n/load\n/stats\n/exit\nthe inner \n")
    assert r.rc == 1 and r.out == b""  # mistakes among them, and /exit before the last line
    for word in ("/system TEXT", "/save FILE", "/load FILE", "/clear", "/stats", "tok/s", "0 of 128"):
        assert word in r.err
    for word in ("'/nope' is not a command: /help", "'/' is not", "'/clear now' is not", "/save: expected", "/load: expected"):
        assert "infer: " + word in r.err
    assert chat("/nope\n").rc == 1
    # Two slashes begin a text with one.
    assert chat("//help\n", "-n", 8).text == infer("run", GGUF, "/help", "-n", 8).text + "\n"


def test_lines_go_on_after_a_backslash(tmp_path):
    f = tmp_path / "talk.json"
    r = chat(f"one\\\ntwo\\\nthree\n/save {f}\nlast\\", "-n", 2)
    assert r.rc == 0 and r.text.count("\n") == 2
    assert json.loads(f.read_text())[0]["content"] == "one\ntwo\nthree"


def test_bytes_that_are_no_text():
    for bad in (b"\xff\n", b"the\0inner\n", b"\xc3\n", b"\xed\xa0\x80\n"):
        r = chat(bad + PROMPT.encode() + b"\n", "-n", 8)
        assert r.rc == 1 and r.text == GREEDY + "\n" and "UTF-8" in r.err
    assert chat("é 你好 🦙\n", "-n", 8).rc == 0


def test_conversation_too_long(tmp_path):
    f = tmp_path / "talk.json"
    r = chat(f"{PROMPT}\nhello\n/save {f}\n/clear\n{PROMPT}\n", template=ALL)
    first, second = r.text.splitlines()
    full, refusal, saved, again = r.err.splitlines()
    assert r.rc == 1 and first == second and first.startswith(GREEDY)
    assert full == again and "128 tokens is full: /clear" in full
    assert "do not fit a context of 128: /clear" in refusal
    assert [m["content"] for m in json.loads(f.read_text())] == [PROMPT, first]
    r = chat("x" * 1000000 + f"\n{PROMPT}\n", "-n", 8)
    assert r.rc == 1 and r.text == GREEDY + "\n" and "/clear" in r.err


def test_a_template_that_refuses():
    t = ("--chat-template", "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
         "{{ messages[-1].content }}", "--temp", 0)
    r = chat(f"{PROMPT}\nthe\n/clear\n{PROMPT}\n", "-n", 8, template=t)
    assert r.rc == 1 and r.text == f"{GREEDY}\n{GREEDY}\n" and r.err.count("one message only") == 1


def test_options():
    assert chat(PROMPT, "-n", 8, "--stop", "brev").text == "era\n"
    assert "generation" in chat(PROMPT, "-n", 8, "--stats").err
    a, b, c = (chat(PROMPT, "-n", 20, "--temp", 2, "--seed", s).text for s in (1, 1, 2))
    assert a == b != c
    r = chat(PROMPT, "-n", 8, "--top-k", 5)
    assert r.text == GREEDY + "\n" and "--top-k" in r.err


def test_closed_pipe_ends_quietly():
    p = subprocess.Popen([INFER, "chat", GGUF, *map(str, LAST + LONG)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdin.write(b"the inner \n")
    p.stdin.flush()
    assert p.stdout.read(2) == b"er"
    p.stdout.close()
    assert p.wait(20) == 0 and but_context(p.stderr.read()) == b""
    p.stdin.close()


def test_interrupt_in_pipes():
    def start():
        p = subprocess.Popen([INFER, "chat", GGUF, *map(str, LAST + LONG)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdin.write(b"the inner \n")
        p.stdin.flush()
        assert p.stdout.read(2) == b"er"
        return p
    p = start()
    p.send_signal(signal.SIGINT)  # the answer
    p.stdout.readline()
    p.stdin.write(b"the inner \n")
    p.stdin.flush()
    assert p.stdout.read(2) == b"er"
    p.send_signal(signal.SIGINT)
    p.stdout.readline()
    time.sleep(0.2)
    p.send_signal(signal.SIGINT)  # the program
    assert p.wait(20) == 130 and but_context(p.communicate()[1]) == b""
    p = start()
    p.stdin.close()
    p.send_signal(signal.SIGINT)
    assert p.wait(20) == 130 and but_context(p.stderr.read()) == b""


# ---- in a terminal


class Terminal:
    def __init__(self, home, *args, env=None, redirect=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # what whoever runs the tests ignores (nohup: HUP; a shell's background: INT, QUIT) is inherited
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.environ.update({"TERM": "xterm", "LC_ALL": "C", "INFER_HOME": str(home), "NO_COLOR": "1", **(env or {})})
            if redirect:
                os.dup2(os.open(redirect, os.O_WRONLY | os.O_CREAT), 1)
            os.execv(INFER, [INFER, "chat", str(GGUF), *map(str, args)])
        self.seen, self.rc = b"", None

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            part = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += part
        return bool(part)

    def expect(self, text, seconds=20):
        text = text.encode() if isinstance(text, str) else text
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end and (self.read(0.2) or self.rc is None), (text, self.seen)
        before, _, self.seen = self.seen.partition(text)
        return before

    def keys(self, text):
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def end(self):
        """Exit code; the terminal must be as it was."""
        deadline = time.monotonic() + 20
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            assert time.monotonic() < deadline, self.seen
            self.read(0.05)
        local = termios.tcgetattr(self.fd)[3]
        assert local & termios.ICANON and local & termios.ECHO and local & termios.ISIG
        while self.read(0.05):
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def test_terminal_conversation(tmp_path):
    t = Terminal(tmp_path / "home", *LAST, "-n", 8)
    t.expect("/help lists the commands")
    t.expect("> ")
    t.keys("the innexr\x1b[D\x7f\x1b[C \n")  # a letter too many, taken back
    t.expect(GREEDY)
    t.expect("[ended after 8 tokens")
    t.keys("é 你\\\n")
    t.expect("… ")
    t.keys("好\n")
    t.expect("ended after")
    t.keys("/sa")
    t.expect("/sa")
    t.keys("\t")
    t.expect("ve ")
    t.keys(f"{tmp_path}/talk.json\n")
    t.expect("4 messages written")
    t.keys("\x1b[A\x1b[A\x1b[A\x1b[A")  # four lines up
    t.expect("the inner")
    t.keys(" \n")  # libedit drops the space at the end
    t.expect(GREEDY)
    t.keys("/nope\n")
    t.expect("/help lists them")
    t.keys("\x04")
    assert t.end() == 0
    assert json.loads((tmp_path / "talk.json").read_text())[2]["content"] == "é 你\n好"
    history = tmp_path / "home/chat_history"
    assert history.stat().st_mode & 0o777 == 0o600 and "é" in history.read_text()
    t = Terminal(tmp_path / "home", *LAST, "-n", 8)
    t.expect("> ")
    t.keys("\x1b[A")
    t.expect("/nope")
    t.keys("\n/exit\n")
    assert t.end() == 0


def test_terminal_typed_ahead(tmp_path):
    t = Terminal(tmp_path, *LAST, "-n", 1000, "--ctx", 2000)
    t.keys("the inner \nthe inner \n\x04")
    assert t.end() == 0 and t.seen.count(b"ended after") == 2


def test_terminal_interrupts(tmp_path):
    t = Terminal(tmp_path, *LAST, *LONG)
    t.expect("> ")
    t.keys("the inner \n")
    t.expect(GREEDY)
    t.keys("\x03")
    t.expect("[stopped")
    t.expect("> ")
    t.keys("/stats\n")
    t.expect("cancelled")
    t.expect("2 messages")  # kept as far as it came
    t.keys("dropped")
    t.expect("dropped")
    t.keys("\x03")
    t.expect("> ")
    t.keys("the inner \n")
    t.expect(GREEDY)
    t.keys("\x03")
    t.expect("[stopped, Ctrl-C once more ends]")
    t.keys("/stats\n")  # anything else counts from the start again
    t.expect("4 messages")
    t.keys("\x03")
    t.expect("Ctrl-C once more")
    t.keys("\x03")
    assert t.end() == 130
    for pause in (0.05, 0.5):  # twice in a row ends
        t = Terminal(tmp_path, *LAST, *LONG)
        t.expect("> ")
        t.keys("the inner \n")
        t.expect(GREEDY)
        t.keys("\x03")
        t.read(pause)
        time.sleep(pause)
        t.keys("\x03")
        assert t.end() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_terminal_is_left_sane(tmp_path, number):
    t = Terminal(tmp_path, *LAST)
    t.expect("> ")
    os.kill(t.pid, number)
    if number == signal.SIGINT:  # the same as the key
        t.expect("Ctrl-C once more")
        os.kill(t.pid, number)
    assert t.end() == (130 if number == signal.SIGINT else -number)


def test_terminal_suspended(tmp_path):
    t = Terminal(tmp_path, *LAST, "-n", 8)
    t.expect("> ")
    t.keys("the in")
    t.expect("the in")
    t.keys("\x1a")
    deadline = time.monotonic() + 10
    while open(f"/proc/{t.pid}/stat").read().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert termios.tcgetattr(t.fd)[3] & termios.ICANON
    os.kill(t.pid, signal.SIGCONT)
    t.expect("the in")
    t.keys("ner \n")
    t.expect(GREEDY)
    t.keys("\x04")
    assert t.end() == 0


def test_terminals_of_other_kinds(tmp_path):
    for env in ({"TERM": "dumb"}, {"TERM": ""}, {"TERM": "no-such"}):
        t = Terminal(tmp_path, *LAST, "-n", 8, env=env)
        t.expect("> ")
        t.keys("the inner \n")
        assert b"\x1b" not in t.expect(GREEDY)
        t.keys("\x04")
        assert t.end() == 0
    out = tmp_path / "out"
    t = Terminal(tmp_path, *LAST, "-n", 8, redirect=str(out))
    time.sleep(0.3)
    t.keys("the inner \n\x04")
    assert t.end() == 0 and out.read_text() == GREEDY + "\n"


def test_history_that_cannot_be_kept(tmp_path):
    (tmp_path / "home").write_text("a file")
    t = Terminal(tmp_path / "home", *LAST, "-n", 8)
    t.expect("> ")
    t.keys("the inner \n")
    t.expect("history cannot be kept")
    t.expect(GREEDY)
    t.keys("\x04")
    assert t.end() == 0


def test_real_model(models):
    _, sm = models
    # Rounded, two first tokens are nearer to each other than rounding is.
    r = infer("chat", sm, "--temp", 0, "--exact", stdin="What is the capital of France?\nAnd of Italy?\n")
    assert r.rc == 0 and r.err == "" and "Paris" in r.text.splitlines()[0] and "Rome" in r.text.splitlines()[1]
