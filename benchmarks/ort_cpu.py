"""Times quantized ONNX files on ONNX Runtime's CPU provider beside their float model, in one run.

    python ort_cpu.py FLOAT.onnx CALIB.npz --hand HAND.onnx \\
        --model best=ORT_BEST.onnx --model default=ORT_DEFAULT.onnx

All models take turns, threads pinned (fuseq.targets.onnxruntime.timing), so that clock changes and
neighbours disturb all alike; ``speedup`` is the median over rounds of float time / model time.
``kernels ms`` adds up each kernel's shortest profiled time: what is left when nobody disturbs.
``--hand`` writes and times a placement made by this script: the target's rules, applied to a
convolution net of Conv, Clip, Relu, Add, pooling and Gemm; ranges are minimum and maximum over the
first batch of CALIB.npz. It is what fuseq's planner has to reach.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx_ir as ir

from fuseq.calibration.limits import clip_range, scale_within
from fuseq.calibration.ranges import Range
from fuseq.calibration.scales import activation_scale
from fuseq.formats import UINT8, Format
from fuseq.model import load, profile_for, save
from fuseq.targets.base import KernelType
from fuseq.targets.onnxruntime_cpu import OnnxRuntimeCpu

QUANTIZED = frozenset({"Conv", "Add", "GlobalAveragePool", "Reshape", "Flatten", "MaxPool"})


class HandPlacement:
    """Writes Q/DQ into a convolution net, in place: every tensor between quantized operators."""

    def __init__(self, model: ir.Model, ranges: dict[str, tuple[float, float]], weight: Format):
        self.graph = model.graph
        self.ranges = ranges
        self.weight_format = weight
        self.scale_of: dict[ir.Value, np.ndarray] = {}
        self.pair_of: dict[ir.Value, ir.Value] = {}

    def apply(self) -> None:
        for node in list(self.graph):
            if node.op_type not in QUANTIZED and node.op_type != "Gemm":
                continue
            for index, value in enumerate(node.inputs):
                if value is not None and value.const_value is None:
                    node.replace_input_with(index, self.pair(value))
            if node.op_type in ("Conv", "Gemm"):
                self.store_weight(node)
            if node.op_type != "Gemm":  # QGemm writes float: no pair at the end
                self.quantize_output(node)

    def quantize_output(self, node: ir.Node) -> None:
        value = node.outputs[0]
        readers = [use.node for use in value.uses()]
        if len(readers) == 1 and readers[0].op_type in ("Clip", "Relu"):
            value = readers[0].outputs[0]
        uses = list(value.uses())
        pair = self.pair(value)
        for use in uses:
            use.node.replace_input_with(use.idx, pair)

    def pair(self, value: ir.Value) -> ir.Value:
        """The DequantizeLinear's output for ``value``; made once."""
        producer = value.producer()
        if producer is not None and producer.op_type == "DequantizeLinear":
            return value
        if value not in self.pair_of:
            limits = clip_of(value)
            span = clip_range(Range(*self.ranges[value.name or ""]), limits)
            raw, zero = activation_scale(span.minimum, span.maximum, UINT8)
            scale = scale_within(raw, zero, UINT8, limits)
            constants = [self.constant(scale), self.constant(np.uint8(zero))]
            quantize = ir.node("QuantizeLinear", [value, *constants])
            dequantize = ir.node("DequantizeLinear", [*quantize.outputs, *constants])
            nodes = [quantize, dequantize]
            if producer is None:
                self.graph.insert_before(self.graph[0], nodes)
            else:
                self.graph.insert_after(producer, nodes)
            self.pair_of[value] = dequantize.outputs[0]
            self.scale_of[dequantize.outputs[0]] = np.asarray(scale)
        return self.pair_of[value]

    def store_weight(self, node: ir.Node) -> None:
        data, weight, bias = node.inputs[:3]
        assert data is not None and weight is not None and bias is not None
        assert weight.const_value is not None and bias.const_value is not None
        array, shift = weight.const_value.numpy(), bias.const_value.numpy()
        axis = 0 if node.op_type == "Conv" or node.attributes.get_int("transB", 0) else 1
        others = tuple(place for place in range(array.ndim) if place != axis)
        step = self.scale_of[data]
        # A channel of tiny weights keeps its bias inside 31 bits by a coarser scale.
        scale = np.maximum(
            np.abs(array).max(axis=others) / self.weight_format.qmax, np.abs(shift) / step / 2**30
        ).astype(np.float32)
        in_place = np.expand_dims(scale, others)
        self.dequantized(node, 1, np.rint(array / in_place), scale, axis)
        self.dequantized(node, 2, np.rint(shift / (step * scale)), step * scale, 0)

    def dequantized(
        self, node: ir.Node, index: int, stored: np.ndarray, scale: np.ndarray, axis: int
    ) -> None:
        integers = stored.astype(np.int8 if index == 1 else np.int32)
        # QGemm takes no weight without a zero point.
        arrays = (integers, scale.astype(np.float32), np.zeros_like(integers, shape=scale.shape))
        inputs = [self.constant(array) for array in arrays]
        made = ir.node("DequantizeLinear", inputs, {"axis": axis})
        self.graph.insert_before(node, made)
        node.replace_input_with(index, made.outputs[0])

    def constant(self, array: np.ndarray | np.generic) -> ir.Value:
        tensor = ir.tensor(np.asarray(array), name=f"hand_{len(self.graph.initializers)}")
        value = ir.val(tensor.name, const_value=tensor)
        self.graph.register_initializer(value)
        return value


