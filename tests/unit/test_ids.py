"""Checkpoint ids say which run and which sequence number they mean."""

import pytest

from holdfast.flows.ids import checkpoint_id, split_checkpoint_id, successor


def test_a_checkpoint_id_can_be_taken_apart_again() -> None:
    assert split_checkpoint_id(checkpoint_id("run@home", 12)) == ("run@home", 12)


@pytest.mark.parametrize("text", ["run", "run@latest", "run@", "run@-1", "run@²", ""])
def test_a_text_without_a_sequence_number_names_a_run(text: str) -> None:
    assert split_checkpoint_id(text) == (text, None)


@pytest.mark.req("RT-7")
@pytest.mark.parametrize(
    ("run", "expected"), [("order", "order~2"), ("order~2", "order~3"), ("order~9", "order~10"), ("a~b", "a~b~2")]
)
def test_a_run_has_one_successor(run: str, expected: str) -> None:
    assert successor(run) == expected
