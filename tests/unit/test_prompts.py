"""What an agent starts with: its prompts over its input, with the images and files that came with it."""

import io
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.contracts.messages import Message
from holdfast.contracts.prompts import open_agent
from holdfast.contracts.scripted import NoReplyError, scripted_reply
from holdfast.flows.templates import BadTemplateError

PNG = b"\x89PNG\r\n"
PNG_URL = "data:image/png;base64,iVBORw0K"


def opened(input_data: Any, history: list[dict[str, Any]] | None = None, **params: Any) -> dict[str, Any]:
    return open_agent(params, input_data, history or [])


def parts(input_data: Any) -> list[dict[str, Any]]:
    """What comes after the words."""
    (asked,) = opened(input_data)["messages"]
    assert asked["content"][0] == {"type": "text", "text": "Look."}
    return asked["content"][1:]


@pytest.mark.parametrize(
    ("input_data", "words"),
    [
        ("Who?", "Who?"),
        ({"input": "Who?", "other": 1}, "Who?"),
        ({"a": 1, "b": "é", "user_id": "u"}, '{"a": 1, "b": "é"}'),
        ({"input": ["x"]}, '["x"]'),
        (7, "7"),
    ],
)
def test_without_a_prompt_the_model_is_asked_the_input(input_data: Any, words: str) -> None:
    assert opened(input_data)["messages"] == [{"role": "user", "content": words}]


def test_prompts_are_rendered_over_the_input_and_instructions_come_behind_the_systems_words() -> None:
    params: dict[str, Any] = {
        "system": "You are {{ role }}.",
        "prompt": "Find {{ name }}.",
        "instructions": "Use {tools}.",
    }

    assert opened({"role": "brief", "name": "Ada"}, **params)["messages"] == [
        {"role": "system", "content": "You are brief.\n\nUse {tools}."},
        {"role": "user", "content": "Find Ada."},
    ]
    with pytest.raises(BadTemplateError):
        opened({"role": "brief"}, **params)


@pytest.mark.req("AG-1")
def test_the_offset_says_where_this_conversation_begins_behind_the_history() -> None:
    history = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]

    both = opened("Who?", history, system="S")

    assert both["history_offset"] == 3
    assert [entry["content"] for entry in both["messages"]] == ["S", "Hi.", "Hello.", "Who?"]
    assert both["messages"][both["history_offset"]]["content"] == "Who?"
    assert opened("Who?")["history_offset"] == 0


@pytest.mark.req("AG-1")
def test_who_asks_is_context_and_all_else_are_variables() -> None:
    asked = {"input": "Who?", "x": 1, "user_id": "u", "session_id": None, "metadata": {"k": 1}, "files": ["https://f"]}

    start = opened(asked)

    assert start["call_context"] == {"user_id": "u", "metadata": {"k": 1}}
    assert start["prompt_variables"] == {"input": "Who?", "x": 1}
    assert opened("Who?")["prompt_variables"] == {"input": "Who?"}


@pytest.mark.req("AG-4", "FS-3")
@pytest.mark.parametrize(
    ("image", "url", "detail"),
    [
        ("https://x/a.png", "https://x/a.png", None),
        (PNG_URL, PNG_URL, None),
        ({"url": "https://x/a.png", "detail": "high"}, "https://x/a.png", "high"),
        (PNG, PNG_URL, None),
        (bytearray(PNG), PNG_URL, None),
        (io.BytesIO(PNG), PNG_URL, None),
        ({"data": PNG, "detail": "low"}, PNG_URL, "low"),
        (b"\xff\xd8\xff\xe0", "data:image/jpeg;base64,/9j/4A==", None),
        (b"GIF89a", "data:image/gif;base64,R0lGODlh", None),
        (b"RIFF", "data:image/webp;base64,UklGRg==", None),
        (b"?", "data:image/png;base64,Pw==", None),
    ],
)
def test_an_image_is_an_address_or_a_data_url(image: Any, url: str, detail: str | None) -> None:
    expected = {"url": url} | ({"detail": detail} if detail else {})

    assert parts({"input": "Look.", "images": image}) == [{"type": "image_url", "image_url": expected}]
    assert parts({"input": "Look.", "images": [image]}) == [{"type": "image_url", "image_url": expected}]


