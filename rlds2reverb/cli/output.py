"""What a command prints: data to stdout, talk to stderr; with --json one document whatever happens, an error included.

stdout and stderr outlive their readers (`| head -1`): a reader that leaves changes neither a command nor its exit code.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO

import click

from rlds2reverb.files import write_error
from rlds2reverb.text import visible

if TYPE_CHECKING:
    from rlds2reverb.episode import Notice

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
        self._held = plain(value)

    def print(self) -> None:
        if self._held is not None:
            click.echo(document(self._held))

    def print_error(self, error: BaseException, message: str, exit_code: int) -> None:
        """Prints the error if JSON is wanted: in the account of what was done until then, or on a line of its own.

        A stdout that takes nothing is no news: the same words go to stderr.
        """
        if not self._is_wanted:
            return
        fields = {"error": describe_error(error, message, exit_code)}
        with suppress(OSError):
            click.echo(document(fields, indent=None) if self._held is None else document({**self._held, **fields}))
            if sys.stdout is not None:
                sys.stdout.flush()


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, even where it makes no sense otherwise."""
    words = list(arguments)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def describe_error(error: BaseException, message: str, exit_code: int) -> dict[str, Any]:
    is_interrupted = isinstance(error, (click.Abort, KeyboardInterrupt))
    places = (getattr(error, name, None) for name in ("title", "where", "filename"))
    problems = getattr(error, "problems", None) or getattr(error, "differences", None) or ()
    return {
        "kind": KINDS.get(exit_code, "other"),
        "type": "KeyboardInterrupt" if is_interrupted else type(error).__name__,
        "message": message,
        "exit_code": exit_code,
        "where": next((str(place) for place in places if isinstance(place, (str, PurePath))), None),
        "problems": [str(problem) for problem in problems],
        "retryable": getattr(error, "retryable", None),
    }


def document(value: Any, indent: int | None = 2) -> str:
    """Strict JSON. Letters beyond ASCII stay as they are where stdout can carry them; invisible ones are escaped, as they could steer a terminal."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    text = json.dumps(plain(value), indent=indent, ensure_ascii=encoding != "utf8", allow_nan=False)
    if text.isascii():
        return text
    return "".join(
        sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1]  # outside of strings all is ASCII
        for sign in text
    )


def plain(value: Any) -> Any:
    """The value as JSON has it: null for infinities and NaN, Python's numbers for numpy's, text that UTF-8 can carry."""
    if hasattr(value, "as_dict"):  # of the library
        value = value.as_dict()
    if hasattr(value, "__struct_fields__"):  # of `documents`
        present = ((name, getattr(value, name)) for name in value.__struct_fields__)
        value = {name: child for name, child in present if child is not sys.modules["msgspec"].UNSET}
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


_LEFT = (errno.EPIPE, errno.EINVAL) if os.name == "nt" else (errno.EPIPE,)
"""What writing to a pipe fails with when its reader has left. Source: EINVAL is what Windows' C library makes of it."""


class _ReaderStream(io.FileIO):
    """Bytes for a reader; once it has left, they are dropped.

    A stream that cannot be written for another reason, such as a full disk, says so once, and is left as well: nothing is
    held back that would fail again when the program ends.
    """

    def __init__(self, number: int, is_talk: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._is_talk = is_talk
        self.is_left = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.is_left = True
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, self.fileno())
            os.close(sink)
            if not (self._is_talk or error.errno in _LEFT):
                raise write_error(
                    "stdout", error, "what was printed is cut short; make room, or write it elsewhere"
                ) from error
        return memoryview(data).nbytes


@contextmanager
def outliving_readers() -> Iterator[None]:
    """Makes stdout and stderr outlive their readers; a full disk is an error of stdout only. Others' streams stay as they are."""
    before = sys.stdout, sys.stderr
    if sys.stdout is sys.__stdout__:
        sys.stdout = _outliving(sys.stdout, is_talk=False)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _outliving(sys.stderr, is_talk=True)
    try:
        yield
    finally:
        for stream, old in zip((sys.stdout, sys.stderr), before):
            if stream is not old:
                stream.flush()
        sys.stdout, sys.stderr = before


