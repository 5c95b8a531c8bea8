"""Everything that touches the world, run by workers."""
