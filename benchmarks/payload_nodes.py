"""The nodes of `payloads`, for the worker that loads this module: values that no compression makes smaller."""

import base64
import hashlib
import random
from functools import lru_cache
from typing import Any

from holdfast.flows.nodes import Node


def data_of(seed: str, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@lru_cache(maxsize=32)
def text_of(seed: str, size: int) -> str:
    """As near to incompressible as a text comes: six bits in every character. Kept: to make it is nobody's cost."""
    return base64.b64encode(data_of(seed, size)).decode()[:size]


def digest_of(value: bytes | str) -> str:
    return hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()


class BenchData(Node):
    """Gives bytes."""

    size: int
    seed: str

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        return data_of(self.seed, self.size)


class BenchText(Node):
    """Gives a text."""

    size: int
    seed: str

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        return text_of(self.seed, self.size)


class BenchDigest(Node):
    """Says what it was given."""

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        return digest_of(input_data["value"])
