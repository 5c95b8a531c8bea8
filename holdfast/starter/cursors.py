"""Cursors of lists: Temporal's own page tokens, marked as ours."""

import base64
import contextlib

_MARK = b"holdfast:"


def write(token: bytes | None) -> str | None:
    return base64.urlsafe_b64encode(_MARK + token).decode() if token else None


def read(cursor: str | None) -> bytes | None:
    """The token in a cursor; ValueError when it is none. Handed something else, the server is asked again and again."""
    if cursor is None:
        return None
    with contextlib.suppress(ValueError):
        found = base64.urlsafe_b64decode(cursor)
        if found.startswith(_MARK):
            return found.removeprefix(_MARK)
    raise ValueError(f"{cursor!r:.50} is no cursor; take the one that the page before came with")
