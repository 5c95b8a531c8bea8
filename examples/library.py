"""The library in one screen; the README shows it."""

# pyright: basic

from holdfast import CheckpointMixin, Flow, FlowFailedError, Node, Transform


class Fetch(Node):
    """A node is a class with `execute`, sync or async. Its annotated attributes are its parameters."""

    source: str = "https://example.org"

    def execute(self, input_data, **kwargs):
        return {"pages": [f"{self.source}/{n}" for n in range(input_data["pages"])]}


class Read(Node, CheckpointMixin):
    """A long node saves how far it is; after a crash it goes on from there."""

    _read: list[str] = []

    def restore_from_checkpoint(self, state):
        self._read = state["read"]

    def execute(self, input_data, **kwargs):
        for page in input_data["fetch"]["output"]["pages"][len(self._read) :]:
            self._read.append(page)
            self.checkpoint({"read": self._read})
        return {"read": len(self._read)}


fetch = Fetch(id="fetch")
read = Read(id="read").depends_on(fetch)
report = Transform(id="report", template="{{ read.output.read }} pages").depends_on(read)
flow = Flow(id="reading", nodes=[fetch, read, report])

if __name__ == "__main__":
    try:
        result = flow.run_sync({"pages": 3})
        print(result.output["report"]["output"])
    except FlowFailedError as error:
        print(error)  # names the run, the node and the cause
        flow.run_sync(resume_from=error.checkpoint_id)  # executes only what is left
