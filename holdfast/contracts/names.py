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

QUERY_CHECKPOINT = "checkpoint"
QUERY_CHECKPOINTS = "checkpoints"
QUERY_TRANSITIONS = "transitions"

ATTRIBUTE_STATUS = "HoldfastStatus"
ATTRIBUTE_FLOW = "HoldfastFlow"

MEMO_PROGRESS = "holdfast_progress"
MEMO_SNAPSHOT = "holdfast_snapshot"

FLOW_FAILED = "FlowFailed"
FLOW_DEFINITION = "FlowDefinition"
NODE_FAILED = "NodeFailed"
WORKER_SHUTDOWN = "WorkerShutdown"
