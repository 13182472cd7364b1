"""Serving: Triton model repositories, and one call that runs any model or engine."""
