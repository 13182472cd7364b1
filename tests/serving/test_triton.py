"""Triton repositories, read back with Triton's own published protobuf message."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from fuseq.cli.main import run
from fuseq.errors import ModelError, OptionError
from fuseq.serving.model_io import ModelIo, Port, model_io
from fuseq.serving.triton import TritonOptions, write_repository
from fuseq.serving.triton_config import Batching, ServedModel, config_text
from tests.graphs import conv_net, from_text, named, normal


def schema() -> ModuleType:
    """``model_config_pb2`` of the tritonclient wheel, without the gRPC that its package imports."""
    package = importlib.util.find_spec("tritonclient")
    assert package is not None
    assert package.submodule_search_locations
    file = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCHEMA = schema()


def parsed(text: str) -> Any:
    """The message; a field or value that Triton does not know is an error."""
    return text_format.Parse(text, SCHEMA.ModelConfig())  # type: ignore[attr-defined]


def dynamic_net() -> ir.Model:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 8] x) => (float[N, 16] y) { m = MatMul(x, w)  y = Relu(m) }"""
    return named(from_text(text, w=normal(8, 16)))


def speech_net() -> ir.Model:
    """K103: frames [-1, 80, -1] and their number [-1]."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 80, T] frames, int64[N] lengths) => (float[N] score, float[N, 80, T] y) {
      y = Relu(frames)
      s = ReduceSum <keepdims = 0> (y, axes)
      f = Cast <to = 1> (lengths)
      score = Div(s, f) }"""
    return named(from_text(text, axes=np.array([1, 2], dtype=np.int64)))


def saved(model: ir.Model, folder: Path, name: str = "net.onnx") -> Path:
    ir.save(model, folder / name)
    return folder / name


def test_a_dynamic_batch_is_batched_up_to_the_profiles_largest(tmp_path: Path) -> None:
    file = saved(dynamic_net(), tmp_path)
    options = TritonOptions(shapes={"x": (4, 8)}, maxima={"x": (32, 8)}, instances=2)
    written = write_repository(file, tmp_path / "repo", options)
    assert written.folder == tmp_path / "repo" / "net"
    config = parsed((written.folder / "config.pbtxt").read_text())
    assert (config.name, config.backend, config.max_batch_size) == ("net", "onnxruntime", 32)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [
        ("x", SCHEMA.TYPE_FP32, [8])  # type: ignore[attr-defined]
    ]
    assert [(o.name, list(o.dims)) for o in config.output] == [("y", [16])]
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 32]
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    (group,) = config.instance_group
    assert (group.count, group.kind) == (2, SCHEMA.ModelInstanceGroup.KIND_GPU)  # type: ignore[attr-defined]
    served = written.folder / "1" / config.default_model_filename
    assert served.read_bytes() == file.read_bytes()


def test_a_static_batch_is_declared_in_full(tmp_path: Path) -> None:
    written = write_repository(
        saved(conv_net(), tmp_path), tmp_path / "repo", TritonOptions(device="cpu")
    )
    config = parsed((written.folder / "config.pbtxt").read_text())
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert list(config.input[0].dims) == [1, 16, 8, 8]
    assert list(config.output[0].dims) == [1, 16, 4, 4]
    assert config.instance_group[0].kind == SCHEMA.ModelInstanceGroup.KIND_CPU  # type: ignore[attr-defined]
    assert written.notes == ("requests are not batched: the first axis of 'x' is always 1",)


def test_k103_a_dynamic_engine_up_to_16_is_batchable(tmp_path: Path) -> None:
    onnx_file = saved(speech_net(), tmp_path)
    engine = tmp_path / "speech.plan"
    engine.write_bytes(b"ftrt" + bytes(60))
    options = TritonOptions(
        onnx=str(onnx_file),
        maxima={"frames": (16, 80, 3000), "lengths": (16,)},
        name="speech",
    )
    written = write_repository(engine, tmp_path / "repo", options)
    config = parsed((written.folder / "config.pbtxt").read_text())
    assert (config.backend, config.max_batch_size) == ("tensorrt", 16)
    frames, lengths = config.input
    assert list(frames.dims) == [80, -1]
    assert not frames.HasField("reshape")
    assert list(lengths.dims) == [1]  # dims may not be empty
    assert lengths.HasField("reshape")
    assert list(lengths.reshape.shape) == []  # the engine gets [batch]
    score, y = config.output
    assert (list(score.dims), list(score.reshape.shape), list(y.dims)) == ([1], [], [80, -1])
    assert score.HasField("reshape")
    assert list(config.dynamic_batching.preferred_batch_size) == [8, 16]
    assert (written.folder / "1" / "model.plan").read_bytes() == engine.read_bytes()


