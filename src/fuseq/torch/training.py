"""Quantization-aware training: switches of a prepared module, a schedule for them, and distillation.

The training loop stays the user's: a prepared module is trained like any other.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional

from fuseq.errors import OptionError
from fuseq.torch.prepared import prepared_of


def fake_quantize(prepared: nn.Module, enabled: bool = True) -> None:
    """Switch all fake quantizers on or off; off, the module computes as in float.

    Raises:
        PlanError: The module is not prepared, or has no scales to switch on.
    """
    found = prepared_of(prepared)
    if enabled and found.plan.tensors and not found.state.places:
        raise OptionError(
            f"{type(found.module).__name__} has no scales yet; call fuseq.torch.calibrate first."
        )
    found.state.fake_quantize = enabled


def observe(prepared: nn.Module, enabled: bool = True, momentum: float = 0.1) -> None:
    """Let activation scales follow the ranges of training batches, or keep them as they are.

    Each forward pass in train mode moves a scale by ``momentum`` towards ``amax / qmax`` of the batch
    (Krishnamoorthi 2018, section 3.2, moving averages). Weight scales follow the weights anyway.

    Raises:
        OptionError: ``momentum`` is not in (0, 1], or scales are learned.
        PlanError: The module is not prepared.
    """
    found = prepared_of(prepared)
    if not 0.0 < momentum <= 1.0:
        raise OptionError(f"momentum={momentum} is not in (0, 1]; 0.1 is usual.")
    if enabled and not found.state.places:
        raise OptionError(
            f"{type(found.module).__name__} has no scales yet; call fuseq.torch.calibrate first."
        )
    if enabled and found.learned:
        raise OptionError(
            "scales are learned, so they cannot follow ranges too; calibrate with scales='frozen'."
        )
    found.state.observe, found.state.momentum = enabled, momentum


def freeze_batch_norm(prepared: nn.Module, frozen: bool = True) -> None:
    """Let every BatchNorm of the module use its running statistics in train mode too.

    The exported weights contain them; towards the end of training the batch's own noise should no
    longer move what is rounded (Krishnamoorthi 2018, section 3.2.2). Affine parameters still train.

    Raises:
        PlanError: The module is not prepared.
    """
    prepared_of(prepared).state.batch_norm_frozen = frozen


@dataclasses.dataclass
class Schedule:
    """Switches by training step; call :meth:`step` once after each optimizer step.

    Attributes:
        prepared: The module.
        observe_until: Step at which activation ranges stop following; None never switches.
        freeze_batch_norm_at: Step from which BatchNorms are frozen; None never.
        done: Steps so far.
    """

    prepared: nn.Module
    observe_until: int | None = None
    freeze_batch_norm_at: int | None = None
    done: int = 0

    def step(self) -> None:
        """Count one step, and throw what is due."""
        self.done += 1
        if self.done == self.observe_until:
            prepared_of(self.prepared).state.observe = False
        if self.done == self.freeze_batch_norm_at:
            freeze_batch_norm(self.prepared)


def distillation_loss(
    student: torch.Tensor, teacher: torch.Tensor, temperature: float = 2.0
) -> torch.Tensor:
    """Divergence of the student's softened distribution from the teacher's, mean over samples.

    ``T^2 * KL(softmax(teacher / T) || softmax(student / T))``: Hinton et al. 2015, section 2
    (https://arxiv.org/abs/1503.02531).

    Args:
        student: Logits ``[..., classes]`` of the prepared module.
        teacher: Logits of the float module, same shape; no gradient flows into them.
        temperature: ``T``, above 0.

    Raises:
        OptionError: Shapes differ, or the temperature is not above 0.
    """
    if student.shape != teacher.shape or temperature <= 0:
        raise OptionError(
            f"distillation of {list(student.shape)} from {list(teacher.shape)} at temperature "
            f"{temperature}; shapes must be equal and the temperature above 0."
        )
    classes = student.shape[-1]
    student = functional.log_softmax(student.reshape(-1, classes) / temperature, dim=-1)
    teacher = functional.log_softmax(teacher.detach().reshape(-1, classes) / temperature, dim=-1)
    divergence = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return divergence * temperature**2
