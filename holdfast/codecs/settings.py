"""The codec and the converter of a process, by its environment."""

import os
from dataclasses import replace

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes

from holdfast.codecs.blobs import open_store
from holdfast.codecs.codec import HoldfastCodec, Limits
from holdfast.codecs.keys import from_environment
from holdfast.codecs.packing import Packer

BLOBS_VARIABLE = "HOLDFAST_BLOBS"
_LIMITS = {"HOLDFAST_LARGEST_PAYLOAD": "largest", "HOLDFAST_OFFLOAD_ABOVE": "offload_above"}


class BadSettingError(ValueError):
    def __init__(self, message: str) -> None:
        super().__init__(f"[codec/bad-setting] {message}")


def size_setting(variable: str) -> int | None:
    """The number of bytes in an environment variable; None where it is not set."""
    text = os.environ.get(variable)
    if not text:
        return None
    if not text.isdecimal():
        raise BadSettingError(f"{variable}={text!r} is not a number of bytes")
    return int(text)


def limits() -> Limits:
    """By HOLDFAST_LARGEST_PAYLOAD and HOLDFAST_OFFLOAD_ABOVE, in bytes."""
    found = {name: size_setting(variable) for variable, name in _LIMITS.items()}
    return Limits(**{name: size for name, size in found.items() if size is not None})


def codec(namespace: str = "default", *, blobs: str | None = None) -> HoldfastCodec:
    """By HOLDFAST_BLOBS and the keys' variables. `blobs` is where large things go if the environment does not say."""
    url = os.environ.get(BLOBS_VARIABLE) or blobs
    packer = Packer(open_store(url)) if url else None
    return HoldfastCodec(from_environment(), packer, limits(), namespace=namespace)


async def data_converter(namespace: str = "default", *, blobs: str | None = None) -> DataConverter:
    """For a Temporal client of one's own that has to read and write what ours do."""
    found = codec(namespace, blobs=blobs)
    converter = replace(pydantic_data_converter, payload_codec=found)
    if await found.encrypts():
        # Messages and stack traces of failures are somebody's data too.
        return replace(converter, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)
    return converter
