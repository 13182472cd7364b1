"""The spelling of a canonical float model that integer kernels of a CPU run best."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from fuseq.passes.activation_before_pool import activations_before_pools
from fuseq.passes.affine_into_conv import affines_into_convs
from fuseq.passes.batch_norm_conv import batch_norms_to_convs
from fuseq.passes.image_means import means_to_pools
from fuseq.passes.linear_gemm import linears_to_gemms
from fuseq.passes.names import fix_names
from fuseq.passes.split_linears import split_linears
from fuseq.passes.sum_before_norm import sums_before_norms


def to_integer_form(model: ir.Model) -> list[str]:
    """Change a canonical model in place, for targets whose kernels need integers on both sides.

    Every step keeps the values (but for rounding) and the model's speed in float, so that a model
    of which nothing is quantized afterwards loses nothing. Names of values that existed stay.

    Returns:
        Sentences about what a user must know; none so far.
    """
    notes = [
        *means_to_pools(model),
        *batch_norms_to_convs(model),
        *affines_into_convs(model),
        *activations_before_pools(model),
        *sums_before_norms(model),
        *split_linears(model),
        *linears_to_gemms(model),
    ]
    common.RemoveUnusedNodesPass()(model)
    return notes + fix_names(model)
