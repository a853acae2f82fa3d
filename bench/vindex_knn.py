#!/usr/bin/env python3
"""Gate KNN and graphs beside numpy, hnswlib and usearch: time ratios, and speed at equal recall.

    bench/vindex_knn.py [--model FILE.gguf] [--threads N ...] [--data NAME ...] [--peers NAME ...]

Ours runs in build/tests/tools/knn_bench (make build/tests/tools/knn_bench). What is looked for are the 10
rows with the largest |row . query|; hnswlib and usearch, which know the largest product alone, are asked
for the query and its negative, and the answers are joined. Recall is of those 10, against all products.
Speed at recall 0.95 is interpolated between two beams (in the logarithm).
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOL = ROOT / "build/tests/tools/knn_bench"
K, TARGET = 10, 0.95
BEAMS = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 640, 1280)


def data(name, rng, n=10240, d=2560, nq=500):
    """Rows and queries that have no structure, or a little."""
    if name == "random":
        return rng.standard_normal((n, d)), rng.standard_normal((nq, d))
    if name == "clustered":
        c = rng.standard_normal((100, d))
        near = lambda m: c[rng.integers(0, 100, m)] + 0.5 * rng.standard_normal((m, d))
        return near(n), near(nq)
    b = rng.standard_normal((32, d))
    return (rng.standard_normal((n, 32)) @ b + 0.3 * rng.standard_normal((n, d)),
            rng.standard_normal((nq, 32)) @ b)


def gates(path, layer, nq=500):
    """A layer's gates, and token embeddings as its FFN would see them: normed."""
    import gguf
    t = {x.name: x for x in gguf.GGUFReader(path).tensors}
    read = lambda name: gguf.quants.dequantize(t[name].data, t[name].tensor_type).astype(np.float32)
    e = read("token_embd.weight")
    e = e[np.random.default_rng(1).choice(len(e), nq, replace=False)]
    e = e / np.sqrt((e ** 2).mean(1, keepdims=True) + 1e-6) * read(f"blk.{layer}.ffn_norm.weight")
    return read(f"blk.{layer}.ffn_gate.weight"), e


def ours(x, q, kind, threads, beams=(), m=16, ef=100):
    with tempfile.TemporaryDirectory() as folder:
        a, b = f"{folder}/x", f"{folder}/q"
        np.ascontiguousarray(x, np.float32).tofile(a)
        np.ascontiguousarray(q, np.float32).tofile(b)
        out = subprocess.run([TOOL, a, *map(str, x.shape), b, str(len(q)), kind, str(threads), str(m),
                              str(ef), *map(str, beams)], check=True, stdout=subprocess.PIPE).stdout
    return [json.loads(line) for line in out.splitlines()]


def best(f, rounds):
    t = []
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        t.append(time.perf_counter() - start)
    return min(t)


def truth(x, q):
    return np.argsort(-np.abs(q @ x.T), axis=1)[:, :K]


def recall(found, right):
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), right.tolist())]))


def join(ids, scores):
    order = np.argsort(-scores, axis=1)[:, :K]
    return np.take_along_axis(ids, order, 1)


def at_target(points):
    """Queries per second at recall TARGET, of (recall, qps) by rising beam; None where never reached."""
    for i, (r, s) in enumerate(points):
        if r < TARGET:
            continue
        if i == 0:
            return s
        r0, s0 = points[i - 1]
        share = (TARGET - r0) / (r - r0)
        return math.exp(math.log(s0) + share * (math.log(s) - math.log(s0)))
    return None


def with_hnswlib(x, q, right, threads):
    import hnswlib
    index = hnswlib.Index("ip", x.shape[1])
    index.init_index(len(x), ef_construction=200, M=16, random_seed=100)
    build = best(lambda: index.add_items(x, num_threads=threads), 1)
    points = []
    for beam in BEAMS:
        index.set_ef(beam)
        answer = []

        def ask():
            answer[:] = [index.knn_query(s * q, K, num_threads=threads) for s in (1, -1)]
        s = len(q) / best(ask, 2)
        found = join(np.hstack([a[0] for a in answer]), np.hstack([1 - a[1] for a in answer]))
        points.append((recall(found.astype(int), right), s))
        if points[-1][0] >= TARGET or s < 100:
            break
    return build, at_target(points), points[-1]


