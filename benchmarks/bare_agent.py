"""The bare side of `growth`: an agent as somebody would write it on Temporal alone. Run as a worker process."""

import asyncio
import json
import sys
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    import httpx2

    from benchmarks.growth_texts import TASK, found

QUEUE = "benchmark-bare-agent"
_TIMEOUT = timedelta(minutes=1)
_LARGEST_HISTORY = 32 * 2**20
"""The server ends a run at 50 MiB. It suggests to go on in a new execution at 4 MiB, which would cost a long
conversation, as what it begins with, again and again."""


@activity.defn
async def call_model(url: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    async with httpx2.AsyncClient() as client:
        reply = await client.post(url, json={"model": "m", "messages": messages, "tools": tools})
    return reply.json()["choices"][0]["message"]


@activity.defn
async def call_tool(name: str, arguments: dict[str, Any]) -> str:
    return found(arguments["turn"])


@workflow.defn
class BareAgent:
    """Every loop sends the whole conversation, as every agent does."""

    @workflow.run
    async def run(self, url: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]]) -> int:
        """How many messages there are in the end."""
        messages = messages or [{"role": "user", "content": TASK}]
        while True:
            if workflow.info().get_current_history_size() > _LARGEST_HISTORY:
                workflow.continue_as_new(args=[url, tools, messages])
            reply = await workflow.execute_activity(
                call_model, args=[url, messages, tools], start_to_close_timeout=_TIMEOUT
            )
            messages.append(reply)
            if not reply.get("tool_calls"):
                return len(messages)
            for call in reply["tool_calls"]:
                result = await workflow.execute_activity(
                    call_tool,
                    args=[call["function"]["name"], json.loads(call["function"]["arguments"])],
                    start_to_close_timeout=_TIMEOUT,
                )
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def main(address: str) -> None:
    from temporalio.client import Client
    from temporalio.worker import Worker

    # A client of its own: Holdfast's has a codec.
    client = await Client.connect(address)
    async with Worker(client, task_queue=QUEUE, workflows=[BareAgent], activities=[call_model, call_tool]):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
