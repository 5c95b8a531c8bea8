"""How our workflows are run: outside the sandbox (docs/decisions/0010), and with replays that store nothing.

A replay gives all commands again, with everything that was passed to activities and child runs. The server has it; only
kinds and ids are compared. Encoding it again would cost as much time as the first time, and store what is large once
more with every worker that takes the run up.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from holdfast.codecs.codec import STAYS_HERE

_WORTH_IT = 1024
_LEFT_OUT = Payload(metadata={"encoding": b"binary/null"})


class FlowRunner(UnsandboxedWorkflowRunner):
    """The runner of our workers, and of everything that reads a run by replaying it."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = super().create_instance(det)
        activate = instance.activate

        def lighter(act: Any) -> Any:
            completion = activate(act)
            for command in completion.successful.commands:
                if command.HasField("schedule_local_activity"):
                    _keep_here(command.schedule_local_activity.arguments)
                elif act.is_replaying:
                    _leave_out(command)
            return completion

        instance.activate = lighter
        return instance


def _keep_here(arguments: Iterable[Any]) -> None:
    """They never leave the process, so that there is nothing to hide and nothing to store."""
    for argument in arguments:
        argument.metadata[STAYS_HERE] = b"1"


def _leave_out(command: Any) -> None:
    for payload in _given(command):
        if len(payload.data) > _WORTH_IT:
            payload.CopyFrom(_LEFT_OUT)


def _given(command: Any) -> Iterator[Any]:
    """What a command passes on, for the kinds that may pass on much."""
    if command.HasField("schedule_activity"):
        yield from command.schedule_activity.arguments
    elif command.HasField("start_child_workflow_execution"):
        yield from command.start_child_workflow_execution.input
    elif command.HasField("continue_as_new_workflow_execution"):
        yield from command.continue_as_new_workflow_execution.arguments
    elif command.HasField("complete_workflow_execution"):
        yield command.complete_workflow_execution.result
    elif command.HasField("modify_workflow_properties"):
        yield from command.modify_workflow_properties.upserted_memo.fields.values()
