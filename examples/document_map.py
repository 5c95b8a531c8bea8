"""An agent for every document of a list, four at a time. `python -m examples.document_map`"""

from examples.models import calls, model
from holdfast import Agent, Flow, Map, Transform, tool

DOCUMENTS = {
    "lease.txt": "The tenant pays 900 a month. Notice: three months.",
    "loan.txt": "The borrower pays 120 a month for five years.",
    "licence.txt": "Use is free of charge. No notice is needed.",
}


@tool
def fetch(name: str) -> str:
    """The text of a document."""
    return DOCUMENTS[name]


reader = Agent(
    id="reader",
    prompt="Read the document {{ name }} and say what it costs, in one line.",
    tools=[fetch],
    llm=model(
        {"when": "lease.txt", **calls(("fetch", {"name": "lease.txt"}))},
        {"when": "loan.txt", **calls(("fetch", {"name": "loan.txt"}))},
        {"when": "licence.txt", **calls(("fetch", {"name": "licence.txt"}))},
        {"when": "900", "content": "lease.txt: 900 a month"},
        {"when": "120", "content": "loan.txt: 120 a month"},
        {"when": "free", "content": "licence.txt: nothing"},
    ),
)
each = Map(id="each", node=reader, max_workers=4, items="$.documents")
report = Transform(
    id="report",
    template="{% for answer in each.output.output %}{{ answer.content }}\n{% endfor %}",
).depends_on(each)
flow = Flow(id="documents", nodes=[each, report])

if __name__ == "__main__":
    result = flow.run_sync({"documents": [{"name": name} for name in DOCUMENTS]})
    print(result.output["report"]["output"], end="")
