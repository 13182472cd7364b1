"""Check arrays against a model's inputs, and cast them where nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from fuseq.calibration.batches import Batch
from fuseq.errors import CalibrationError
from fuseq.model import InputSpec

Note = Callable[[str], None]

_FLOATS = frozenset(np.dtype(t) for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16))


def fit(batch: Mapping[str, Any], specs: Sequence[InputSpec], where: str, note: Note) -> Batch:
    """Return ``batch`` in the dtypes of the model's inputs.

    1. Names: exactly the model's inputs.
    2. Dtype: float to float and integer to integer where every value survives, bool to integer;
       each with a note. Integer to float is refused: it is nearly always an image that was not
       normalized. Float to integer is refused.
    3. Shape: rank, fixed dimensions, and dimensions of one name equal across inputs.
    4. Values: not empty, no NaN, no infinity.

    Args:
        batch: Arrays, or what NumPy makes arrays of, by input name.
        specs: The model's inputs.
        where: Names the source and batch in messages.
        note: Takes the notes.

    Raises:
        CalibrationError: One of the above; the sentence names the input.
    """
    check_names(batch, specs, where)
    symbols: dict[str, tuple[int, str]] = {}
    fitted: Batch = {}
    for spec in specs:
        array = as_array(batch[spec.name], f"input {spec.name!r} of {where}")
        check_shape(array.shape, spec, where)
        _check_symbols(array.shape, spec, symbols, where)
        fitted[spec.name] = cast(array, spec, where, note)
    return fitted


def check_names(names: Mapping[str, Any], specs: Sequence[InputSpec], where: str) -> None:
    """Refuse missing and extra names.

    Raises:
        CalibrationError: Names what is missing or not an input.
    """
    wanted = {spec.name for spec in specs}
    missing, extra = sorted(wanted - set(names)), sorted(map(str, set(names) - wanted))
    if missing:
        given = f"it has {sorted(map(str, names))}" if names else "it has none"
        raise CalibrationError(
            f"{where}: no array for the model's input {', '.join(map(repr, missing))}; {given}. "
            f"Name one array after each of the inputs {sorted(wanted)}."
        )
    if extra:
        raise CalibrationError(
            f"{where}: {', '.join(map(repr, extra))} is not an input of the model; the inputs are "
            f"{sorted(wanted)}. Leave out or rename the array."
        )


def as_array(value: Any, what: str) -> np.ndarray:
    """Make an array, tensors of other libraries included.

    Raises:
        CalibrationError: It is not numeric, or ragged.
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise CalibrationError(
            f"{what}: {type(value).__name__} cannot become an array ({error}); give a NumPy array."
        ) from error
    if array.dtype.hasobject or (array.dtype.kind not in "fiub" and array.dtype not in _FLOATS):
        raise CalibrationError(
            f"{what}: found {array.dtype} values; give a float, integer or bool array."
        )
    return array


def check_shape(shape: Sequence[int], spec: InputSpec, where: str) -> None:
    """Refuse a wrong rank, a dimension that the model fixes otherwise, and an empty array.

    Raises:
        CalibrationError: Names input, shape and what the model takes.
    """
    what = f"input {spec.name!r} of {where}"
    if 0 in shape:
        raise CalibrationError(
            f"{what}: the array is empty (shape {list(shape)}); give one sample or more."
        )
    if spec.shape is None:
        return
    takes = f"[{', '.join(map(str, spec.shape))}]"
    if len(shape) != len(spec.shape):
        hint = "add the batch axis" if len(shape) == len(spec.shape) - 1 else "reshape the array"
        raise CalibrationError(
            f"{what}: found rank {len(shape)} (shape {list(shape)}), the model takes rank "
            f"{len(spec.shape)} ({takes}); {hint}."
        )
    if any(
        isinstance(dim, int) and dim != size for dim, size in zip(spec.shape, shape, strict=True)
    ):
        raise CalibrationError(
            f"{what}: found shape {list(shape)}, the model takes {takes}; resize the data or check "
            "its layout."
        )


def cast(array: np.ndarray, spec: InputSpec, where: str, note: Note) -> np.ndarray:
    """Cast to the input's dtype and look at the values.

    Raises:
        CalibrationError: NaN, infinity, a kind that does not fit, or a value that is lost.
    """
    what = f"input {spec.name!r} of {where}"
    if array.dtype in _FLOATS and not np.isfinite(array).all():
        bad = "NaN" if np.isnan(array).any() else "an infinite value"
        raise CalibrationError(f"{what}: found {bad}; repair or remove the sample.")
    if spec.dtype == ir.DataType.UNDEFINED:
        return array
    wanted = spec.dtype.numpy()
    if array.dtype == wanted:
        return array
    reason = _refusal(array, wanted)
    if reason:
        raise CalibrationError(f"{what}: found {array.dtype}, the model takes {wanted}; {reason}.")
    with np.errstate(over="ignore"):
        converted = array.astype(wanted)
    if wanted in _FLOATS and not np.isfinite(converted).all():
        raise CalibrationError(
            f"{what}: a value of {array.dtype} does not fit {wanted}; scale the data as in training."
        )
    note(f"input {spec.name!r}: cast from {array.dtype} to {wanted}.")
    return converted


def _refusal(array: np.ndarray, wanted: np.dtype[Any]) -> str:
    """Why the values cannot be cast, "" if they can."""
    if array.dtype in _FLOATS:
        return (
            "" if wanted in _FLOATS else "give integers, because rounding would change the values"
        )
    if wanted in _FLOATS:
        return "prepare it as in training (scale, mean, std) and save it as float"
    low, high = int(array.min()), int(array.max())
    if wanted.kind == "b":
        return "" if low >= 0 and high <= 1 else "give only 0 and 1"
    if wanted.kind not in "iu":
        return "this type cannot be calibrated with data"
    limits = np.iinfo(wanted)
    if low < limits.min or high > limits.max:
        return f"values from {low} to {high} do not fit"
    return ""


def _check_symbols(
    shape: Sequence[int], spec: InputSpec, symbols: dict[str, tuple[int, str]], where: str
) -> None:
    """Dimensions of one name are equal; ``symbols`` remembers size and input by name."""
    for dim, size in zip(spec.shape or (), shape, strict=False):
        if isinstance(dim, int):
            continue
        known, other = symbols.setdefault(dim, (size, spec.name))
        if known != size:
            raise CalibrationError(
                f"input {spec.name!r} of {where}: dimension {dim!r} is {size}, but {known} in input "
                f"{other!r}; give arrays of equal size there."
            )
