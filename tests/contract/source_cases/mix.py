"""Mixes."""

from __future__ import annotations

from typing import Any

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import MixedSource
from rlds2reverb.prepare.mixture import Mixture
from tests.contract.source_cases import data


def parts() -> list[EpisodeList]:
    made = data.columns()
    return [
        EpisodeList([Episode(columns, {"number": at}, f"{name} {at}") for at, columns in enumerate(made)], name)
        for name in ("first", "second")
    ]


MIXTURE: dict[str, Any] = {
    "sets": [
        {"source": "bundled:cartpole@train[:3]", "name": "few", "where_step": "|action|<2"},
        {"source": "bundled:cartpole@train[10:14]", "name": "many", "weight": 2, "where": "length>=20"},
    ],
    "normalize": {"by": "merged", "mode": "quantiles", "clip": True},
    "last_step": "repeat",
}

SOURCES: dict[str, Any] = {
    "one pass": lambda: MixedSource(parts(), [2, 1], seed=3),
    "a nominal length": lambda: MixedSource(parts(), length=14),
    "of names": lambda: open_source("mix:bundled:cartpole@train[:3]|bundled:cartpole@train[10:12]|?weights=2+1,seed=3"),
    "of a mixture": lambda: Mixture.of(MIXTURE).source(),
}
PUSHED = ["one pass", "of names"]