def has_reader() -> bool:
    """Whether stdout had a reader at the last flush."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return not (isinstance(raw, _ReaderStream) and raw.is_left)


def _outliving(stream: TextIO | Any, is_talk: bool) -> Any:
    if stream is None:  # closed before the program began
        return None
    if os.name == "nt" and stream.isatty():  # a console there takes text, not bytes, and lives as long as the program
        return stream
    raw = _ReaderStream(stream.fileno(), is_talk)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=is_talk or stream.isatty()
    )


def print_json(value: Any) -> None:
    """One JSON document on stdout, when the command has ended; infinities and NaN, which JSON lacks, become null.

    An error that comes later becomes a member of it: see `Answer`.
    """
    context = click.get_current_context(silent=True)
    answer = None if context is None else context.find_object(Answer)
    if answer is None:
        click.echo(document(value))
    else:
        answer.hold(value)


def print_json_line(value: Any) -> None:
    """A JSON document on a line of its own on stdout, now."""
    click.echo(document(value, indent=None))


# What a part of a line is -> how it looks on a terminal with colours.
_LOOKS: dict[str, dict[str, Any]] = {
    "problem": {"fg": "red", "bold": True},
    "advice": {"fg": "yellow", "bold": True},
    "good": {"fg": "green", "bold": True},
    "name": {"bold": True},
    "aside": {"dim": True},
    "a": {"fg": "cyan", "bold": True},  # the first of two datasets that are compared
    "b": {"fg": "magenta", "bold": True},
}

Part = str | tuple[str, str]
"""Text of a line; or text, and what it is: a key of `_LOOKS`, "" for nothing special."""

_LEAST_WIDTH = 40
_DEFAULT_WIDTH = 80


def width_of(stream: Any) -> int | None:
    """The width of the terminal behind a stream, in cells; None without a terminal, where lines are not broken.

    COLUMNS goes first, as in other programs.
    """
    if stream is None or not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdigit() else 0
    if not width:
        with suppress(OSError, ValueError):  # a stream without a file behind it
            width = os.get_terminal_size(stream.fileno()).columns
    return max(_LEAST_WIDTH, width or _DEFAULT_WIDTH)


def has_colour(stream: Any) -> bool:
    """Whether a stream is a terminal whose user wants colours. Source: https://no-color.org."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return bool(stream is not None and stream.isatty() and not is_plain)


