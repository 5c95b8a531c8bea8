"""What an activity has to say is stored before it ends, while it still beats.

A large result goes to the blob store. Left to the SDK, that happens when the activity's code is over: where the store
does not answer the result would be lost, and with it what it cost. Here it waits, and the heartbeats go on.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from holdfast.activities.failures import failure_of
from holdfast.codecs.codec import HoldfastCodec, TooLargeError
from holdfast.codecs.faults import WORTH_WAITING
from holdfast.flows.nodes import NonRetryableError

_LONGEST_WAIT = 10.0
_log = logging.getLogger(__name__)


class Settling:
    """Makes payloads of values, and stores those that are stored apart."""

    def __init__(self, converter: DataConverter) -> None:
        self._converter = converter.payload_converter
        self._codec = converter.payload_codec if isinstance(converter.payload_codec, HoldfastCodec) else None

    def payloads(self, values: Sequence[Any]) -> list[Payload]:
        return list(self._converter.to_payloads(values))

    def is_settled(self, payloads: Sequence[Payload]) -> bool:
        """Whether they need no store: what is small is encoded by the SDK in an instant."""
        return self._codec is None or all(map(self._codec.is_small, payloads))

    async def store(self, payloads: Sequence[Payload]) -> list[RawValue]:
        """Once; raises what the codec does."""
        info = activity.info()
        assert self._codec is not None
        assert info.namespace is not None
        return [RawValue(done) for done in await self._codec.of(info.namespace, info.workflow_id).encode(payloads)]

    async def settle(self, result: Any) -> RawValue:
        """The result as the SDK passes it on unchanged. Waits for as long as the store is away."""
        payloads = self.payloads([result])
        if self.is_settled(payloads):
            return RawValue(payloads[0])
        wait = 0.5
        while True:
            try:
                return (await self.store(payloads))[0]
            except TooLargeError as error:
                info = activity.info()
                refused = NonRetryableError(f"the output of node {info.activity_id!r}: {error}")
                raise failure_of(refused, {}, info.attempt) from None
            except WORTH_WAITING as error:
                _log.warning("the result of %s waits to be stored: %s", activity.info().activity_id, error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
