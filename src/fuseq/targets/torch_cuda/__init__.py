"""Target ``torch:cuda``: plans run by PyTorch on NVIDIA GPUs; imports torch only when it is used."""
