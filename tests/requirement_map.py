"""Writes docs/coverage.md: which tests prove which requirement. `python -m tests.requirement_map`."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "coverage.md"
_GROUPS = {
    "DM": "data models",
    "FL": "flow execution",
    "AG": "agents",
    "OR": "orchestrators and operators",
    "EX": "external resources",
    "FS": "files",
    "RT": "runtime",
    "PR": "production",
    "PL": "pipelines",
}


def _ids(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    found: list[str] = []
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.req":
            found += [argument.value for argument in decorator.args if isinstance(argument, ast.Constant)]  # pyright: ignore[reportAssignmentType] (the marks are strings)
    return [str(name) for name in found]


def proofs() -> dict[str, list[str]]:
    """Requirement -> the tests marked for it, as `path::name`."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for item in ast.walk(ast.parse(path.read_text())):
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                for requirement in _ids(item):
                    found[requirement].append(f"{path.relative_to(ROOT)}::{item.name}")
    return found


def _key(requirement: str) -> tuple[int, int]:
    group, _, number = requirement.partition("-")
    return list(_GROUPS).index(group), int(number)


def page() -> str:
    found = proofs()
    lines = [
        "# What is proven, and by which test",
        "",
        "Made by `python -m tests.requirement_map` from the tests' own marks. A requirement that is not listed here",
        "has no test yet, and is not done.",
    ]
    group = ""
    for requirement in sorted(found, key=_key):
        if requirement[:2] != group:
            group = requirement[:2]
            lines += ["", f"## {group}: {_GROUPS[group]}", ""]
        lines.append(f"- **{requirement}**")
        lines += [f"  - `{test}`" for test in found[requirement]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
