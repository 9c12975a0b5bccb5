"""Which episodes of a dataset: the options that every format with numbered episodes has.

| option | values | meaning |
| --- | --- | --- |
| `episodes` | `A:B`, `A:`, `:B`, `N`; negative numbers count from the end | by number |
| `sample` | `N` | so many of them, drawn without replacement by `seed` |
| `split` | `N+M+...` | parts of so many episodes of one permutation that `seed` draws; `part` says which, from 0 |
| `part` | `K` | of `split` |
| `seed` | `S` | of `sample` and `split`; 0 by default |
| `where` | `KEY=VALUE`, `KEY>VALUE`, `KEY<VALUE` | those whose metadata say so |

They are taken in this order: `where`, `episodes`, then `sample` or `split`. Episodes always come in the order of the dataset.

`sample` and `split` draw the episodes that Minari's `sample_episodes` and `split_dataset` draw with that seed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.recordings import Recordings
from rlds2reverb.source_options import Parse, whole_number
from rlds2reverb.sources.base import ENDLESS
from rlds2reverb.wording import counted

_SLICE = re.compile(r"(?P<start>-?\d{1,18})?:(?P<stop>-?\d{1,18})?|(?P<one>\d{1,18})", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_WHERE = re.compile(r"(?P<key>[^<>=]+)(?P<sign>[<>=])(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Where:
    """A condition on an episode's metadata."""

    key: str
    sign: str
    value: str

    def holds(self, found: Any) -> bool:
        """Whether a value satisfies it: as numbers where both are, else as text."""
        text = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
        one, other = _number(text), _number(self.value)
        if one is None or other is None:
            return self.sign == "=" and text == self.value
        return {"=": one == other, "<": one < other, ">": one > other}[self.sign]


@dataclass(frozen=True)
class Choice:
    """Parsed options; see the module's table."""

    episodes: slice | None = None
    sample: int | None = None
    split: tuple[int, ...] | None = None
    part: int | None = None
    seed: int | None = None
    where: Where | None = None

    @staticmethod
    def taken_from(options: dict[str, Any]) -> Choice:
        """The choice that options make; takes them out of there."""
        return Choice(**{key: options.pop(key) for key in CHOICES if key in options})

    def numbers(self, recordings: Recordings) -> Sequence[int] | None:
        """The numbers of the episodes that are chosen, ascending; None for all.

        Raises:
          SourceError: none is chosen, more are asked for than there are, or what only reading tells would have to be known.
        """
        if self == Choice():
            return None
        found = self._found(recordings)
        if not found:
            raise SourceError(f"{recordings.name}: no episode is chosen; {_there_are(recordings)}")
        return found

    def _found(self, recordings: Recordings) -> Sequence[int]:
        name, count = recordings.name, recordings.count
        self._check(name)
        if count is None and not self._only_by_number:
            raise SourceError(
                f"{name}: only reading tells how many episodes there are; choose by episodes=A:B, without negative numbers"
            )
        found: Sequence[int] = range(ENDLESS if count is None else count)
        if self.where is not None:
            found = self._satisfying(recordings, self.where)
        if self.episodes is not None:
            found = _sliced(name, found, self.episodes)
        if self.sample is not None:
            return self._drawn(name, found, self.sample)
        if self.split is not None:
            return self._part(name, found, self.split)
        return found

    def _check(self, name: str) -> None:
        """That options go together."""
        if self.sample is not None and self.split is not None:
            raise SourceError(f"{name}: sample and split do not go together")
        if self.part is not None and self.split is None:
            raise SourceError(f"{name}: part goes with split only")
        if self.seed is not None and self.sample is None and self.split is None:
            raise SourceError(f"{name}: seed goes with sample or split only")

    @property
    def needs_count(self) -> bool:
        """Whether it makes sense only where it is known how many episodes there are."""
        return self != Choice() and not self._only_by_number

    @property
    def _only_by_number(self) -> bool:
        ends = (self.episodes.start or 0, self.episodes.stop or 0) if self.episodes else (0, 0)
        return self.sample is None and self.split is None and self.where is None and min(ends) >= 0

    def _drawn(self, name: str, found: Sequence[int], size: int) -> Sequence[int]:
        """So many, as `MinariDataset.sample_episodes` draws them after `set_seed`; in the order of the dataset."""
        if size > len(found):
            raise SourceError(f"{name}: a sample of {size:,} episodes: there are {len(found):,}")
        drawn = np.random.default_rng(self.seed or 0).choice(len(found), size, replace=False)
        return tuple(found[int(at)] for at in sorted(drawn))

    def _part(self, name: str, found: Sequence[int], sizes: tuple[int, ...]) -> Sequence[int]:
        """One part, as `minari.split_dataset` makes them; in the order of the dataset."""
        part, written = self.part or 0, "+".join(map(str, sizes))
        if part >= len(sizes):
            raise SourceError(f"{name}: part {part} of split {written}: it has {len(sizes)} parts, numbered from 0")
        if sum(sizes) > len(found):
            raise SourceError(f"{name}: split {written}: {sum(sizes):,} episodes; there are {len(found):,}")
        order = np.random.default_rng(self.seed or 0).permutation(len(found))
        start = sum(sizes[:part])
        return tuple(found[int(at)] for at in sorted(order[start : start + sizes[part]]))

    def _satisfying(self, recordings: Recordings, where: Where) -> Sequence[int]:
        told = [recordings.metadata_of(number) for number in range(recordings.count or 0)]
        known = {number: metadata for number, metadata in enumerate(told) if metadata is not None}
        if told and not known:
            raise SourceError(
                f"{recordings.name}: where: its episodes have no metadata that is known before they are read"
            )
        if known and not any(where.key in metadata for metadata in known.values()):
            there = sorted({key for metadata in known.values() for key in metadata})
            raise SourceError(
                f'{recordings.name}: where: no episode has metadata "{where.key}"; there are: {", ".join(there)}'
            )
        return tuple(
            number for number, metadata in known.items() if where.key in metadata and where.holds(metadata[where.key])
        )


