"""What a caller of the client may have to deal with. Each says which run it is about and what to do."""

from collections.abc import Iterable
from typing import Any

from holdfast.flows.ids import split_checkpoint_id


class RunError(RuntimeError):
    """Something about one run."""

    def __init__(self, message: str, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class RunNotFoundError(RunError):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"[run/not-found] there is no run {run_id!r}; {_instead(run_id)}", run_id)


def _instead(run_id: str) -> str:
    run, number = split_checkpoint_id(run_id)
    if number is not None:
        return f"{run_id!r} is a checkpoint's id; the run's is {run!r}"
    mark = "a checkpoint's id ends in its number, as in 'my-run@12'; " if "@" in run_id else ""
    return f"{mark}'holdfast runs' lists what there is"


class BadRunIdError(RunError):
    def __init__(self, run_id: str) -> None:
        run, number = split_checkpoint_id(run_id)
        super().__init__(
            f"[run/bad-id] {run_id!r} reads as checkpoint {number} of run {run!r}: choose an id without '@'", run_id
        )


class RunExistsError(RunError):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"[run/exists] there is a run {run_id!r} already; choose another id, or look at it", run_id)


class RunActiveError(RunError):
    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"[run/active] run {run_id!r} has not ended and goes on by itself: fork it to try something beside it, "
            "or cancel it first",
            run_id,
        )


class AlreadyResumedError(RunError):
    """Somebody was first. `winner` is the run that goes on."""

    def __init__(self, run_id: str, winner: str) -> None:
        super().__init__(
            f"[run/resumed] run {run_id!r} was resumed already, as {winner!r}: look at that one, resume it if it has "
            "failed, or fork this one",
            run_id,
        )
        self.winner = winner


class InnerRunError(RunError):
    def __init__(self, run_id: str, outer: str) -> None:
        super().__init__(
            f"[run/inside] run {run_id!r} is a flow inside run {outer!r}, and resumed and deleted with it; "
            "it can be forked",
            run_id,
        )


class PartOfRunError(RunError):
    def __init__(self, checkpoint_id: str, run_id: str) -> None:
        super().__init__(
            f"[checkpoint/part-of-run] {checkpoint_id!r} is part of its run's history: delete {run_id!r}", run_id
        )


class NoSuchNodeError(RunError):
    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"[run/no-node] run {run_id!r}: {why}", run_id)


class NoDefinitionError(RunError):
    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"[run/no-definition] the checkpoint of run {run_id!r} does not have its flow in it: give the definition, "
            "on the command line with --flow FLOW",
            run_id,
        )


class OtherFlowError(RunError):
    def __init__(self, run_id: str, flow_id: str, had: Iterable[str], has: Iterable[str]) -> None:
        super().__init__(
            f"[checkpoint/other-flow] nothing of the checkpoint of run {run_id!r} belongs to flow {flow_id!r}: it is "
            f"about {', '.join(had)}, and the flow has {', '.join(has)}; give the flow that it belongs to",
            run_id,
        )


class NotAFlowError(RunError):
    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"[run/not-a-flow] run {run_id!r} was started with something else than a flow, and has no checkpoints; "
            "start it again with 'holdfast run', the API or HoldfastClient",
            run_id,
        )


class NoCheckpointError(RunError):
    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"[checkpoint/none] run {run_id!r} has no such checkpoint: {why}", run_id)


class RunCancelledError(RunError):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"[run/cancelled] run {run_id!r} was cancelled; resume it from its last checkpoint", run_id)


class FlowFailedError(RunError):
    """The flow failed. `checkpoint_id` is where to resume from."""

    def __init__(
        self, run_id: str, message: str, error: dict[str, Any] | None = None, checkpoint_id: str | None = None
    ):
        hint = f"; resume from {checkpoint_id!r}" if checkpoint_id else ""
        super().__init__(f"[run/failed] run {run_id!r}: {message}{hint}", run_id)
        self.error = error or {}
        self.node_id: str | None = self.error.get("node_id")
        self.checkpoint_id = checkpoint_id


class RequestNotFoundError(LookupError):
    def __init__(self, request_id: str) -> None:
        super().__init__(f"[answer/no-request] no run waits for {request_id!r}; 'holdfast inbox' lists what is open")
        self.request_id = request_id


class AnswerRefusedError(RunError):
    """An answer that was not taken; `code` says why: already answered, unfit, unknown."""

    def __init__(self, run_id: str, message: str, code: str) -> None:
        super().__init__(f"run {run_id!r}: {message}", run_id)
        self.code = code


class RunEndedError(RunError):
    def __init__(self, run_id: str) -> None:
        super().__init__(f"[run/ended] run {run_id!r} has ended: nothing can be changed in it; resume it", run_id)
