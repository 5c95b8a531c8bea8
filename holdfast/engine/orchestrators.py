"""Orchestrators: agents, functions and nodes that work on one thing, in states of a graph or in a list of tasks.

Like the agent, each decides its next step from its node's `internal_state` alone.
"""

import json
from collections.abc import Callable
from typing import Any

from holdfast.contracts.calls import NodeReply
from holdfast.contracts.messages import Message
from holdfast.engine.people import run_inside
from holdfast.engine.ports import NodeError
from holdfast.engine.replies import find_json
from holdfast.engine.scope import Job, NodeDriver, Scope
from holdfast.engine.tools import observation
from holdfast.flows import selectors
from holdfast.flows.composites import END, GraphParams, GraphState, InnerNode, LinearParams
from holdfast.flows.conditions import holds
from holdfast.flows.params import ModelParams
from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.spec import ErrorHandling, NodeSpec

_REPAIRS = 2
Check = Callable[[str], Any]
"""Reads a reply; ValueError says to the model what is wrong with it."""


async def run_graph(scope: Scope, job: Job) -> NodeReply:
    """From its first state, or from the one it is in."""
    return await _Graph(scope, job).run()


async def run_linear(scope: Scope, job: Job) -> NodeReply:
    """From the planning, or from the task it is at."""
    return await _Linear(scope, job).run()


def _objective(input_data: Any) -> Any:
    """What it is all about: the input's field `input`, or the whole input."""
    return input_data.get("input", input_data) if is_object(input_data) else input_data


class _Manager:
    """Asks the manager's model for a decision in JSON; what cannot be used is said to it, a few times."""

    def __init__(self, scope: Scope, job: Job, model: ModelParams, handling: ErrorHandling) -> None:
        self._scope = scope
        self._job = job
        self._model = model
        self._handling = handling

    async def decide(self, path: str, history: list[dict[str, Any]], question: str, check: Check) -> Any:
        """What `check` makes of the reply. The exchange stays in the node's state until the caller is done with it."""
        while True:
            exchange = self._scope.state(self._job.path).get("exchange") or [{"role": "user", "content": question}]
            if exchange[-1]["role"] == "assistant":
                try:
                    return check(Message.model_validate(exchange[-1]).text)
                except ValueError as error:
                    exchange = [*exchange, {"role": "user", "content": str(error)}]
            asked = sum(entry["role"] == "assistant" for entry in exchange)
            if asked > _REPAIRS:
                message = f"the manager's reply could not be used {asked} times in a row: {exchange[-1]['content']}"
                # Forgotten, so that a run that is resumed asks anew.
                self._scope.advance(self._job.path, "manager_gave_up", assign={"exchange": []})
                raise NodeError({"type": "ManagerNotUnderstood", "message": message})
            at = path if asked == 0 else f"{path}/repair[{asked}]"
            messages = [*history, *exchange]
            reply = await self._scope.ask_model(self._job, at, self._model, self._handling, messages=messages)
            self._scope.advance(
                self._job.path,
                "manager_replied",
                assign={"exchange": [*exchange, reply.message]},
                usage=reply.usage.model_dump(),
            )


