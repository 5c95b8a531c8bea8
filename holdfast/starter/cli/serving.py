"""`holdfast serve` and `openapi`: the HTTP API and the console page; and `codec-server`."""

import argparse
import asyncio
import contextlib
import ipaddress
import json
import re
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from holdfast.codecs.settings import codec as settings_codec
from holdfast.starter import codec_server, embedded
from holdfast.starter.api.access import Tokens
from holdfast.starter.api.app import Settings, create_app
from holdfast.starter.api.bodies import largest_import
from holdfast.starter.cli.outcomes import FINISHED, UsageError, print_json
from holdfast.starter.cli.session import CodecServer
from holdfast.starter.client import HoldfastClient
from holdfast.starter.connecting import is_configured, settings

_ORIGIN = re.compile(r"(https?://[^/\s*@]+)/?")


def openapi_command(options: argparse.Namespace) -> int:
    """The OpenAPI document of the API, without a server."""

    async def nowhere(_: str) -> HoldfastClient:
        raise AssertionError("nothing is asked of the server")

    print(json.dumps(create_app(Settings(nowhere, Tokens({}))).openapi(), indent=2))
    return FINISHED


def serve_command(options: argparse.Namespace) -> int:
    tokens, largest = _tokens(options) or _open_to_all(options), largest_import()
    with _temporal(options) as (address, ui_url):

        async def connect(namespace: str) -> HoldfastClient:
            return await HoldfastClient.connect(address, namespace, options.task_queue)

        folder = Path(options.flows) if options.flows else None
        if folder is not None and not folder.is_dir():
            said = f"there is no folder {options.flows}; --flows names one with flows in YAML"
            raise UsageError(f"[cli/no-folder] {said}")
        app = create_app(Settings(connect, tokens, folder, largest_import=largest, ui_url=options.ui_url or ui_url))
        port = embedded.free_port(options.port)
        _announce(options, port)
        _serve(app, options.host, port)
    return FINISHED


def codec_server_command(options: argparse.Namespace) -> int:
    """Asks nothing of Temporal: it needs the workers' keys and their blob store, and that is all."""
    tokens = _tokens(options)
    origins = [_origin(text) for text in options.origin] or _embedded_origins()
    _check_free(options)
    try:
        codec = settings_codec(blobs=_embedded_blobs())
    except ValueError as error:
        raise UsageError(str(error)) from error
    url = _url(options.host, options.port)
    if options.json:
        print_json({"url": url, "origins": origins})
    else:
        print(f"codec server {url}\nfor pages of {', '.join(origins)}\nCtrl-C stops it; nothing depends on it.")
    sys.stdout.flush()
    _serve(codec_server.create_app(codec_server.Settings(codec, tokens, origins)), options.host, options.port)
    return FINISHED


def _origin(text: str) -> str:
    """As a browser sends it. What it never sends would be a page that is refused for no reason one can see."""
    found = _ORIGIN.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(
            f"[cli/bad-origin] --origin {text!r} is no page's origin; write it as in http://127.0.0.1:8233"
        )
    return found.group(1)


def _check_free(options: argparse.Namespace) -> None:
    """Elsewhere another port would do; here the Web UI has been told this one."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            where = f"{options.host}:{options.port}"
            raise UsageError(f"[cli/port-taken] {where} cannot be used ({error.strerror}); give --port") from error


def _embedded_origins() -> list[str]:
    found = embedded.running(embedded.home())
    port = found.ui_port if found is not None else embedded.UI_PORT
    return [f"http://127.0.0.1:{port}", f"http://localhost:{port}"]


def _embedded_blobs() -> str | None:
    """Where nothing else is said, the embedded server's; for a server elsewhere there is none to guess."""
    home = embedded.home()
    return str(home / "blobs") if embedded.running(home) is not None or not is_configured() else None


def _serve(app: FastAPI, host: str, port: int) -> None:
    import uvicorn

    quiet: dict[str, Any] = {"log_level": "warning", "lifespan": "off", "timeout_graceful_shutdown": 3}
    asyncio.run(uvicorn.Server(uvicorn.Config(app, host=host, port=port, **quiet)).serve())


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(options: argparse.Namespace, port: int) -> None:
    url = _url(options.host, port)
    if options.json:
        print_json({"url": url})
    else:
        print(f"console    {url}/\nAPI        {url}/openapi.json\nCtrl-C stops it; runs go on without it.")
    sys.stdout.flush()


def _tokens(options: argparse.Namespace) -> Tokens | None:
    """None where none are needed."""
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
    return None


def _open_to_all(options: argparse.Namespace) -> Tokens:
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
    with embedded.server(embedded.home()) as server, CodecServer(server, embedded.home()):
        yield server.address, server.ui_url
