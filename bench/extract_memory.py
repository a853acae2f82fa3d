#!/usr/bin/env python3
"""Memory and time of `infer extract`: the most that was resident of its own and of files' pages (which the system can
take back), read from /proc while it runs.

    extract_memory.py MODEL OUT [--infer build/infer] [EXTRACT OPTIONS …]
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import time


def watch(args, every=0.02):
    """Runs args; peaks in bytes of RssAnon, RssFile and RssShmem, and seconds."""
    start, peak = time.monotonic(), {"anon": 0, "file": 0, "shmem": 0}
    p = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while p.poll() is None:
        try:
            text = pathlib.Path(f"/proc/{p.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            break
        for kind, kb in re.findall(r"Rss(Anon|File|Shmem):\s+(\d+) kB", text):
            peak[kind.lower()] = max(peak[kind.lower()], int(kb) * 1024)
        time.sleep(every)
    err = p.stderr.read().decode("utf-8", "replace")
    p.wait()
    if p.returncode:
        raise SystemExit(err)
    return {**peak, "seconds": time.monotonic() - start}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("out")
    ap.add_argument("--infer", default="build/infer")
    a, rest = ap.parse_known_args()
    model = pathlib.Path(a.model)
    size = sum(f.stat().st_size for f in model.iterdir()) if model.is_dir() else model.stat().st_size
    json.dump({"model_bytes": size, **watch([a.infer, "extract", a.model, "-o", a.out, *rest])}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