class _Graph(NodeDriver):
    def __init__(self, scope: Scope, job: Job) -> None:
        super().__init__(scope, job)
        self._params = GraphParams.model_validate(job.node.params)
        self._states = {state.id: state for state in self._params.states}
        self._objective = _objective(job.input_data)

    async def run(self) -> NodeReply:
        if "current_state_id" not in self._state:
            self._advance(
                "graph_opened",
                assign={
                    "chat_history": [{"role": "user", "content": observation(self._objective)}],
                    "context": self._params.context,
                    "run_depends": [],
                    "current_state_id": self._params.start or self._params.states[0].id,
                    "completed_states": [],
                    "results": {},
                    "result": None,
                },
            )
        while (current := self._state["current_state_id"]) != END:
            await self._scope.gate.boundary()
            if len(self._state["completed_states"]) >= self._params.max_steps:
                message = f"not at its end after {self._params.max_steps} states; raise max_steps, or mend the edges"
                raise NodeError({"type": "GraphMaxSteps", "message": message})
            await self._run_state(self._states[current])
        state = self._state
        output = {"content": state["result"], "context": state["context"], "states": state["completed_states"]}
        return NodeReply(output=output, internal_state=state)

    def _step(self, what: str) -> str:
        """A state may be entered again, so the number of the step is part of the path."""
        return f"{self._job.path}/step[{len(self._state['completed_states'])}]/{what}"

    async def _run_state(self, state: GraphState) -> None:
        left = [task for task in state.tasks if task.id not in self._state["results"]]
        await self._scope.gate.gather([self._run_task(task) for task in left])
        context, result = self._merged(state)
        following = await self._following(state, context, result)
        said = [] if result is None else [{"role": "assistant", "name": state.id, "content": observation(result)}]
        self._advance(
            "state_completed",
            assign={
                "context": context,
                "current_state_id": following,
                "results": {},
                "result": result,
                "exchange": [],
            },
            extend={"completed_states": [state.id], "chat_history": [*said, *self._state.get("exchange", [])]},
            detail={"state": state.id, "next": following},
        )

    async def _run_task(self, task: InnerNode) -> None:
        await self._scope.gate.boundary()
        path, state = self._step(task.id), self._state
        given = {
            "input": self._objective,
            "context": state["context"],
            "result": state["result"],
            "history": state["chat_history"],
        }
        reply = await run_inside(self._scope, self._job.inside(task, path, given))
        self._advance(
            "state_task_completed",
            merge={"results": {task.id: reply.output}},
            assign={"run_depends": [{"node": {"id": f"{self._job.node_id}/{task.id}", "path": path}}]},
            forget=path,
            usage=reply.usage,
        )

    def _merged(self, state: GraphState) -> tuple[dict[str, Any], Any]:
        """The context after the state, and its result. What two tasks say differently of one thing is an error."""
        context: dict[str, Any] = dict(self._state["context"])
        changed: dict[str, str] = {}
        found: dict[str, Any] = {}
        for task in state.tasks:
            output = self._state["results"][task.id]
            updates = output.get("context") if is_object(output) else None
            if is_object(updates):
                found[task.id] = output.get("result", output.get("content"))
            else:
                found[task.id] = output["content"] if is_object(output) and "content" in output else output
                updates = {task.id: found[task.id]}
            for name, value in updates.items():
                if name in changed and context[name] != value:
                    message = f"tasks {changed[name]!r} and {task.id!r} of state {state.id!r} disagree on {name!r}"
                    raise NodeError({"type": "ContextConflict", "message": message})
                changed[name] = task.id
                context[name] = value
        return context, next(iter(found.values())) if len(found) == 1 else found or self._state["result"]

    async def _following(self, state: GraphState, context: dict[str, Any], result: Any) -> str:
        if state.route is not None:
            return await self._routed(state, context, result)
        facts = {"context": context, "result": result}
        for edge in state.next:
            if edge.condition is not None and holds(edge.condition, facts, selectors.find):
                return edge.to
        free = [edge.to for edge in state.next if edge.condition is None]
        if len(free) < 2:
            if state.next and not free:
                message = f"no edge of state {state.id!r} can be taken; add one without a condition"
                raise NodeError({"type": "NoWayOn", "message": message})
            return free[0] if free else END
        return await self._managed(state, free, context)

    async def _routed(self, state: GraphState, context: dict[str, Any], result: Any) -> str:
        node = NodeSpec(id=f"{state.id}-route", type="python", params={"function": state.route})
        reply = await self._scope.leaf(Job(node, self._step("route"), node.id, {"context": context, "result": result}))
        if reply.output != END and reply.output not in self._states:
            known = ", ".join([*self._states, END])
            message = f"{state.route} returned {reply.output!r}, which is no state; there are: {known}"
            raise NodeError({"type": "UnknownState", "message": message})
        return reply.output

    async def _managed(self, state: GraphState, free: list[str], context: dict[str, Any]) -> str:
        assert self._params.manager is not None
        listed = [
            f"- {name}: {(self._states[name].description or '') if name in self._states else 'the work is done'}"
            for name in free
        ]
        question = (
            f"State {state.id!r} is done. The context is now:\n{json.dumps(context, ensure_ascii=False)}\n"
            f"Which state is next?\n" + "\n".join(listed) + '\nReply with JSON: {"state": "<its id>"}.'
        )

        def check(text: str) -> str:
            body = find_json(text)
            named = body.get("state") if is_object(body) else text.strip().strip("'\"`.")
            if named not in free:
                raise ValueError(f"{named!r} is none of the states {', '.join(free)}.")
            return named

        manager = _Manager(self._scope, self._job, self._params.manager, self._params.llm_error_handling)
        return await manager.decide(self._step("manager"), self._state["chat_history"], question, check)


