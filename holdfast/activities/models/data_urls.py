"""Data URLs (RFC 2397): a file written into its own address."""

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from holdfast.flows.nodes import NonRetryableError


@dataclass
class Inline:
    """A file that came inside a message."""

    media_type: str
    content: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.content).decode()


def inline(url: str) -> Inline | None:
    """What a data URL holds; None for an address."""
    if not url.startswith("data:"):
        return None
    head, comma, body = url[len("data:") :].partition(",")
    fields = head.split(";")
    try:
        if not comma:
            raise ValueError("it has no comma")
        content = unquote_to_bytes(body)
        if fields[-1].strip().lower() == "base64":
            content = base64.b64decode(content, validate=True)
    except (ValueError, binascii.Error) as error:
        raise NonRetryableError(
            f"[llm/bad-data-url] {url[:40]!r}... is no data URL: {error}; write data:image/png;base64,..."
        ) from error
    return Inline(fields[0].strip().lower() or "text/plain", content)
