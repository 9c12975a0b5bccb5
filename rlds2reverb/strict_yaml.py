"""YAML text -> plain values, by one strict reader for every file and option, bounded before anything is built.

YAML 1.1 without its surprises. Text that only resembles a number stays text: `-3:0` (-180 to base 60 otherwise), `010` (8), and
`2026-01-01` (a date). Duplicate keys, an alias within itself and any tag of a type that configs do not use
are refused. Text that would take long to read is refused after its first `MOST_NODES` values: every alias counts as its whole
content, so a few lines cannot grow into gigabytes.

A message never quotes a line of the text, which may hold a secret.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

from rlds2reverb.errors import ConfigError

MOST_BYTES = 262_144
"""Most bytes of one text; room for a signature of some thousand columns."""

MOST_NODES = 10_000
"""Most scalars, lists and mappings, aliases expanded. Reading so many takes PyYAML less than a second."""

MOST_DEPTH = 64
"""Most lists and mappings within one another. PyYAML calls itself some three times for each."""

MOST_DIGITS = 400
"""Most digits of one number; a float has at most 309 before its point."""

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$")
_FLOAT = re.compile(
    r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)
_BOOL = re.compile(r"(yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$")


def read(path: Path, how_to_go_on: str = "") -> Any:
    """The value in a YAML file; None when it is empty.

    Args:
      how_to_go_on: ends the message when it cannot be read, such as "; name a config with --config".
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)  # one byte more, to refuse longer files
        text = data.decode("utf-8") if len(data) <= MOST_BYTES else data.decode("utf-8", "replace")
    except (OSError, ValueError) as error:  # a NUL in the path, or no UTF-8
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason}){how_to_go_on}") from error
    return parse(text, f"{path}: ")


def parse(text: str, where: str = "") -> Any:
    """The value of a text; None when it is empty.

    Args:
      where: begins the message, such as "server.yaml: ".
    """
    if len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise ConfigError(f"{where}not YAML: longer than {MOST_BYTES:,} bytes, the most that a config may have")
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{where}not YAML: {_words(error)}") from error
    except yaml.YAMLError as error:  # characters that YAML has not
        raise ConfigError(f"{where}not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, OverflowError) as error:  # of chr, which PyYAML calls with any number
        raise ConfigError(f"{where}not YAML: an escape such as \\U that names no character") from error


def _words(error: yaml.MarkedYAMLError) -> str:
    """The error and its line, without quoting it."""
    words = ", ".join(part for part in (error.context, error.problem) if part)
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return " ".join(words.split()) + place


def _refusal(problem: str, at: yaml.Event | Node) -> ConstructorError:
    return ConstructorError(problem=problem, problem_mark=at.start_mark)  # type: ignore[arg-type] # of the C parser otherwise


class _Loader(yaml.SafeLoader):
    """One text: composed into nodes within the bounds, then constructed."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - as PyYAML declares it; filled below, as is the next
    yaml_constructors: ClassVar[dict[Any, Any]] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._depth = 0
        self._sizes: dict[str, int] = {}  # anchor -> nodes of what it stands for, once that is whole
        self._without_doubles: set[MappingNode] = set()

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """A node, counted before it is made."""
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        before, self._nodes = self._nodes, self._nodes + 1
        if isinstance(event, yaml.AliasEvent):
            self._nodes = before + self._size_of(event)
        self._refuse_more_than(MOST_NODES, self._nodes, "values, aliases counted as what they stand for", event)
        self._depth += 1
        self._refuse_more_than(MOST_DEPTH, self._depth, "lists and mappings within one another", event)
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._sizes[event.anchor] = self._nodes - before
        return node

    def _size_of(self, alias: yaml.AliasEvent) -> int:
        if alias.anchor in self.anchors and alias.anchor not in self._sizes:
            raise _refusal("an alias stands within itself", alias)
        return self._sizes.get(str(alias.anchor), 1)  # an unknown one is refused by PyYAML

    @staticmethod
    def _refuse_more_than(most: int, count: int, what: str, at: yaml.Event | Node) -> None:
        if count > most:
            raise _refusal(f"more than {most:,} {what}", at)

    def flatten_mapping(self, node: MappingNode) -> None:
        """Resolves `<<`; refuses duplicate keys before, as merged ones may stand beside the mapping's own."""
        if node not in self._without_doubles:
            self._without_doubles.add(node)
            self._refuse_doubles(node)
        super().flatten_mapping(node)

    def _refuse_doubles(self, node: MappingNode) -> None:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            is_merge = key_node.tag == f"{_TAG}merge"
            key = "<<" if is_merge else self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _refusal("a list or a mapping as a key", key_node)
            if (key, is_merge) in seen:
                raise _refusal(f'key "{key}" stands twice', key_node)
            seen.add((key, is_merge))

    def bool_of(self, node: ScalarNode) -> bool:
        word = str(self.construct_scalar(node)).lower()
        if word not in self.bool_values:
            raise _refusal("expected true or false", node)
        return bool(self.bool_values[word])

    def int_of(self, node: ScalarNode) -> int:
        """To base 10, 16 or 2."""
        text = self._digits(node)
        try:
            return int(text, 0)
        except ValueError as error:
            raise _refusal("expected a whole number", node) from error

    def float_of(self, node: ScalarNode) -> float:
        text = self._digits(node).lower()
        try:
            return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError as error:
            raise _refusal("expected a number", node) from error

    def _digits(self, node: ScalarNode) -> str:
        text = str(self.construct_scalar(node)).replace("_", "")
        self._refuse_more_than(MOST_DIGITS, len(text), "digits of one number", node)
        return text


_CONSTRUCTORS: dict[str, Any] = {
    "null": yaml.SafeLoader.construct_yaml_null,
    "bool": _Loader.bool_of,
    "int": _Loader.int_of,
    "float": _Loader.float_of,
    "str": yaml.SafeLoader.construct_yaml_str,
    "seq": yaml.SafeLoader.construct_yaml_seq,
    "map": yaml.SafeLoader.construct_yaml_map,
}
for _name, _construct in _CONSTRUCTORS.items():
    _Loader.add_constructor(f"{_TAG}{_name}", _construct)
_Loader.add_constructor(None, yaml.SafeLoader.construct_undefined)  # type: ignore[type-var] # typeshed wants _Loader's own

for _name, _pattern, _first in (
    ("null", re.compile(r"(~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("bool", _BOOL, list("yYnNtTfFoO")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", re.compile("<<$"), ["<"]),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", _pattern, _first)
