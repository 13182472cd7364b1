"""The plan: which tensors are quantized, for whom, how, and why. Data that can be printed and edited."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from fuseq.errors import PlanError
from fuseq.formats import FORMATS
from fuseq.model import whole_file

PLAN_VERSION = 1
_MAX_PLAN_BYTES = 256 * 2**20

Kind = Literal["activation", "weight", "bias"]
Limits = tuple[float | None, float | None]
"""Smallest and largest value that an operator lets through; None where it sets no bound."""
Policy = Literal["pays", "full"]

MIN_GAIN_PERCENT = 2.0
"""A predicted or measured gain under this is not worth its rounding: it is as large as the error of
what tells it (docs/cost-model.md, "How small a gain it can tell")."""


@dataclasses.dataclass(frozen=True, order=True)
class Use:
    """One reader of a tensor: input number ``index`` of node ``node``.

    The model's own outputs are readers too: node ``""`` with the output's number.
    """

    node: str
    index: int


@dataclasses.dataclass(frozen=True)
class QuantizedTensor:
    """One tensor that is quantized, for the readers that read it quantized.

    Attributes:
        tensor: Name of the value in the canonical float graph.
        kind: activation, weight (an initializer), or bias (an initializer whose scale is the
            product of its node's input and weight scales).
        format: Name of the storage format (:data:`fuseq.formats.FORMATS`), ``int32`` for a bias.
        axis: Channel axis of a per-channel scale, None for per-tensor.
        group: Tensors with the same group share one scale.
        uses: Readers that see the quantized tensor; the others read it in float.
        region: Name of the region that asked for it.
        reason: Why, in words.
        known_amax: Largest magnitude that the operator's definition allows (softmax: 1.0); such a
            tensor needs no calibration. None where only data can tell.
        limits: Bounds that the operator before the tensor sets (ReLU6: 0 and 6). The stored range
            must lie inside, or an integer kernel cannot absorb that operator; 0 lies between them.
    """

    tensor: str
    kind: Kind
    format: str
    axis: int | None
    group: str
    uses: tuple[Use, ...]
    region: str
    reason: str
    known_amax: float | None = None
    limits: Limits | None = None


@dataclasses.dataclass(frozen=True)
class Region:
    """One pattern found in the graph and what was decided about it.

    Attributes:
        name: Unique; the name of the node that does the work.
        pattern: Which pattern matched (``conv block``, ``linear``, ``attention`` ...).
        nodes: ONNX nodes of the region, in graph order.
        quantized: The decision.
        reason: The decision in words.
    """

    name: str
    pattern: str
    nodes: tuple[str, ...]
    quantized: bool
    reason: str


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predicted engine figures of the float and the planned model. Predictions, not measurements."""

    float_us: float
    quantized_us: float
    float_kernels: int
    quantized_kernels: int
    float_activation_bytes: int
    quantized_activation_bytes: int


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to run the model that was timed beside others. Measured, on one machine.

    Attributes:
        name: ``float``, ``everything``, or which cut it is.
        operators: How many run in the format.
        median_ms: Median time of one run.
        best_ms: Shortest run.
        speedup: How many times faster than float: the smaller of two ratios, of the shortest runs,
            and the median over rounds of the ratio in one round. Noise seldom moves both.
    """

    name: str
    operators: int
    median_ms: float
    best_ms: float
    speedup: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Timed candidates, and which was kept. What a plan rests on where the target runs here.

    Attributes:
        machine: Processor and threads, in words.
        rounds: How often the candidates took turns.
        candidates: ``float`` first.
        chosen: Name of the one that was kept.
    """

    machine: str
    rounds: int
    candidates: tuple[Candidate, ...]
    chosen: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """A whole decision for one model, target and format. Round-trips through JSON."""

    target: str
    format: str
    precision: str
    policy: Policy
    fingerprint: str
    tensors: tuple[QuantizedTensor, ...] = ()
    regions: tuple[Region, ...] = ()
    notes: tuple[str, ...] = ()
    prediction: Prediction | None = None
    measurement: Measurement | None = None

    def groups(self) -> dict[str, list[QuantizedTensor]]:
        """Tensors by scale group, in plan order."""
        found: dict[str, list[QuantizedTensor]] = {}
        for entry in self.tensors:
            found.setdefault(entry.group, []).append(entry)
        return found

    def without(self, regions: Iterable[str], reason: str | Mapping[str, str]) -> Plan:
        """Return the plan with ``regions`` left in float; tensors asked for by others stay.

        Args:
            regions: Names of regions to leave in float.
            reason: One reason for all, or a reason by region name.
        """
        dropped = set(regions)
        kept = tuple(t for t in self.tensors if t.region not in dropped)

        def decide(region: Region) -> Region:
            if region.name not in dropped:
                return region
            why = reason if isinstance(reason, str) else reason[region.name]
            return dataclasses.replace(region, quantized=False, reason=why)

        return dataclasses.replace(
            self, tensors=kept, regions=tuple(decide(region) for region in self.regions)
        )

    def to_json(self) -> str:
        """Serialize; keys in a fixed order, so that plans can be diffed."""
        return json.dumps({"version": PLAN_VERSION, **dataclasses.asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str, origin: str = "plan") -> Plan:
        """Parse and validate.

        Raises:
            PlanError: Not JSON, of another version, or a field is missing or of a wrong type.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"{origin}: not JSON ({error}); give a file of --plan-out.") from error
        if not isinstance(data, dict) or data.get("version") != PLAN_VERSION:
            found = data.get("version") if isinstance(data, dict) else type(data).__name__
            raise PlanError(
                f"{origin}: plan version {found!r}, this fuseq reads {PLAN_VERSION}; plan again."
            )
        try:
            return _plan_from(data)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PlanError(f"{origin}: damaged plan ({error!r}); plan again.") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON whole or not at all."""
        with whole_file(Path(path)) as beside:
            beside.write_text(self.to_json() + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Read a plan file.

        Raises:
            PlanError: The file is missing, too large, or damaged.
        """
        file = Path(path)
        if not file.is_file():
            raise PlanError(f"{file}: no such plan file.")
        if file.stat().st_size > _MAX_PLAN_BYTES:
            raise PlanError(f"{file}: {file.stat().st_size} bytes is too large for a plan.")
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise PlanError(f"{file}: not text; give a file of --plan-out.") from error
        return Plan.from_json(text, str(file))


def fingerprint(model: ir.Model) -> str:
    """Hash of a graph's structure: nodes, types, edges and shapes, not weights.

    Two trainings of one architecture have the same fingerprint.
    """
    digest = hashlib.sha256()
    for node in model.graph:
        inputs = ",".join((value.name or "") if value is not None else "" for value in node.inputs)
        outputs = ",".join(value.name or "" for value in node.outputs)
        digest.update(f"{node.name}|{node.domain}|{node.op_type}|{inputs}|{outputs}\n".encode())
    for name in sorted(model.graph.initializers):
        digest.update(f"{name}|{model.graph.initializers[name].shape}\n".encode())
    return digest.hexdigest()[:16]


def check_fits(plan: Plan, model: ir.Model, origin: str = "plan") -> None:
    """Refuse a plan made for another architecture.

    Raises:
        PlanError: Names the first tensor or node that the model does not have.
    """
    nodes = {node.name for node in model.graph}
    values = {value.name for node in model.graph for value in node.outputs}
    values |= {value.name for value in model.graph.inputs} | set(model.graph.initializers)
    for entry in plan.tensors:
        if entry.tensor not in values:
            raise PlanError(
                f"{origin}: quantizes {entry.tensor!r}, which the model does not have; the plan "
                "was made for another architecture. Plan this model."
            )
        for use in entry.uses:
            if use.node and use.node not in nodes:
                raise PlanError(
                    f"{origin}: {entry.tensor!r} is read by {use.node!r}, which the model does "
                    "not have; the plan was made for another architecture. Plan this model."
                )


def _plan_from(data: dict[str, Any]) -> Plan:
    return Plan(
        target=_text(data, "target"),
        format=_text(data, "format"),
        precision=_text(data, "precision"),
        policy=_choice(data, "policy", ("pays", "full")),
        fingerprint=_text(data, "fingerprint"),
        tensors=tuple(_tensor_from(item) for item in _list(data, "tensors")),
        regions=tuple(_region_from(item) for item in _list(data, "regions")),
        notes=tuple(_strings(data, "notes")),
        prediction=Prediction(**data["prediction"]) if data.get("prediction") else None,
        measurement=_measurement_from(data.get("measurement")),
    )


def _measurement_from(data: dict[str, Any] | None) -> Measurement | None:
    if data is None:
        return None
    candidates = tuple(
        Candidate(
            _text(item, "name"),
            int(item["operators"]),
            float(item["median_ms"]),
            float(item["best_ms"]),
            float(item["speedup"]),
        )
        for item in _list(data, "candidates")
    )
    names = tuple(candidate.name for candidate in candidates)
    chosen: str = _choice(data, "chosen", names)
    return Measurement(_text(data, "machine"), int(data["rounds"]), candidates, chosen)


def _tensor_from(data: dict[str, Any]) -> QuantizedTensor:
    axis = data["axis"]
    if axis is not None and not isinstance(axis, int):
        raise TypeError(f"axis {axis!r} is not an integer")
    formats = (*(known.name for known in FORMATS), "int32")
    uses = tuple(Use(str(use["node"]), int(use["index"])) for use in _list(data, "uses"))
    return QuantizedTensor(
        tensor=_text(data, "tensor"),
        kind=_choice(data, "kind", ("activation", "weight", "bias")),
        format=_choice(data, "format", formats),
        axis=axis,
        group=_text(data, "group"),
        uses=uses,
        region=_text(data, "region"),
        reason=_text(data, "reason"),
        known_amax=_positive(data.get("known_amax")),
        limits=_limits(data.get("limits")),
    )


def _region_from(data: dict[str, Any]) -> Region:
    if not isinstance(data["quantized"], bool):
        raise TypeError("quantized is not true or false")
    return Region(
        name=_text(data, "name"),
        pattern=_text(data, "pattern"),
        nodes=tuple(_strings(data, "nodes")),
        quantized=data["quantized"],
        reason=_text(data, "reason"),
    )


def _text(data: dict[str, Any], key: str) -> str:
    if not isinstance(data[key], str):
        raise TypeError(f"{key} is not text")
    return str(data[key])


def _positive(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"known_amax {value!r} is not a positive number")
    return float(value)


def _limits(value: object) -> Limits | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"limits {value!r} are not a pair")
    low, high = (None if end is None else float(end) for end in value)
    if (low is not None and not -math.inf < low <= 0) or (
        high is not None and not 0 <= high < math.inf
    ):
        raise ValueError(f"limits {value!r} do not hold 0 between finite numbers")
    return low, high


def _choice(data: dict[str, Any], key: str, allowed: tuple[str, ...]) -> Any:
    if data[key] not in allowed:
        raise ValueError(f"{key} {data[key]!r} is not one of {allowed}")
    return data[key]


def _list(data: dict[str, Any], key: str) -> list[Any]:
    if not isinstance(data[key], list):
        raise TypeError(f"{key} is not a list")
    return list(data[key])


def _strings(data: dict[str, Any], key: str) -> list[str]:
    items = _list(data, key)
    if not all(isinstance(item, str) for item in items):
        raise TypeError(f"{key} holds something that is not text")
    return items
