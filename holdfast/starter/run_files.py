"""What agents have in their file stores: deleted with their run, as far as it can be reached from here."""

import logging
import os
from collections.abc import Mapping

from holdfast.codecs.faults import BAD_SETTINGS, WORTH_WAITING
from holdfast.file_stores import FileStores, files_root
from holdfast.flows.connections import variables
from holdfast.flows.spec import FlowSpec
from holdfast.starter.embedded import home

log = logging.getLogger("holdfast")


def file_stores() -> FileStores:
    """The stores as they are found from here."""
    return FileStores(files_root(home(), os.environ), _address)


async def delete_files(
    flows: Mapping[str, FlowSpec], namespace: str, family: str, execution: str, others: Mapping[str, str]
) -> None:
    """Of a run that goes and of those inside it, with these definitions. While `others` of its family stay, so do the
    files: the outputs that those have taken over refer to them. Each is known by the execution that it is found by.
    What cannot be reached is said and left: it keeps no run from going."""
    stores = file_stores()
    for run_id, flow in flows.items():
        try:
            if others and await stores.leave_to(family, flow, namespace, run_id, execution, others):
                continue
            await stores.delete_run(flow, namespace, run_id)
            await stores.delete_left_to(family, flow, namespace)
        except (ImportError, *BAD_SETTINGS, *WORTH_WAITING) as error:
            log.warning("the files of run %s are left: %s", run_id, error)


async def _address(connection: str) -> str | None:
    """A bucket that a connection names. Here only the environment is asked: the rest is the workers'."""
    return os.environ.get(f"{variables(connection)}BASE_URL")
