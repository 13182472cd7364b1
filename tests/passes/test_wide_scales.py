"""FP32 scales come back beside FP16 tensors, in the opset that allows it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from fuseq.passes.shapes import infer_shapes
from fuseq.passes.two_types import nodes_of_two_types
from fuseq.passes.typing import set_precision
from fuseq.passes.wide_scales import float32_scales, widen_scales
from tests.graphs import from_text, named, normal
from tests.quantized_nets import HEAD, run_as_written


def typed(precision: str) -> tuple[ir.Model, dict[str, np.ndarray]]:
    model = named(
        from_text(
            f"""{HEAD}
            g (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float s = {{0.0123456}}, int8 z = {{0}}> {{
              r = Relu(x)
              q = QuantizeLinear(r, s, z)
              d = DequantizeLinear(q, s, z)
              e = DequantizeLinear <axis = 0> (w, t)
              y = Conv <kernel_shape = [1, 1]> (d, e)
            }}""",
            w=np.random.default_rng(0).integers(-127, 128, (8, 8, 1, 1)).astype(np.int8),
            t=np.random.default_rng(1).uniform(0.001, 0.01, 8).astype(np.float32),
        )
    )
    scales = float32_scales(model)
    set_precision(model, precision)
    return model, scales


def test_scales_have_every_bit_and_tensors_stay_half() -> None:
    model, scales = typed("fp16")
    widen_scales(model, scales)
    assert model.opset_imports[""] == 23
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for node in model.graph:
        if node.name not in scales:
            continue
        stored = node.inputs[1].const_value.numpy()
        assert stored.dtype == np.float32
        np.testing.assert_array_equal(stored, scales[node.name])
        if node.op_type == "DequantizeLinear":
            assert node.outputs[0].dtype == ir.DataType.FLOAT16 and len(node.inputs) == 2
        else:
            assert node.inputs[0].dtype == ir.DataType.FLOAT16
    assert not nodes_of_two_types(model)
    infer_shapes(model)
    assert run_as_written(model, x=normal(1, 8, 4, 4)).dtype == np.float32


def test_a_float_model_is_left_alone() -> None:
    model, scales = typed("fp32")
    before = ir.to_proto(model).SerializeToString()
    widen_scales(model, scales)
    assert ir.to_proto(model).SerializeToString() == before


def test_below_opset_23_a_wide_scale_is_a_mixture() -> None:
    model, scales = typed("fp16")
    widen_scales(model, scales)
    model.opset_imports[""] = 21
    assert len(nodes_of_two_types(model)) == 3
