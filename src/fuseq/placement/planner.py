"""The one planner: patterns, asked of the target's rules, become regions and quantized tensors.

It reads the canonical float graph and the target's :class:`FusionRules`; it neither edits the graph
nor calls a compiler. What it returns is everything that the target runs in the format; what does not
pay is taken out afterwards by :mod:`fuseq.placement.pays`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fuseq.placement.choices import PlanOptions, blocked_by_user, unmatched_globs, user_refusal
from fuseq.placement.joins import unweighted_entries, with_nodes
from fuseq.placement.patterns import (
    ACTIVATIONS,
    NORMALIZATIONS,
    Attention,
    Weighted,
    attention_at,
    constant_of,
    epilogue,
    is_float_activation,
    is_split_afterwards,
    is_squeeze_excite,
    residual_inputs,
    split_of,
    weighted,
)
from fuseq.placement.plan import Plan, QuantizedTensor, Region, Use, fingerprint
from fuseq.placement.sharing import share_scales
from fuseq.placement.spectra import spectra
from fuseq.placement.tables import tables
from fuseq.placement.weight_noise import (
    FULL_CHANNEL_SQNR_DB,
    MIN_CHANNEL_SQNR_DB,
    per_tensor_is_accurate,
)
from fuseq.targets.fusion import FusionRules


@dataclasses.dataclass(frozen=True)
class Draft:
    """A region with its tensors, before scales are shared."""

    region: Region
    tensors: tuple[QuantizedTensor, ...] = ()


def plan_everything(
    model: ir.Model,
    rules: FusionRules,
    *,
    target: str,
    user_format: str,
    precision: str,
    options: PlanOptions | None = None,
) -> Plan:
    """Plan every region that ``rules`` allow; each refusal is a region with its reason.

    Args:
        model: Canonical float model (:func:`fuseq.passes.canonical.canonicalize`).
        rules: What the target fuses in the format.
        target: Name of the target, written into the plan.
        user_format: ``int8`` or ``fp8``.
        precision: ``fp16``, ``bf16`` or ``fp32``: the type of what stays float.
        options: The user's choices.
    """
    options = options or PlanOptions()
    if rules.pairs_on_outputs:
        from fuseq.placement.integer_domain import plan_integers  # noqa: PLC0415 (imports this)

        return plan_integers(model, rules, target, user_format, precision, options)
    matches = [found for node in model.graph if (found := weighted(node)) is not None]
    blocked = blocked_by_user(model.graph, matches, options)
    if not rules.activation.is_float:
        blocked = {**spectra(matches), **blocked}
    merged = _merged_inputs(matches, rules, blocked)
    least_db = FULL_CHANNEL_SQNR_DB if options.policy == "full" else MIN_CHANNEL_SQNR_DB
    drafts = [_weighted_draft(match, rules, blocked, merged, least_db) for match in matches]
    drafts += _attention_drafts(model.graph, rules, options)
    drafts += _normalization_drafts(model.graph)
    drafts += _table_drafts(model.graph, rules, options)
    order = {node.name or "": position for position, node in enumerate(model.graph)}
    drafts.sort(key=lambda draft: order.get(draft.region.nodes[0], 0))
    if rules.residual == "identity":
        drafts = _with_identity_branches(model.graph, drafts, rules, order)
    drafts = _with_unweighted(model.graph, drafts, rules)
    return Plan(
        target=target,
        format=user_format,
        precision=precision,
        policy=options.policy,
        fingerprint=fingerprint(model),
        tensors=share_scales(model.graph, [t for draft in drafts for t in draft.tensors]),
        regions=tuple(draft.region for draft in drafts),
        notes=tuple(unmatched_globs(matches, options)),
    )


def _weighted_draft(
    match: Weighted,
    rules: FusionRules,
    blocked: dict[str, str],
    merged: dict[str, str],
    least_db: float,
) -> Draft:
    node = match.node
    name = node.name or ""
    tail = epilogue(node)
    pattern = pattern_of(match)
    nodes = (name, *(step.name or "" for step in tail))
    refusal = blocked.get(name) or refusal_of(match, rules)
    if refusal:
        return Draft(Region(name, pattern, nodes, False, f"float: {refusal}"))
    why = f"the {pattern} {name} runs in {rules.activation.name}"
    axis, group, weight_why = _weight_scale(match, rules, merged, least_db)
    tensors = [
        QuantizedTensor(
            match.data.name or "", "activation", rules.activation.name, None,
            match.data.name or "", (Use(name, 0),), name, f"input of {why}",
        ),
        QuantizedTensor(
            match.weight.name or "", "weight", rules.weight.name, axis, group, (Use(name, 1),),
            name, f"weight of {why}; {weight_why}",
        ),
    ]  # fmt: skip
    return Draft(Region(name, pattern, nodes, True, f"quantized: {why}"), tuple(tensors))


def pattern_of(match: Weighted) -> str:
    """Name of the pattern, as the plan and the tables print it."""
    if match.is_depthwise:
        return "depthwise convolution"
    if is_squeeze_excite(match):
        return "squeeze-excite layer" if match.is_conv else "head"
    if match.node.op_type == "ConvTranspose":
        return "transposed convolution"
    if match.is_conv:
        return "conv block" if match.groups == 1 else "grouped convolution"
    return "linear"


def refusal_of(match: Weighted, rules: FusionRules) -> str:
    """Why no kernel of the target runs a node with weights in the format; "" if one does."""
    node = match.node
    if node.op_type in rules.refused:
        return rules.refused[node.op_type]
    if match.is_depthwise and rules.depthwise:
        return rules.depthwise
    if match.is_depthwise and rules.depthwise_activations is not None:
        for step in epilogue(node):
            if step.op_type in ACTIVATIONS and step.op_type not in rules.depthwise_activations:
                return f"a quantized depthwise convolution does not fuse {step.op_type}"
    if match.is_conv and match.weight.shape is not None:
        shape = [int(size) for size in match.weight.shape.numpy()]
        if why := convolution_refusal(node.op_type, shape, match.groups, rules):
            return why
    if len(match.weight.shape or ()) > 2 and not match.is_conv:
        return "its weight is a batch of matrices, which no kernel takes in this format"
    if not match.is_conv and match.weight.shape is not None:
        rows, columns = (int(size) for size in match.weight.shape.numpy())
        if rows % rules.linear_multiple or columns % rules.linear_multiple:
            multiple = rules.linear_multiple
            return f"no kernel takes a weight of {rows} x {columns}, no multiples of {multiple}"
    tensor = constant_of(match.weight)
    if tensor is not None and not np.isfinite(tensor.numpy()).all():
        return "its weight has NaN or infinite values"
    return ""


def convolution_refusal(op_type: str, shape: Sequence[int], groups: int, rules: FusionRules) -> str:
    """Why a convolution's groups, channels or window have no kernel in the format; "" if they have.

    Args:
        op_type: Conv or ConvTranspose.
        shape: The weight's: [out, in / groups, window ...] of a Conv, [in, out / groups, window ...]
            of a ConvTranspose.
        groups: Groups of channels.
        rules: The target's.
    """
    name = rules.activation.name
    first, second, *window = shape
    in_group = first // groups if op_type == "ConvTranspose" else second
    if groups > 1 and in_group > 1 and rules.grouped:
        return rules.grouped
    channels = in_group * groups
    if channels < rules.min_conv_channels:
        least = rules.min_conv_channels
        return f"no {name} kernel takes {channels} input channels; {least} are the least"
    if in_group % rules.conv_channel_multiple:
        multiple = rules.conv_channel_multiple
        return f"no {name} kernel takes {in_group} input channels, no multiple of {multiple}"
    taps = math.prod(window)
    if rules.max_conv_taps is not None and taps > rules.max_conv_taps:
        return f"no {name} kernel takes a window of {taps} positions; {rules.max_conv_taps} are the most"
    return ""


def _weight_scale(
    match: Weighted, rules: FusionRules, merged: dict[str, str], least_db: float
) -> tuple[int | None, str, str]:
    """Axis and scale group of a weight, and why."""
    name = match.weight.name or ""
    group = merged.get(match.node.name or "")
    if group is not None:
        return None, group, "one scale for all products of this input, which merge into one"
    if rules.merges_linear and not match.is_conv and is_split_afterwards(match):
        return None, name, "one scale: its output is split, and scales a channel would not fuse"
    granularity = rules.conv_weights if match.is_conv else rules.linear_weights
    if granularity == "channel":
        return match.channel_axis, name, "one scale a channel"
    if per_tensor_is_accurate(match, rules.weight, least_db):
        return None, name, "one scale, which fuses into the kernel"
    return (
        match.channel_axis,
        name,
        "one scale a channel: one for all would drown small channels in noise",
    )


def _merged_inputs(
    matches: list[Weighted], rules: FusionRules, blocked: dict[str, str]
) -> dict[str, str]:
    """Scale group by node name, for linear nodes that read one tensor and merge into one GEMM."""
    if not rules.merges_linear:
        return {}
    by_input: dict[str, list[str]] = {}
    for match in matches:
        if not match.is_conv and (match.node.name or "") not in blocked:
            by_input.setdefault(match.data.name or "", []).append(match.node.name or "")
    return {
        node: f"merged:{data}"
        for data, nodes in by_input.items()
        if len(nodes) > 1
        for node in nodes
    }


def _attention_drafts(graph: ir.Graph, rules: FusionRules, options: PlanOptions) -> list[Draft]:
    drafts = []
    for node in graph:
        if node.op_type != "Softmax":
            continue
        found = attention_at(node)
        name = node.name or ""
        if isinstance(found, str):
            drafts.append(Draft(Region(name, "softmax", (name,), False, f"float: {found}")))
            continue
        nodes = tuple(step.name or "" for step in found.nodes)
        refusal = user_refusal(nodes, options) or rules.attention
        if refusal:
            drafts.append(Draft(Region(name, "attention", nodes, False, f"float: {refusal}")))
        else:
            drafts.append(_attention_draft(found, nodes, rules))
    return drafts


def _attention_draft(found: Attention, nodes: tuple[str, ...], rules: FusionRules) -> Draft:
    """Pairs on Q, K, V and the softmax output; on one tensor where a Split cuts it into Q, K, V."""
    name = found.softmax.name or ""
    reason = "Q, K, V and the softmax output need pairs together, or the fusion breaks"
    softmax = ("softmax output", found.product, 0, 1.0)
    split = split_of(found) if rules.merges_linear else None
    if split is not None:
        reason += "; one pair before their Split lets the product write the format"
        parts: tuple[tuple[str, ir.Node, int, float | None], ...] = (
            ("Q, K and V", split, 0, None),
            softmax,
        )
        nodes = (split.name or "", *nodes)
    else:
        parts = (
            ("Q", found.scores, 0, None),
            ("K", found.scores, 1, None),
            softmax,
            ("V", found.product, 1, None),
        )
    tensors = tuple(
        QuantizedTensor(
            _name_of(node.inputs[index]), "activation", rules.activation.name, None,
            _name_of(node.inputs[index]), (Use(node.name or "", index),), name,
            f"{role} of attention {name}: {reason}", known_amax,
        )
        for role, node, index, known_amax in parts
    )  # fmt: skip
    return Draft(Region(name, "attention", nodes, True, f"quantized: {reason}"), tensors)


def _table_drafts(graph: ir.Graph, rules: FusionRules, options: PlanOptions) -> list[Draft]:
    drafts = []
    for region, entry in tables(graph, rules):
        refusal = user_refusal(region.nodes, options)
        if refusal:
            refused = Region(region.name, region.pattern, region.nodes, False, f"float: {refusal}")
            drafts.append(Draft(refused))
        else:
            drafts.append(Draft(region, (entry,)))
    return drafts


def _normalization_drafts(graph: ir.Graph) -> list[Draft]:
    why = "float: no kernel reads a quantized normalization input; its output is quantized instead"
    return [
        Draft(Region(node.name or "", "normalization", (node.name or "",), False, why))
        for node in graph
        if node.op_type in NORMALIZATIONS
    ]


def _with_identity_branches(
    graph: ir.Graph, drafts: list[Draft], rules: FusionRules, order: dict[str, int]
) -> list[Draft]:
    """Add to a quantized convolution the pair on the other branch of the Add that it fuses."""
    activations = {node.name or "" for node in graph if node.op_type in ACTIVATIONS}
    convolutions = {
        draft.region.nodes[-1]: position
        for position, draft in enumerate(drafts)
        if draft.region.quantized
        and draft.region.pattern in ("conv block", "grouped convolution")
        and (rules.adds_behind_activation or not activations.intersection(draft.region.nodes))
    }
    result = list(drafts)
    for node in graph:
        branches = residual_inputs(node)
        if branches is None:
            continue
        fused = _fused_branch(branches, convolutions, order)
        if fused is None:
            continue
        value, position = fused
        other = 1 if node.inputs[0] is value else 0
        identity = branches[other]
        draft = result[position]
        entry = QuantizedTensor(
            identity.name or "", "activation", rules.activation.name, None, identity.name or "",
            (Use(node.name or "", other),), draft.region.name,
            f"the other branch of the residual {node.name}: the Add fuses into {draft.region.name}",
        )  # fmt: skip
        region = dataclasses.replace(draft.region, nodes=(*draft.region.nodes, node.name or ""))
        result[position] = Draft(region, (*draft.tensors, entry))
    return result


def _with_unweighted(graph: ir.Graph, drafts: list[Draft], rules: FusionRules) -> list[Draft]:
    """Add to a region the pairs of pools and additions that only it reads."""
    added = unweighted_entries(graph, [t for draft in drafts for t in draft.tensors], rules)
    return [
        Draft(
            with_nodes(draft.region, [node for node, _ in added[draft.region.name]]),
            (*draft.tensors, *(entry for _, entry in added[draft.region.name])),
        )
        if draft.region.name in added
        else draft
        for draft in drafts
    ]


def _fused_branch(
    branches: tuple[ir.Value, ir.Value], convolutions: dict[str, int], order: dict[str, int]
) -> tuple[ir.Value, int] | None:
    """The branch that ends in a quantized convolution read by nobody else; the later one of two."""
    candidates = []
    for value in branches:
        producer = value.producer()
        name = (producer.name or "") if producer is not None else ""
        if name in convolutions and len(value.uses()) == 1 and not value.is_graph_output():
            candidates.append((order[name], value, convolutions[name]))
    if not candidates:
        return None
    _, value, position = max(candidates, key=lambda candidate: candidate[0])
    return value, position


def _name_of(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None and is_float_activation(value) else ""
