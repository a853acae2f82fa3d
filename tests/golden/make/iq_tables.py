"""Writes src/compute/quant_iq_tables.c from the grids of the gguf package.

    python3 tests/golden/make/iq_tables.py > src/compute/quant_iq_tables.c      (gguf 0.19.0)
"""
import numpy as np
from gguf import quants


def words(cls):
    cls.init_grid()
    grid = cls.grid.reshape(cls.grid_shape)
    index = np.searchsorted(cls.grid_map, grid)  # the maps ascend
    bits = 16 // grid.shape[1]
    return (index.astype(np.uint32) << (bits * np.arange(grid.shape[1], dtype=np.uint32))).sum(axis=1)


print("""/*
 * quant_iq_tables.c: the grids of the IQ1, IQ2 and IQ3 formats; quant_iq.h says how a word is read.
 *
 * Constants of the formats, made by ggml's authors (MIT licence, see NOTICE). Written by
 * tests/golden/make/iq_tables.py: edit that.
 */
#include "compute/quant_iq.h"

// clang-format off""")
for cls, name in [(quants.IQ1_S, "iq1"), (quants.IQ2_XXS, "iq2_xxs"), (quants.IQ2_XS, "iq2_xs"),
                  (quants.IQ2_S, "iq2_s"), (quants.IQ3_XXS, "iq3_xxs"), (quants.IQ3_S, "iq3_s")]:
    table = words(cls)
    print(f"\nconst uint16_t {name}_grid[{len(table)}] = {{")
    for i in range(0, len(table), 12):
        print("    " + " ".join(f"0x{w:04x}," for w in table[i:i + 12]))
    print("};")
