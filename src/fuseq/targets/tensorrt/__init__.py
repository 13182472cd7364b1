"""Target ``tensorrt:smNN``: full TensorRT, simulated. Predicts its layer list without the compiler."""

from fuseq.targets.tensorrt.target import TensorRtSimulated

__all__ = ("TensorRtSimulated",)
