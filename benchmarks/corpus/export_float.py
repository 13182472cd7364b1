"""Export the corpus' networks to ONNX, float32, dynamic batch, and write their data beside them.

    python export_float.py OUT      # OUT/<net>.onnx, OUT/<net>.npz

Needs torch and onnxscript.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nets
import numpy as np
import torch


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in nets.NETS:
        made = nets.make(name)
        arrays = {key: value.numpy() for key, value in made.inputs.items()}
        np.savez(out / f"{name}.npz", **arrays)
        batch = torch.export.Dim("batch", min=1, max=256)
        program = torch.onnx.export(
            made.net,
            tuple(value[:8] for value in made.inputs.values()),
            input_names=list(made.inputs),
            output_names=["y"],
            dynamic_shapes=tuple({0: batch} for _ in made.inputs),
            dynamo=True,
        )
        assert program is not None
        program.save(str(out / f"{name}.onnx"))
        print(name, sum(p.numel() for p in made.net.parameters()), "weights", flush=True)


if __name__ == "__main__":
    main()
