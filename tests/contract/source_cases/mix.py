"""Mixes."""

from __future__ import annotations

from typing import Any

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import MixedSource
from tests.contract.source_cases import data


def parts() -> list[EpisodeList]:
    made = data.columns()
    return [
        EpisodeList([Episode(one, {"number": at}, f"{name} {at}") for at, one in enumerate(made)], name)
        for name in ("first", "second")
    ]


SOURCES: dict[str, Any] = {
    "one pass": lambda: MixedSource(parts(), [2, 1], seed=3),
    "a nominal length": lambda: MixedSource(parts(), length=14),
    "of names": lambda: open_source("mix:bundled:cartpole@train[:3]|bundled:cartpole@train[10:12]|?weights=2+1,seed=3"),
}
PUSHED = ["one pass", "of names"]
