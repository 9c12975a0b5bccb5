"""Where a source's data lie on this machine, as far as its name tells; for whoever writes there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from glob import has_magic
from itertools import islice
from pathlib import Path

from rlds2reverb.errors import SourceError
from rlds2reverb.source_options import parted, unescaped
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.mix import SEPARATOR
from rlds2reverb.sources.mixed import MixedSource
from rlds2reverb.sources.registry import SOURCES

_FOLDERS = re.compile(r"[^:;|,?=]*[/\\]")
_MOST_FILES = 100_000
"""Of a pattern."""


def places_of(source: object, opened: Source) -> list[Path]:
    """The folders and files that a source is read from, those that exist; [] for one that is in memory, or at a server.

    Args:
      source: what `open_source` was given.
      opened: what that gave.
    """
    names = [source] if isinstance(source, str) else _names(opened)
    return [place for place in dict.fromkeys(place for name in names for place in _of_name(name)) if _exists(place)]


def label_of(source: object, opened: Source) -> str:
    """What a source is called without the folders that it lies in, with all its options; data that was moved keep it.

    Arguments as `places_of`.
    """
    if isinstance(source, str):
        name = source
    else:
        name = f"{opened.name} {opened.order}" if isinstance(opened, MixedSource) else opened.name
    return _FOLDERS.sub("", name)


def _names(opened: Source) -> list[str]:
    return [tally.name for tally in opened.tallies] if isinstance(opened, MixedSource) else [opened.name]


def _of_name(name: str) -> Iterator[Path]:
    scheme, _, text = name.partition(":")
    if scheme == "mix":
        for part in text.split(SEPARATOR):
            yield from _of_name(part)
        return
    known = SOURCES.named(name)
    if known is None or any(form.choices for form in known.forms):
        return
    if known.place is not None:
        try:
            yield known.place(text)
        except SourceError:
            return
    else:
        yield from _of_text(text)


def _of_text(text: str) -> Iterator[Path]:
    """The paths, or patterns of such, with ";" between them."""
    whole = parted(text)[0]
    for written in map(unescaped, {whole, *whole.split(";")}):
        if not written or "\0" in written:
            continue
        try:
            path = Path(written).expanduser().absolute()
        except RuntimeError:  # "~nobody"
            continue
        yield path
        if has_magic(written):
            yield from islice(Path(path.anchor).glob(str(path.relative_to(path.anchor))), _MOST_FILES)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, say
        return False
