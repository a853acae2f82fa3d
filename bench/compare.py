#!/usr/bin/env python3
"""Speed beside llama.cpp, on the same files in the same run: alternating rounds, medians, ratios with their spread.

    bench/compare.py MODEL.gguf … [--threads 2] [--prompt 512] [--gen 64] [--depth 0] [--kv-type f16]
                     [--rounds 5]

Needs the program (build/infer, or INFER) and the PyPI package llama-cpp-python (its build decides what it can use). Each
round runs one after the other, so that both meet the same machine; a round counts by its median repetition.
"""
import argparse
import ctypes
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

INFER = os.environ.get("INFER", str(pathlib.Path(__file__).parent.parent / "build/infer"))


KV_TYPES = dict(f32=0, f16=1, q8_0=8, bf16=30)  # ggml's numbers


def ours(a, model):
    out = subprocess.run([INFER, "bench", model, "-p", str(a.prompt), "-n", str(a.gen), "-d", str(a.depth), "-r", "3",
                          "--threads", str(a.threads), "--kv-type", a.kv_type, "--json"],
                         check=True, capture_output=True, text=True)
    r = json.loads(out.stdout)
    return dict(pp=statistics.median(r["pp"]), tg=statistics.median(r["tg"]), gbs=r["read_gbs"], machine=r["machine"], cpu=r["cpu"],
                bytes=r["bytes_per_token"], rss=r["rss_mb"])


def theirs(a, model):
    out = subprocess.run([sys.executable, __file__, model, "--peer", "--threads", str(a.threads), "--prompt", str(a.prompt), "--gen",
                          str(a.gen), "--depth", str(a.depth), "--kv-type", a.kv_type], check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def peer(a):
    """One round of llama.cpp in this process: a warm-up and three repetitions, as in `infer bench`."""
    import llama_cpp as L
    import numpy as np

    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    model = L.llama_model_load_from_file(a.models[0].encode(), L.llama_model_default_params())
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch = a.depth + a.prompt + a.gen + 8, a.prompt, a.prompt
    p.type_k = p.type_v = KV_TYPES[a.kv_type]
    p.n_threads = p.n_threads_batch = a.threads
    ctx = L.llama_init_from_model(model, p)
    ids = np.random.default_rng(0).integers(0, L.llama_vocab_n_tokens(L.llama_model_get_vocab(model)), a.prompt)

    def decode(tokens):
        batch = (L.llama_token * len(tokens))(*map(int, tokens))
        if L.llama_decode(ctx, L.llama_batch_get_one(batch, len(tokens))):
            sys.exit("llama_decode failed")
        L.llama_synchronize(ctx)

    def back():
        """To the context that every test starts from; a window's cells are still there, being more than it needs."""
        if not L.llama_memory_seq_rm(L.llama_get_memory(ctx), 0, a.depth, -1):
            sys.exit("llama.cpp cannot go back to the depth")

    for done in range(0, a.depth, a.prompt):
        decode(np.resize(ids, min(a.prompt, a.depth - done)))
    pp, tg = [], []
    for rep in range(4):
        back()
        start = time.perf_counter()
        decode(ids)
        pp.append(a.prompt / (time.perf_counter() - start))
        back()
        decode([1])
        start = time.perf_counter()
        for i in range(a.gen):
            decode([ids[i % len(ids)]])
        tg.append(a.gen / (time.perf_counter() - start))
    print(json.dumps(dict(pp=statistics.median(pp[1:]), tg=statistics.median(tg[1:]), version=L.__version__)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--depth", type=int, default=0, help="tokens that are in the context already")
    p.add_argument("--kv-type", choices=KV_TYPES, default="f16")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.peer:
        return peer(a)
    for model in a.models:
        rows = [(ours(a, model), theirs(a, model)) for _ in range(a.rounds)]
        first, version = rows[0][0], rows[0][1]["version"]
        print(f"{pathlib.Path(model).name}: {first['machine']}, {first['cpu']}, {a.threads} threads, llama-cpp-python {version}")
        at = f" at {a.depth}" if a.depth else ""
        for key, name in (("pp", f"prompt {a.prompt}{at}"), ("tg", f"generation {a.gen}{at}")):
            x, y = [r[0][key] for r in rows], [r[1][key] for r in rows]
            ratios = sorted(i / j for i, j in zip(x, y))
            print(f"  {name:23} infer {statistics.median(x):8.1f} tok/s   llama.cpp {statistics.median(y):8.1f} tok/s   "
                  f"ratio {statistics.median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        gbs = statistics.median(r[0]["gbs"] for r in rows)
        used = statistics.median(r[0]["tg"] for r in rows) * first["bytes"] / 1e9
        print(f"  generation reads {used:.1f} GB/s of {gbs:.1f} measured; peak memory {first['rss']:.0f} MB")


if __name__ == "__main__":
    main()
