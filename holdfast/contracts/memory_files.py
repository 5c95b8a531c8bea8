"""The store whose contents are in the checkpoint itself."""

from collections.abc import Mapping
from typing import Any

import zstandard

from holdfast.contracts.files import Entry, LostFileError, digest

PLAIN_BYTES = 2**20
"""Up to here contents can be read in the checkpoint as they are; what comes beyond is compressed."""


class MemoryFiles:
    """Entries hold their content: as `data`, or compressed as `packed`."""

    async def put(self, path: str, data: bytes, sha256: str, used: int) -> Entry:
        if used + len(data) <= PLAIN_BYTES:
            return {"data": data}
        return {"packed": zstandard.ZstdCompressor().compress(data)}

    async def get(self, path: str, entry: Mapping[str, Any]) -> bytes:
        try:
            data = entry["data"] if "data" in entry else _unpacked(entry["packed"], entry["size"])
        except (KeyError, TypeError, zstandard.ZstdError):
            raise LostFileError(f"The content of {path!r} is not in the checkpoint.") from None
        if not isinstance(data, bytes) or digest(data) != entry["sha256"]:
            raise LostFileError(f"The content of {path!r} in the checkpoint is not what was written.")
        return data


def _unpacked(packed: bytes, size: int) -> bytes:
    # What a frame says of itself decides how much room is made for it.
    if zstandard.frame_content_size(packed) != size:
        raise zstandard.ZstdError("another size than it had")
    return zstandard.ZstdDecompressor().decompress(packed)
