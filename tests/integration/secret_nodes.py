"""Nodes and connections that are careless with secrets, loaded by a worker process with `--load`."""

import base64
import logging
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast import CheckpointMixin, Node, connection, tool

_LONGEST = 60.0


@connection("vaulted")
async def vaulted() -> dict[str, Any]:
    return {"base_url": os.environ["ECHO_URL"], "api_key": os.environ["VAULT"]}


def secrets() -> list[str]:
    """Everything this worker has."""
    return [os.environ[name] for name in os.environ["CANARIES"].split()]


class Raises(Node):
    """Fails with every secret in its words, and in those of the error behind it."""

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        try:
            raise KeyError(secrets()[0])
        except KeyError as error:
            raise RuntimeError(f"refused: {secrets()}, https://host/?key={quote(secrets()[-1], safe='')}") from error


class Logs(Node):
    """Writes every secret to the log, in every way there is."""

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        log = logging.getLogger("careless")
        for secret in secrets():
            log.warning("the secret is %s", secret)
            log.warning("Basic %s", base64.b64encode(f"me:{secret}".encode()).decode(), extra={"secret": secret})
            try:
                raise ValueError(secret)
            except ValueError:
                log.exception("it went wrong")
        log.warning("everything but secrets")
        return "logged"


class Keeps(CheckpointMixin, Node):
    """Saves secrets, fails once, and on its second attempt waits until it is let go."""

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        self.checkpoint({"tokens": secrets(), "as bytes": " ".join(secrets()).encode(), "attempt": kwargs["attempt"]})
        if kwargs["attempt"] == 1:
            time.sleep(0.5)
            raise RuntimeError(f"not yet: {secrets()}")
        deadline = time.monotonic() + _LONGEST
        while not Path(os.environ["LET_GO"]).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return {"seen": secrets()}

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"own": {secret: secret for secret in secrets()}}


def shown() -> dict[str, Any]:
    first, *others = secrets()
    return {
        "plain": first,
        "nested": [{"in": ({"a": [f"Bearer {secret}"]}, secret)} for secret in others],
        "bytes": " ".join(secrets()).encode() + b"\xff",
        "basic": base64.b64encode(f"me:{first}".encode()).decode(),
        "url": f"https://host/?key={quote(others[-1], safe='')}",
        "keys": dict.fromkeys(secrets(), 1),
    }


class Reveals(Node):
    """Returns them."""

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        return shown()


@tool
def reveal() -> dict[str, Any]:
    """Everything."""
    return {"content": str(shown()), "data": shown()}