class _Linear(NodeDriver):
    def __init__(self, scope: Scope, job: Job) -> None:
        super().__init__(scope, job)
        self._params = LinearParams.model_validate(job.node.params)
        self._agents = {agent.id: agent for agent in self._params.agents}
        self._manager = _Manager(scope, job, self._params.manager, self._params.llm_error_handling)
        self._objective = observation(_objective(job.input_data))

    async def run(self) -> NodeReply:
        if "tasks" not in self._state:
            await self._plan()
        while self._state["current_task_index"] < len(self._state["tasks"]):
            await self._scope.gate.boundary()
            await self._run_task(self._state["current_task_index"])
        if "answer" not in self._state:
            await self._scope.gate.boundary()
            await self._conclude()
        state = self._state
        results = [state["results"][str(number)] for number in range(len(state["tasks"]))]
        output = {"content": state["answer"], "tasks": state["tasks"], "results": results}
        return NodeReply(output=output, internal_state=state)

    async def _plan(self) -> None:
        agents = "\n".join(f"- {agent.id}: {agent.description or ''}" for agent in self._params.agents)
        question = (
            f"{self._objective}\n\nPlan the work as tasks that are done one after another; each gets the results of "
            f"those before it. These can do them:\n{agents}\n"
            'Reply with a JSON list: [{"name": "…", "description": "…", "agent": "<one of them>"}].'
        )

        def check(text: str) -> list[dict[str, Any]]:
            body = find_json(text)
            tasks = body.get("tasks") if is_object(body) else body
            if not is_array(tasks) or not tasks or not all(is_object(task) for task in tasks):
                raise ValueError("That is not a JSON list of tasks.")
            if len(tasks) > self._params.max_tasks:
                raise ValueError(f"These are {len(tasks)} tasks; plan at most {self._params.max_tasks}.")
            for task in tasks:
                if not task.get("description") or task.get("agent") not in self._agents:
                    known = ", ".join(self._agents)
                    raise ValueError(f"A task needs a 'description' and an 'agent', one of: {known}.")
            return [{"id": number, **task} for number, task in enumerate(tasks)]

        tasks = await self._manager.decide(f"{self._job.path}/plan", [], question, check)
        begun: dict[str, Any] = {
            "tasks": tasks,
            "results": {},
            "current_task_index": 0,
            "run_depends": [],
            "exchange": [],
        }
        said = self._state["exchange"]
        self._advance("tasks_planned", assign={**begun, "chat_history": said}, detail={"total": len(tasks)})

    async def _run_task(self, number: int) -> None:
        task, state = self._state["tasks"][number], self._state
        agent, path = self._agents[task["agent"]], f"{self._job.path}/task[{number}]/{task['agent']}"
        earlier = [
            f"Result of {state['tasks'][done].get('name') or done}: {observation(state['results'][str(done)])}"
            for done in range(number)
        ]
        given = {"input": "\n\n".join([task["description"], *earlier]), "task": task, "objective": self._objective}
        reply = await run_inside(self._scope, self._job.inside(agent, path, given))
        output = reply.output["content"] if is_object(reply.output) and "content" in reply.output else reply.output
        self._advance(
            "task_completed",
            merge={"results": {str(number): output}},
            assign={
                "current_task_index": number + 1,
                "run_depends": [{"node": {"id": f"{self._job.node_id}/{agent.id}", "path": path}}],
            },
            extend={"chat_history": [{"role": "assistant", "name": agent.id, "content": observation(output)}]},
            forget=path,
            usage=reply.usage,
            detail={"done": number + 1, "total": len(state["tasks"])},
        )

    async def _conclude(self) -> None:
        question = "All tasks are done. Give the final answer to what was asked at the beginning, from their results."

        def check(text: str) -> str:
            if not text.strip():
                raise ValueError("Your reply was empty.")
            return text

        path = f"{self._job.path}/answer"
        answer = await self._manager.decide(path, self._state["chat_history"], question, check)
        said = self._state["exchange"]
        self._advance("answered", assign={"answer": answer, "exchange": []}, extend={"chat_history": said})
