"""A whole new format in one module: what a contributor writes, to prove that it is enough.

`toy:LENGTHS` is a dataset of episodes of these lengths. A real format has its entry in `rlds2reverb.formats.registry`, and
its test data in tests/contract/source_cases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlds2reverb.episode import Episode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.registry import Form, Format, Reading
from rlds2reverb.formats.source import Source


@dataclass(frozen=True)
class Toy:
    """A Python object of the format."""

    lengths: tuple[int, ...]


def open_toy(what: str | Toy) -> Source:
    try:
        lengths = what.lengths if isinstance(what, Toy) else tuple(map(int, what.split(",")))
    except ValueError as error:
        raise SourceError(f'"toy:{what}": expected lengths, such as toy:3,4') from error
    return EpisodeList([_episode(length) for length in lengths], f"toy:{what}")


def _episode(length: int) -> Episode:
    at = np.arange(length)
    flags = {"is_first": at == 0, "is_last": at == length - 1}
    return Episode({"observation": at.astype(np.float32), "action": at, **flags})


FORMAT = Format(
    "toy",
    "toys",
    Reading(
        open_toy,
        forms=(Form("toy:LENGTHS", "episodes of these lengths"),),
        takes=lambda thing: isinstance(thing, Toy),
        objects="a `Toy`",
        objects_are="its episodes",
    ),
)
SOURCES = {"a few": lambda: open_toy("2,3,4,3,3")}
PUSHED = ["a few"]
