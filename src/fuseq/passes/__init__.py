"""Graph passes on onnx_ir, one a file."""
