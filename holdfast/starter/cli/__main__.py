"""`python -m holdfast.starter.cli`."""

from holdfast.starter.cli import run

run()
