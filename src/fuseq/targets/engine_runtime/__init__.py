"""Runs serialized TensorRT and TensorRT-RTX engines on a GPU of this machine."""
