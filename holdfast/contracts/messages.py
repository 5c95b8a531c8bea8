"""Messages, tool calls and usage as every part of Holdfast knows them. Only the model call knows a provider's own.

Kept in checkpoints and passed around as plain data (`as_data`); the models are for those who build or read them.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from holdfast.contracts.calls import Wire

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(Wire):
    type: Literal["text"]
    text: str


class ImageUrl(Wire):
    """An address, or the image itself as a data URL."""

    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Wire):
    type: Literal["image_url"]
    image_url: ImageUrl


class FileData(Wire):
    """A file by address, or itself as a data URL."""

    url: str
    name: str | None = None
    media_type: str | None = None


class FilePart(Wire):
    type: Literal["file"]
    file: FileData


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]


class ToolCall(Wire):
    """A call the model asks for. With a `fault` it wrote no JSON object, and `arguments` is the text it wrote."""

    id: str
    name: str
    arguments: Any = None
    fault: str | None = None


class Message(Wire):
    """One entry of a conversation. `tool_call_id` and `name` belong to a tool's result.

    `reasoning` is the model's own thinking where the provider shows it; `provider_data` is what that provider wants to
    get back unchanged with the next request (signatures of thinking blocks), and nobody else reads it.
    """

    role: Role
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list[ToolCall])
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    provider_data: dict[str, Any] = Field(default_factory=dict[str, Any])

    def as_data(self) -> dict[str, Any]:
        """Compact plain data: it travels with every later call of the conversation."""
        return self.model_dump(mode="json", exclude_defaults=True) | {"role": self.role}

    @property
    def text(self) -> str:
        """The words alone, without images and files."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


class ToolSchema(Wire):
    """A tool as a model is told of it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict[str, Any])


class Usage(Wire):
    """What one call or one run has used. `cost` is in US dollars, None where no price is known."""

    llm_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None


class ModelCall(Wire):
    """One request to a model. `model` has the fields of `flows.kinds.ModelParams`; `loop` counts an agent's calls."""

    path: str
    run_id: str
    idempotency_key: str
    model: dict[str, Any]
    messages: list[dict[str, Any]]
    tools: list[ToolSchema] = Field(default_factory=list[ToolSchema])
    tool_choice: Literal["auto", "none", "required"] = "auto"
    response_format: dict[str, Any] | None = None
    stream: bool = False


class ModelReply(Wire):
    """What the model said. `message` is a `Message` as data."""

    message: dict[str, Any]
    usage: Usage = Field(default_factory=Usage)
    model: str = ""
    finish_reason: str | None = None
    attempt: int = 1
