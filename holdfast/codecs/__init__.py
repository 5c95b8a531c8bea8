"""Payloads outside the process: compressed, encrypted, and small whatever people put through their flows."""
