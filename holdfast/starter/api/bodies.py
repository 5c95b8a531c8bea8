"""How large a request may be. Imports are files, and have a limit of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.codecs.settings import size_setting
from holdfast.starter.api import problems
from holdfast.starter.api.problems import ProblemError

LARGEST_IMPORT = 64 * 2**20
IMPORT_VARIABLE = "HOLDFAST_LARGEST_IMPORT"


def largest_import() -> int:
    """By HOLDFAST_LARGEST_IMPORT, in bytes."""
    found = size_setting(IMPORT_VARIABLE)
    return LARGEST_IMPORT if found is None else found


@dataclass(frozen=True)
class Limit:
    """So many bytes, and what to do when that is too little."""

    largest: int
    remedy: str = "send less: give addresses in place of files"

    @property
    def refusal(self) -> str:
        return f"the body is larger than {_said(self.largest)}, the most that is taken here; {self.remedy}"


def import_limit(largest: int) -> Limit:
    remedy = f"raise {IMPORT_VARIABLE} where the server runs, or use 'holdfast import', which takes any size"
    return Limit(largest, remedy)


def _said(size: int) -> str:
    return f"{size // 2**20} MiB" if size and size % 2**20 == 0 else f"{size} bytes"


@dataclass
class BodyLimit:
    """Refuses a body that is too large before it is read, or while it is. `others`: routes with another limit."""

    app: ASGIApp
    limit: Limit
    others: Mapping[str, Limit] = field(default_factory=dict[str, Limit])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.others.get(scope["path"], self.limit)
        refused = problems.problem(413, "request/too-large", limit.refusal)
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit.largest:
            await refused(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit.largest:
                raise ProblemError(413, "request/too-large", limit.refusal)
            return message

        async def unless_refused(message: Message) -> None:
            # What the framework makes of a body that breaks off is an answer to something else.
            if read <= limit.largest:
                await send(message)

        await self.app(scope, counted, unless_refused)
        if read > limit.largest:
            await refused(scope, receive, send)
