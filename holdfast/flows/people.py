"""What an author writes where a person is asked: questions, and which tool calls need an approval."""

from typing import Any, Literal

from pydantic import Field, model_validator

from holdfast.flows.conditions import Condition
from holdfast.flows.params import Params
from holdfast.flows.spec import Deadline


class HumanParams(Params):
    """A question to a person. `prompt` is a template over the node's input.

    `text`: words. `choice`: one of `choices`. `form`: an object that fits the JSON schema `form`. `approval`: yes or
    no, with words.
    """

    prompt: str = "{{ question }}"
    kind: Literal["text", "choice", "form", "approval"] = "text"
    choices: list[str] | None = Field(default=None, min_length=1)
    form: dict[str, Any] | None = None
    to: str | None = None
    deadline: Deadline | None = None
    reminders: list[float | str] = Field(default_factory=list[float | str])

    @model_validator(mode="after")
    def _complete(self) -> "HumanParams":
        if (self.kind == "choice") != (self.choices is not None):
            raise ValueError("'choices' belongs to the kind 'choice', and it needs them")
        if (self.kind == "form") != (self.form is not None):
            raise ValueError("'form' belongs to the kind 'form', and it needs one")
        return self


class ApprovalRule(Params):
    """Which tool calls need an approval: all that fit what is given here. `when` looks at the arguments."""

    tools: list[str] | None = None
    side_effects: Literal["read", "write"] | None = None
    when: Condition | None = None
