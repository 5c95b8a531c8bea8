"""The shortest agent; the README shows it. `python -m examples.short_agent`"""

from examples.models import calls, model
from holdfast import Agent, Flow, tool

LLM = model(calls(("weather", {"city": "Lund"})), "Take an umbrella.")


@tool(side_effects="read", error_handling={"max_retries": 3})
def weather(city: str) -> str:
    """Tells the weather in a city."""
    return f"It rains in {city}."


agent = Agent(id="agent", llm=LLM, system="You are brief.", tools=[weather], max_loops=10)
flow = Flow(id="weather", nodes=[agent])

if __name__ == "__main__":
    print(flow.run_sync({"input": "What do I need in Lund?"}).output["agent"]["output"]["content"])
