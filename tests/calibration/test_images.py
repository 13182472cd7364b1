from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from PIL import Image

from fuseq.calibration.image_pixels import normalized, read_image
from fuseq.calibration.image_presets import PRESETS, ImagePreset, image_preset
from fuseq.calibration.sources import open_source
from fuseq.errors import CalibrationError, OptionError


def model(image: str = "float[N, 3, 24, 24]") -> ir.Model:
    return ir.from_proto(
        parser.parse_model(
            f"""<ir_version: 10, opset_import: ["" : 21]>
            net ({image} x) => (float y) {{ y = Cast <to = 1> (x) }}"""
        )
    )


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def save(folder: Path, name: str, pixels: np.ndarray) -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(file)
    return file


def test_imagenet_is_torchvision_resize_256_center_crop_224(tmp_path: Path) -> None:
    file = save(tmp_path, "a.png", noise(300, 400))
    save(tmp_path, "b.png", noise(500, 333, 1))
    (first, second) = open_source(tmp_path, model("float[N, 3, H, W]"))
    for batch, path in ((first, file), (second, tmp_path / "b.png")):
        with Image.open(path) as image:
            width, height = image.size
            size = (256 * width // height, 256) if height < width else (256, 256 * height // width)
            resized = np.asarray(image.resize(size, Image.Resampling.BILINEAR), np.float64)
        top, left = round((size[1] - 224) / 2), round((size[0] - 224) / 2)
        crop = resized[top : top + 224, left : left + 224] / 255
        wanted = (crop - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        assert batch["x"].dtype == np.float32 and batch["x"].shape == (1, 3, 224, 224)
        np.testing.assert_allclose(batch["x"][0], wanted.transpose(2, 0, 1), atol=2e-6)


def test_default_preset_is_told(tmp_path: Path) -> None:
    save(tmp_path, "a.png", noise(30, 30))
    assert "preset 'imagenet'" in open_source(tmp_path, model()).notes[0]
    assert open_source(tmp_path, model(), preset=image_preset("clip")).notes == []


def test_preset_values() -> None:
    assert [preset.name for preset in PRESETS] == [
        "imagenet",
        "clip",
        "inception",
        "zero-one",
        "yolo",
    ]
    pixels = np.array([[[0, 128, 255]]], np.uint8)
    found = {p.name: normalized(pixels, p).ravel().tolist() for p in PRESETS}
    assert found["inception"] == pytest.approx([-1, 128 / 127.5 - 1, 1], abs=1e-6)
    assert found["zero-one"] == found["yolo"] == pytest.approx([0, 128 / 255, 1], abs=1e-6)
    assert found["clip"] == pytest.approx(
        [-0.48145466 / 0.26862954, (128 / 255 - 0.4578275) / 0.26130258,
         (1 - 0.40821073) / 0.27577711], abs=1e-5,
    )  # fmt: skip


def test_model_size_wins_over_the_preset_and_scales_the_crop(tmp_path: Path) -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[8:56, 8:56] = 255  # the middle three quarters
    save(tmp_path, "a.png", pixels)
    preset = image_preset("zero-one", crop_ratio=0.75, interpolation="nearest")
    (batch,) = open_source(tmp_path, model("float[1, 3, 48, 48]"), preset=preset)
    assert (batch["x"] == 1).all()


def test_letterbox_keeps_the_shape_and_fills_with_grey(tmp_path: Path) -> None:
    save(tmp_path, "a.png", np.full((20, 40, 3), 255, np.uint8))
    (batch,) = open_source(tmp_path, model("float[N, 3, 32, 32]"), preset=image_preset("yolo"))
    rows = batch["x"][0, 0]
    assert (rows[8:24] == 1).all()
    np.testing.assert_allclose(rows[:8], 114 / 255, rtol=1e-6)
    np.testing.assert_allclose(rows[24:], 114 / 255, rtol=1e-6)


def test_stretch_changes_the_shape(tmp_path: Path) -> None:
    pixels = noise(20, 40)
    file = save(tmp_path, "a.png", pixels)
    preset = image_preset("zero-one", fit="stretch", interpolation="bicubic")
    with Image.open(file) as image:
        wanted = np.asarray(image.resize((16, 12), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(read_image(file, preset, (12, 16)), wanted)


@pytest.mark.parametrize(
    ("image", "shape"),
    [
        ("float[N, 3, 24, 24]", (8, 3, 24, 24)),
        ("float[N, 24, 24, 3]", (8, 24, 24, 3)),
        ("float[N, C, 24, 24]", (8, 3, 24, 24)),
        ("float[5, 3, 24, 20]", (5, 3, 24, 20)),
        ("float[N, 1, 24, 24]", (8, 1, 24, 24)),
        ("float[N, 24, 24, 1]", (8, 24, 24, 1)),
    ],
)
def test_layout_and_batch_from_the_model(
    tmp_path: Path, image: str, shape: tuple[int, ...]
) -> None:
    for number in range(10):
        save(tmp_path, f"{number}.png", noise(30, 36, number))
    source = open_source(tmp_path, model(image), preset=image_preset("zero-one"))
    first, _ = list(source)
    assert first["x"].shape == shape and source.length == 2
    assert source.description == f"10 images of {tmp_path}"


def test_layouts_and_colour_orders_hold_the_same_pixels(tmp_path: Path) -> None:
    pixels = noise(24, 24)
    save(tmp_path, "a.png", pixels)
    rgb = image_preset("zero-one")
    (nchw,) = open_source(tmp_path, model("float[N, 3, 24, 24]"), preset=rgb)
    (nhwc,) = open_source(tmp_path, model("float[N, 24, 24, 3]"), preset=rgb)
    (bgr,) = open_source(tmp_path, model(), preset=image_preset(rgb, channels="BGR"))
    np.testing.assert_array_equal(nhwc["x"], nchw["x"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(bgr["x"], nchw["x"][:, ::-1])
    np.testing.assert_allclose(nhwc["x"][0] * 255, pixels, atol=1e-4)


def test_uint8_and_float16_inputs(tmp_path: Path) -> None:
    pixels = noise(24, 24)
    save(tmp_path, "a.png", pixels)
    source = open_source(tmp_path, model("uint8[N, 24, 24, 3]"), preset=image_preset("zero-one"))
    (batch,) = source
    np.testing.assert_array_equal(batch["x"][0], pixels)
    assert "without mean and std" in source.notes[0]
    (half,) = open_source(tmp_path, model("float16[N, 3, 24, 24]"))
    assert half["x"].dtype == np.float16


def test_fixed_batch_is_padded(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path, f"{number}.png", noise(24, 24, number))
    source = open_source(tmp_path, model("float[2, 3, 24, 24]"), preset=image_preset("zero-one"))
    _, last = list(source)
    np.testing.assert_array_equal(last["x"][0], last["x"][1])
    assert "the last batch repeats samples" in source.notes[0]


def test_sorted_with_subfolders_and_a_limit_at_equal_distances(tmp_path: Path) -> None:
    levels = {"b/1.png": 10, "a/2.png": 20, "a/1.png": 30, "c/9.PNG": 40}
    for name, level in levels.items():
        save(tmp_path, name, np.full((24, 24, 3), level, np.uint8))
    (tmp_path / "a" / ".hidden.png").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("not an image")
    preset = image_preset("zero-one")

    def found(limit: int | None) -> list[float]:
        batches = open_source(tmp_path, model(), preset=preset, limit=limit)
        return [round(float(row[0, 0, 0] * 255)) for batch in batches for row in batch["x"]]

    assert found(None) == [30, 20, 10, 40]
    assert found(2) == [30, 10]
    assert found(9) == [30, 20, 10, 40]


def test_links_to_images_are_read(tmp_path: Path) -> None:
    file = save(tmp_path / "real", "a.png", noise(24, 24))
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "b.png").symlink_to(file)
    (linked / "loop").symlink_to(linked)
    assert len(list(open_source(linked, model()))) == 1


def test_exif_orientation_turns_the_image(tmp_path: Path) -> None:
    pixels = np.zeros((24, 24, 3), np.uint8)
    pixels[:12] = 255  # upper half white
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    found = read_image(tmp_path / "a.png", image_preset("zero-one"), (24, 24))
    assert (found[:, 12:] == 255).all() and (found[:, :12] == 0).all()


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    ramp = np.tile(np.arange(0, 240, 10, dtype=np.uint8), (24, 1))
    if mode == "I;16":
        image = Image.fromarray(ramp.astype(np.uint16) * 257)
    else:
        image = Image.fromarray(ramp).convert(mode)
    file = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    image.save(file)
    found = read_image(file, image_preset("zero-one"), (24, 24))
    assert found.shape == (24, 24, 3) and found.dtype == np.uint8
    np.testing.assert_array_equal(found[..., 0], found[..., 2])
    if mode != "1":
        np.testing.assert_allclose(found[..., 1], ramp, atol=6)


def test_broken_images_are_named(tmp_path: Path) -> None:
    file = save(tmp_path, "a.png", noise(24, 24))
    data = file.read_bytes()
    for broken in (data[: len(data) // 2], b"", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"GIF89a"):
        file.write_bytes(broken)
        with pytest.raises(CalibrationError, match=r"a\.png: not a readable image .*remove"):
            list(open_source(tmp_path, model()))


def test_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, "a.png", noise(24, 24))
    for limit in (500, 200):  # Pillow warns above the limit, and refuses above twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(CalibrationError, match=r"a\.png: Image size \(576 pixels\) exceeds"):
            list(open_source(tmp_path, model()))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("float[N, 24]", r"one input of rank 4, this model has x \['N', 24\]"),
        ("float[N, 4, 24, 24]", "takes 4 channels .* preset 'imagenet' makes 3"),
        ("float[N, 1, 24, 24]", "takes 1 channels .* preset 'imagenet' makes 3"),
    ],
)
def test_models_that_do_not_take_these_images(tmp_path: Path, image: str, message: str) -> None:
    save(tmp_path, "a.png", noise(24, 24))
    with pytest.raises(CalibrationError, match=message):
        open_source(tmp_path, model(image), preset=image_preset("imagenet"))


def test_options_that_mean_nothing() -> None:
    with pytest.raises(
        OptionError, match="choose one of imagenet, clip, inception, zero-one, yolo"
    ):
        image_preset("resnet")
    with pytest.raises(
        OptionError, match="image option 'colour' is unknown; options are channels,"
    ):
        image_preset("clip", colour="BGR")
    for options in (
        {"fit": "pad"},
        {"channels": "GBR"},
        {"layout": "CHW"},
        {"interpolation": "cubic"},
        {"crop_ratio": 0.0},
        {"size": (0, 5)},
        {"pad": 300},
        {"mean": (0.1, 0.2)},
        {"std": (0.0,)},
    ):
        with pytest.raises(OptionError, match=next(iter(options))):
            image_preset("imagenet", **options)
    with pytest.raises(OptionError, match="one a channel of L"):
        image_preset("imagenet", channels="L")
    grey = image_preset("imagenet", channels="L", mean=(0.5,), std=(0.2,))
    assert grey == ImagePreset("imagenet", crop_ratio=0.875, mean=(0.5,), std=(0.2,), channels="L")
