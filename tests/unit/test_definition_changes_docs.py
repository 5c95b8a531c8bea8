"""The table of changed definitions in docs/time-travel.md is the one that is tested."""

from tests.integration.test_definition_changes import HEAD, table
from tests.reference import ROOT, section, tables

PAGE = ROOT / "docs" / "time-travel.md"


def test_every_row_of_the_documentation_is_a_tested_case_and_says_what_is_tested() -> None:
    (documented,) = tables(section(PAGE.read_text(), "When the flow has changed"), HEAD[0])

    assert documented == list(table())
