"""Finds scales: sources, collectors, the runner, the scale file."""
