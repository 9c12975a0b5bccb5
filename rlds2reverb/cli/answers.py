"""What a command says on stdout with --json: one document whatever happens, an error included."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import click

KINDS = {
    1: "data",
    2: "usage",
    3: "source",
    4: "table",
    5: "server",
    6: "file",
    70: "bug",
    130: "interrupted",
}
"""Exit code -> the kind of error that it stands for, in documents."""


class Answer:
    """The one document of a run: held until the run ends, and given an `error` where it ends badly.

    A command that prints JSON lines holds nothing; an error is its last line.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._held: Any = None

    def hold(self, value: Any) -> None:
        """Keeps what is to be printed when the command has ended."""
        self._held = value

    def print(self) -> None:
        """Prints it, if there is any."""
        if self._held is not None:
            click.echo(document(self._held))

    def print_error(self, error: BaseException, message: str, exit_code: int) -> None:
        """Prints the error if JSON is wanted: in the account of what was done until then, or on a line of its own.

        A stdout that takes nothing is no news: the same words go to stderr.
        """
        if not self._is_wanted:
            return
        told = {"error": described(error, message, exit_code)}
        with suppress(OSError):
            click.echo(one_line(told) if self._held is None else document({**self._held, **told}))
            if sys.stdout is not None:
                sys.stdout.flush()


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, also one that makes no sense otherwise."""
    words = list(arguments)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def described(error: BaseException, message: str, exit_code: int) -> dict[str, Any]:
    """An error as plain values; docs/json.md has what they mean.

    Args:
      error: which.
      message: what is told of it on stderr.
      exit_code: what the program ends with.
    """
    is_interrupted = isinstance(error, (click.Abort, KeyboardInterrupt))
    found = getattr(error, "problems", None) or getattr(error, "differences", None) or ()
    return {
        "kind": KINDS.get(exit_code, "other"),
        "type": "KeyboardInterrupt" if is_interrupted else type(error).__name__,
        "message": message,
        "exit_code": exit_code,
        "where": _place(error),
        "problems": [str(one) for one in found],
        "retryable": getattr(error, "retryable", None),
    }


def _place(error: BaseException) -> str | None:
    """The episode, the table or the file that an error is about, where it says so apart from its message."""
    for name in ("title", "where", "filename"):
        place = getattr(error, name, None)
        if isinstance(place, (str, PurePath)):
            return str(place)
    return None


def document(value: Any) -> str:
    """A value as JSON for people, too: indented."""
    return _encoded(value, indent=2)


def one_line(value: Any) -> str:
    """A value as JSON on one line."""
    return _encoded(value, indent=None)


def _encoded(value: Any, indent: int | None) -> str:
    """Strict JSON. Letters beyond ASCII stay as they are where stdout can carry them."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    return json.dumps(plain(value), indent=indent, ensure_ascii=encoding != "utf8", allow_nan=False)


def plain(value: Any) -> Any:
    """The value as JSON has it: null for infinities and NaN, Python's numbers for numpy's, text that UTF-8 can carry.

    Raises:
      TypeError: bytes, or something else that is neither number, text, list nor mapping.
    """
    if hasattr(value, "__struct_fields__"):  # a class of `documents`
        value = sys.modules["msgspec"].to_builtins(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(child) for child in value]
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(
        value, numpy.generic
    ):  # not loaded: none of its numbers
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (str, PurePath)):
        return str(value).encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TypeError(f"{type(value).__name__}: expected what JSON can carry: numbers, text, lists, mappings, null")
