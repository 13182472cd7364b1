"""Every rule, in the order of their codes. A new rule is added here, with its page in docs/rules/."""

from __future__ import annotations

from fuseq.checks import (
    asymmetric_quantizer,
    blocked_residual,
    broken_attention,
    float_neighbour,
    float_residual,
    float_stored_weight,
    forgotten_layers,
    half_quantized_layer,
    inflated_convolution,
    integer_operator,
    lone_quantizer,
    misfit_scale,
    missing_format,
    mixed_float_types,
    old_opset,
    padded_channels,
    private_quantizer,
    quantized_bias,
    slower_than_float,
    split_quantizers,
    two_scales,
    unequal_merged_scales,
    unfused_epilogue,
    unusable_pair,
    unusable_scale,
    vanishing_scale,
    written_out_quantizer,
    wrong_channel_axis,
)
from fuseq.checks.rule import Rule
from fuseq.errors import OptionError

RULES: tuple[Rule, ...] = (
    lone_quantizer.RULE,
    half_quantized_layer.RULE,
    float_residual.RULE,
    float_neighbour.RULE,
    unusable_pair.RULE,
    broken_attention.RULE,
    two_scales.RULE,
    unequal_merged_scales.RULE,
    inflated_convolution.RULE,
    padded_channels.RULE,
    unfused_epilogue.RULE,
    blocked_residual.RULE,
    split_quantizers.RULE,
    mixed_float_types.RULE,
    asymmetric_quantizer.RULE,
    quantized_bias.RULE,
    integer_operator.RULE,
    old_opset.RULE,
    missing_format.RULE,
    private_quantizer.RULE,
    written_out_quantizer.RULE,
    unusable_scale.RULE,
    vanishing_scale.RULE,
    wrong_channel_axis.RULE,
    misfit_scale.RULE,
    float_stored_weight.RULE,
    forgotten_layers.RULE,
    slower_than_float.RULE,
)


def rule_named(code: str) -> Rule:
    """The rule with ``code``, or with that name.

    Raises:
        OptionError: There is none.
    """
    for rule in RULES:
        if code.upper() == rule.code or code == rule.name:
            return rule
    known = ", ".join(rule.code for rule in RULES)
    raise OptionError(f"no rule is called {code!r}; the rules are {known}.")
