"""NumPy arrays and torch tensors as one: in as they come, out as they came.

torch is never imported here: a tensor brings its library along.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fuseq.errors import OptionError

Array = Any
"""A NumPy array, a torch tensor on any device, or a number or nested list of numbers."""


def is_tensor(array: Array) -> bool:
    """It is a torch tensor."""
    return type(array).__module__.partition(".")[0] == "torch"


def to_numpy(name: str, array: Array) -> np.ndarray:
    """The same values as a NumPy array; no copy where the tensor is on the CPU.

    Raises:
        OptionError: Not an array, or of a type that NumPy does not have (bfloat16, float8).
    """
    if is_tensor(array):
        try:
            found: np.ndarray = array.detach().cpu().numpy()
        except TypeError as error:
            raise OptionError(
                f"input {name!r} is a tensor of {array.dtype}, which NumPy does not have; give "
                "float16 or float32."
            ) from error
        return found
    converted = np.asarray(array)
    if converted.dtype == object:
        raise OptionError(f"input {name!r} is no array of numbers ({type(array).__name__}).")
    return converted


def like_inputs(outputs: Mapping[str, np.ndarray], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs as torch tensors, on the device of the first tensor among ``feeds``, if there is one."""
    tensor = next((array for array in feeds.values() if is_tensor(array)), None)
    if tensor is None:
        return dict(outputs)
    from torch import from_numpy  # noqa: PLC0415  (it is imported: a tensor was given)

    return {name: from_numpy(array).to(tensor.device) for name, array in outputs.items()}
