"""Decides what is quantized: plan, patterns, planner. Never edits a graph, never imports a compiler."""
