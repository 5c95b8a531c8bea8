"""Who calls, and which namespace they may see."""

from typing import Annotated, Any

from fastapi import Depends, Header, Request

from holdfast.starter.api.access import Tenant
from holdfast.starter.api.problems import ProblemError
from holdfast.starter.client import HoldfastClient


async def _tenant(request: Request, authorization: Annotated[str | None, Header()] = None) -> Tenant:
    host = request.client.host if request.client else "unknown"
    return admitted(request.app.state, authorization, host)


def admitted(state: Any, authorization: str | None, host: str) -> Tenant:
    """The caller's tenant. Whoever has no token is counted by where they come from, guesses included."""
    try:
        tenant: Tenant = state.settings.tokens.tenant(authorization)
    except ProblemError:
        state.limit.check(host)
        raise
    state.limit.check(f"{tenant.namespace}/{tenant.name}/{host}")
    return tenant


async def _client(request: Request, tenant: Annotated[Tenant, Depends(_tenant)]) -> HoldfastClient:
    return await request.app.state.clients.of(tenant.namespace)


Client = Annotated[HoldfastClient, Depends(_client)]
Caller = Annotated[Tenant, Depends(_tenant)]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/problem+json": {}}}
    for status, text in {
        401: "no token, or none of this server's",
        404: "there is no such thing",
        409: "it is not in the state for this",
        413: "the body is too large",
        422: "the request does not fit, and why",
        429: "too many requests; Retry-After says when",
        503: "Temporal does not answer",
    }.items()
}
AGAIN: dict[int | str, dict[str, Any]] = {200: {"description": "it was started before: `created` is false"}}