def with_usearch(x, q, right, threads, kind):
    from usearch.index import Index
    index = Index(ndim=x.shape[1], metric="ip", dtype=kind, connectivity=16, expansion_add=128)
    keys = np.arange(len(x))
    build = best(lambda: index.add(keys, x, threads=threads), 1)
    points = []
    for beam in BEAMS:
        index.expansion_search = beam
        answer = []

        def ask():
            answer[:] = [index.search(s * q, K, threads=threads) for s in (1, -1)]
        s = len(q) / best(ask, 2)
        found = join(np.hstack([a.keys for a in answer]), np.hstack([-a.distances for a in answer]))
        points.append((recall(found.astype(int), right), s))
        if points[-1][0] >= TARGET or s < 100:
            break
    return build, at_target(points), points[-1]


def scans(threads, rng):
    print(f"\ngate KNN, 10240 x 2560, {threads} threads, milliseconds (best of many)")
    x, q = (a.astype(np.float32) for a in data("random", rng, nq=64))
    numpy_one = best(lambda: np.argpartition(-np.abs(x @ q[0]), K)[:K], 40)
    numpy_all = best(lambda: np.argpartition(-np.abs(q @ x.T), K, axis=1)[:, :K], 8)
    print(f"{'':8} {'one query':>10} {'ratio':>7} {'64 queries':>11} {'ratio':>7}")
    print(f"{'numpy':8} {numpy_one * 1e3:10.3f} {'':7} {numpy_all * 1e3:11.2f}")
    for kind in ("f32", "f16", "q8_0", "q4_k"):
        r = ours(x, q, kind, threads)[0]
        print(f"{kind:8} {r['one_ms']:10.3f} {numpy_one * 1e3 / r['one_ms']:6.2f}x {r['batch_ms']:11.2f} "
              f"{numpy_all * 1e3 / r['batch_ms']:6.2f}x")


def graphs(name, x, q, threads, peers):
    x, q = x.astype(np.float32), q.astype(np.float32)
    right = truth(x, q)
    rows = ours(x, q, "f32", threads, BEAMS)
    build = next(r["seconds"] for r in rows if r["what"] == "build")
    points = [(r["recall"], r["qps"]) for r in rows if r["what"] == "search"]
    speed = at_target(points)
    print(f"\n{name}, {x.shape[0]} x {x.shape[1]}, {threads} threads: at recall@{K} {TARGET}")

    def line(who, b, s, last):
        text = f"{s:9.0f}" if s else f"(recall {last[0]:.2f} at {last[1]:.0f})"
        print(f"  {who:14} build {b:7.3f} s ({b / build:5.1f}x ours)   queries/s {text}"
              + (f" (ours {speed / s:5.2f}x)" if s and speed else ""), flush=True)
    line("ours", build, speed, points[-1])
    for who, f in peers:
        line(who, *f(x, q, right, threads))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="a GGUF file whose gates are measured too")
    p.add_argument("--layers", type=int, nargs="*", default=[4, 9, 14])
    p.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    p.add_argument("--data", nargs="*", default=["scans", "clustered", "directions", "random"],
                   choices=["scans", "clustered", "directions", "random"], help="what beside the model's gates")
    p.add_argument("--peers", nargs="*", default=["hnswlib", "usearch f32", "usearch f16"])
    p.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    o = p.parse_args()
    if not TOOL.exists():
        sys.exit(f"{TOOL}: not built: make build/tests/tools/knn_bench")
    if not o.one:  # numpy's threads are settled when it is imported
        for n in o.threads:
            args = sys.argv[1:] + ["--one", "--threads", str(n)]
            subprocess.run([sys.executable, __file__, *args], check=True,
                           env={**os.environ, "OPENBLAS_NUM_THREADS": str(n)})
        return
    peers = []
    try:
        import hnswlib  # noqa: F401
        peers.append(("hnswlib", with_hnswlib))
    except ImportError:
        print("hnswlib is not installed: left out")
    try:
        import usearch  # noqa: F401
        peers += [(f"usearch {k}", lambda *a, k=k: with_usearch(*a, k)) for k in ("f32", "f16")]
    except ImportError:
        print("usearch is not installed: left out")
    peers = [x for x in peers if x[0] in o.peers]
    rng = np.random.default_rng(0)
    for threads in o.threads:
        if "scans" in o.data:
            scans(threads, rng)
        for layer in o.layers if o.model else ():
            graphs(f"gates of layer {layer}", *gates(o.model, layer), threads, peers)
        for name in (n for n in o.data if n != "scans"):
            graphs(name, *data(name, rng), threads, peers)


if __name__ == "__main__":
    main()
