"""An ONNX file that ModelOpt exported: its scales are the checkpoint's ranges, and fix keeps them."""

from __future__ import annotations

import numpy as np

from fuseq.fixing import fix
from fuseq.model import load
from fuseq.modelopt.checkpoint import read_checkpoint
from fuseq.options import QuantizeOptions
from fuseq.passes.strip_qdq import strip_qdq
from tests.modelopt.artefacts import DATA


def test_scales_of_the_file_are_amax_by_127() -> None:
    model = load(DATA / "conv_int8.onnx")
    stripped = strip_qdq(model, folds=False)
    found = {scale.tensor: scale.by for scale in stripped.scales(model) if scale.kind == "weight"}
    quantizers = read_checkpoint(DATA / "conv_int8.pth").quantizers
    for layer in ("block", "depthwise", "head"):
        amax = np.asarray(quantizers[f"{layer}.weight_quantizer"].amax)
        expected = (amax / 127).astype(np.float32)
        scale = next(by.scale for name, by in found.items() if name.startswith(layer))
        assert np.allclose(scale, expected, rtol=2**-22), layer
    activations = [s.by.scale for s in stripped.scales(model) if s.kind == "activation"]
    image = np.asarray(quantizers["stem.input_quantizer"].amax) / 127
    assert any(np.allclose(scale, image, rtol=2**-22) for scale in activations)


def test_fix_keeps_them() -> None:
    """The whole way of a user of ModelOpt's ONNX export: no data, another placement, the same scales."""
    options = QuantizeOptions(policy="full", target="tensorrt:sm80", precision="fp32")
    fixed = fix(DATA / "conv_int8.onnx", options=options)
    amax = np.asarray(
        read_checkpoint(DATA / "conv_int8.pth").quantizers["block.weight_quantizer"].amax
    )
    kept = [change for change in fixed.changes if change.action == "kept"]
    block = next(entry for entry in fixed.plan.tensors if entry.tensor.startswith("block"))
    assert np.allclose(fixed.scales[block.group].scale, amax / 127, rtol=2**-22)
    assert len(kept) >= 6
