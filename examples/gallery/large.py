"""A transformer of over 2 GB, the limit of a protobuf message: quantized in little more memory than its size.

    python examples/gallery/large.py --out gallery-out      # 2.6 GB of disk for the float file

Random weights, written layer by layer beside the ONNX file and never all in memory. The quantization runs in a
process of its own, whose largest resident memory is what is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import fuseq
from rows import Feeds, outputs_of

LAYERS, WIDTH, HEADS, LENGTH = 13, 2048, 16, 32
TARGET = "tensorrt:sm89"


def main() -> int:
    """Write the model, quantize it in another process, print and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gallery-out"))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--quantize", help=argparse.SUPPRESS, choices=("int8", "fp8"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "large.onnx"
    if options.quantize:
        return quantize_here(file, options.width, options.quantize)
    write(file, options.layers, options.width)
    rows = [row(file, options.width, number_format) for number_format in ("int8", "fp8")]
    (options.out / "large.json").write_text(json.dumps(rows, indent=1))
    (options.out / "large.md").write_text(table(rows))
    print(table(rows))
    return 0


def row(file: Path, width: int, number_format: str) -> dict[str, Any]:
    """Quantize in a process of its own; sizes in GB (10^9 bytes), memory of that process alone."""
    script = [sys.executable, __file__, "--out", str(file.parent), "--width", str(width)]
    started = time.perf_counter()
    child = subprocess.Popen([*script, "--quantize", number_format], stdout=subprocess.PIPE)
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"quantizing to {number_format} ended with code {child.returncode}")
    made = quantized_file(file, number_format)
    peak = usage.ru_maxrss * 1024 / 1e9
    return {
        "format": number_format,
        **json.loads(said.splitlines()[-1]),
        "float_gb": size_gb(file),
        "file_gb": size_gb(made),
        "peak_gb": peak,
        "times_its_size": peak / size_gb(file),
        "seconds": time.perf_counter() - started,
        "cosine": cosine(file, made, width),
    }


def quantize_here(file: Path, width: int, number_format: str) -> int:
    """What the child does: one call of fuseq; prints what was decided."""
    options = fuseq.QuantizeOptions(
        format=number_format, target=TARGET, shapes={"x": (1, LENGTH, width)}
    )
    made = fuseq.quantize(
        file, quantized_file(file, number_format), calib=data(4, width, seed=1), options=options
    )
    assert made.engine is not None and made.float_engine is not None
    print(json.dumps({
        "quantized": f"{sum(r.quantized for r in made.plan.regions)} of {len(made.plan.regions)}",
        "kernels": len(made.engine.kernels),
        "alone": len(made.engine.alone),
        "float_us": made.float_engine.predicted_us,
        "time_us": made.engine.predicted_us,
    }))  # fmt: skip
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    """For a page."""
    heads = ("", "quantized", "kernels", "alone", "float GB", "file GB", "peak GB", "times its size",
             "seconds", "float / this", "cosine")  # fmt: skip
    lines = [" | ".join(heads), " | ".join(["---"] + ["---:"] * (len(heads) - 1))]
    for one in rows:
        cells = [one["format"].upper(), one["quantized"], one["kernels"], one["alone"]]
        cells += [f"{one[k]:.2f}" for k in ("float_gb", "file_gb", "peak_gb", "times_its_size")]
        gain = one["float_us"] / one["time_us"]
        cells += [f"{one['seconds']:.0f}", f"{gain:.2f}", f"{one['cosine']:.4f}"]
        lines.append(" | ".join(map(str, cells)))
    return "".join(f"| {line} |\n" for line in lines)


