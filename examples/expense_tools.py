"""What the expense claim needs of the world; here it only pretends."""

from typing import Any

from holdfast import tool


@tool
def allowance(what: str) -> dict[str, Any]:
    """What may be spent on something, in euros."""
    return {"what": what, "at_most": 40}


def pay(input_data: dict[str, Any], idempotency_key: str) -> dict[str, Any]:
    """A bank that honours the key pays once, however often it is asked."""
    return {"paid": input_data["amount"], "key": idempotency_key}
