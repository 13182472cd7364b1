"""Times, layers and errors by module: every module holds its children, in the order of the model."""

from __future__ import annotations

import pytest

from fuseq.report.document import EngineRow, KernelRow, LayerRow
from fuseq.report.document_closeness import TensorErrorRow
from fuseq.report.module_rows import module_rows


def engine(name: str, *kernels: tuple[str, float]) -> EngineRow:
    rows = tuple(
        KernelRow(f"k{i}", "gemm", "", "fp16", "fp16", False, (), (), 0, 0, 0, us, None, (), module, ())
        for i, (module, us) in enumerate(kernels)
    )  # fmt: skip
    return EngineRow(name, name, "t:x", False, "fp16", "", "", None, "", 0, rows, 0, 0, 0, 1.0, None, 0.2, 0.0)  # fmt: skip


def error(module: str, relative: float) -> TensorErrorRow:
    return TensorErrorRow(f"t{relative}", "t", "name", "Conv", "n", module, "", (1,), False, 20.0,
                          0.9, 0.1, 0.1, relative, 0.0, False, 0)  # fmt: skip


def test_a_module_holds_its_children() -> None:
    before = engine(
        "float", ("stem", 5.0), ("blocks.0.fc1", 10.0), ("blocks.0.fc2", 20.0), ("blocks.1", 4.0)
    )
    after = engine("quantized", ("blocks.0.fc1", 6.0), ("blocks.0", 9.0), ("stem", 5.0), ("", 1.0))
    layers = [
        LayerRow("n", "linear", "MatMul", "blocks.0.fc1", "", True, "fp8", "fp8", "quantized"),
        LayerRow("m", "linear", "MatMul", "blocks.1", "", False, "fp16", "fp16", "float: because"),
    ]
    errors = [error("blocks.0.fc1", 0.02), error("blocks.0.fc2", 0.3), error("stem", 0.1)]
    rows = {row.path: row for row in module_rows(before, after, layers, errors)}
    assert list(rows) == [
        "",
        "stem",
        "blocks",
        "blocks.0",
        "blocks.0.fc1",
        "blocks.0.fc2",
        "blocks.1",
    ]
    times = {path: (row.float_us, row.quantized_us, row.kernels) for path, row in rows.items()}
    assert times == {
        "": (39.0, 21.0, 4), "stem": (5.0, 5.0, 1), "blocks": (34.0, 15.0, 2),
        "blocks.0": (30.0, 15.0, 2), "blocks.0.fc1": (10.0, 6.0, 1), "blocks.0.fc2": (20.0, 0.0, 0),
        "blocks.1": (4.0, 0.0, 0),
    }  # fmt: skip
    assert (rows["blocks"].layers, rows["blocks"].quantized_layers) == (2, 1)
    assert (rows["blocks"].worst_tensor, rows["blocks"].worst_relative) == ("t0.3", 0.3)
    assert rows["blocks.1"].worst_relative is None
    assert [rows[path].depth for path in ("", "stem", "blocks.0.fc1")] == [0, 1, 3]
    assert not rows[""].measured


@pytest.mark.parametrize("name", ["float", "quantized"])
def test_one_engine_alone_has_one_time(name: str) -> None:
    only = engine(name, ("a", 2.0))
    (whole, part) = module_rows(*((only, None) if name == "float" else (None, only)))
    expected = (2.0, None) if name == "float" else (None, 2.0)
    assert (whole.float_us, whole.quantized_us) == expected
    assert part.kernels == 1
