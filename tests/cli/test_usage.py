"""Help, options, names of models, exit codes, and how output behaves in pipes and terminals."""
import os
import pty
import re
import shutil
import signal
import subprocess
import time

import pytest

from conftest import GGUF, GREEDY, INFER, PROMPT, ST, infer, refused

COMMANDS = ["run", "predict", "tokenize", "pull", "list", "show", "rm", "inspect", "eval", "perplexity", "bench", "doctor"]


def test_help_lists_every_command_within_80_columns():
    r = infer("help")
    assert r.rc == 0 and r.err == ""
    for c in COMMANDS:
        assert re.search(rf"^  {c} ", r.text, re.M)
    assert max(map(len, r.text.splitlines())) <= 80
    assert infer("--help").out == r.out
    bare = infer()
    assert bare.rc == 2 and bare.out == b"" and "run" in bare.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command):
    r = infer(command, "--help")
    assert r.rc == 0 and r.err == "" and r.text.startswith(f"infer {command} ")
    assert max(map(len, r.text.splitlines())) <= 80
    assert infer("help", command).out == r.out


def test_version():
    r = infer("--version")
    assert r.rc == 0 and re.fullmatch(r"infer \d+\.\d+\.\d+\n", r.text)


def test_unknown_command_names_the_nearest():
    refused(infer("tokenise", GGUF), "'tokenise'", "'tokenize'")
    refused(infer("perplex"), "'perplexity'")
    refused(infer("model.gguf"), "infer run model.gguf")
    refused(infer("qqqqqq"), "infer help")


def test_unknown_option_names_the_nearest():
    refused(infer("run", GGUF, "x", "--tmep", 1), "--tmep", "--temp")
    refused(infer("run", GGUF, "x", "--zzzzzzzz"), "--zzzzzzzz")


@pytest.mark.parametrize("option,value", [
    ("-n", "x"), ("-n", "-2"), ("-n", "1.5"), ("-n", "99999999999"), ("--temp", "-1"), ("--temp", "nan"),
    ("--temp", "inf"), ("--temp", ""), ("--temp", "1x"), ("--top-k", "-1"), ("--top-p", "1.5"),
    ("--top-p", "-0.1"), ("--min-p", "2"), ("--repeat-penalty", "0"), ("--repeat-penalty", "-1"),
    ("--repeat-penalty", "nan"), ("--repeat-window", "-2"), ("--frequency-penalty", "nan"),
    ("--presence-penalty", "inf"), ("--seed", "-1"), ("--seed", "1e3"), ("--ctx", "0"), ("--threads", "0"),
    ("--threads", "257"), ("--cpu", "sse9"), ("--backend", "tpu"), ("--kv-type", "q9"), ("--stop", "")])
def test_bad_values_are_named(option, value):
    refused(infer("run", GGUF, PROMPT, option, value), option, f"'{value}'")
    refused(infer("run", GGUF, PROMPT, f"--{option.lstrip('-')}={value}" if len(option) > 2 else option,
                  *([] if len(option) > 2 else [value])), option)


def test_a_context_past_the_trained_one_is_told():
    r = infer("run", GGUF, PROMPT, "-n", 8, "--ctx", 200)
    assert r.rc == 0 and r.text == GREEDY and "warning" in r.err and "200" in r.err and "128" in r.err
    assert infer("run", GGUF, PROMPT, "-n", 8, "--ctx", 128).err == ""


def test_backends_are_those_of_the_build():
    known = {b for line in re.findall(r"^(?:backends)? +(\w+): ", infer("doctor").text, re.M) for b in [line]}
    r = infer("run", GGUF, PROMPT, "--backend", "tpu")
    assert "cpu" in known and r.rc == 2 and {"auto", *known} == set(re.search(r"expected (\S+),", r.err)[1].split("|"))
    assert "cuda" in known or "cuda" not in infer("run", "--help").text


def test_limits_are_written_out():
    refused(infer("run", GGUF, PROMPT, "-n", "99999999999"), "a whole number from -1 to 2147483647,")
    refused(infer("run", GGUF, PROMPT, "--frequency-penalty", "nan"), "expected a finite number,")


