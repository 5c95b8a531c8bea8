"""YAML with line numbers: the data, and where each part of it stands, so that every fault can name its line."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]

_MOST_VALUES = 500_000


class YamlSyntaxError(ValueError):
    """The text is not YAML. `line` counts from 1."""

    def __init__(self, complaint: str, line: int | None) -> None:
        super().__init__(complaint)
        self.line = line


@dataclass
class Source:
    """`lines` maps the path of a value to the line it starts on; `repeated` lists keys written twice."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict[Path, int])
    repeated: list[Path] = field(default_factory=list[Path])

    def line(self, path: Path) -> int | None:
        """The line of `path`, or of the nearest thing around it that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


class _Loader(yaml.SafeLoader):
    """YAML 1.2: `option: no` is the text "no", as everyone who writes it expects, and a date is the text it is in JSON.

    A definition travels as JSON: what only YAML can say would mean one thing here and another in the run.
    """


_NOT_PLAIN = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NOT_PLAIN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _first in "tTfF":
    _Loader.yaml_implicit_resolvers.setdefault(_first, []).append(
        ("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"))
    )


def read(text: str) -> Source:
    """Parses one YAML document."""
    try:
        return _parse(_Loader(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlSyntaxError(error.problem or str(error), mark.line + 1 if mark else None) from error
    except (yaml.YAMLError, ValueError) as error:
        raise YamlSyntaxError(str(error), None) from error
    except RecursionError as error:
        raise YamlSyntaxError("it is nested too deeply, or an alias contains itself", None) from error


def _parse(loader: _Loader) -> Source:
    source = Source()
    try:
        root = loader.get_single_node()
        if root is not None:
            _locate(root, (), source)
            source.data = loader.construct_document(root)  # pyright: ignore[reportUnknownMemberType] (untyped stub)
    finally:
        loader.dispose()
    return source


def _locate(node: yaml.Node, path: Path, source: Source) -> None:
    if len(source.lines) > _MOST_VALUES:
        # A few lines of aliases of aliases stand for more than any memory holds.
        raise yaml.YAMLError(f"its aliases stand for more than {_MOST_VALUES} values")
    source.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                source.repeated.append((*path, name))
            seen.add(name)
            source.lines[(*path, name)] = key.start_mark.line + 1
            _locate(value, (*path, name), source)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _locate(value, (*path, index), source)