def clip_of(value: ir.Value) -> tuple[float | None, float | None]:
    """Ends of the Clip or Relu that writes ``value``."""
    node = value.producer()
    if node is None or node.op_type not in ("Clip", "Relu"):
        return None, None
    if node.op_type == "Relu":
        return 0.0, None
    low, high = (end.const_value if end is not None else None for end in node.inputs[1:3])
    return (
        float(low.numpy()) if low is not None else None,
        float(high.numpy()) if high is not None else None,
    )


def pool_by_name(model: ir.Model) -> None:
    """Write ReduceMean over height and width as GlobalAveragePool, which has an integer kernel."""
    for node in list(model.graph):
        axes = node.inputs[1].const_value if node.op_type == "ReduceMean" else None
        if axes is not None and sorted(axes.numpy() % 4) == [2, 3]:
            pool = ir.node("GlobalAveragePool", [node.inputs[0]], name=node.name)
            pool.outputs[0].name = node.outputs[0].name
            model.graph.insert_before(node, pool)
            node.outputs[0].replace_all_uses_with(pool.outputs[0])
            model.graph.remove(node, safe=True)


def ranges_of(
    model: ir.Model, feeds: dict[str, np.ndarray], target: OnnxRuntimeCpu
) -> dict[str, tuple[float, float]]:
    """Minimum and maximum of every tensor over one batch."""
    watched = model.clone()
    present = {value.name for value in watched.graph.outputs}
    for node in watched.graph:
        value = node.outputs[0]
        if value.name not in present and value.dtype in (None, ir.DataType.FLOAT):
            value.dtype = ir.DataType.FLOAT
            watched.graph.outputs.append(value)
    tensors = {**feeds, **target.run(watched, feeds)}
    return {name: (float(array.min()), float(array.max())) for name, array in tensors.items()}


def write_hand(source: Path, feeds: dict[str, np.ndarray], out: Path) -> None:
    target = OnnxRuntimeCpu()
    model = load(source)
    pool_by_name(model)
    _, weight = target.storage_formats("int8")
    HandPlacement(model, ranges_of(model, feeds, target), weight).apply()
    save(model, out)


def table(
    files: dict[str, Path], feeds: dict[str, np.ndarray], options: argparse.Namespace
) -> None:
    target = OnnxRuntimeCpu(threads=options.threads)
    timings = target.time(files, feeds, seconds=options.seconds)
    print(f"{options.threads} threads, batch {options.batch}, {timings[0].rounds} rounds")
    print("| model | kernels | Q | DQ | kernels ms | median ms | best ms | speedup |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for timing in timings:
        model = load(files[timing.name])
        engine = target.compile(model, profile_for(model, options.batch), feeds=feeds)
        counts = [
            sum(kernel.type is kind for kernel in engine.kernels)
            for kind in (KernelType.QUANTIZE, KernelType.DEQUANTIZE)
        ]
        kernels_ms = sum(kernel.measured_us or 0.0 for kernel in engine.kernels) / 1e3
        print(
            f"| {timing.name} | {len(engine.kernels)} | {counts[0]} | {counts[1]} | {kernels_ms:.1f} "
            f"| {timing.median_ms:.1f} | {timing.best_ms:.1f} | {timing.speedup:.3f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("float_model", type=Path)
    parser.add_argument("data", type=Path, help=".npz of named inputs")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--hand", type=Path, help="write and time the hand-made placement")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with np.load(options.data) as arrays:
        feeds = {name: arrays[name][: options.batch] for name in arrays.files}
    files = {"float": options.float_model}
    if options.hand is not None:
        write_hand(options.float_model, feeds, options.hand)
        files["hand"] = options.hand
    files.update((name, Path(file)) for name, _, file in (m.partition("=") for m in options.model))
    table(files, feeds, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