def test_missing_and_superfluous_arguments():
    refused(infer("run"), "MODEL")
    refused(infer("run", GGUF, "a", "b"), "'b'")
    refused(infer("run", GGUF, "a", "--temp"), "--temp")
    refused(infer("run", GGUF, "a", "--stats=1"), "--stats")
    refused(infer("perplexity", GGUF), "MODEL FILE")


@pytest.mark.parametrize("option", [["--engine", "x"], ["--gpu-layers", "9"]])
def test_options_of_later_are_refused(option):
    refused(infer("run", GGUF, "a", *option), option[0], "not supported yet")


def test_double_dash_ends_options():
    r = infer("run", GGUF, "-n", 1, "--", "-x")
    assert r.rc == 0, r.err


def test_names_of_models(tmp_path):
    store = tmp_path / "models"
    store.mkdir()
    env = {"INFER_HOME": str(tmp_path)}
    refused(infer("run", "default", "x", env=env), "gemma-3-270m-q4_k_m.gguf", "infer pull default", rc=1)
    shutil.copy(GGUF, store / "tiny.gguf")
    for name in ("tiny", "tiny.gguf"):
        r = infer("run", name, PROMPT, "-n", 8, env=env)
        assert r.rc == 0 and r.text == GREEDY
    refused(infer("run", "tinny", "x", env=env), "tinny", "tiny.gguf", rc=1)
    refused(infer("run", "qqqqqqqqqqq", "x", env=env), "qqqqqqqqqqq", rc=1)
    refused(infer("run", str(store / "tinx.gguf"), "x", env=env), "tiny.gguf", rc=1)
    refused(infer("run", "hf://word", "x", env=env), "hf://word", "owner/name")
    refused(infer("run", "", "x", env=env), "MODEL", rc=2)
    shutil.copy(GGUF, store / "gemma-3-270m-q4_k_m.gguf")
    assert infer("run", "default", PROMPT, "-n", 8, env=env).text == GREEDY
    data = {"XDG_DATA_HOME": str(tmp_path / "data"), "INFER_HOME": ""}
    shutil.copytree(store, tmp_path / "data/infer/models")
    assert infer("run", "tiny", PROMPT, "-n", 8, env=data).text == GREEDY


