"""How images become model inputs: presets as frozen data, every option of which can be replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from fuseq.errors import OptionError

_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "fit": ("crop", "stretch", "letterbox"),
    "channels": ("RGB", "BGR", "L"),
    "layout": ("NCHW", "NHWC", None),
    "interpolation": ("nearest", "bilinear", "bicubic", "lanczos"),
}


@dataclasses.dataclass(frozen=True)
class ImagePreset:
    """One way to prepare images.

    Attributes:
        name: How users spell it.
        size: Height and width in pixels where the model leaves them open; a model with fixed
            height and width gets those.
        fit: ``crop``: the shorter side becomes ``size / crop_ratio``, then the middle is cut out.
            ``stretch``: both sides change to ``size``. ``letterbox``: the image keeps its shape,
            the rest is filled with ``pad``.
        crop_ratio: Cropped side over resized side.
        mean: Subtracted from pixels in 0..1, one number or one a channel, in the order of
            ``channels``.
        std: Divides after ``mean`` was subtracted, same count.
        channels: Order in which the model wants them; L is one channel of grey.
        layout: Axes of a batch; None is chosen from the model's input.
        interpolation: Filter of the resize, with antialiasing, as Pillow does it.
        pad: Grey level from 0 to 255 that letterbox fills with.
    """

    name: str
    size: tuple[int, int] = (224, 224)
    fit: Literal["crop", "stretch", "letterbox"] = "crop"
    crop_ratio: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    channels: Literal["RGB", "BGR", "L"] = "RGB"
    layout: Literal["NCHW", "NHWC"] | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    pad: int = 114

    def __post_init__(self) -> None:
        """Refuse values that mean nothing.

        Raises:
            OptionError: Names the option and what is allowed.
        """
        for field, allowed in _CHOICES.items():
            if getattr(self, field) not in allowed:
                words = ", ".join(str(word) for word in allowed if word is not None)
                raise OptionError(
                    f"image option {field} {getattr(self, field)!r} is unknown; choose one of "
                    f"{words}."
                )
        if not 0 < self.crop_ratio <= 1:
            raise OptionError(f"image option crop_ratio {self.crop_ratio} is not in (0, 1].")
        if min(self.size) < 1 or not 0 <= self.pad <= 255:
            raise OptionError(
                f"image option size {self.size} or pad {self.pad}: sizes are 1 or more, pad is 0 "
                "to 255."
            )
        counts = {1, 1 if self.channels == "L" else 3}
        if len(self.mean) not in counts or len(self.std) not in counts or 0 in self.std:
            raise OptionError(
                f"image options mean {self.mean} and std {self.std}: give one number or one a "
                f"channel of {self.channels}, and no std of 0."
            )


_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)

PRESETS: tuple[ImagePreset, ...] = (
    # torchvision references/classification/presets.py: resize 256, crop 224
    ImagePreset("imagenet", crop_ratio=0.875, mean=_IMAGENET_MEAN, std=_IMAGENET_STD),
    # openai/CLIP clip/clip.py, _transform
    ImagePreset("clip", mean=_CLIP_MEAN, std=_CLIP_STD, interpolation="bicubic"),
    # tensorflow/models slim preprocessing/inception_preprocessing.py: -1..1, central crop 0.875
    ImagePreset("inception", size=(299, 299), crop_ratio=0.875, mean=(0.5,), std=(0.5,)),
    ImagePreset("zero-one"),
    # ultralytics data/augment.py, LetterBox: grey 114, 0..1
    ImagePreset("yolo", size=(640, 640), fit="letterbox"),
)


def image_preset(preset: str | ImagePreset, **options: Any) -> ImagePreset:
    """Return the preset of that name with ``options`` (fields of :class:`ImagePreset`) replaced.

    Raises:
        OptionError: No preset has that name, or an option is unknown or not allowed.
    """
    known = {entry.name: entry for entry in PRESETS}
    if isinstance(preset, str):
        if preset not in known:
            raise OptionError(
                f"image preset {preset!r} is unknown; choose one of {', '.join(known)}."
            )
        preset = known[preset]
    fields = {field.name for field in dataclasses.fields(ImagePreset)}
    for option in options:
        if option not in fields:
            raise OptionError(
                f"image option {option!r} is unknown; options are {', '.join(sorted(fields))}."
            )
    return dataclasses.replace(preset, **options)