@pytest.mark.req("FS-4", "FS-3")
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (
            b"abc",
            {"url": "data:application/octet-stream;base64,YWJj", "name": "file-1"}
            | {"media_type": "application/octet-stream"},
        ),
        (
            {"name": "a.pdf", "data": b"abc"},
            {"url": "data:application/pdf;base64,YWJj", "name": "a.pdf", "media_type": "application/pdf"},
        ),
        (
            {"name": "a.bin", "data": b"abc", "media_type": "text/x"},
            {"url": "data:text/x;base64,YWJj", "name": "a.bin", "media_type": "text/x"},
        ),
        (
            {"name": "a.png", "data": b"\xff\xd8\xff"},
            {"url": "data:image/jpeg;base64,/9j/", "name": "a.png", "media_type": "image/png"},
        ),
        (
            {"url": "https://x/a.txt", "name": "a.txt"},
            {"url": "https://x/a.txt", "name": "a.txt", "media_type": "text/plain"},
        ),
    ],
)
def test_a_file_goes_with_its_name_and_kind(file: Any, expected: dict[str, Any]) -> None:
    assert parts({"input": "Look.", "files": [file]}) == [{"type": "file", "file": expected}]


@pytest.mark.req("AG-1", "FS-4")
def test_what_is_known_of_images_and_files_is_kept_without_their_bytes() -> None:
    start = opened(
        {
            "input": "Look.",
            "images": [PNG, {"url": "https://x/a.png", "detail": "high"}],
            "files": [{"name": "a.txt", "data": b"12345"}, {"name": "b.txt", "url": "https://x/b.txt"}],
        }
    )

    assert start["input_images"] == [
        {"media_type": "image/png", "size": len(PNG), "detail": "auto"},
        {"url": "https://x/a.png", "detail": "high"},
    ]
    assert start["input_files"] == [
        {"media_type": "text/plain", "size": 5, "name": "a.txt"},
        {"url": "https://x/b.txt", "name": "b.txt"},
    ]


@pytest.mark.parametrize("length", range(7))
def test_the_size_is_that_of_the_bytes(length: int) -> None:
    (known,) = opened({"input": "Look.", "files": [b"x" * length]})["input_files"]

    assert known["size"] == length


@pytest.mark.req("AG-4")
def test_messages_with_and_without_images_come_back_as_they_were() -> None:
    vision = opened({"input": "Look.", "images": [{"url": "https://x", "detail": "low"}], "files": [b"a"]})["messages"][
        0
    ]
    text = opened("Who?")["messages"][0]

    for message in (vision, text):
        assert message["role"] == "user"
        assert Message.model_validate(message).as_data() == message
    assert Message.model_validate(vision).text == "Look."


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(ValueError, match="an image or a file is an address or bytes, not int"):
        opened({"input": "Look.", "images": [7]})
    with pytest.raises(ValueError, match="an address or bytes, not NoneType"):
        opened({"input": "Look.", "files": [{"name": "a.txt"}]})
    with pytest.raises(ValidationError):
        opened({"input": "Look.", "images": [{"url": "https://x", "detail": "huge"}]})


def test_scripted_replies_are_chosen_by_the_conversation_alone() -> None:
    replies: list[Any] = [
        "first",
        {"content": "second", "tool_calls": [{"name": "a"}, {"id": "mine", "name": "b", "arguments": {"q": 1}}]},
        {"content": "special", "when": "storm"},
        7,
    ]
    user = {"role": "user", "content": "x"}
    spoke = {"role": "assistant", "content": "y"}
    result = {"role": "assistant", "name": "worker", "content": "a result, and no reply"}

    assert scripted_reply(replies, []).content == "first"
    assert scripted_reply(replies, [user, result]).content == "first"
    second = scripted_reply(replies, [user, spoke])
    assert [(call.id, call.name, call.arguments) for call in second.tool_calls] == [
        ("call-1-0", "a", {}),
        ("mine", "b", {"q": 1}),
    ]
    assert scripted_reply(replies, [user, spoke, {"role": "user", "content": "a storm"}]).content == "special"
    assert scripted_reply(replies, [spoke, spoke, user]).content == "7"
    with pytest.raises(NoReplyError, match="the script has 3 replies, and this is call 4"):
        scripted_reply(replies, [spoke, spoke, spoke])