def write(file: Path, layers: int, width: int) -> None:
    """Write a pre-norm transformer with its weights in ``<name>.onnx.data``, one at a time."""
    weights: list[onnx.TensorProto] = []
    with file.with_name(file.name + ".data").open("wb") as stream:
        for name, array in _weights(layers, width):
            tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", file.name + ".data"), ("offset", stream.tell()),
                               ("length", array.nbytes)):  # fmt: skip
                tensor.external_data.add(key=key, value=str(value))
            stream.write(array.tobytes())
            weights.append(tensor)
    integers = {"split": [0, LENGTH, HEADS, width // HEADS], "join": [0, LENGTH, width]}
    weights += [helper.make_tensor(k, TensorProto.INT64, [len(v)], v) for k, v in integers.items()]
    scale = float((width // HEADS) ** -0.5)
    weights.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [scale]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", LENGTH, width])
        for name in ("x", "y")
    ]
    nodes = [node for index in range(layers) for node in _layer(index, index == layers - 1)]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], weights)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), file)


def _weights(layers: int, width: int) -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    shapes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width),
              "up": (width, 4 * width), "down": (4 * width, width)}  # fmt: skip
    for index in range(layers):
        for name, shape in shapes.items():
            array = rng.standard_normal(shape, np.float32)
            array *= np.float32(shape[0] ** -0.5)
            yield f"{index}.{name}", array
        for norm in ("norm1", "norm2"):
            yield f"{index}.{norm}", np.ones(width, np.float32)


def _layer(index: int, last: bool) -> Iterator[onnx.NodeProto]:
    """Attention and two linear layers with GELU, each added to what came in."""
    name = f"{index}.".__add__
    before, after = ("x" if index == 0 else f"{index - 1}.y"), ("y" if last else name("y"))

    def node(op: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], name=f"/{index}/{output}", **attributes)

    yield node("LayerNormalization", [before, name("norm1")], name("n1"))
    for one in "qkv":
        yield node("MatMul", [name("n1"), name(one)], name(one + "_flat"))
        yield node("Reshape", [name(one + "_flat"), "split"], name(one + "_split"))
        turned = [0, 2, 3, 1] if one == "k" else [0, 2, 1, 3]
        yield node("Transpose", [name(one + "_split")], name(one + "_heads"), perm=turned)
    yield node("MatMul", [name("q_heads"), name("k_heads")], name("scores"))
    yield node("Mul", [name("scores"), "scale"], name("scaled"))
    yield node("Softmax", [name("scaled")], name("shares"), axis=-1)
    yield node("MatMul", [name("shares"), name("v_heads")], name("mixed"))
    yield node("Transpose", [name("mixed")], name("mixed_back"), perm=[0, 2, 1, 3])
    yield node("Reshape", [name("mixed_back"), "join"], name("joined"))
    yield node("MatMul", [name("joined"), name("o")], name("attended"))
    yield node("Add", [before, name("attended")], name("middle"))
    yield node("LayerNormalization", [name("middle"), name("norm2")], name("n2"))
    yield node("MatMul", [name("n2"), name("up")], name("wide"))
    yield node("Gelu", [name("wide")], name("bent"))
    yield node("MatMul", [name("bent"), name("down")], name("narrow"))
    yield node("Add", [name("middle"), name("narrow")], after)


def data(count: int, width: int, seed: int) -> list[Feeds]:
    """Batches of one sequence, float32 [1, 32, width], standard normal."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((1, LENGTH, width), np.float32)} for _ in range(count)]


def cosine(file: Path, other: Path, width: int) -> float:
    """Mean cosine of the two files' outputs, a token at a time, on two other sequences."""
    feeds = data(2, width, seed=2)
    one, two = (
        np.concatenate([out["y"] for out in outputs_of(name, feeds, as_written=name is other)])
        for name in (file, other)
    )
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1)
    return float(((one * two).sum(-1) / lengths).mean())


def quantized_file(file: Path, number_format: str) -> Path:
    """Where the quantized file lies."""
    return file.with_name(f"large.{number_format}.onnx")


def size_gb(file: Path) -> float:
    """Of the file and its external data."""
    both = (file, file.with_name(file.name + ".data"))
    return sum(one.stat().st_size for one in both if one.is_file()) / 1e9


if __name__ == "__main__":
    sys.exit(main())
