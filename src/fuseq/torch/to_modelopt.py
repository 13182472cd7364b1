"""A prepared module's placement as ModelOpt's globs."""

from __future__ import annotations

from torch import nn

from fuseq.modelopt.cfg_writer import WrittenRecipe, write_recipe
from fuseq.torch.prepared import prepared_of


def to_modelopt_cfg(prepared: nn.Module) -> WrittenRecipe:
    """Write the plan of a prepared module as a configuration for ModelOpt's ``mtq.quantize``.

    Returns:
        ``config`` to hand over, ``quantizers`` that it switches on, and ``notes`` about pairs that no
        quantizer of ModelOpt can make.

    Raises:
        PlanError: The module is not prepared.
    """
    found = prepared_of(prepared)
    return write_recipe(found.plan, found.job.model)
