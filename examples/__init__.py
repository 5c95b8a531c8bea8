"""Flows to run and read."""