def test_inputs_that_do_not_share_their_first_axis_are_not_batched() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 4] a, float[M, 4] b) => (float[K, 4] y) { y = Concat <axis = 0> (a, b) }"""
    )
    io = model_io(model)
    assert not io.batched
    assert io.reason == "the first axes of the inputs have different names: M, N"


def test_scalars_are_not_batched() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 4] a, float s) => (float[N, 4] y) { y = Mul(a, s) }"""
    )
    io = model_io(model)
    assert io.reason == "'s' is a scalar: it has no batch axis"
    config = parsed(config_text(ServedModel("m", "onnxruntime", io)))
    assert list(config.input[1].dims) == [1]
    assert config.input[1].HasField("reshape")


def test_shapes_of_outputs_are_inferred() -> None:
    model = dynamic_net()
    model.graph.outputs[0].shape = None
    assert model_io(model).outputs == (Port("y", ir.DataType.FLOAT, (-1, 16)),)


def test_weights_in_other_files_are_copied(tmp_path: Path) -> None:
    proto = ir.to_proto(dynamic_net())
    file = tmp_path / "net.onnx"
    onnx.save(proto, file, save_as_external_data=True, location="net.weights", size_threshold=16)
    written = write_repository(file, tmp_path / "repo", TritonOptions())
    names = sorted(path.name for path in (written.folder / "1").iterdir())
    assert names == ["model.onnx", "net.weights"]
    copied = (written.folder / "1" / "net.weights").read_bytes()
    assert copied == (tmp_path / "net.weights").read_bytes()


def test_what_triton_cannot_load_is_refused(tmp_path: Path) -> None:
    engine = tmp_path / "e.rtxplan"
    engine.write_bytes(b"vtrt" + bytes(60))
    with pytest.raises(OptionError, match="TensorRT-RTX, which Triton's tensorrt backend"):
        write_repository(engine, tmp_path / "repo", TritonOptions())
    plan = tmp_path / "e.plan"
    plan.write_bytes(b"ftrt" + bytes(60))
    with pytest.raises(OptionError, match="give the ONNX file that it was built from with --onnx"):
        write_repository(plan, tmp_path / "repo", TritonOptions())
    with pytest.raises(OptionError, match="leave out --device cpu"):
        write_repository(plan, tmp_path / "repo", TritonOptions(device="cpu"))
    io = ModelIo((Port("x", ir.DataType.FLOAT8E4M3FN, (1,)),), (), False)
    with pytest.raises(ModelError, match="type FLOAT8E4M3FN, which Triton does not know"):
        config_text(ServedModel("m", "onnxruntime", io))
    assert not (tmp_path / "repo").exists()


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = saved(dynamic_net(), tmp_path)
    with pytest.raises(OptionError, match="--name '../x' is no folder name"):
        TritonOptions(name="../x")
    with pytest.raises(OptionError, match="--device 'tpu'"):
        TritonOptions(device="tpu")
    for shapes, words in (
        ({"x": (4, 8, 1)}, "fits no input"),
        ({"z": (4, 8)}, "fits no input"),
        ({"x": (64, 8)}, "usual batch 64 is larger than the largest, 32"),
    ):
        options = TritonOptions(shapes=shapes, maxima={"x": (32, 8)})
        with pytest.raises(OptionError, match=words):
            write_repository(file, tmp_path / "repo", options)
    write_repository(file, tmp_path / "repo", TritonOptions())
    with pytest.raises(OptionError, match="is in the repository already"):
        write_repository(file, tmp_path / "repo", TritonOptions())


@given(st.text(min_size=1, max_size=40))
def test_any_name_survives_the_text_form(name: str) -> None:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return  # a lone surrogate is no protobuf string
    io = ModelIo((Port(name, ir.DataType.FLOAT, (1,)),), (), False)
    text = config_text(ServedModel("m", "onnxruntime", io, Batching()))
    assert text.isascii()
    assert parsed(text).input[0].name == name


def test_command(capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = saved(dynamic_net(), tmp_path)
    repository = str(tmp_path / "repo")
    command = ["triton", str(file), "--out", repository, "--max-shape", "x:16,8", "--json"]
    assert run(command) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["backend"] == "onnxruntime"
    assert numbers["batching"] == {"maximum": 16, "preferred": [8, 16], "delay_us": 100}
    assert run(command) == 2
    assert "already" in capsys.readouterr().err
    assert run(["triton", "nothing.onnx", "--out", repository]) == 2
