"""fix: a file's weight scales a channel stay where one for all would be heard, or where they cost nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from fuseq import fixing_channels
from fuseq.fixing import Fixed, fix
from fuseq.fixing_channels import restore_channels
from fuseq.options import QuantizeOptions
from fuseq.passes.found_scales import FoundScale
from fuseq.passes.quantizers import Quantizer
from fuseq.placement.plan import Plan, Use
from fuseq.planning import Job, everything, open_job
from tests.graphs import from_text, named
from tests.quantized_nets import HEAD, RTX

OPTIONS = dataclasses.replace(RTX, policy="pays", batch=1)


def uniform(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def job_for(weight: np.ndarray) -> tuple[Job, Plan, FoundScale]:
    """One convolution, its plan for TensorRT-RTX, and the file's scales a channel."""
    channels = len(weight)
    model = named(
        from_text(
            f"""<ir_version: 10, opset_import: ["" : 21]>
            net (float[1, 16, 8, 8] x) => (float[1, {channels}, 8, 8] y) {{
              r = Relu(x)
              y = Conv <kernel_shape = [1, 1]> (r, w)
            }}""",
            w=weight,
        )
    )
    job = open_job(model, QuantizeOptions(target=RTX.target, batch=1))
    scale = (np.abs(weight).reshape(channels, -1).max(1) / 127).astype(np.float32)
    by = Quantizer(scale, np.zeros(channels, np.int64), ir.DataType.INT8, 0)
    return job, everything(job), FoundScale("w", "weight", by, (Use("n_y", 1),), ("q", "d"))


def axis_of(plan: Plan) -> int | None:
    return next(entry.axis for entry in plan.tensors if entry.kind == "weight")


def test_channels_that_one_scale_would_drown_keep_theirs() -> None:
    even = uniform(16, 16, 1, 1)
    small = even * np.where(np.arange(16) < 3, 1 / 16, 1).astype(np.float32).reshape(-1, 1, 1, 1)
    for weight, expected in ((even, None), (small, 0)):
        job, plan, found = job_for(weight)
        assert axis_of(plan) is None  # 20 dB satisfy a planner that has float weights
        assert axis_of(restore_channels(job, plan, [found])) == expected
    by = dataclasses.replace(found.by, scale=np.float32(0.01).reshape(()), axis=None)
    one = dataclasses.replace(found, by=by)
    assert axis_of(restore_channels(job, plan, [one])) is None  # the file has one scale itself


def naive(seed: int = 1) -> ir.Model:
    """Two 256-channel convolutions with weight scales a channel, large enough that INT8 gains."""
    text = f"""{HEAD}
    net (float[1, 256, 32, 32] x) => (float[1, 256, 32, 32] y) <float s = {{0.01}}, int8 z = {{0}}> {{
      r = Relu(x)
      q = QuantizeLinear(r, s, z)
      d = DequantizeLinear(q, s, z)
      e = DequantizeLinear <axis = 0> (w, t)
      c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d, e)
      y = Relu(c)
    }}"""
    float_weight = uniform(256, 256, 3, 3, seed=seed)
    scale = (np.abs(float_weight).reshape(256, -1).max(1) / 127).astype(np.float16).astype("f4")
    stored = np.rint(float_weight / scale.reshape(-1, 1, 1, 1)).clip(-127, 127).astype(np.int8)
    return named(from_text(text, w=stored, t=scale))


def weight_scale(result: Fixed) -> np.ndarray:
    (group,) = [entry.group for entry in result.plan.tensors if entry.kind == "weight"]
    return result.scales[group].scale


def test_scales_a_channel_are_kept_where_they_cost_no_more_than_the_slack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("tensorrt_rtx_bindings")
    model = naive()
    file_scale = model.graph.initializers["t"].const_value.numpy()  # type: ignore[union-attr]
    monkeypatch.setattr(fixing_channels, "SLACK", 0.0)
    one = fix(model, options=OPTIONS)
    assert weight_scale(one).shape == ()
    assert [c.reason for c in one.changes if c.kind == "weight"] == [
        "it had one scale a channel of axis 0, the kernel wants one for the whole weight"
    ]
    monkeypatch.setattr(fixing_channels, "SLACK", 2.0)
    kept = fix(model, options=OPTIONS)
    assert np.array_equal(weight_scale(kept), file_scale)
    (entry,) = [entry for entry in kept.plan.tensors if entry.kind == "weight"]
    assert entry.axis == 0 and entry.reason.endswith("scales a channel cost nothing here")
    monkeypatch.undo()
    judged = fix(model, options=OPTIONS)
    assert judged.engine is not None and one.engine is not None and kept.engine is not None
    cheap = kept.engine.predicted_us <= one.engine.predicted_us * fixing_channels.SLACK
    assert (weight_scale(judged).shape == (256,)) == cheap
