"""Bring any exporter's float ONNX into one canonical form, so that planner and compiler see one spelling."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from fuseq.library_logs import quiet_libraries
from fuseq.passes.attention_mask import bound_attention_masks
from fuseq.passes.attention_op import split_attention
from fuseq.passes.attention_scale import merge_attention_scales
from fuseq.passes.clean import (
    clean_up,
    fold_constants,
    fold_constants_again,
    lift_constants,
    lift_constants_again,
)
from fuseq.passes.clips import merge_clips
from fuseq.passes.constant_types import unify_constant_types
from fuseq.passes.dropout import remove_dropouts
from fuseq.passes.expand import drop_expands
from fuseq.passes.flat_softmax import merge_flat_softmaxes
from fuseq.passes.flat_transpose import merge_flat_transposes
from fuseq.passes.fold_affine import fold_affine
from fuseq.passes.fold_norm_scale import fold_norm_scales
from fuseq.passes.gelu import fuse_gelus
from fuseq.passes.known_sizes import fold_known_sizes
from fuseq.passes.layer_norm import fuse_layer_norms
from fuseq.passes.library_rules import apply_library_rules
from fuseq.passes.names import fix_names
from fuseq.passes.no_ops import remove_no_ops
from fuseq.passes.opset import raise_opset
from fuseq.passes.shapes import infer_shapes
from fuseq.passes.sibling_linears import merge_sibling_linears
from fuseq.passes.static_reshape import make_reshapes_static
from fuseq.passes.subgraphs import note_subgraphs
from fuseq.passes.unbind import split_unbound_heads
from fuseq.passes.weight_chains import resolve_weights

Step = Callable[[ir.Model], list[str]]

STEPS: tuple[Step, ...] = (
    lift_constants,
    raise_opset,
    lift_constants_again,
    note_subgraphs,
    remove_dropouts,
    fold_constants,
    resolve_weights,
    infer_shapes,
    unify_constant_types,
    fold_known_sizes,
    fold_constants_again,
    make_reshapes_static,
    merge_flat_softmaxes,
    remove_no_ops,
    fold_affine,
    merge_clips,
    apply_library_rules,
    fuse_layer_norms,
    fold_norm_scales,
    fuse_gelus,
    split_attention,
    split_unbound_heads,
    merge_sibling_linears,
    merge_flat_transposes,
    merge_attention_scales,
    infer_shapes,
    drop_expands,
    fold_constants_again,
    bound_attention_masks,
    clean_up,
    fix_names,
    infer_shapes,
)
"""The order matters: constants are lifted before anything asks for them, and shapes come last."""


def canonicalize(model: ir.Model) -> list[str]:
    """Change ``model`` in place into canonical form; its inputs, outputs and float values stay.

    Returns:
        Sentences about what a user must know: a meaning that changed, or a part left alone.

    Raises:
        ModelError: A node cannot be brought to the needed opset; the message names it.
    """
    with quiet_libraries():
        return [note for step in STEPS for note in step(model)]