def cells(text: str) -> int:
    """How wide a terminal draws a text. rich is loaded for what is not ASCII only."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrap_parts(parts: Iterable[Part], width: int, hang: int = 0) -> list[list[Part]]:
    """The parts of a line in lines of at most `width` cells, broken at blanks only; a longer word has a line of its own.

    The first line keeps its indent, and blanks within a line stay as they are. Later lines begin with `hang` blanks.
    """
    lines: list[list[Part]] = [[]]
    used, gap, gap_kind, word, is_begun = 0, "", "", list[tuple[str, str]](), False

    def put() -> None:
        nonlocal used, is_begun
        length = sum(cells(text) for text, _ in word)
        if is_begun and used + len(gap) + length > width:
            lines.append([" " * hang] if hang else [])
            used = hang
        elif gap:
            lines[-1].append((gap, gap_kind))
            used += len(gap)
        lines[-1] += word
        used, is_begun = used + length, True

    for text, kind in map(_as_pair, parts):
        for piece in re.findall(" +|[^ ]+", text):
            if not piece.startswith(" "):
                word.append((piece, kind))
                continue
            if word:
                put()
                word, gap = [], ""
            gap, gap_kind = gap + piece, kind
    if word:
        put()
    return lines


def _as_pair(part: Part) -> tuple[str, str]:
    return (part, "") if isinstance(part, str) else part


def lines_for(stream: Any, parts: Iterable[Part], hang: int = 0) -> str:
    """A line as a stream shows it: wrapped and in colour on a terminal, else as it is. All that is invisible is escaped."""
    shown: list[Part] = [(visible(text), kind) for text, kind in map(_as_pair, parts)]
    width = width_of(stream)
    lines = [shown] if width is None else wrap_parts(shown, width, hang)
    is_coloured = has_colour(stream)
    return "\n".join(
        "".join(_style(line) if is_coloured else (text for text, _ in map(_as_pair, line))) for line in lines
    )


def _style(line: Iterable[Part]) -> Iterator[str]:
    for kind, parts in groupby(map(_as_pair, line), key=itemgetter(1)):
        text = "".join(text for text, _ in parts)
        yield click.style(text, **_LOOKS[kind]) if kind else text


OUTCOMES = {
    **dict.fromkeys(("rejected", "not stored", "not verified", "stopped"), "problem"),
    **dict.fromkeys(("advice", "lost", "left out", "ends late"), "advice"),
    **dict.fromkeys(("confirmed", "written", "verified"), "good"),
}
"""Field of the account of a push or a conversion -> what its value is."""


def print_fields(fields: Mapping[str, Any], indent: str = "", kinds: Mapping[str, str] = {}) -> None:
    """Aligned "name  value" lines on stdout; see `print_columns`.

    Args:
      kinds: name -> what its value is, as of a `Part`.
    """
    print_columns(
        [[(name, "name"), (str(value), kinds.get(name, ""))] for name, value in fields.items()], indent, least=_FIELD
    )


_COLUMN, _FIELD = 12, 20
"""Cells that wrapped text needs beside other columns, and beside names only."""


def print_columns(
    rows: Sequence[Sequence[Part]], indent: str = "", has_heads: bool = False, least: int = _COLUMN
) -> None:
    """Aligned rows of text on stdout.

    On a terminal the last column is wrapped below itself. Where it has no room for that, each row is a block: its first cell, and below it
    every further one in a line of its own.

    Args:
      has_heads: whether the first row names the columns; blocks have these names before their cells.
      least: cells that the last column needs.
    """
    shown = [[(visible(text), kind) for text, kind in map(_as_pair, row)] for row in rows]
    if not shown:
        return
    widths = [max(cells(text) for text, _ in column) for column in zip(*shown)]
    before = len(indent) + sum(widths[:-1]) + 2 * len(widths[:-1])
    if _has_room(shown, before, least):
        for row in shown:
            parts: list[Part] = [indent]
            for (text, kind), width in zip(row, widths):
                parts += [(text, kind), " " * (width - cells(text) + 2)]
            while len(parts) > 1 and not _as_pair(parts[-1])[0].strip():
                parts.pop()
            print_line(*parts, hang=before)
        return
    heads = shown.pop(0)[1:] if has_heads else []
    name_width = max((cells(text) + 2 for text, _ in heads), default=0)
    for first, *further in shown:
        print_line(indent, first)
        for at, (text, kind) in enumerate(further):
            if text:
                head: list[Part] = [heads[at], " " * (name_width - cells(heads[at][0]))] if heads else []
                print_line(f"{indent}  ", *head, (text, kind), hang=len(indent) + 2 + (name_width or 2))


def _has_room(rows: Sequence[Sequence[tuple[str, str]]], before: int, least: int) -> bool:
    """Whether the last column fits behind `before` cells of a terminal: as it is, or wrapped at blanks to at least `least` cells."""
    width = width_of(sys.stdout)
    if width is None:
        return True
    texts = [row[-1][0] for row in rows]
    words = [word for text in texts for word in text.split() if cells(word) < width - 4]  # a longer one fits nowhere
    return width - before >= min(max(map(cells, texts)), max(least, *map(cells, words), 0))


def print_notices(notices: Iterable[Notice]) -> None:
    """What is to be said of a dataset: advice, and notes."""
    for notice in notices:
        kind, _, text = notice.line.partition(" ")
        print_line((kind, "advice" if kind == "advice" else "name"), f" {text}")


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print_line(line)


def print_line(*parts: Part, hang: int | None = None) -> None:
    """A line on stdout, wrapped below its own start. Names of datasets and servers are made visible: they move no cursor."""
    click.echo(lines_for(sys.stdout, parts, _below(parts) if hang is None else hang), color=True)


def _below(parts: Sequence[Part]) -> int:
    text = "".join(text for text, _ in map(_as_pair, parts))
    return len(text) - len(text.lstrip(" ")) + 2


def talk(*parts: Part) -> None:
    """A line on stderr, as `print_line` prints them."""
    click.echo(lines_for(sys.stderr, parts, _below(parts)), err=True, color=True)


def propose(words: Sequence[str]) -> None:
    """A command to go on with, on stderr; never wrapped, for it is copied."""
    talk(("next:", "name"))
    click.echo(visible(f"  {shlex.join(words)}"), err=True)
