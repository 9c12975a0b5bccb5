"""A dataset that has grown, in other files than before: what a table has of it is neither stored nor decoded once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.conversion.convert import convert
from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lerobot import read
from rlds2reverb.formats.minari import read as minari
from rlds2reverb.formats.tfds.columns import EpisodeFeatures
from tests.contract.destination_cases import data
from tests.support.formats import minari as minari_data
from tests.support.modules import CHECKOUT
from tests.support.push.in_memory import Server, planned, run, table_info
from tests.support.workers_in_threads import InThreads, distributed

BEFORE, AFTER = 5, 9
FORMATS = {
    "tfrecord": ("tfds:{}/set", ("?shards=2", "?shards=3")),
    "array_record": ("tfds:{}/set", ("?file_format=array_record,shards=1", "?file_format=array_record,shards=4")),
    "lerobot": ("lerobot:{}/set", ("", "")),
    "minari": ("minari:{}/set-v0", ("", "")),
    "ilr": ("ilr:{}/set.tar", ("", "")),
}
"""Name of a destination, and the options before and after."""


def episodes(count: int) -> list[Episode]:
    made: list[Episode] = []
    for number in range(count):
        rng = np.random.default_rng(100 + number)
        images = rng.integers(0, 256, (2 + number % 3, 18, 20, 3), np.uint8)
        made.append(data.episode(number, {"observation": images}))
    return made


def written(folder: Path, kind: str, which: int, given: list[Episode]) -> str:
    name, options = FORMATS[kind]
    report = convert(given, name.format(folder) + options[which], on_invalid="skip")
    scheme = name.partition(":")[0]
    return f"{scheme}:{report.path}"


def alone(server: Server, source: str, ledger: Path, **options: Any) -> Any:
    plan = planned(server, open_source(source), ledger=ledger, on_invalid="skip", **options)
    return run(server, plan)


def by_workers(server: Server, source: str, ledger: Path, **options: Any) -> Any:
    plan = planned(server, open_source(source), ledger=ledger, workers=2, on_invalid="skip", **options)
    return distributed(server, replace(plan, asked_for=source), lambda job: InThreads(job, 2), 2).run()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("first", "second"), [(alone, by_workers), (by_workers, alone), (alone, alone)])
def test_only_what_is_new_is_stored(
    tmp_path: Path, kind: str, first: Callable[..., Any], second: Callable[..., Any]
) -> None:
    if kind == "ilr" and by_workers in (first, second):
        pytest.skip("only reading tells how many episodes an archive has, so workers cannot share it")
    before = written(tmp_path / "before", kind, 0, episodes(BEFORE))
    after = written(tmp_path / "after", kind, 1, episodes(AFTER))
    server, ledger = Server({"replay": table_info()}), tmp_path / "ledger.db"
    assert first(server, before, ledger).episodes_pushed == BEFORE
    grown = second(server, after, ledger)
    assert (grown.episodes_resumed, grown.episodes_pushed) == (BEFORE, AFTER - BEFORE)
    assert grown.items_new == grown.items_confirmed
    without = second(server, after, tmp_path / "other.db")
    assert (without.episodes_pushed, without.items_new) == (AFTER, 0)


@pytest.mark.parametrize(
    ("source", "where", "name"),
    [
        ("bundled:cartpole@train[:6]", EpisodeFeatures, "read"),
        (f"lerobot:{CHECKOUT}/tests/data/lerobot/v30", read, "decode_pictures"),
        (f"minari:{minari_data.dataset('0.5.4', 'kinds/hdf5-v0')}", minari.MinariRecordings, "_columns"),
    ],
    ids=["tfds", "lerobot", "minari"],
)
def test_what_the_ledger_has_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, where: Any, name: str
) -> None:
    calls, decode = [], getattr(where, name)

    def counting(*given: Any) -> Any:
        calls.append(given)
        return decode(*given)

    monkeypatch.setattr(where, name, counting)
    server, ledger = Server({"replay": table_info()}), tmp_path / "ledger.db"
    stored = alone(server, source, ledger).episodes_pushed
    assert stored > 0
    assert calls
    calls.clear()
    resumed = alone(server, source, ledger)
    assert (resumed.episodes_resumed, resumed.episodes_read) == (stored, resumed.episodes_rejected)
    assert bool(calls) == bool(resumed.episodes_rejected)


KEYS = {
    "tfds": "8067b5f51a3ef7ba",
    "lerobot v3": "8f573d01e6c0b300",
    "lerobot v2": "9d53eab4b26d2170",
    "minari": "a63d918869316304",
    "list": "cb8546e9c2a29d3d",
}
"""Source -> its smallest item key in a table "replay", cut by the default view."""


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_what_they_were(name: str) -> None:
    """Whoever changes keys stores every dataset once more in every table."""
    named = {
        "tfds": "bundled:cartpole@train[:2]",
        "lerobot v3": f"lerobot:{CHECKOUT}/tests/data/lerobot/v30?episodes=0",
        "lerobot v2": f"lerobot:{CHECKOUT}/tests/data/lerobot/v21?episodes=0",
        "minari": f"minari:{minari_data.dataset('0.5.4', 'kinds/hdf5-v0')}",
        "list": [Episode(data.episode(7).columns)],
    }
    server = Server({"replay": table_info()})
    run(server, planned(server, open_source(named[name]), on_invalid="skip"))
    assert f"{min(server.items['replay']):016x}" == KEYS[name]
