"""Layer lists and profiles of trtexec, in the spellings of TensorRT 8, 10 and 11, and damaged ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseq.errors import TargetError
from fuseq.targets.base import KernelType, TensorInfo
from fuseq.targets.layer_formats import dtype_of, stored_bytes
from fuseq.targets.layer_info import (
    ProfileMetadata,
    read_engine,
    read_profile,
    read_profile_metadata,
)

INT8_32 = "Thirty-two wide channel vectorized row major Int8 format"


def tensor(name: str, shape: list[int], layout: str) -> dict[str, Any]:
    return {"Name": name, "Dimensions": shape, "Format/Datatype": layout}


def reformat(name: str, source: dict[str, Any], result: dict[str, Any], **more: Any) -> Any:
    return {
        "Name": name,
        "LayerType": "Reformat",
        "Inputs": [source],
        "Outputs": [result],
        "ParameterType": "Reformat",
        **more,
    }


CONVOLUTION = {
    "Name": "conv1.weight + QuantizeLinear_7 + Conv_9",
    "LayerType": "CaskConvolution",
    "Inputs": [tensor("x8", [8, 48, 56, 56], INT8_32)],
    "Outputs": [tensor("y", [8, 64, 28, 28], "Channel major FP16 format where channel % 8 == 0")],
    "ParameterType": "Convolution",
    "Kernel": [3, 3],
    "Stride": [2, 2],
    "OutMaps": 64,
    "Groups": 1,
    "Weights": {"Type": "Int8", "Count": 27648},
    "Bias": {"Type": "Float", "Count": 64},
    "TacticName": "sm80_xmma_fprop_implicit_gemm_interleaved_i8f16",
}


def write(folder: Path, document: object, name: str = "graph.json") -> Path:
    file = folder / name
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def test_tensorrt_8_list_with_profile(tmp_path: Path) -> None:
    layers = [
        reformat(
            "QuantizeLinear_2",
            tensor("x", [8, 48, 56, 56], "Row major linear FP32"),
            tensor("x8", [8, 48, 56, 56], INT8_32),
            Origin="QDQ",
        ),
        CONVOLUTION,
    ]
    graph = write(tmp_path, {"Layers": layers, "Bindings": ["x", "y"]})
    rows: list[dict[str, Any]] = [{"count": 3}]
    rows += [
        {"name": layer["Name"], "timeMs": 3 * time, "averageMs": time, "medianMs": time}
        for layer, time in zip(layers, (0.02, 0.05), strict=True)
    ]
    engine = read_engine(graph, write(tmp_path, rows, "profile.json"))
    quantize, convolution = engine.kernels
    assert quantize.type is KernelType.QUANTIZE
    assert quantize.is_alone
    assert quantize.inputs == (TensorInfo("x", (8, 48, 56, 56), "fp32", 8 * 48 * 56 * 56 * 4),)
    assert quantize.outputs == (TensorInfo("x8", (8, 48, 56, 56), "int8", 8 * 64 * 56 * 56),)
    assert convolution.type is KernelType.CONVOLUTION
    assert convolution.compute_dtype == "int8"
    assert convolution.flops == 2 * 8 * 64 * 28 * 28 * 48 * 9
    assert convolution.weights_bytes == 27648 + 4 * 64
    assert convolution.nodes == ("conv1.weight", "QuantizeLinear_7", "Conv_9")
    assert convolution.measured_us == pytest.approx(50.0)
    assert quantize.measured_us == pytest.approx(20.0)
    assert engine.activation_bytes == 8 * 56 * 56 * (48 * 4 + 64 + 64) + 8 * 64 * 28 * 28 * 2


def test_tensorrt_10_generated_kernels_and_constants(tmp_path: Path) -> None:
    gemm = {
        "Name": "matMul1_myl0_1",
        "LayerType": "gemm",
        "Inputs": [
            tensor("h", [4, 77, 512], "Half"),
            tensor("w", [512, 2048], "Half"),
            tensor("alpha", [1], "Float"),
        ],
        "Outputs": [tensor("y", [4, 77, 2048], "Half")],
        "TacticName": "sm80_xmma_gemm_f16f16_f16f32_f32_nn_n_tilesize128x128x32",
        "StreamId": 0,
        "Metadata": "[ONNX Layer: /fc/MatMul]\x1f[ONNX Layer: /fc/Add]\x1f[ONNX Layer: /fc/Add]",
    }
    norm = {
        "Name": "__myl_LayerNorm_myl0_0",
        "LayerType": "kgen",
        "Inputs": [tensor("x", [4, 77, 512], "Float")],
        "Outputs": [tensor("h", [4, 77, 512], "Half")],
    }
    document = json.dumps({"Layers": [norm, gemm], "Bindings": ["x", "y"]}).replace(
        "\\u001f", "\x1f"
    )
    kernels = read_engine(write(tmp_path, document)).kernels
    assert [kernel.type for kernel in kernels] == [KernelType.NORMALIZATION, KernelType.GEMM]
    assert kernels[1].flops == 2 * 4 * 77 * 2048 * 512
    assert kernels[1].weights_bytes == 512 * 2048 * 2 + 4
    assert [item.name for item in kernels[1].inputs] == ["h"]
    assert kernels[1].compute_dtype == "fp16"
    assert kernels[1].nodes == ("/fc/MatMul", "/fc/Add")
    assert kernels[0].nodes == ("__myl_LayerNorm_myl0_0",)
    assert kernels[0].measured_us is None


def test_tensorrt_11_split_types_and_io_tensors(tmp_path: Path) -> None:
    def split(name: str, shape: list[int], dtype: str, strides: list[int]) -> dict[str, Any]:
        return {
            "Name": name,
            "Dimensions": shape,
            "Strides": strides,
            "Datatype": dtype,
            "Format": "Row major linear FP16 format (kLINEAR)",
        }

    layer = {
        "Name": "_gemm_mha_v2_myl0_3",
        "LayerType": "kgen",
        "Inputs": [
            split("q", [16, 257, 64], "FP8", [257 * 192, 192, 1]),  # a slice of Q, K, V
            split("k", [16, 257, 64], "FP8", [257 * 192, 192, 1]),
            split("v", [16, 257, 64], "FP8", [257 * 192, 192, 1]),
        ],
        "Outputs": [split("y", [16, 257, 60], "BFloat16", [257 * 64, 64, 1])],  # padded to 64
    }
    io = [{"Name": name, "IOMode": "Input", "DataType": "FP8"} for name in ("q", "k", "v")]
    kernel = read_engine(write(tmp_path, {"Layers": [layer], "I/O Tensors": io})).kernels[0]
    assert kernel.type is KernelType.ATTENTION
    assert kernel.compute_dtype == "fp8"
    assert kernel.flops == 4 * 16 * 257 * 257 * 64
    assert [item.nbytes for item in kernel.inputs] == [16 * 257 * 64] * 3
    assert kernel.outputs[0] == TensorInfo("y", (16, 257, 60), "bf16", 16 * 257 * 64 * 2)


def test_k97_layers_without_outputs(tmp_path: Path) -> None:
    station = {"Name": "[trainStation1]", "LayerType": "TrainStation", "Inputs": [], "Outputs": []}
    odd = {"Name": "sync", "LayerType": "Sync", "Inputs": [], "Outputs": []}
    bare = {"Name": "nothing", "LayerType": "Sync"}
    engine = read_engine(write(tmp_path, {"Layers": [station, odd, bare], "Bindings": []}))
    assert [kernel.name for kernel in engine.kernels] == ["sync", "nothing"]
    assert engine.kernels[0].outputs == ()
    assert engine.activation_bytes == 0
    assert engine.notes == ("1 layers launch nothing and are left out",)


def test_names_alone_when_verbosity_is_low(tmp_path: Path) -> None:
    document = {"Layers": ["conv1 + relu1", "[trainStation1]", "fc"], "Bindings": ["x"]}
    rows = [{"count": 1}, {"name": "fc", "averageMs": 0.004}]
    engine = read_engine(write(tmp_path, document), write(tmp_path, rows, "profile.json"))
    assert [kernel.name for kernel in engine.kernels] == ["conv1 + relu1", "fc"]
    assert engine.kernels[0].nodes == ("conv1", "relu1")
    assert engine.kernels[1].measured_us == pytest.approx(4.0)
    assert "--profilingVerbosity=detailed" in engine.notes[1]


def test_a_layer_that_launches_nothing_renames_its_input(tmp_path: Path) -> None:
    fp16 = "Row major linear FP16 format"
    noop = {
        "Name": "Reformatting CopyNode for Input Tensor 0 to fc",
        "LayerType": "NoOp",
        "Inputs": [tensor("x", [4, 8], fp16)],
        "Outputs": [tensor("x reformatted", [4, 8], fp16)],
    }
    relu = {
        "Name": "relu",
        "LayerType": "PointWiseV2",
        "Inputs": [tensor("x reformatted", [4, 8], fp16)],
        "Outputs": [tensor("y", [4, 8], fp16)],
    }
    kernels = read_engine(write(tmp_path, {"Layers": [noop, relu], "Bindings": ["x"]})).kernels
    assert [(kernel.name, kernel.inputs[0].name) for kernel in kernels] == [("relu", "x")]
    assert kernels[0].type is KernelType.ELEMENTWISE


@pytest.mark.parametrize(
    ("before", "after", "origin", "expected"),
    [
        ("Row major linear FP32", INT8_32, "QDQ", KernelType.QUANTIZE),
        ("Row major linear FP32", INT8_32, "REFORMAT", KernelType.QUANTIZE),
        (INT8_32, INT8_32, "QDQ", KernelType.QUANTIZE),  # a change of scale
        (INT8_32, "Row major Int8 format", "REFORMAT", KernelType.MOVE),
        (INT8_32, "Channel major FP16 format", "QDQ", KernelType.DEQUANTIZE),
        ("Row major linear FP32", "Row major linear FP16 format", "REFORMAT", KernelType.CAST),
        ("Channel major FP16 format", "Row major linear FP16 format", "", KernelType.MOVE),
    ],
)
def test_reformat_layers_by_their_ends(
    tmp_path: Path, before: str, after: str, origin: str, expected: KernelType
) -> None:
    layer = reformat(
        "r", tensor("x", [1, 8, 4, 4], before), tensor("y", [1, 8, 4, 4], after), Origin=origin
    )
    engine = read_engine(write(tmp_path, {"Layers": [layer], "Bindings": ["x"]}))
    assert engine.kernels[0].type is expected


def test_fused_pooling_counts_the_hidden_convolution(tmp_path: Path) -> None:
    layer = {
        "Name": "conv1 + MaxPool",
        "LayerType": "ConvActPool",
        "Inputs": [tensor("x", [32, 3, 224, 224], "Row major Int8 format")],
        "Outputs": [tensor("y", [32, 64, 56, 56], INT8_32)],
        "ConvKernel": [7, 7],
        "ConvStride": [2, 2],
        "ConvPrePadding": [3, 3],
        "ConvPostPadding": [3, 3],
        "ConvDilation": [1, 1],
        "ConvOutMaps": 64,
        "ConvGroups": 1,
        "ConvWeights": {"Type": "Int8", "Count": 9408},
        "ConvBias": {"Type": "Float", "Count": 0},
    }
    kernel = read_engine(write(tmp_path, {"Layers": [layer], "Bindings": ["x"]})).kernels[0]
    assert kernel.type is KernelType.CONVOLUTION
    assert kernel.flops == 2 * 32 * 112 * 112 * 64 * 3 * 49
    assert kernel.weights_bytes == 9408


def test_depthwise_transposed_and_cuda_core_convolutions(tmp_path: Path) -> None:
    depthwise = {**CONVOLUTION, "Name": "dw", "OutMaps": 48, "Groups": 48}
    depthwise["Outputs"] = [tensor("d", [8, 48, 28, 28], INT8_32)]
    transposed = {**CONVOLUTION, "Name": "up", "LayerType": "CaskDeconvolutionV2"}
    dp4a = {**CONVOLUTION, "Name": "stem", "TacticName": "ampere_fp32_icudnn_int8x4_128x64"}
    layers = [depthwise, transposed, dp4a]
    kernels = read_engine(write(tmp_path, {"Layers": layers, "Bindings": ["x8"]})).kernels
    assert kernels[0].flops == 2 * 8 * 48 * 28 * 28 * 9
    assert kernels[1].flops == 2 * 8 * 48 * 56 * 56 * 64 * 9
    assert kernels[2].compute_dtype == "int8x4"


@pytest.mark.parametrize(
    ("layout", "dtype", "channels"),
    [
        ("Row major linear FP32", "fp32", 5),
        ("Row major linear FP16 format", "fp16", 5),
        ("Row major linear BFloat16 format", "bf16", 5),
        ("Row major linear FP8 format", "fp8", 5),
        ("Row major linear UInt8 format", "uint8", 5),
        ("Row major linear Int64 format", "int64", 5),
        ("Two wide channel vectorized row major FP16 format", "fp16", 6),
        ("Four wide channel vectorized row major Int8 format", "int8", 8),
        ("Sixteen wide channel vectorized row major FP16 format", "fp16", 16),
        (INT8_32, "int8", 32),
        ("Channel major FP16 format where channel % 8 == 0", "fp16", 8),
        ("Channel major Int8 format where channel % 4 == 0", "int8", 8),
        ("Channel major FP32 format", "fp32", 5),
        ("Channel major FP16 format where channel == 4 and column stride % 32 == 0", "fp16", 8),
        ("Half", "fp16", 5),
        ("Float", "fp32", 5),
        ("Unknown format", "", 0),
    ],
)
def test_bytes_count_the_padding_of_each_layout(layout: str, dtype: str, channels: int) -> None:
    size = {"": 0, "fp32": 4, "int64": 8, "fp16": 2, "bf16": 2}.get(dtype, 1)
    columns = 32 if "column stride" in layout else 7
    assert dtype_of(layout) == dtype
    assert stored_bytes((2, 5, 3, 7), dtype, layout) == 2 * channels * 3 * columns * size


def test_four_bit_values_round_up_to_whole_bytes() -> None:
    assert dtype_of("Int4") == "int4"
    assert stored_bytes((3, 3), "int4", "") == 5


def test_profile_sums_layers_of_one_name(tmp_path: Path) -> None:
    rows = [{"count": 2}, {"name": "a", "averageMs": 0.25}, {"name": "a", "averageMs": 0.5}]
    assert read_profile(write(tmp_path, rows)) == {"a": pytest.approx(750.0)}


def test_profile_metadata(tmp_path: Path) -> None:
    document = {
        "performance_summary": {"GPU Compute Time": [0.8, 0.9, 0.86, 0.862, 0.88]},
        "device_information": {"Selected Device": "NVIDIA A100", "Compute Capability": 8.0},
    }
    metadata = read_profile_metadata(write(tmp_path, document))
    assert metadata == ProfileMetadata(device="NVIDIA A100", capability=80, gpu_ms=0.862)


LAYER: dict[str, Any] = {"Name": "a", "LayerType": "kgen", "Inputs": [], "Outputs": []}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "is not the JSON that trtexec writes"),
        ("[1, 2", "is not the JSON that trtexec writes"),
        ("[" * 100_000, "is not the JSON that trtexec writes"),
        ("[]", "the document: is a list; an object is needed."),
        ("{}", 'has no "Layers"; give the file of trtexec --exportLayerInfo.'),
        ({"Layers": 3}, "Layers: is a int; a list is needed."),
        ({"Layers": [3]}, "layer 0: is a int; an object is needed."),
        ({"Layers": [{}]}, "layer 0: 'Name' is missing; text is needed."),
        ({"Layers": [{**LAYER, "Name": 7}]}, "layer 0: 'Name' is a int; text is needed."),
        ({"Layers": [{**LAYER, "Inputs": 7}]}, "layer 0, Inputs: is a int; a list is needed."),
        (
            {"Layers": [{**LAYER, "Inputs": [tensor("x", [True], "Half")]}]},
            "Inputs[0], Dimensions: has True; whole numbers up to 2^48 are needed.",
        ),
        (
            {"Layers": [{**LAYER, "Inputs": [tensor("x", [2**60], "Half")]}]},
            "whole numbers up to 2^48 are needed.",
        ),
        (
            {"Layers": [{**LAYER, "Inputs": [tensor("x", [2**40, 2**40], "Half")]}]},
            "which no GPU holds.",
        ),
        (
            {"Layers": [{**LAYER, "Inputs": [tensor("x", [1] * 17, "Half")]}]},
            "Dimensions: has 17 axes; TensorRT has at most 8.",
        ),
        ({"Layers": [LAYER], "Bindings": [5]}, "Bindings[0]: is a int; an object is needed."),
        ({"Layers": [LAYER], "I/O Tensors": "x"}, "I/O Tensors: is a str; a list is needed."),
    ],
)
def test_damaged_layer_lists_are_refused(tmp_path: Path, document: object, message: str) -> None:
    file = write(tmp_path, document)
    with pytest.raises(TargetError) as error:
        read_engine(file)
    assert message in str(error.value)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("{}", "the document: is a dict; a list is needed."),
        ([{"name": "a"}], "entry 0: 'averageMs' is missing; a number is needed."),
        (
            '[{"name": "a", "averageMs": NaN}]',
            "'averageMs' is nan; a number from 0 to 1e+30 is needed",
        ),
        ([{"name": "a", "averageMs": -1}], "'averageMs' is -1; a number from 0 to 1e+30 is needed"),
        ([{"name": ["a"], "averageMs": 1}], "entry 0: 'name' is a list; text is needed."),
    ],
)
def test_damaged_profiles_are_refused(tmp_path: Path, rows: object, message: str) -> None:
    file = write(tmp_path, rows)
    with pytest.raises(TargetError) as error:
        read_profile(file)
    assert message in str(error.value)
    assert str(file) in str(error.value)


def test_missing_binary_and_oversized_files(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot be read"):
        read_engine(tmp_path / "absent.json")
    with pytest.raises(TargetError, match="is not a regular file"):
        read_engine(tmp_path)
    binary = tmp_path / "engine.plan"
    binary.write_bytes(b"\xff\xfe\x00ptrt")
    with pytest.raises(TargetError, match="is not the JSON"):
        read_engine(binary)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as stream:
        stream.truncate(2**30)  # sparse: nothing is written
    with pytest.raises(TargetError, match="is 1073741824 bytes; layer files end at 67108864"):
        read_engine(huge)


_ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Name", "LayerType", "Inputs", "Dimensions", "Kernel", "Groups"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(field=st.sampled_from([*CONVOLUTION, "Strides", "Metadata", "Origin"]), value=_ODD)
def test_any_value_in_any_field_reads_or_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: object
) -> None:
    file = write(
        tmp_path_factory.mktemp("odd"), {"Layers": [{**CONVOLUTION, field: value}], "Bindings": []}
    )
    try:
        engine = read_engine(file)
    except TargetError as error:
        assert str(file) in str(error)
        return
    for kernel in engine.kernels:
        assert kernel.flops >= 0
        assert math.isfinite(kernel.flops)
        assert kernel.weights_bytes >= 0
