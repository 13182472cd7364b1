"""Every rule, in the order of their codes. A new rule is added here, with its page in docs/rules/."""

from __future__ import annotations

from fuseq.checks import (
    asymmetric_quantizer,
    half_quantized_layer,
    lone_quantizer,
    quantized_bias,
    slower_than_float,
    unusable_scale,
)
from fuseq.checks.rule import Rule
from fuseq.errors import OptionError

RULES: tuple[Rule, ...] = (
    lone_quantizer.RULE,
    half_quantized_layer.RULE,
    asymmetric_quantizer.RULE,
    quantized_bias.RULE,
    unusable_scale.RULE,
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
