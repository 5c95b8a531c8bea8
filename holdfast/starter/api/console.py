"""The console: one page, served as it is. Nothing in it comes from elsewhere, and the browser is told so."""

from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def router(ui_url: str | None) -> APIRouter:
    found = APIRouter(include_in_schema=False)

    async def page() -> Response:
        return _file("index.html")

    async def settings() -> dict[str, Any]:
        return {"temporal_ui": ui_url}

    async def asset(name: str) -> Response:
        return _file(name)

    found.add_api_route("/", page, methods=["GET"])
    found.add_api_route("/console/settings.json", settings, methods=["GET"])
    found.add_api_route("/console/{name:path}", asset, methods=["GET"])
    return found


def _file(name: str) -> Response:
    parts = name.split("/")
    kind = _TYPES.get(name.rpartition(".")[2])
    source = files("holdfast.starter.api").joinpath("static", *parts)
    if kind is None or ".." in parts or "" in parts or not source.is_file():
        return Response(status_code=404)
    return Response(source.read_bytes(), media_type=kind, headers=_HEADERS)
