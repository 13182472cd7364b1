"""Random calibration data: enough to try a model out, never to ship it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Batch, Source
from fuseq.errors import CalibrationError
from fuseq.model import FLOAT_TYPES, InputSpec, input_specs, profile_for

RANDOM_BATCHES = 8

_LARGEST_ID = 1000
_HANDING_ON = frozenset({"Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})

WARNING = (
    "RANDOM calibration data: the ranges are those of noise, not of your inputs, and the quantized "
    "model may be useless. Give real samples before you measure accuracy or ship it."
)


def random_source(
    model: ir.Model,
    shapes: Mapping[str, tuple[int, ...]] | None,
    seed: int,
    limit: int | None,
) -> Source:
    """Make batches of one sample: floats from N(0, 1), small valid ids, bool True.

    An integer input that indexes a table (Gather) gets ids of that table under 1000; any other
    integer input, an attention mask for example, gets 1.

    Raises:
        OptionError: A dimension other than the batch is open and not in ``shapes``.
    """
    fixed = dict(profile_for(model, 1, shapes).optimum)
    specs = input_specs(model)
    tables = {spec.name: _table_rows(model, spec.name) for spec in specs}
    count = limit or RANDOM_BATCHES

    def make() -> Iterator[Batch]:
        generator = np.random.default_rng(seed)
        for _ in range(count):
            yield {
                spec.name: _values(generator, spec, fixed[spec.name], tables[spec.name])
                for spec in specs
            }

    return Source(f"{count} random batches (seed {seed})", make, count, [WARNING])


def _values(
    generator: np.random.Generator, spec: InputSpec, shape: tuple[int, ...], rows: int | None
) -> np.ndarray:
    if spec.dtype in FLOAT_TYPES:
        return generator.standard_normal(shape).astype(spec.dtype.numpy())
    dtype = spec.dtype.numpy()
    if dtype.kind not in "iub":
        raise CalibrationError(
            f"input {spec.name!r} has type {spec.dtype.name}, which cannot be made up; give data."
        )
    if rows is None:
        return np.ones(shape, dtype=dtype)
    return generator.integers(0, min(rows, _LARGEST_ID), shape).astype(dtype)


def _table_rows(model: ir.Model, name: str) -> int | None:
    """Rows of the smallest table that the input indexes; None where it indexes none."""
    value = next(value for value in model.graph.inputs if value.name == name)
    found: list[int] = []
    ahead, seen = [value], {value}
    while ahead:
        value = ahead.pop()
        for node, index in value.uses():
            if node.op_type == "Gather" and index == 1 and node.inputs[0] is not None:
                axis = node.attributes.get_int("axis", 0)
                shape = node.inputs[0].shape
                if shape is not None and isinstance(shape[axis], int):
                    found.append(int(shape[axis]))  # type: ignore[arg-type]
            elif node.op_type in _HANDING_ON and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                ahead.append(node.outputs[0])
    return min(found, default=None)
