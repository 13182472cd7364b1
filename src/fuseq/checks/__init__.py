"""Rules about quantized models and engines, one a file; each has its page in docs/rules/."""
