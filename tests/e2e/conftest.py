"""What the tests of the console share."""

from collections.abc import Generator

import pytest
from playwright.sync_api import Playwright, expect, sync_playwright

from tests.e2e.console import PATIENCE


@pytest.fixture(scope="module")
def playwright() -> Generator[Playwright]:
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as found:
        yield found
