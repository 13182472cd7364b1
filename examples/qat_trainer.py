"""Quantization-aware training with the Hugging Face Trainer, on scikit-learn's digits.

A small ViT is trained in float, prepared, calibrated, and trained on by the same Trainer, which needs to
know nothing about quantization. Runs in about a minute on a CPU.

    pip install 'fuseq[torch]' transformers accelerate scikit-learn
    python examples/qat_trainer.py
"""

from __future__ import annotations

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import fuseq.torch
from fuseq import QuantizeOptions

OPTIONS = QuantizeOptions(format="int8", target="tensorrt:sm80", policy="full")


class Digits(Dataset[dict[str, torch.Tensor]]):
    """``pixel_values`` [1, 8, 8] and ``labels``."""

    def __init__(self, first: int, last: int) -> None:
        digits = load_digits()
        order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
        rows = order[first:last]
        self.images = (torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1)[rows]
        self.labels = torch.tensor(digits.target)[rows]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.images[row], "labels": self.labels[row]}


def main() -> None:
    """Train, prepare, calibrate, train on, export."""
    train, test = Digits(0, 1200), Digits(1200, 1797)
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, patch_size=2, num_channels=1, hidden_size=48, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=96, num_labels=10,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    fit(model, train, epochs=12, rate=2e-3)
    print(f"float             {accuracy(model, test):5.1f} %")

    example = {"pixel_values": train.images[:8]}
    net = fuseq.torch.prepare(model, example, options=OPTIONS)
    loader = [{"pixel_values": part} for part in train.images.split(100)]
    fuseq.torch.calibrate(net, loader, scales="learned")
    print(f"INT8, calibrated  {accuracy(net, test):5.1f} %")

    fit(net, train, epochs=2, rate=2e-4)
    print(f"INT8, trained     {accuracy(net, test):5.1f} %")
    fuseq.torch.export(net, "digits_vit_int8.onnx")
    print("digits_vit_int8.onnx")


def fit(model: nn.Module, train: Digits, epochs: int, rate: float) -> None:
    """The Trainer as for any model; weight decay stays 0, which the learned scales need."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=epochs, learning_rate=rate, per_device_train_batch_size=50,
            save_strategy="no", report_to="none", logging_strategy="no", use_cpu=True, seed=1,
            disable_tqdm=True,
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=train).train()


def accuracy(model: nn.Module, test: Digits) -> float:
    """Top-1 in percent."""
    with torch.no_grad():
        logits = model.eval()(pixel_values=test.images).logits
    return float((logits.argmax(1) == test.labels).float().mean()) * 100


if __name__ == "__main__":
    main()
