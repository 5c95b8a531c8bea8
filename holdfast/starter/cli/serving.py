"""`holdfast serve` and `openapi`: the HTTP API and the console page."""

import argparse
import asyncio
import contextlib
import ipaddress
import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from holdfast.starter import embedded
from holdfast.starter.api.access import Tokens
from holdfast.starter.api.app import Settings, create_app
from holdfast.starter.cli.outcomes import FINISHED, UsageError, print_json
from holdfast.starter.client import HoldfastClient
from holdfast.starter.connecting import is_configured, settings


def openapi_command(options: argparse.Namespace) -> int:
    """The OpenAPI document of the API, without a server."""

    async def nowhere(_: str) -> HoldfastClient:
        raise AssertionError("nothing is asked of the server")

    print(json.dumps(create_app(Settings(nowhere, Tokens({}))).openapi(), indent=2))
    return FINISHED


def serve_command(options: argparse.Namespace) -> int:
    import uvicorn

    tokens = _tokens(options)
    with _temporal(options) as (address, ui_url):

        async def connect(namespace: str) -> HoldfastClient:
            return await HoldfastClient.connect(address, namespace, options.task_queue)

        folder = Path(options.flows) if options.flows else None
        if folder is not None and not folder.is_dir():
            said = f"there is no folder {options.flows}; --flows names one with flows in YAML"
            raise UsageError(f"[cli/no-folder] {said}")
        app = create_app(Settings(connect, tokens, folder, ui_url=options.ui_url or ui_url))
        port = embedded.free_port(options.port)
        quiet: dict[str, Any] = {"log_level": "warning", "lifespan": "off", "timeout_graceful_shutdown": 3}
        server = uvicorn.Server(uvicorn.Config(app, host=options.host, port=port, **quiet))
        _announce(options, port)
        asyncio.run(server.serve())
    return FINISHED


def _announce(options: argparse.Namespace, port: int) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"http://{host}:{port}"
    if options.json:
        print_json({"url": url})
    else:
        print(f"console    {url}/\nAPI        {url}/openapi.json\nCtrl-C stops it; runs go on without it.")
    sys.stdout.flush()


def _tokens(options: argparse.Namespace) -> Tokens:
    if options.tokens is not None:
        try:
            return Tokens.from_file(Path(options.tokens))
        except (OSError, ValueError) as error:
            raise UsageError(f"[cli/bad-tokens] --tokens {options.tokens}: {error}") from error
    if not _is_loopback(options.host):
        raise UsageError(
            f"[cli/no-tokens] {options.host} can be reached from elsewhere: give --tokens FILE, "
            "a YAML list of {token, namespace, name}"
        )
    return Tokens({}, open_to_all=options.namespace or settings().get("namespace") or "default")


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@contextlib.contextmanager
def _temporal(options: argparse.Namespace) -> Generator[tuple[str | None, str | None]]:
    """Where Temporal is, and its Web UI where we know it: the one that is configured, or the embedded one."""
    if is_configured(options.address):
        yield options.address, None
        return
    with embedded.server(embedded.home()) as server:
        yield server.address, server.ui_url
