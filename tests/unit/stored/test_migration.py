"""Tables migrated between servers in memory: the new table is the one that a push of the dataset itself makes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Client, Episode, migrate
from rlds2reverb.errors import CapacityError, ConfigError, InvalidEpisode, SourceError, WireError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.prepare.preparation import Preparation
from rlds2reverb.push.options import PushOptions
from rlds2reverb.stored import migration
from rlds2reverb.stored.migration import Migration, TableMissing
from rlds2reverb.testing import MemoryTransport, table_info
from rlds2reverb.views.trajectory import name_of, table_signature
from tests.support.push.in_memory import Server, episodes
from tests.support.servers.own import OWN_TABLES, entries_of
from tests.support.stored.keeping import Keeping

EPISODES = episodes(6, rows=5)


def table_for(view: Any, name: str, like: Any = EPISODES, size: int = 1 << 20, **options: Any) -> Any:
    chosen = PushOptions(name, view, **options)
    ready = Preparation.open(like, chosen, chosen.outputs)
    signature = table_signature(ready.signatures[0], name_of(chosen.outputs[0].view))
    return table_info(name, signature, size)


def server_with(*tables: Any, own: bool = True, state_id: int = 7) -> Server:
    every = [*tables, *(OWN_TABLES if own else ())]
    return Server({table.name: table for table in every}, state_id)


def client_of(server: Server, folder: Path) -> Client:
    return Client([Keeping(server, folder)])


def values_in(server: Server, table: str) -> dict[int, list[Any]]:
    return {key: [np.asarray(value).tolist() for value in values] for key, values in server.items.get(table, {}).items()}


@settings(max_examples=40, deadline=None)
@given(
    old_view=st.sampled_from(["two_step", "sequence:length=2", "sequence:length=4", "episode"]),
    new_view=st.sampled_from(["two_step", "sequence:length=3", "n_step:n=2", "transition", "episode", "frame_stack:frames=2"]),
    rows=st.lists(st.integers(4, 9), min_size=1, max_size=5),
    options=st.sampled_from(
        [{}, {"transform": {"make": {"action": "cast(action, dtype=float16)"}}}, {"transform": {"drop": ["observation/b"]}}]
    ),
    copies=st.booleans(),
    names=st.booleans(),
)
def test_the_new_table_is_that_of_a_push_of_the_dataset(
    old_view: str, new_view: str, rows: list[int], options: dict[str, Any], copies: bool, names: bool
) -> None:
    specs = {"observation/a": (np.dtype(np.float32), (2,)), "observation/b": (np.dtype(np.uint8), (3,)), "action": (np.dtype(np.float32), (1,))}
    data = [
        replace(made, id=f"e{number}" if names else "")
        for number, count in enumerate(rows)
        for made in episodes(number + 1, count, columns=specs, terminal=number % 2 == 0)[-1:]
    ]
    data += [data[0]] if copies and not names else []
    server, direct = (
        server_with(table_for(old_view, "old", data), table_for(new_view, "new", data, **options)) for _ in range(2)
    )
    with TemporaryDirectory() as folder:
        client = client_of(server, Path(folder))
        client.push(data, "old", old_view)
        report = migrate("old", client, "new", new_view, **options)
        before = Counter(server.inserts)
        made = values_in(server, "new")
        migrate("old", client, "new", new_view, **options)
        assert values_in(server, "new") == made
        assert server.inserts["new"] == before["new"]
    Client([MemoryTransport(direct)]).push(data, "new", new_view, **options)
    drops = "drop" in options.get("transform", {}) and not names
    expected = values_in(direct, "new")
    if drops:  # what is left out is no part of the name that a push gives
        assert sorted(map(repr, made.values())) == sorted(map(repr, expected.values()))
    else:
        assert made == expected
    assert report.push is not None
    assert (report.listed, report.incomplete, report.items) == (len(data), 0, {"new": len(expected)})
    assert report.items_compared == len(expected)
