"""Agents' files on a worker: the tools over them, what other tools give, and taking over those of another run."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from temporalio import activity

from holdfast.activities.execution import Execution
from holdfast.activities.failures import ExternalError
from holdfast.checkpoints import values
from holdfast.codecs.blobs import BadStoreError, StoreRefusedError, StoreUnavailableError
from holdfast.contracts.calls import NodeCall, NodeReply
from holdfast.contracts.file_calls import BadFilesError, FileCalls, FilesLostError
from holdfast.contracts.file_tools import files_in
from holdfast.contracts.files import Entry, FileStore
from holdfast.contracts.memory_files import MemoryFiles
from holdfast.file_stores import BlobFiles, FileStores
from holdfast.flows.files import FileStoreParams


class FileServices:
    """One for a worker."""

    def __init__(self, stores: FileStores) -> None:
        self._stores = stores
        self._calls = FileCalls(self._open)

    async def _open(self, params: FileStoreParams, call: NodeCall, any_run: bool) -> FileStore:
        if params.type == "memory":
            return MemoryFiles()
        blobs = await self._stores.open(params)
        return BlobFiles(blobs, activity.info().namespace, call.run_id, call.idempotency_key, any_run=any_run)

    async def use(self, call: NodeCall, arguments: Any) -> Execution:
        with _told():
            kept = await self._calls.use(call, arguments)
        return Execution(kept.output, files=kept.files)

    async def keep(self, call: NodeCall, output: Any) -> Execution:
        with _told():
            kept = await self._calls.keep(call, output)
        return Execution(kept.output, files=kept.files)

    async def adopt(self, call: NodeCall, _: Any) -> Execution:
        with _told():
            return Execution(None, files=await self._calls.adopt(call))

    async def take_input(self, call: NodeCall, input_data: Any) -> dict[str, Entry]:
        with _told():
            return await self._calls.take_input(call, input_data)

    async def keep_reply(self, call: NodeCall, reply: NodeReply) -> None:
        """Stores what a tool has given as files. After the worker's cache: what is reused belongs to another run."""
        if call.files is None or not files_in(reply.output):
            return
        kept = await self.keep(call, values.decode(reply.output))
        what = f"the output of node {call.node_id!r}"
        reply.output, reply.files = values.encode(kept.output, what), values.encode(kept.files, what)


@contextmanager
def _told() -> Generator[None]:
    """What a store says, as a workflow understands it.

    A store that is away is waited for, as the payloads' own is (`names.STALLS`). One that refuses is named apart from
    that one, also in the cause: it may be the definition that has to be mended, and nobody waits for that.
    """
    try:
        yield
    except StoreUnavailableError as error:
        raise ExternalError(str(error), kind="FileStoreUnavailable", retryable=True) from error
    except (StoreRefusedError, BadStoreError, ImportError) as error:
        why = re.sub(r"^\[[a-z/-]+\] ", "", str(error))
        message = f"[files/refused] the agent's file store cannot be used: {why}"
        raise ExternalError(message, kind="FileStoreRefused", retryable=False) from None
    except FilesLostError as error:
        raise ExternalError(str(error), kind="FilesLost", retryable=False) from error
    except BadFilesError as error:
        raise ExternalError(str(error), kind="BadFiles", retryable=False) from error
