"""Parts of target ``onnxruntime:cpu``: sessions, timing, kernels and where they come from."""
