"""ModelOpt FP8 checkpoints to engines: its own ONNX export, `fuseq fix` on that, and `modelopt_to_onnx`.

    modelopt/bin/python other_tools/modelopt_clip.py CLIP --layers 2
    fuseq/bin/python modelopt_checkpoint.py CLIP --target tensorrt-rtx:sm89 --batch 8

One row a way: kernels, kernels that only quantize or convert, activation MB (10^6 bytes), predicted us.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from fuseq import FuseqError, QuantizeOptions, compile_model, fix
from fuseq.targets.base import Engine
from fuseq.torch.load_modelopt import modelopt_to_onnx


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--target", default="tensorrt-rtx:sm89")
    arguments.add_argument("--batch", type=int, default=8)
    chosen = arguments.parse_args()
    options = QuantizeOptions(format="fp8", target=chosen.target, batch=chosen.batch)
    print("| encoder | way | kernels | alone | activation MB | predicted us | attention in |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in ("image", "text"):
        rows(name, chosen.folder, options)


def rows(name: str, folder: Path, options: QuantizeOptions) -> None:
    exported = folder / f"{name}.onnx"
    show(name, "ModelOpt's export", lambda: _compile(exported, options))
    show(name, "the same, `fuseq fix`", lambda: fix(exported, options=options).engine)
    for kind in (name, f"{name}_unified"):
        if (folder / kind).is_dir():
            fixed = modelopt_to_onnx(folder / kind, folder / f"{kind}_fuseq.onnx", options=options)
            show(name, f"checkpoint {kind}", lambda engine=fixed.engine: engine)
            show(name, f"checkpoint {kind}, float", lambda engine=fixed.float_engine: engine)
            for note in fixed.notes:
                print(f"    {note}")


def _compile(file: Path, options: QuantizeOptions) -> Engine:
    return compile_model(file, target=options.target, batch=options.batch)


def show(name: str, way: str, make: Callable[[], Engine | None]) -> None:
    try:
        engine = make()
    except FuseqError as error:
        print(f"| {name} | {way} | {error} |")
        return
    if engine is None:
        print(f"| {name} | {way} | nothing compiles here |")
        return
    attention = {k.compute_dtype for k in engine.kernels if k.type.value == "attention"}
    print(
        f"| {name} | {way} | {len(engine.kernels)} | {len(engine.alone)} | "
        f"{engine.activation_bytes / 1e6:.1f} | {engine.predicted_us:.1f} | "
        f"{', '.join(sorted(attention)) or 'none fused'} |"
    )


if __name__ == "__main__":
    main()
