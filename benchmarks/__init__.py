"""Holdfast against bare Temporal workflows that do the same work, with a bar for each: `python -m benchmarks`."""
