"""The demo's agent: fifteen calls of a (scripted) model, fourteen of a tool. The demo kills its worker half-way."""

from examples.models import calls
from examples.survey_tools import measure
from holdfast import Agent, Flow

STATIONS = 14
SECONDS = 0.2
REPLIES = [
    {**calls(("measure", {"station": station}), say=f"Station {station} is next."), "seconds": SECONDS}
    for station in range(1, STATIONS + 1)
]
ANSWER = {"content": "The current is strongest at stations 2, 7 and 12: 3 knots.", "seconds": SECONDS}

surveyor = Agent(
    id="surveyor",
    name="Surveyor",
    system="You measure all stations, one after the other, and say where the current is strongest.",
    tools=[measure],
    llm={"provider": "scripted", "model": "scripted", "replies": [*REPLIES, ANSWER]},
)
flow = Flow(id="survey", name="Survey of 14 stations", nodes=[surveyor])
