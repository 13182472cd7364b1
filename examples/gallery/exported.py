"""A PyTorch network to an ONNX file, without the exporter's talk."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch

from rows import Feeds


def export(net: torch.nn.Module, feeds: Feeds, output: str, file: Path) -> None:
    """Write ``net`` in evaluation mode, with the shapes and input names of ``feeds``."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            net.eval(), tuple(torch.from_numpy(array) for array in feeds.values()), dynamo=True,
            input_names=list(feeds), output_names=[output], verbose=False,
        )  # fmt: skip
    assert program is not None
    program.save(str(file), external_data=False)
