"""What a conversion loses: told before, by the specs, and counted while episodes are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlds2reverb.destinations.base import Loss
from rlds2reverb.episodes import is_under
from rlds2reverb.wording import counted as plural

ALL = "all"
"""In place of codes: every loss."""


@dataclass(frozen=True)
class Lost:
    """A loss, counted.

    Attributes:
      code, text, path: see `Loss`; the text is that of the first.
      episodes: of how many it was told; None where it holds for all of them.
    """

    code: str
    text: str
    path: str = ""
    episodes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass
class Losses:
    """The losses of one conversion.

    Attributes:
      of_all: what the specs tell.
      texts: (code, path) -> the first text, of those told of single episodes.
      ranges: (code, path) -> [start, stop) of the written episodes, by number, that have it.
    """

    of_all: tuple[Loss, ...] = ()
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    ranges: dict[tuple[str, str], list[list[int]]] = field(default_factory=dict)

    def add(self, number: int, losses: Iterable[Loss]) -> None:
        """Takes in those of one written episode; numbers ascend."""
        for code, path, text in dict.fromkeys((loss.code, loss.path, loss.text) for loss in losses):
            self.texts.setdefault((code, path), text)
            ranges = self.ranges.setdefault((code, path), [])
            if ranges and ranges[-1][1] >= number:
                ranges[-1][1] = number + 1
            else:
                ranges.append([number, number + 1])

    def counted(self) -> tuple[Lost, ...]:
        """All of them."""
        found = [
            Lost(code, text, path, sum(stop - start for start, stop in self.ranges[code, path]))
            for (code, path), text in self.texts.items()
        ]
        return (*(Lost(one.code, one.text, one.path) for one in self.of_all), *found)

    def holds(self, number: int, path: str) -> bool:
        """Whether nothing was told of a column, or a feature "metadata/NAME", of a written episode."""
        told = [one.path for one in self.of_all]
        told += [
            where for (_, where), ranges in self.ranges.items() if any(start <= number < stop for start, stop in ranges)
        ]
        return not any(where and is_under(path, where) for where in told)

    def as_state(self) -> list[Any]:
        """Those of single episodes, for JSON."""
        return [[code, path, text, self.ranges[code, path]] for (code, path), text in self.texts.items()]

    def restore(self, state: Sequence[Any]) -> None:
        """Goes on from a state."""
        for code, path, text, ranges in state:
            self.texts[code, path] = text
            self.ranges[code, path] = ranges


def refused(losses: Iterable[Loss], allowed: Sequence[str]) -> list[Loss]:
    """Those whose codes are not among the allowed ones; "all" allows every one."""
    return [] if ALL in allowed else [one for one in losses if one.code not in allowed]


def lines(losses: Iterable[Loss | Lost]) -> list[str]:
    """`CODE: PATHS: TEXT` for people; the same loss of several paths is told once."""
    paths: dict[tuple[str, str], list[str]] = {}
    for one in losses:
        counted = one.episodes if isinstance(one, Lost) else None
        text = one.text if counted is None else f"{one.text} ({plural(counted, 'episode')})"
        paths.setdefault((one.code, text), []).append(one.path)
    return [
        f"{code}: {', '.join(every)}: {text}" if any(every) else f"{code}: {text}"
        for (code, text), every in paths.items()
    ]


def table(losses: Mapping[str, Mapping[str, str]]) -> str:
    """What each destination loses, in Markdown: scheme -> its codes and what they mean."""
    rows = ["| destination | code | what it cannot hold |", "| --- | --- | --- |"]
    rows += [f"| `{scheme}` | `{code}` | {text} |" for scheme, codes in losses.items() for code, text in codes.items()]
    return "\n".join(rows)
