#!/usr/bin/env python3
"""Cut a golden model folder down to its first layers, for tests/golden/families.

    cut.py FOLDER OUT N_LAYERS

Keeps what the layers need and the states at their borders, which later layers do not influence. The states come from
the folder's golden.json: [layers + 1, 17, d_model] of transformers in float32. Of models with several residual streams
all layers are kept (N_LAYERS is their number), and the logits instead of states.
"""
import json, pathlib, re, struct, sys
import numpy as np

folder, out, n_layers = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
out.mkdir(parents=True, exist_ok=True)
golden = json.loads((folder / "golden.json").read_text())
config = json.loads((folder / "config.json").read_text())
depth = "n_layer" if "n_layer" in config else "num_hidden_layers"
config[depth] = n_layers
if "layer_types" in config: config["layer_types"] = config["layer_types"][:n_layers]
(out / "config.json").write_text(json.dumps(config, indent=1) + "\n")

data = (folder / "model.safetensors").read_bytes()
n = struct.unpack("<Q", data[:8])[0]
header, parts, at = {}, [], 0
for name, t in json.loads(data[8:8 + n]).items():
    layer = re.search(r"\.(?:layers|h)\.(\d+)\.", name)
    if name == "__metadata__" or (layer and int(layer[1]) >= n_layers): continue
    begin, end = t["data_offsets"]
    header[name] = {**t, "data_offsets": [at, at + end - begin]}
    parts.append(data[8 + n + begin:8 + n + end])
    at += end - begin
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
(out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))

t = golden["tensors"]["hidden_p17"]
hidden = np.fromfile(folder / t["file"], "<f4").reshape(t["shape"])[:n_layers + 1]
shape = [n_layers + 1, *hidden.shape[-2:]]
if hidden.ndim == 3:
    hidden.tofile(out / "hidden.bin")
else:
    (out / "logits.bin").write_bytes((folder / golden["tensors"]["logits_p17"]["file"]).read_bytes())
(out / "golden.json").write_text(json.dumps({"ids": golden["prompts"]["p17"]["ids"], "shape": shape}) + "\n")
