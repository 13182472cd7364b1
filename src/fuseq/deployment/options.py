"""What a user decides about a deployment."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from fuseq.evaluate.compare_outputs import Kind
from fuseq.options import QuantizeOptions
from fuseq.placement.plan import Plan


@dataclasses.dataclass(frozen=True)
class DeployOptions:
    """Options of ``fuseq deploy``.

    Attributes:
        quantize: Format, target and the rest.
        plan: A plan to apply instead of planning.
        data: What closeness is measured on, as calibration data is given; None: the calibration data.
        samples: Samples that closeness is measured on.
        outputs_are: What outputs [N, D] hold, for agreements; None decides by itself.
        metric: ``module:function``, see :mod:`fuseq.evaluate.compare_metric`.
        seconds: Time for measuring, where the target runs on this machine.
    """

    quantize: QuantizeOptions = dataclasses.field(default_factory=QuantizeOptions)
    plan: Plan | None = None
    data: str | os.PathLike[str] | None = None
    samples: int = 64
    outputs_are: Kind | None = None
    metric: str | None = None
    seconds: float = 10.0

    def quantize_inputs(self) -> Mapping[str, Any]:
        """What the quantized model depends on, as plain data."""
        return {
            "options": dataclasses.asdict(self.quantize),
            "plan": None if self.plan is None else self.plan.to_json(),
        }
