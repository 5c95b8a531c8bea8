"""A research agent with two tools and a sub-agent. `python -m examples.research_agent "your question"`"""

import sys

from examples.models import calls, model
from holdfast import Agent, Flow, tool

LIBRARY = {
    "holdfast": "The root-like organ by which kelp clings to rock. It takes up nothing; it only holds.",
    "kelp": "Large brown algae. A frond may grow half a metre in a day, and storms tear many loose.",
    "storm": "In winter storms, plants with broad holdfasts stay; the others are cast ashore.",
}


@tool
def search(words: str) -> list[str]:
    """Finds pages of the library that mention the words."""
    wanted = words.lower().split()
    return [title for title, text in LIBRARY.items() if any(word in f"{title} {text}".lower() for word in wanted)]


@tool
def read(title: str) -> str:
    """Reads one page of the library."""
    if title not in LIBRARY:
        raise LookupError(f"there is no page {title!r}; the pages are: {', '.join(LIBRARY)}")
    return LIBRARY[title]


critic = Agent(
    id="critic",
    description="Checks a draft against the library and says what is wrong with it.",
    system="You check claims. Read what you need, then say in one sentence whether the draft is right.",
    tools=[read],
    llm=model(calls(("read", {"title": "holdfast"})), "The draft is right: a holdfast holds and takes up nothing."),
)
researcher = Agent(
    id="researcher",
    system="You answer questions from the library. Search, read, let the critic check your draft, then answer.",
    tools=[search, read, critic],
    llm=model(
        calls(("search", {"words": "kelp storm"}), say="I look for pages first."),
        calls(("read", {"title": "kelp"}), ("read", {"title": "storm"}), ("read", {"title": "holdfast"})),
        calls(("critic", {"input": "Kelp survives storms because its holdfast clings to the rock."})),
        "Kelp survives a storm by its holdfast, which clings to rock and does nothing else.",
    ),
)
flow = Flow(id="research", nodes=[researcher])

if __name__ == "__main__":
    question = " ".join(sys.argv[1:]) or "How does kelp survive a storm?"
    result = flow.run_sync({"input": question})
    usage = flow.get_latest_checkpoint().metadata["usage"]  # pyright: ignore[reportOptionalMemberAccess]
    print(f"{question}\n{result.output['researcher']['output']['content']}\n({usage['llm_calls']} calls of the model)")
