"""Formats by scheme: how a name such as `tfds:my_dataset` is written, what opens it, and which extra that needs.

Help, messages and documentation are made of what stands here, so no module of a format is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.extras import Lazily as Lazily
from rlds2reverb.extras import needing
from rlds2reverb.source_options import parted, unescaped

Opened = TypeVar("Opened")


@dataclass(frozen=True)
class Form:
    """One way to write a name of a format.

    Attributes:
      written: with the scheme: "tfds:NAME[@SPLIT]".
      names: what it stands for, on one line; for help and documentation.
      choices: the names that there are, where these are only a few.
    """

    written: str
    names: str
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.written}, one of {', '.join(self.choices)}" if self.choices else self.written

    @property
    def examples(self) -> tuple[str, ...]:
        """Every name where there are only a few, else how one is written."""
        scheme = self.written.partition(":")[0]
        return tuple(f"{scheme}:{choice}" for choice in self.choices) or (self.written,)


def _is_of(name: str, marks: tuple[str, ...]) -> bool:
    """Whether a file or a folder has one of the marks; False for what is not there or cannot be looked at."""
    try:
        path = Path(name).expanduser()
        return (path.is_dir() and any(any(path.glob(mark)) for mark in marks)) or (
            path.is_file() and any(map(path.match, marks))
        )
    except (OSError, ValueError, RuntimeError):  # RuntimeError: "~nobody"
        return False


def _nothing(_: object) -> bool:
    return False


@dataclass(frozen=True)
class Format(Generic[Opened]):
    """One format.

    Attributes:
      scheme: what its names begin with; also what it is called among the formats.
      opener: opens the text behind "scheme:", or an object that `takes` accepts. As a rule `Lazily`.
      purpose: what its libraries are for: "reading RLDS".
      extra: the extra of this package that brings its libraries; None where the core has them.
      forms: how its names are written; () when it takes objects only.
      takes: whether a Python object is of this format. Says so without importing anything.
      objects: what these objects are, in Markdown: "a list of `Episode`"; "" when it takes names only.
      objects_are: what they stand for, on one line; for documentation.
      marks: what its files look like: patterns of a file's name, or of what lies below its folder. For guesses only.
      place: where the data of a name lie, whose text behind "scheme:" it is given; None where that text is a path. As a rule `Lazily`.
      page: of the documentation, below docs/, perhaps with a heading: "formats/d4rl.md"; "" where there is none.
    """

    scheme: str
    opener: Callable[[Any], Opened]
    purpose: str
    extra: str | None = None
    forms: tuple[Form, ...] = ()
    takes: Callable[[object], bool] = _nothing
    objects: str = ""
    objects_are: str = ""
    marks: tuple[str, ...] = ()
    place: Callable[[str], Path] | None = None
    page: str = ""

    @property
    def syntax(self) -> str:
        """How its names are written."""
        return " or ".join(map(str, self.forms))


@dataclass(frozen=True)
class Formats(Generic[Opened]):
    """All formats of one kind, in the order in which people are told of them.

    Attributes:
      kind: what their names name: "source".
      error: what is raised when a name makes no sense, or a library is missing.
      known: the formats.
    """

    kind: str
    error: type[Rlds2ReverbError]
    known: tuple[Format[Opened], ...]

    def __iter__(self) -> Iterator[Format[Opened]]:
        return iter(self.known)

    @property
    def syntax(self) -> str:
        """What names of all of them begin with."""
        return f"SCHEME:NAME, where SCHEME is one of {', '.join(one.scheme for one in self.known if one.forms)}"

    @property
    def objects(self) -> tuple[str, ...]:
        """What is taken beside names, in plain text."""
        return tuple(one.objects.replace("`", "") for one in self.known if one.objects)

    def open(self, name: str) -> Opened:
        """Opens "scheme:...".

        Raises:
          self.error: an unknown scheme, or an extra that is not installed; and what the format raises.
        """
        found = self.named(name)
        if found is not None:
            return self.open_with(found, name.partition(":")[2])
        meant = self._meant(name)
        hint = f'; did you mean "{meant}"?' if meant else ""
        raise self.error(f'{self.kind} "{name}": expected {self.syntax}{hint}')

    def named(self, name: str) -> Format[Opened] | None:
        """The format of a name "scheme:..."; None when no format has that scheme."""
        scheme = name.partition(":")[0]
        return next((one for one in self.known if one.forms and one.scheme == scheme), None)

    def taking(self, thing: object) -> Format[Opened] | None:
        """The format of a Python object; None when it is of none."""
        return next((one for one in self.known if one.takes(thing)), None)

    def open_with(self, one: Format[Opened], what: Any) -> Opened:
        """Opens the text behind a scheme, or an object, as this format.

        Raises:
          self.error: an extra is not installed; and what the format raises.
        """
        with nullcontext() if one.extra is None else needing(one.purpose, one.extra, self.error):
            return one.opener(what)

    def _meant(self, name: str) -> str:
        """The name that was meant, as far as its scheme tells; "" when that cannot be guessed."""
        scheme, colon, rest = name.partition(":")
        if colon:
            near = get_close_matches(scheme.lower(), [one.scheme for one in self.known if one.forms], 1)
            return f"{near[0]}:{rest}" if near else ""
        bare = name.partition("@")[0]
        owners = [one.scheme for one in self.known for form in one.forms if bare in form.choices]
        owners += [one.scheme for one in self.known if _is_of(unescaped(parted(name)[0]), one.marks)]
        return f"{owners[0]}:{name}" if owners else ""

    def help(self) -> str:
        """One line for each form of a name, in two columns."""
        rows = [(", ".join(form.examples), form.names) for one in self.known for form in one.forms]
        width = max(len(written) for written, _ in rows)
        return "\n".join(f"{written:<{width}}   {names}" for written, names in rows)

    def table(self, verb: str = "reads") -> str:
        """All that is taken, as a table in Markdown; `verb` says what is done with it."""
        rows = [f"| written as | {verb} | extra | more |", "| --- | --- | --- | --- |"]
        for one in self.known:
            extra = f"`{one.extra}`" if one.extra else ""
            more = f"[{one.scheme}]({one.page})" if one.page else ""
            for form in one.forms:
                written = ", ".join(f"`{example}`" for example in form.examples).replace("|", r"\|")
                rows.append(f"| {written} | {form.names} | {extra} | {more} |")
            if one.objects:
                rows.append(f"| {one.objects} (Python) | {one.objects_are} | {extra} | {more} |")
        return "\n".join(rows)
