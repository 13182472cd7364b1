"""Profiles: from trtexec's files with exact values, from the CPU, and predicted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from fuseq.compiling import compile_model
from fuseq.errors import OptionError, TargetError
from fuseq.evaluate.profile import ProfileOptions, Source, profile
from fuseq.evaluate.profile_engines import with_times
from fuseq.evaluate.profile_modules import engine_modules, node_modules
from fuseq.report.profile import profile_document
from fuseq.report.shares import by_precision, by_type, shares
from fuseq.targets.base import Engine, Kernel, KernelType, TensorInfo
from fuseq.targets.engine_runtime.cuda import gpu_missing
from fuseq.targets.trtexec_times import read_times
from tests.graphs import from_text, named, normal

ROOT = Path(__file__).resolve().parents[2]
TREX = Path(
    os.environ.get("FUSEQ_TREX_DATA", ROOT.parent / "shared" / "data" / "trt-engine-explorer")
)
needs_trex = pytest.mark.skipif(not TREX.is_dir(), reason=f"no TREx engines at {TREX}")


def layer(name: str, kind: str, source: tuple[str, str], result: tuple[str, str]) -> dict[str, Any]:
    def tensor(named_type: tuple[str, str]) -> dict[str, Any]:
        return {
            "Name": named_type[0],
            "Dimensions": [8, 64, 56, 56],
            "Format/Datatype": f"Row major linear {named_type[1]}",
        }

    record = {
        "Name": name,
        "LayerType": kind,
        "Inputs": [tensor(source)],
        "Outputs": [tensor(result)],
    }
    if kind == "CaskConvolution":
        record |= {"ParameterType": "Convolution", "Kernel": [3, 3], "OutMaps": 64, "Groups": 1}
    return record


LAYERS = [
    layer("QuantizeLinear_2", "Reformat", ("x", "FP32"), ("x8", "Int8 format")),
    layer(
        "stem.conv.weight + QuantizeLinear_7 + Conv_9",
        "CaskConvolution",
        ("x8", "Int8 format"),
        ("a", "FP16 format"),
    ),
    layer("MaxPool_12", "CaskPooling", ("a", "FP16 format"), ("p", "FP16 format")),
    layer("QuantizeLinear_15", "Reformat", ("p", "FP16 format"), ("p8", "Int8 format")),
    layer(
        "layer1.0.conv1.weight + QuantizeLinear_20 + Conv_22",
        "CaskConvolution",
        ("p8", "Int8 format"),
        ("y", "FP16 format"),
    ),
]
TIMES_US = (61.44, 201.728, 95.232, 27.648, 32.768)


@pytest.fixture
def engine_files(tmp_path: Path) -> tuple[str, str]:
    graph, times = tmp_path / "graph.json", tmp_path / "profile.json"
    graph.write_text(json.dumps({"Layers": LAYERS, "Bindings": ["x", "y"]}))
    rows: list[dict[str, Any]] = [{"count": 7}]
    rows += [
        {"name": record["Name"], "averageMs": us / 1e3}
        for record, us in zip(LAYERS, TIMES_US, strict=True)
    ]
    times.write_text(json.dumps(rows))
    return str(graph), str(times)


def test_trtexec_files_by_type_precision_and_module(engine_files) -> None:  # type: ignore[no-untyped-def]
    graph, times = engine_files
    document = profile_document(profile(Source(graph, times)))
    (engine,) = document.engines
    assert engine.name == "quantized"
    assert engine.measured_us == pytest.approx(sum(TIMES_US))
    assert document.missing == ()
    kinds = {share.key: round(share.time_us, 3) for share in shares(engine, by_type)}
    assert kinds == {"convolution": 234.496, "pool": 95.232, "quantize": 89.088}
    precisions = {share.key: round(share.time_us, 3) for share in shares(engine, by_precision)}
    assert precisions == {"int8": 234.496, "Q/DQ and casts": 89.088, "fp16": 95.232}
    modules = {row.path: round(row.quantized_us or 0.0, 3) for row in document.modules}
    # each Q belongs to the convolution that reads it; the pool to no module that is known
    assert modules == {
        "": 418.816,
        "stem": 263.168,
        "stem.conv": 263.168,
        "layer1": 60.416,
        "layer1.0": 60.416,
        "layer1.0.conv1": 60.416,
    }
    assert all(row.measured for row in document.modules)


def test_without_a_profile_nothing_is_measured(engine_files) -> None:  # type: ignore[no-untyped-def]
    document = profile_document(profile(Source(engine_files[0])))
    assert document.engines[0].measured_us is None
    assert document.missing == ("graph.json: no --profile was given, so no kernel was timed.",)


def test_whole_inferences_stand_beside_the_layers(engine_files, tmp_path) -> None:  # type: ignore[no-untyped-def]
    runs = [
        {"computeMs": ms, "latencyMs": ms + 0.5, "startH2dMs": 10.0 * i, "endD2hMs": 10.0 * i + 5}
        for i, ms in enumerate((0.9, 0.8, 1.2))
    ]
    times = tmp_path / "times.json"
    times.write_text(json.dumps(runs))
    found = profile(Source(*engine_files, str(times)))
    assert found.engine_ms == 0.9
    (timing,) = profile_document(found).timings
    assert (timing.engine, timing.what, timing.runner) == ("quantized", "device", "trtexec")
    assert (timing.min_ms, timing.median_ms, timing.max_ms) == (0.8, 0.9, 1.2)
    assert timing.iterations == 3
    assert timing.throughput_per_s == pytest.approx(3e3 / 25.0)
    assert read_times(times).host_ms == (1.4, 1.3, 1.7)


def test_files_that_hold_no_times_are_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "t.json"
    for text, words in (
        ("{}", "holds no times"),
        ("[1, 2]", "holds no times"),
        ("[{}]", "computeMs or averageMs"),
        ('[{"computeMs": "x"}]', "'computeMs' is a str"),
        ('[{"computeMs": -1}]', "a number from 0 to"),
        ("nothing", "not the JSON"),
        ('{"performance_summary": {}}', "GPU Compute Time is not a list"),
    ):
        file.write_text(text)
        with pytest.raises(TargetError, match=words):
            read_times(file)


def test_an_onnx_file_takes_no_trtexec_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(OptionError, match="not with an ONNX file"):
        profile(Source("m.onnx", profile="p.json"))
    with pytest.raises(OptionError, match="--runs 0"):
        profile(Source("m.onnx"), ProfileOptions(runs=0))


@pytest.fixture
def two_blocks() -> ir.Model:
    """Two linear blocks; the first carries scopes, the second only its weight's name."""
    model = named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            g (float[4, 64] x) => (float[4, 64] y) {
              a = MatMul(x, w)  r = Relu(a)  t = Transpose <perm = [1, 0]> (v)  y = MatMul(r, t) }""",
            w=normal(64, 64),
            v=normal(64, 64, seed=1),
        )
    )
    scopes = "['', 'encoder.layers.0', 'encoder.layers.0.fc1', 'matmul']"
    for node in list(model.graph)[:2]:
        node.metadata_props["pkg.torch.onnx.name_scopes"] = scopes
    weight = model.graph.initializers.pop("v")
    weight.name = "encoder.layers.1.fc2.weight"
    model.graph.initializers[weight.name] = weight
    return model


def test_modules_of_nodes_from_scopes_weights_and_names(two_blocks) -> None:  # type: ignore[no-untyped-def]
    second = two_blocks.graph[-1]
    assert node_modules(two_blocks)[second.name] == "encoder.layers.1.fc2"
    assert node_modules(two_blocks)[two_blocks.graph[0].name] == "encoder.layers.0.fc1"
    two_blocks.graph[1].metadata_props.clear()
    two_blocks.graph[1].name = "/layer1/layer1.0/conv1/Relu"
    assert node_modules(two_blocks)["/layer1/layer1.0/conv1/Relu"] == "layer1.0.conv1"


def test_a_chain_of_conversions_belongs_to_its_reader() -> None:
    def carrier(name: str, source: str, result: str, kind: KernelType) -> Kernel:
        tensors = [TensorInfo(tensor, (4,), "fp16", 8) for tensor in (source, result)]
        return Kernel(name, kind, "", (tensors[0],), (tensors[1],), nodes=(name,))

    engine = Engine(
        "t",
        (
            carrier("a.conv.weight", "x", "a", KernelType.CONVOLUTION),
            carrier("cast", "a", "b", KernelType.CAST),
            carrier("quantize", "b", "c", KernelType.QUANTIZE),
            carrier("b.conv.weight", "c", "d", KernelType.CONVOLUTION),
            carrier("relu", "d", "e", KernelType.ELEMENTWISE),
            carrier("move", "e", "f", KernelType.MOVE),
            carrier("last", "d", "g", KernelType.DEQUANTIZE),
        ),
    )
    assert engine_modules(engine) == {
        "a.conv.weight": "a.conv",
        "cast": "b.conv",
        "quantize": "b.conv",
        "b.conv.weight": "b.conv",
        "last": "b.conv",  # nothing reads it: its writer's
    }


def test_the_cpu_is_measured_kernel_by_kernel(two_blocks, tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "m.onnx"
    ir.save(two_blocks, file)
    found = profile(Source(str(file)), ProfileOptions(runs=2))
    document = profile_document(found)
    assert found.measured
    assert not found.is_quantized
    assert document.engines[0].name == "float"
    assert document.missing == ()
    rows = {row.path: row for row in document.modules}
    assert {"encoder.layers.0.fc1", "encoder.layers.1.fc2"} <= set(rows)
    assert rows[""].float_us == pytest.approx(document.engines[0].measured_us)
    assert rows["encoder"].float_us == pytest.approx(
        (rows["encoder.layers.0"].float_us or 0) + (rows["encoder.layers.1"].float_us or 0)
    )


def test_a_gpu_target_is_predicted_and_said_to_be(two_blocks, tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "m.onnx"
    ir.save(two_blocks, file)
    found = profile(Source(str(file)), ProfileOptions(target="tensorrt:sm80"))
    document = profile_document(found)
    assert not found.measured
    assert document.engines[0].measured_us is None
    assert document.engines[0].predicted_us == found.engine.predicted_us > 0
    assert document.missing == ("m.onnx: no GPU here, so no kernel was timed.",)


def test_a_profilers_times_go_to_the_kernels_of_their_names(two_blocks) -> None:  # type: ignore[no-untyped-def]
    engine = compile_model(two_blocks, "tensorrt:sm80")
    names = [kernel.name for kernel in engine.kernels]
    timed = with_times(engine, {names[0]: 4.5, "elsewhere": 2.25})
    assert timed.kernels[0].measured_us == 4.5
    assert all(kernel.measured_us is None for kernel in timed.kernels[1:])
    assert timed.measured_us == 4.5
    assert timed.notes[-1] == (
        "layers that the profiler timed and the compiler did not list: 1, 2.2 us in all"
    )


@pytest.mark.skipif(gpu_missing() is None, reason="there is a GPU")
def test_an_engine_file_needs_a_gpu(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "m.plan"
    file.write_bytes(b"ftrt" + bytes(60))
    with pytest.raises(TargetError, match="an engine runs on a GPU, and there is no GPU here"):
        profile(Source(str(file)))


# NVIDIA/TensorRT, tools/experimental/trt-engine-explorer, examples/pytorch/resnet/A100: ResNet-18,
# batch 32, on an A100 (docs/cost-model.md).

MEDIAN_MS = {
    "fp32": 1.991,
    "fp16": 0.862,
    "qat": 0.883,
    "qat-residual": 0.546,
    "qat-residual-qgap": 0.500,
}


def trex(name: str) -> Source:
    stem = TREX / f"resnet18-a100-{name}"
    return Source(f"{stem}.graph.json", f"{stem}.profile.json", f"{stem}.profile.metadata.json")


@needs_trex
@pytest.mark.parametrize("name", MEDIAN_MS)
def test_a100_totals_are_the_measured_ones(name: str) -> None:
    source = trex(name)
    found = profile(source)
    rows = json.loads(Path(source.profile or "").read_text())[1:]
    layers_us = sum(1e3 * row["averageMs"] for row in rows)
    document = profile_document(found)
    assert document.engines[0].measured_us == pytest.approx(layers_us, rel=1e-9)
    assert document.timings[0].median_ms == pytest.approx(MEDIAN_MS[name], abs=5e-4)
    assert sum(share.time_us for share in shares(document.engines[0], by_type)) == pytest.approx(
        layers_us, rel=1e-9
    )


@needs_trex
def test_a100_naive_qat_spends_a_fifth_of_its_time_in_ten_quantize_layers() -> None:
    engine = profile_document(profile(trex("qat")), profile(trex("fp16"))).engines[1]
    alone = sorted(
        (kernel for kernel in engine.kernels if kernel.type == "quantize"),
        key=lambda kernel: -(kernel.measured_us or 0),
    )
    assert [
        (kernel.name, round(kernel.measured_us or 0, 3), kernel.module) for kernel in alone
    ] == [
        ("QuantizeLinear_2", 61.44, "conv1"),
        ("QuantizeLinear_15", 27.648, "layer1.0.conv1"),
        ("QuantizeLinear_40", 27.648, "layer1.1.conv1"),
        ("QuantizeLinear_65", 27.648, "layer2.0.conv1"),
        ("QuantizeLinear_101", 18.432, "layer2.1.conv1"),
        ("QuantizeLinear_126", 18.432, "layer3.0.conv1"),
        ("QuantizeLinear_187", 15.36, "layer4.0.conv1"),
        ("QuantizeLinear_162", 14.336, "layer3.1.conv1"),
        ("QuantizeLinear_223", 14.336, "layer4.1.conv1"),
        ("QuantizeLinear_250", 7.168, "fc"),
    ]
    (share,) = [share for share in shares(engine, by_type) if share.key == "quantize"]
    assert share.part == pytest.approx(0.2121, abs=1e-4)