def test_model_that_is_no_file_and_no_folder(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("/dev/null", str(tmp_path / "pipe")):
        refused(infer("run", name, "x"), name, "neither a regular file nor a folder")


def test_folder_with_one_gguf(tmp_path):
    shutil.copy(GGUF, tmp_path / "a.gguf")
    assert infer("run", tmp_path, PROMPT, "-n", 8).text == GREEDY
    shutil.copy(GGUF, tmp_path / "b.gguf")
    refused(infer("run", tmp_path, PROMPT), "a.gguf", "b.gguf")


def test_infer_cpu_is_as_cpu():
    refused(infer("run", GGUF, "x", env={"INFER_CPU": "sse9"}), "INFER_CPU", "'sse9'")
    r = infer("run", GGUF, PROMPT, "-n", 8, "--stats", env={"INFER_CPU": "ref"})
    assert r.text == GREEDY and ", ref, " in r.err


# X08: no escape codes or carriage returns outside a terminal; a closed pipe ends quietly.
@pytest.mark.parametrize("args", [
    ["run", GGUF, PROMPT, "-n", 8, "--stats"], ["predict", GGUF, PROMPT], ["tokenize", GGUF, PROMPT],
    ["inspect", GGUF], ["eval", GGUF, "--ids", "5,6", "--greedy", 3], ["bench", GGUF, "-p", 8, "-n", 4, "-r", 2],
    ["doctor", GGUF], ["help"], ["run", "--help"]])
def test_no_escape_codes_outside_a_terminal(args):
    r = infer(*args)
    assert r.rc == 0
    for stream in (r.out, r.raw_err):
        assert b"\x1b" not in stream and b"\r" not in stream
    if args[0] == "run" and len(args) > 2:
        assert r.text == GREEDY


def test_closed_pipe_ends_quietly():
    p = subprocess.Popen([INFER, "inspect", GGUF], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    assert p.stderr.read() == b"" and p.wait(20) == 0
    read, write = os.pipe()
    os.close(read)
    p = subprocess.run([INFER, "run", GGUF, PROMPT, "--ignore-eos"], stdout=write, stderr=subprocess.PIPE,
                       timeout=20, stdin=subprocess.DEVNULL)
    os.close(write)
    assert p.stderr == b"" and p.returncode == 0


@pytest.mark.parametrize("args", [["run", GGUF, PROMPT, "-n", 8], ["inspect", GGUF], ["tokenize", GGUF, PROMPT],
                                  ["eval", GGUF, "--ids", "5"], ["help"]])
def test_full_disk_at_standard_output(args):
    with open("/dev/full", "wb") as full:
        r = infer(*args, stdout=full)
    assert r.rc == 1 and r.err == "infer: standard output: No space left on device\n"


def test_closed_standard_streams(tmp_path):
    sh = f"exec '{INFER}' eval '{GGUF}' --ids 5 --logits '{tmp_path}/l' >&-"
    p = subprocess.run(["sh", "-c", sh], stderr=subprocess.PIPE, timeout=20)
    assert p.returncode == 1 and p.stderr.startswith(b"infer: standard output: ")
    assert (tmp_path / "l").stat().st_size == 263 * 4
    p = subprocess.run(["sh", "-c", f"exec '{INFER}' run '{GGUF}' <&-"], stderr=subprocess.PIPE, timeout=20)
    assert p.returncode == 1 and p.stderr.startswith(b"infer: standard input: ")
    assert subprocess.run(["sh", "-c", f"exec '{INFER}' run 2>&-"], timeout=20).returncode == 2


def in_terminal(*args, env=None, keys=None, after=0.0):
    """The program in a pseudo-terminal: exit code and all that it printed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", **(env or {})})
        os.execv(INFER, [INFER, *map(str, args)])
    if keys:
        time.sleep(after)
        os.write(fd, keys)
    out = b""
    while True:
        try:
            part = os.read(fd, 65536)
        except OSError:
            break
        if not part:
            break
        out += part
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out


def test_terminal_and_no_color():
    rc, out = in_terminal("run", GGUF, PROMPT, "-n", 8)
    assert rc == 0 and out.replace(b"\r", b"").strip().endswith(GREEDY.encode())
    rc, out = in_terminal("predict", GGUF, PROMPT)
    assert rc == 0 and b"\x1b[1m" in out
    rc, out = in_terminal("predict", GGUF, PROMPT, env={"NO_COLOR": "1"})
    assert rc == 0 and b"\x1b" not in out


def test_interrupt_ends_with_130():
    # A run that would take very long: Ctrl-C stops it, and what was made is there.
    p = subprocess.Popen([INFER, "bench", GGUF, "-p", "100", "-n", "100", "-r", "1000"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.5)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=20)
    assert p.returncode == 130 and err == b""


def test_interrupt_while_reading_the_prompt():
    p = subprocess.Popen([INFER, "run", GGUF], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.3)
    p.send_signal(signal.SIGINT)
    assert p.wait(20) == 130
    p.communicate()


# X05: older processors get slower kernels, never an illegal instruction.
@pytest.mark.parametrize("cpu", ["Haswell", "Nehalem"])
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64 processors")
def test_older_processors(cpu):
    assert shutil.which("qemu-x86_64"), "qemu-user is needed"
    r = infer("run", GGUF, PROMPT, "-n", 8, "--threads", 2, prefix=["qemu-x86_64", "-cpu", cpu])
    assert r.rc == 0 and r.text == GREEDY, r.err
    assert infer("run", ST, PROMPT, "-n", 8, "--exact", prefix=["qemu-x86_64", "-cpu", cpu]).text == GREEDY
