"""fuseq: quantize models so that every Q/DQ pair pays for itself, proved by the compiler."""

__version__ = "0.1.0"
