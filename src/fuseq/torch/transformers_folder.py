"""Models of the transformers library: built from a folder's configuration, and what inputs they take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fuseq.errors import MissingExtraError, ModelError, OptionError
from fuseq.modelopt.weight_files import read_json

_LONGEST_EXAMPLE = 128
"""Tokens of an example where the model takes more; CLIP's 77 fit."""


def model_of_folder(path: str | os.PathLike[str]) -> nn.Module:
    """Build the model that a folder's ``config.json`` describes, with random weights, in eval mode.

    Only classes of the installed transformers library are built; code in the folder is not run.

    Raises:
        ModelError: No folder with a ``config.json``, or its class is not one of transformers.
        MissingExtraError: transformers is not installed.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"{folder}: not a folder with config.json; give the module that the weights belong to."
        )
    config = read_json(folder / "config.json")
    listed = config.get("architectures") or ["none"]
    name = str(listed[0])
    try:
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("transformers", "torch") from error
    kind = getattr(transformers, name, None) if name.isidentifier() else None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ModelError(
            f"{folder}: config.json names the class {name!r}, which transformers "
            f"{transformers.__version__} does not have; give the module yourself."
        )
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    configured: Any = kind.config_class  # a class of transformers, whose functions have no types
    built: nn.Module = kind(configured.from_dict(plain))
    built.train(False)
    return built


def example_inputs_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Example inputs of a transformers model that reads only pixels or only token ids.

    Returns:
        ``pixel_values`` [2, channels, size, size] or ``input_ids`` [2, tokens], zeros and ones; as many tokens
        as the model has positions, 128 at most.

    Raises:
        OptionError: Another kind of model; its example inputs must be given.
    """
    config = getattr(model, "config", None)
    main = getattr(model, "main_input_name", "")
    size = getattr(config, "image_size", None)
    if main == "pixel_values" and isinstance(size, int):
        channels = int(getattr(config, "num_channels", 3))
        dtype = next(model.parameters()).dtype
        return {"pixel_values": torch.zeros(2, channels, size, size, dtype=dtype)}
    if main == "input_ids" and not hasattr(config, "vision_config"):
        longest = int(getattr(config, "max_position_embeddings", _LONGEST_EXAMPLE))
        return {"input_ids": torch.ones(2, min(_LONGEST_EXAMPLE, longest), dtype=torch.long)}
    raise OptionError(
        f"{type(model).__name__} needs example inputs; give example_inputs, a tensor, a tuple of "
        "arguments or a dict by name."
    )
