"""A graph orchestrator: draft, review, and again until the editor is content. `python -m examples.essay_graph`"""

from typing import Any

from examples.models import model
from holdfast import END, Agent, Flow, GraphOrchestrator, Python, state


def count_words(input_data: dict[str, Any]) -> dict[str, Any]:
    """A function as a task: what it returns as `context` is shared with every state that follows."""
    return {"context": {"words": len(input_data["context"]["writer"].split())}}


writer = Agent(
    id="writer",
    prompt="Write two sentences about {{ input }}. {{ context.editor and 'The editor says: ' ~ context.editor }}",
    llm=model({"when": "editor", "content": "Kelp holds on. It bends, and the rock does not."}, "Kelp holds on."),
)
editor = Agent(
    id="editor",
    prompt="Is this good? Say 'accepted', or what is missing.\n{{ context.writer }} ({{ context.words }} words)",
    llm=model({"when": "bends", "content": "accepted"}, "one sentence is missing"),
)
essay = GraphOrchestrator(
    id="essay",
    context={"editor": ""},
    states=[
        state("draft", writer, next="count"),
        state("count", Python(id="count", function=count_words), next="review"),
        state(
            "review",
            editor,
            next=[
                {"to": END, "condition": {"variable": "$.result", "operator": "string-contains", "value": "accepted"}},
                "draft",
            ],
        ),
    ],
)
flow = Flow(id="essay", nodes=[essay])

if __name__ == "__main__":
    output = flow.run_sync({"input": "kelp"}).output["essay"]["output"]
    print(f"{output['context']['writer']}\n({' > '.join(output['states'])})")
