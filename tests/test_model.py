"""Loading and saving: sizes that an exporter did not know, external weights."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from fuseq import QuantizeOptions, quantize
from fuseq.errors import ModelError, OptionError
from fuseq.model import close_files, input_specs, load, profile_for, save
from tests.graphs import from_text, normal


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


def saved_outside(folder: Path, name: str = "m.onnx") -> Path:
    """A net whose weights, axes and shapes all lie in an external file."""
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        net (float[N, 8] x) => (float[N, 4] y) <int64[2] flat = {-1, 4}> {
          m = MatMul(x, w)  y = Reshape(m, flat) }""",
        w=normal(8, 400)[:, :4].copy(),
        v=normal(64, 64),
    )
    onnx.save(
        ir.to_proto(model), folder / name, save_as_external_data=True, location=f"{name}.data",
        size_threshold=0,
    )  # fmt: skip
    return folder / name


def test_small_external_weights_are_held_and_large_ones_stay_on_disk(tmp_path: Path) -> None:
    """ONNX Runtime does not read a Reshape's sizes from an external file."""
    initializers = load(saved_outside(tmp_path)).graph.initializers
    flat = initializers["flat"].const_value
    assert flat is not None and not isinstance(flat, ir.ExternalTensor)
    assert flat.numpy().tolist() == [-1, 4]
    assert isinstance(initializers["v"].const_value, ir.ExternalTensor)
    options = QuantizeOptions(target="tensorrt:sm80", policy="full")
    result = quantize(saved_outside(tmp_path), tmp_path / "q.onnx", calib="random", options=options)
    assert any(region.quantized for region in result.plan.regions)


def test_files_that_something_still_reads_stay_open(tmp_path: Path) -> None:
    model = load(saved_outside(tmp_path))
    tensor = model.graph.initializers["v"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    view = tensor.numpy()[:2]
    close_files(model)  # mmap.close() raises BufferError while arrays of it live
    assert view[0, 0] == tensor.numpy()[0, 0] == normal(64, 64)[0, 0]


def test_weights_never_replace_the_data_file_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseq.model._PROTOBUF_LIMIT_BYTES", 100)
    model = load(saved_outside(tmp_path))
    (tmp_path / "o.onnx.data").write_bytes(b"another model's")
    with pytest.raises(ModelError, match=r"would replace o\.onnx\.data.*choose another name"):
        save(model, tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx.data").read_bytes() == b"another model's"
    save(model, tmp_path / "p.onnx")
    save(load(tmp_path / "p.onnx"), tmp_path / "p.onnx")  # its own may be replaced
    assert load(tmp_path / "p.onnx").graph.initializers["v"].const_value is not None


def test_numbers_of_another_type_than_declared_are_refused(tmp_path: Path) -> None:
    model = onnx.load(_saved(tmp_path, [2]))
    tensor = helper.make_tensor("n", TensorProto.INT64, [2], [1, 2])
    tensor.data_type = TensorProto.UINT8
    model.graph.initializer.append(tensor)
    onnx.save(model, tmp_path / "odd.onnx")
    with pytest.raises(ModelError, match="declared as"):
        load(tmp_path / "odd.onnx")
