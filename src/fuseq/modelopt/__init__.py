"""Coming from NVIDIA ModelOpt: its recipes and checkpoints as input, its globs as output. Needs no torch."""
