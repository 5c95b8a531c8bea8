"""Wire names, written out once. They are in histories: renaming a function must never change one of them."""

FLOW_RUN = "FlowRun"
DEFAULT_TASK_QUEUE = "holdfast"

RUN_PURE = "pure.batch"
RUN_LLM = "llm.chat"
RUN_HTTP = "tool.http"
RUN_PYTHON = "python.run"
RUN_TOOL = "tool.call"
CALL_MODEL = "llm.call"
OPEN_AGENT = "agent.open"
WRITE_MEMORY = "memory.write"
USE_FILES = "files.use"
KEEP_FILES = "files.keep"
ADOPT_FILES = "files.adopt"

QUERY_CHECKPOINT = "checkpoint"
QUERY_CHECKPOINTS = "checkpoints"
QUERY_TRANSITIONS = "transitions"

SIGNAL_INPUT = "provide_input"
SIGNAL_PAUSE = "pause"
SIGNAL_CONTINUE = "continue"
SIGNAL_CHILD = "child_waits"
UPDATE_ANSWER = "answer"

ATTRIBUTE_STATUS = "HoldfastStatus"
ATTRIBUTE_FLOW = "HoldfastFlow"
ATTRIBUTE_REQUESTS = "HoldfastRequests"
ATTRIBUTE_FAMILY = "HoldfastFamily"
ATTRIBUTES = {
    ATTRIBUTE_FLOW: "Keyword",
    ATTRIBUTE_STATUS: "Keyword",
    ATTRIBUTE_FAMILY: "Keyword",
    ATTRIBUTE_REQUESTS: "KeywordList",
}

MEMO_PROGRESS = "holdfast_progress"
MEMO_SNAPSHOT = "holdfast_snapshot"
MEMO_REQUESTS = "holdfast_requests"
MEMO_ORIGIN = "holdfast_origin"

FLOW_FAILED = "FlowFailed"
FLOW_DEFINITION = "FlowDefinition"
NODE_FAILED = "NodeFailed"
ANSWER_REFUSED = "AnswerRefused"
WORKER_SHUTDOWN = "WorkerShutdown"
STALLS = (
    "[blob/unavailable]", "[blob/refused]", "[codec/no-store]", "[codec/unknown-key]", "[codec/keys-unavailable]",
)  # fmt: skip
"""Errors of a worker's surroundings: a node that meets one did not fail, and waits."""
