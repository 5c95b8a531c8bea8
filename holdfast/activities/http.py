"""One HTTP request as a node, with the run's idempotency key, and failures told apart by who must act."""

from typing import Any

import httpx2

from holdfast.activities.connections import Connections
from holdfast.activities.execution import Execution
from holdfast.activities.failures import ExternalError
from holdfast.contracts.calls import NodeCall
from holdfast.flows.params import HttpParams
from holdfast.flows.templates import render

_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
IDEMPOTENCY_HEADER = "Idempotency-Key"


def retry_after(headers: Any) -> float | None:
    """The server's own wish, when it is given in seconds."""
    value = headers.get("retry-after", "")
    return float(value) if value.replace(".", "", 1).isdigit() else None


class HttpNode:
    """One pool of connections per worker."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._client: httpx2.AsyncClient | None = None

    async def run(self, call: NodeCall, input_data: Any) -> Execution:
        params = HttpParams.model_validate(call.params)
        # The activity has its own timeout, which is the node's; a second one here would only compete with it.
        self._client = self._client or httpx2.AsyncClient(timeout=None, follow_redirects=True)
        request = await self._request(params, call, input_data)
        try:
            response = await self._client.request(**request)
        except httpx2.HTTPError as error:
            raise ExternalError(
                f"{params.method} {request['url']}: {error or type(error).__name__}",
                kind="HttpUnreachable",
                retryable=True,
            ) from error
        accepted = response.status_code in params.ok_statuses if params.ok_statuses else response.is_success
        if not accepted:
            raise ExternalError(
                f"{params.method} {request['url']} answered {response.status_code}",
                kind="HttpStatus",
                retryable=response.status_code in _AGAIN,
                retry_after=retry_after(response.headers),
                details={"status_code": response.status_code, "body": response.text[:2000]},
            )
        return Execution(
            {"status_code": response.status_code, "headers": dict(response.headers), "body": _body(response)}
        )

    async def _request(self, params: HttpParams, call: NodeCall, input_data: Any) -> dict[str, Any]:
        headers = {IDEMPOTENCY_HEADER: call.idempotency_key, **render(params.headers, input_data)}
        url = str(render(params.url, input_data))
        if params.connection:
            connection = await self._connections.resolve(params.connection)
            if connection.base_url and "://" not in url:
                url = connection.base_url.rstrip("/") + "/" + url.lstrip("/")
            if connection.api_key:
                headers.setdefault("Authorization", f"Bearer {connection.api_key.get_secret_value()}")
            headers |= {name: value.get_secret_value() for name, value in connection.headers.items()}
        request: dict[str, Any] = {"method": params.method, "url": url, "headers": headers}
        if params.query:
            request["params"] = render(params.query, input_data)
        body = render(params.body, input_data)
        if body is not None:
            request["content" if isinstance(body, str | bytes) else "json"] = body
        return request

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _body(response: httpx2.Response) -> Any:
    kind = response.headers.get("content-type", "")
    if "json" in kind:
        try:
            return response.json()
        except ValueError:
            return response.text
    return response.text if kind.startswith("text/") or not response.content else response.content
