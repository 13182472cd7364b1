"""A PyTorch network to an ONNX file, without the exporter's talk."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from rows import Feeds


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's warnings, one of which is that torchvision is missing."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def export(net: torch.nn.Module, feeds: Feeds, output: str, file: Path) -> None:
    """Write ``net`` in evaluation mode, with the shapes and input names of ``feeds``."""
    with quiet():
        program = torch.onnx.export(
            net.eval(), tuple(torch.from_numpy(array) for array in feeds.values()), dynamo=True,
            input_names=list(feeds), output_names=[output], verbose=False,
        )  # fmt: skip
    assert program is not None
    program.save(str(file), external_data=False)
