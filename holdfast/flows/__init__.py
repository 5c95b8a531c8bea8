"""What an author writes: flows and nodes, in YAML and in Python, and the checks on them. No clock, no I/O."""
