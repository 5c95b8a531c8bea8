"""The reference of the command line and of the HTTP API: every command, option and route is described, and no other."""

import re
from typing import Any

import pytest

from holdfast.starter.api.access import Tokens
from holdfast.starter.api.app import Settings, create_app
from holdfast.starter.cli import HELP, parser
from holdfast.starter.client import HoldfastClient
from tests.reference import REFERENCE, named, tables

CLI = (REFERENCE / "cli.md").read_text()
API = (REFERENCE / "api.md").read_text()


def commands() -> list[str]:
    """Those with a line in the help screen, and those that are named beside another one."""
    return [*re.findall(r"^  holdfast ([\w-]+)", HELP, re.MULTILINE), *re.findall(r"[(;] ?(\w+):", HELP)]


def test_every_command_is_in_the_help_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["nothing"])
    offered = capsys.readouterr().err.partition("choose from")[2]

    assert set(re.findall(r"[\w-]+", offered)) == set(commands())


@pytest.mark.parametrize("command", commands())
def test_every_command_and_option_is_documented(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    [row] = [line for line in CLI.splitlines() if re.match(rf"\| `{command}[ `]", line)]
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    offered = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out.partition("options:")[2].partition("\n\n")[0]))
    everywhere = {"--help", "--json", "--address", "--namespace"}

    assert {option for option in offered - everywhere if option not in row} == set()


async def nowhere(_: str) -> HoldfastClient:
    raise AssertionError("the API's document needs no server")


def routes() -> dict[str, dict[str, Any]]:
    """Every route that the API offers, as `GET /runs`, with its operation."""
    document = create_app(Settings(nowhere, Tokens({}))).openapi()
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_every_route_of_the_api_is_documented_and_no_other() -> None:
    rows = [row for found in tables(API, "route") for row in found]

    assert sorted(row[0].strip("`") for row in rows) == sorted(routes())


@pytest.mark.parametrize("route", routes())
def test_what_a_route_takes_is_documented(route: str) -> None:
    [row] = [row for found in tables(API, "route") for row in found if row[0].strip("`") == route]
    operation = routes()[route]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    wanted = {
        parameter["name"]
        for parameter in operation.get("parameters", [])
        if parameter["in"] != "path" and parameter["name"] != "authorization"
    }

    assert wanted - {name.lower() for name in named(row[1])} == set()
    assert bool(body) == ("body" in row[1])
