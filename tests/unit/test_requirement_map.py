"""docs/coverage.md says what the tests say."""

from tests.requirement_map import PAGE, page, proofs

OF_THIS_VERSION = [
    *(f"DM-{number}" for number in range(1, 10)),
    *(f"FL-{number}" for number in (1, 2, 3, 4, 5, 8, 9, 10)),
    "OR-4",
    "PR-1",
    "PR-9",
    "RT-1",
]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.requirement_map"


def test_every_requirement_of_this_version_has_a_test() -> None:
    assert [name for name in OF_THIS_VERSION if name not in proofs()] == []
