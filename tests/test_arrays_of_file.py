"""Weights of a loaded file are arrays, written as they were, and nothing holds the file's message."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from fuseq.model import load, save

RAW = onnx.numpy_helper.from_array(np.arange(600, dtype=np.float32).reshape(20, 30), "raw")
SMALL = onnx.numpy_helper.from_array(np.array([1, 2], dtype=np.float32), "small")
NUMBERS = helper.make_tensor("numbers", onnx.TensorProto.FLOAT, [2], [3.0, 4.0])
HALVES = helper.make_tensor("halves", onnx.TensorProto.FLOAT16, [2], [0.5, -2.0])
FOUR_BITS = helper.make_tensor("four_bits", onnx.TensorProto.INT4, [3], [1, -8, 7])


def _file(folder: Path) -> Path:
    node = helper.make_node("Constant", [], ["y"], value=SMALL)
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    tensors = [RAW, SMALL, NUMBERS, HALVES, FOUR_BITS]
    graph = helper.make_graph([node], "g", [], [output], tensors)
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


def test_bytes_become_one_array(tmp_path: Path) -> None:
    tensor = load(_file(tmp_path)).graph.initializers["raw"].const_value
    assert tensor is not None
    assert tensor.numpy() is tensor.numpy()
    assert (tensor.dtype, tensor.name) == (ir.DataType.FLOAT, "raw")
    np.testing.assert_array_equal(tensor.numpy(), onnx.numpy_helper.to_array(RAW))


def test_every_spelling_is_written_as_it_was(tmp_path: Path) -> None:
    path = _file(tmp_path)
    save(load(path), tmp_path / "again.onnx")
    before, after = onnx.load(path).graph, onnx.load(tmp_path / "again.onnx").graph
    assert list(after.initializer) == list(before.initializer)
    assert after.node[0].attribute[0].t == before.node[0].attribute[0].t


def test_no_tensor_refers_to_the_file_s_message(tmp_path: Path) -> None:
    model = load(_file(tmp_path))
    tensors = [value.const_value for value in model.graph.initializers.values()]
    tensors.append(model.graph[0].attributes["value"].as_tensor())
    kept = [t.raw for t in tensors if isinstance(t, ir.serde.TensorProtoTensor)]
    assert sorted(proto.name for proto in kept) == ["four_bits", "halves", "numbers"]
