"""Loading: sizes that an exporter did not know."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from fuseq.errors import OptionError
from fuseq.model import input_specs, load, profile_for


def _saved(folder: Path, dims: list[int | str]) -> Path:
    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in "xy")
    file = folder / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y])), file)
    return file


def test_sizes_of_paddles_exporter_are_open_and_differ(tmp_path: Path) -> None:
    model = load(_saved(tmp_path, [-1, 3, "?", "?"]))
    (spec,) = input_specs(model)
    assert spec.shape == ("x_0", 3, "x_2", "x_3")
    assert profile_for(model, shapes={"x": (8, 3, 48, 192)}).optimum == {"x": (8, 3, 48, 192)}
    assert [dim.value for dim in model.graph.outputs[0].shape if not isinstance(dim, int)] == [
        None
    ] * 3


def test_known_sizes_stay(tmp_path: Path) -> None:
    model = load(_saved(tmp_path, ["batch", 3, 0]))
    assert input_specs(model)[0].shape == ("batch", 3, 0)
    with pytest.raises(OptionError, match="only named dimensions"):
        profile_for(model, shapes={"x": (1, 4, 0)})
