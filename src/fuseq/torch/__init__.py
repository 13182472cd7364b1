"""PyTorch: prepare, calibrate, train, export on the plan that the ONNX path makes."""

from __future__ import annotations

from fuseq.torch.checkpoint import load, save
from fuseq.torch.compiling import compile
from fuseq.torch.explaining import Explained, explain, explained
from fuseq.torch.exporting import export
from fuseq.torch.load_modelopt import export_modelopt, load_modelopt, modelopt_to_onnx
from fuseq.torch.prepared import Prepared, prepared_of
from fuseq.torch.preparing import calibrate, prepare
from fuseq.torch.to_modelopt import to_modelopt_cfg
from fuseq.torch.torch_tensorrt import export_for_torch_tensorrt
from fuseq.torch.training import (
    Schedule,
    distillation_loss,
    fake_quantize,
    freeze_batch_norm,
    observe,
)

__all__ = [
    "Explained",
    "Prepared",
    "Schedule",
    "calibrate",
    "compile",
    "distillation_loss",
    "explain",
    "explained",
    "export",
    "export_for_torch_tensorrt",
    "export_modelopt",
    "fake_quantize",
    "freeze_batch_norm",
    "load",
    "load_modelopt",
    "modelopt_to_onnx",
    "observe",
    "prepare",
    "prepared_of",
    "save",
    "to_modelopt_cfg",
]
