"""Where a plan acts on a living module: points on the calls of torch functions, as frozen data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fuseq.formats import Format
from fuseq.torch.calls import CallKey


@dataclasses.dataclass(frozen=True)
class ActivationPoint:
    """One argument of a call that is fake-quantized before the call runs.

    Attributes:
        tensor: Name in the plan.
        group: Scale group.
        format: Number format.
        factor: The argument is ``factor`` times the planned tensor (attention scales its query
            inside the call); the scale is multiplied by it.
    """

    tensor: str
    group: str
    format: Format
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class BatchNormFold:
    """A BatchNorm whose scale the exported weight contains.

    Attributes:
        path: Path of the BatchNorm module.
        eps: Its epsilon.
        in_float64: Folded by fuseq, in float64; else by torch's exporter, in float32.
    """

    path: str
    eps: float
    in_float64: bool


@dataclasses.dataclass(frozen=True)
class WeightSource:
    """A parameter that is a weight of the plan, or one part of it.

    Attributes:
        path: Path of the parameter; "" where the weight is computed from parameters.
        fold: BatchNorm folded into it.
        axis: Its output-channel axis.
        factor: Constants behind the layer that the exported weight contains, one a channel; None for 1.
    """

    path: str
    fold: BatchNormFold | None
    axis: int
    factor: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class WeightPoint:
    """The weight argument of a call.

    Attributes:
        tensor: Name in the plan.
        group: Scale group.
        format: Number format.
        per_channel: One scale a channel of :attr:`source`; else one for
            all :attr:`members`.
        source: The weight itself.
        members: All weights of the group in the order in which the export joins them.
    """

    tensor: str
    group: str
    format: Format
    per_channel: bool
    source: WeightSource
    members: tuple[WeightSource, ...]


@dataclasses.dataclass(frozen=True)
class CallPlan:
    """What happens at one call.

    Attributes:
        activations: Points by argument: ``input``, ``other``, ``query``, ``tensors.0`` ...;
            ``softmax`` is inside attention.
        weight: The weight's point.
        folded: This is a BatchNorm call whose scale the convolution before it contains.
    """

    activations: Mapping[str, ActivationPoint] = dataclasses.field(default_factory=dict)
    weight: WeightPoint | None = None
    folded: BatchNormFold | None = None


@dataclasses.dataclass(frozen=True)
class Points:
    """A plan on a module.

    Attributes:
        calls: What happens, by call.
        missing: Why a planned tensor is not fake-quantized, by tensor; it is quantized in the export.
        visits: How often a module runs in one forward pass, by path, where it is more than once.
    """

    calls: Mapping[CallKey, CallPlan]
    missing: Mapping[str, str]
    visits: Mapping[str, int] = dataclasses.field(default_factory=dict)
