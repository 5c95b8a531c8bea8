"""Connecting to Temporal, by Temporal's own settings (TEMPORAL_ADDRESS, profiles, TLS, API keys)."""

import asyncio
import time
from datetime import timedelta
from typing import Any

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from holdfast.codecs.settings import data_converter
from holdfast.contracts.names import ATTRIBUTES
from holdfast.starter import embedded

_READY_SECONDS = 10.0
_KINDS: dict[str, Any] = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
}


class NotReachableError(ConnectionError):
    """Temporal does not answer, or does not let us in."""


def settings() -> ClientConnectConfig:
    """What TEMPORAL_ADDRESS and its relatives, or Temporal's configuration file, say."""
    return ClientConfig.load_client_connect_config()


def is_configured(address: str | None = None) -> bool:
    """Whether somebody has said which server to use."""
    return bool(address or settings().get("target_host"))


async def connect(address: str | None = None, namespace: str | None = None) -> Client:
    """A client that reads and writes our payloads."""
    config = settings()
    if address:
        config["target_host"] = address
    if namespace:
        config["namespace"] = namespace
    host = config.setdefault("target_host", "127.0.0.1:7233")
    name = config.setdefault("namespace", "default")
    where = f"{host} (namespace {name!r})"
    converter = await data_converter(name, blobs=embedded.blobs_at(host))
    try:
        return await _connect_when_healthy(config, converter)
    except (RPCError, RuntimeError, ValueError) as error:
        raise NotReachableError(
            f"[temporal/not-reachable] no answer from {where}: {error}\n"
            "  Start one with 'holdfast dev', or say where it is with --address or TEMPORAL_ADDRESS."
        ) from error


async def _connect_when_healthy(config: ClientConnectConfig, converter: DataConverter) -> Client:
    """A server that has just started listens before it is ready: it is given a moment."""
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            client = await Client.connect(**config, data_converter=converter)
            await client.service_client.check_health(timeout=timedelta(seconds=5))
            return client
        except (RPCError, RuntimeError) as error:
            if "not healthy yet" not in str(error) or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


async def ensure_search_attributes(client: Client) -> None:
    """Registers our search attributes where they are missing: without them a run's first task could not complete."""
    operator = client.operator_service
    try:
        known = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        missing = [name for name in ATTRIBUTES if name not in known.custom_attributes]
        if missing:
            request = AddSearchAttributesRequest(
                namespace=client.namespace, search_attributes={name: _KINDS[ATTRIBUTES[name]] for name in missing}
            )
            await operator.add_search_attributes(request)
    except RPCError as error:
        if error.status == RPCStatusCode.ALREADY_EXISTS:
            return
        names = " ".join(f"--name {name} --type {kind}" for name, kind in ATTRIBUTES.items())
        raise NotReachableError(
            f"[temporal/search-attributes] they could not be registered: {error}\n"
            f"  Register them by hand: temporal operator search-attribute create {names}"
        ) from error
