"""Writes tests/golden/quants from the gguf package: blocks with their values, rows with their blocks.

    python3 tests/golden/make/quants.py        (gguf 0.19.0, numpy 2.4)
"""
import pathlib

import numpy as np
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES

OUT = pathlib.Path(__file__).parent.parent / "quants"
FORMATS = """F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S
    IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4""".split()
QUANTIZERS = "F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 TQ1_0 TQ2_0 MXFP4".split()
rng = np.random.default_rng(20)


def values(blocks, type_):
    return quants.dequantize(blocks.reshape(-1), type_).astype(np.float32).reshape(-1)


def tame_block(type_, size):
    """Random bytes whose values have the size of weights: for dots and relative errors."""
    while True:
        block = rng.integers(0, 256, size, dtype=np.uint8)
        y = values(block, type_)
        if np.isfinite(y).all() and 1e-4 < np.abs(y).max() < 1e4:
            return block


def blocks_of(name):
    type_ = GGMLQuantizationType[name]
    n, size = GGML_QUANT_SIZES[type_]
    tame = [tame_block(type_, size) for _ in range(1024 // n)]
    wild = [rng.integers(0, 256, size, dtype=np.uint8) for _ in range(512 // n)]
    edge = [np.full(size, byte, np.uint8) for byte in (0, 0x7F, 0x80, 0xFF)]
    blocks = np.concatenate(tame + wild + edge)
    blocks.tofile(OUT / f"{name}.blocks")
    values(blocks, type_).tofile(OUT / f"{name}.f32")


def rows():
    x = rng.standard_normal((9, 256)).astype(np.float32)
    x[1] *= 0.02
    x[2] *= 1e-6          # scales become subnormal halves
    x[3] *= 1000
    x[4] = 0
    x[5] = 1
    x[6] = np.round(x[6] * 2) / 2   # halves: ties
    x[7] = np.abs(x[7])
    x[8, ::32] = 100      # an outlier in each block
    return x


OUT.mkdir(exist_ok=True)
with np.errstate(all="ignore"):
    for name in FORMATS:
        blocks_of(name)
x = rows()
x.tofile(OUT / "rows.f32")
for name in QUANTIZERS:
    np.ascontiguousarray(quants.quantize(x, GGMLQuantizationType[name])).tofile(OUT / f"{name}.quantized")