def _there_are(recordings: Recordings) -> str:
    return "it has too few" if recordings.count is None else f"there are {counted(recordings.count, 'episode')}"


def _sliced(name: str, found: Sequence[int], wanted: slice) -> Sequence[int]:
    """Those of a slice; as in Python it may reach beyond the end, but one episode must be there."""
    sliced = found[wanted]
    if not sliced and wanted.start is not None and wanted.stop == wanted.start + 1 and wanted.start >= len(found):
        raise SourceError(f"{name}: episodes={wanted.start}: there are {len(found):,}, numbered from 0")
    return sliced


def _number(text: str) -> int | float | None:
    """What a text says as a number, a whole one exactly; None when it is none."""
    try:
        return int(text) if _WHOLE.fullmatch(text) else float(text)
    except ValueError:
        return None


def _episodes(text: str) -> slice:
    found = _SLICE.fullmatch(text)
    if found is None:
        raise ValueError("expected A:B, A:, :B or a number")
    if found["one"]:
        return slice(int(found["one"]), int(found["one"]) + 1)
    return slice(*(int(found[end]) if found[end] else None for end in ("start", "stop")))


def _split(text: str) -> tuple[int, ...]:
    return tuple(map(whole_number, text.split("+")))


def _where(text: str) -> Where:
    found = _WHERE.fullmatch(text)
    if found is None:
        raise ValueError("expected KEY=VALUE, KEY<VALUE or KEY>VALUE")
    if found["sign"] != "=" and _number(found["value"]) is None:
        raise ValueError(f"expected a number behind {found['sign']}")
    return Where(found["key"], found["sign"], found["value"])


CHOICES: dict[str, Parse] = {
    "episodes": _episodes,
    "sample": whole_number,
    "split": _split,
    "part": whole_number,
    "seed": whole_number,
    "where": _where,
}
"""The options, and how each is read."""
