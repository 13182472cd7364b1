"""The commands of trtexec and tensorrt_rtx, word by word."""

from __future__ import annotations

import shlex

from fuseq.targets.base import ShapeProfile
from fuseq.targets.trtexec import Timed, trtexec_command

COMMON = [
    "--noDataTransfers",
    "--useSpinWait",
    "--separateProfileRun",
    "--profilingVerbosity=detailed",
    "--exportTimes=net.times.json",
    "--exportProfile=net.profile.json",
    "--exportLayerInfo=net.layers.json",
]


def test_full_tensorrt_builds_strongly_typed_and_times_with_a_cuda_graph() -> None:
    profile = ShapeProfile({"x": (8, 3, 224, 224), "scale": ()})
    assert shlex.split(trtexec_command("net.onnx", profile=profile)) == [
        "trtexec",
        "--onnx=net.onnx",
        "--stronglyTyped",
        "--saveEngine=net.plan",
        "--shapes=x:8x3x224x224,scale:scalar",
        "--warmUp=200",
        "--duration=3",
        "--iterations=10",
        "--useCudaGraph",
        *COMMON,
    ]


def test_tensorrt_rtx_has_its_own_tool_and_graph_option() -> None:
    timed = Timed(warmup_ms=500, seconds=10, iterations=100, cuda_graph=False)
    assert shlex.split(trtexec_command("net.onnx", rtx=True, timed=timed)) == [
        "tensorrt_rtx",
        "--onnx=net.onnx",
        "--saveEngine=net.rtxplan",
        "--warmUp=500",
        "--duration=10",
        "--iterations=100",
        "--rtxCudaGraphStrategy=disable",
        *COMMON,
    ]


def test_a_range_of_shapes_builds_a_dynamic_engine() -> None:
    profile = ShapeProfile({"x": (4, 8)}, {"x": (1, 8)}, {"x": (16, 8)})
    words = shlex.split(trtexec_command("net.onnx", profile=profile))
    assert words[4:7] == ["--minShapes=x:1x8", "--optShapes=x:4x8", "--maxShapes=x:16x8"]


def test_an_engine_is_loaded_and_a_name_with_spaces_is_quoted() -> None:
    command = trtexec_command("my net.plan", profile=ShapeProfile({"x": (4, 8)}))
    words = shlex.split(command)
    assert words[:3] == ["trtexec", "--loadEngine=my net.plan", "--shapes=x:4x8"]
    assert "'--loadEngine=my net.plan'" in command
    assert "--stronglyTyped" not in words


def test_streams_are_named_only_when_there_are_several() -> None:
    assert "--infStreams=2" in trtexec_command("net.onnx", timed=Timed(streams=2))
    assert "--infStreams" not in trtexec_command("net.onnx")
