"""Extras on their way: metadata is looked up before anything is sent, judged in every episode, and shares rows with other views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.episode import Episode
from rlds2reverb.errors import InvalidEpisode, SourceError, SpecMismatch, ViewError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import Source, metadata_spec_of
from rlds2reverb.inspection.inspection import inspect_source
from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.views import view_of
from rlds2reverb.views.base import signature_of
from tests.support import reference, strategies
from tests.support.push.in_memory import Server, planned, push, table_info

METADATA = {"language": b"lift the cup", "episode_metadata/seed": np.int64(3), "return": 0.5}


def robot(number: int, /, rows: int = 4, **metadata: Any) -> Episode:
    """An episode with a further column, and metadata; None takes a feature out."""
    plain = strategies.episode(np.random.default_rng(number), rows, episode_id=f"e{number}")
    features = {name: value for name, value in {**METADATA, **metadata}.items() if value is not None}
    return Episode({**plain.columns, "td_error": np.arange(float(rows))}, features, plain.id)


class Told(Source):
    """A source of another kind: whether it tells of metadata by itself, and how often it is read, can be seen."""

    name = "told"

    def __init__(self, episodes: list[Episode]) -> None:
        self.list, self.reads = EpisodeList(episodes), 0

    def spec(self) -> Any:
        return self.list.spec()

    def __iter__(self) -> Iterator[Episode]:
        self.reads += 1
        return iter(self.list)

    def shard(self, index: int, count: int) -> Any:
        return self.list.shard(index, count)


def view(text: str) -> Any:
    return view_of(text)


def test_metadata_is_looked_up_in_the_first_episode_only_where_it_is_wanted() -> None:
    source = Told([robot(0), robot(1)])
    plan = planned(Server(), source, ("replay",), view("transition:extras=all"))
    assert (source.reads, dict(plan.metadata)) == (0, {})
    plan = planned(Server(), source, ("replay",), view("transition:extras=metadata/language+metadata/episode_metadata"))
    assert source.reads == 1
    assert dict(plan.metadata) == {
        "language": ArraySpec((), np.dtype(object)),
        "episode_metadata/seed": ArraySpec((), np.dtype(np.int64)),
    }
    told = json.loads(json.dumps(plan.as_dict()))["tables"]["replay"]["signature"]
    assert told["extras/metadata/episode_metadata/seed"] == "int64[]"


def test_a_source_that_tells_of_its_metadata_is_not_read() -> None:
    class Telling(Told):
        def metadata_spec(self) -> Any:
            return {"language": ArraySpec((), np.dtype(object))}

    source = Telling([robot(0)])
    for episodes_source in (source, source.first(1)):
        assert metadata_spec_of(episodes_source) == {"language": ArraySpec((), np.dtype(object))}
    with pytest.raises(ViewError, match=r'"metadata/return": expected .* found td_error, metadata/language$'):
        planned(Server(), source, ("replay",), view("transition:extras=metadata/return"))
    assert source.reads == 0


def test_shards_of_a_list_have_the_metadata_of_the_whole() -> None:
    whole = EpisodeList([robot(0)])
    assert metadata_spec_of(whole.shard(1, 2)) == metadata_spec_of(whole)
    assert set(flatten(metadata_spec_of(whole))) == set(METADATA)
    assert metadata_spec_of(EpisodeList([])) == {}
    with pytest.raises(SourceError, match="told: no episode, so its metadata is not known"):
        metadata_spec_of(Told([]))


def test_features_that_lie_below_one_another_are_refused() -> None:
    with pytest.raises(SourceError, match="lies below another column"):
        metadata_spec_of(Told([robot(0, 4, **{"language/text": b"x"})]))


@pytest.mark.parametrize(
    "text", ["two_step", "sequence:length=3,pad_end=true", "across_episodes:length=3", "n_step", "fragments:length=2"]
)
def test_a_pushed_item_has_its_extras(text: str) -> None:
    server, episodes = Server(), [robot(number, 5, language=f"task {number}".encode()) for number in range(3)]
    wanted = view(f"{text}{',' if ':' in text else ':'}extras=all+metadata/language")
    push(server, episodes, tables=("replay",), view=wanted)
    step_spec = EpisodeList(episodes).spec()
    signature = signature_of(wanted, step_spec, metadata_spec_of(EpisodeList(episodes)))
    order = list(flatten(signature))
    said = next(place for place, path in enumerate(order) if path.endswith("metadata/language"))
    stored = server.contents("replay")
    assert len(stored) > 3
    found = {text for item in stored for text in np.ravel(item[said]).tolist()}
    assert found - {b""} == {b"task 0", b"task 1", b"task 2"}
    error = next(place for place, path in enumerate(order) if path.endswith("td_error"))
    assert all(item[error].dtype == (np.float32 if text.startswith("fragments") else np.float64) for item in stored)


BAD: dict[str, tuple[Any, str]] = {
    "lacks it": (None, "missing_column"),
    "has a number": (7, "dtype"),
    "has two texts": (np.array([b"a", b"b"], object), "shape"),
    "has no value": ([1], "missing_column"),
}


@pytest.mark.parametrize("kind", BAD)
def test_such_an_episode_is_bad_also_where_it_is_named_by_its_content(kind: str) -> None:
    language, code = BAD[kind]
    episodes = [replace(robot(number, language=said), id="") for number, said in enumerate((b"lift", language, b"put"))]
    report = push(
        Server(),
        episodes,
        tables=("replay",),
        view=view("transition:extras=metadata/language"),
        on_invalid="skip",
    )
    assert (report.episodes_pushed, report.rejected) == (2, {code: 1})


@pytest.mark.parametrize("kind", BAD)
def test_an_episode_of_other_metadata_is_bad(kind: str, tmp_path: Path) -> None:
    language, code = BAD[kind]
    episodes = [robot(0), robot(1, language=language), robot(2)]
    options: Any = {"tables": ("replay",), "view": view("transition:extras=metadata/language")}
    with pytest.raises(InvalidEpisode, match=rf'{code}: column "metadata/language": expected'):
        push(Server(), episodes, **options)
    server, report_file = Server(), tmp_path / "bad.jsonl"
    report = push(server, episodes, **options, on_invalid="quarantine", quarantine=report_file)
    assert (report.episodes_pushed, dict(report.rejected)) == (2, {code: 1})
    (line,) = map(json.loads, report_file.read_text().splitlines())
    assert (line["episode"], line["code"], line["path"]) == ("e1", code, "metadata/language")
    inspection = inspect_source(EpisodeList(episodes), {"replay": options["view"]})
    assert inspection.findings.codes() == [code] or list(inspection.findings.episodes) == [code]
    assert inspection.outputs["replay"].items_per_table == len(server.contents("replay")) == 6


def test_metadata_that_is_not_a_number_is_bad() -> None:
    with pytest.raises(InvalidEpisode, match='nan: column "metadata/return"'):
        push(
            Server(), [robot(0, 4, **{"return": np.nan})], tables=("replay",), view=view("goal:extras=metadata/return")
        )
    push(Server(), [robot(0, 4, **{"return": np.nan})], tables=("replay",), view=view("goal"))


@pytest.mark.parametrize("code", ["missing_column", "dtype", "shape"])
def test_tolerated_metadata_that_does_not_fit_stores_nothing_of_its_episode(code: str) -> None:
    language = next(value for value, its_code in BAD.values() if its_code == code)
    server = Server()
    with pytest.raises(ViewError):
        push(
            server,
            [robot(0), robot(1, language=language)],
            tables=("replay",),
            view=view("transition:extras=metadata/language"),
            allow=(code,),
        )
    assert len(server.contents("replay")) == 3


def test_views_of_one_push_share_the_rows_of_their_extras() -> None:
    """Each table holds what a push of its own stores, under the same keys; together they cost little more than one."""
    text = "x" * 2000
    episodes = [robot(number, 30, language=f"{text}{number}") for number in range(2)]
    views = {
        "moves": view("transition:extras=metadata/language+td_error"),
        "pairs": view("two_step:extras=metadata/language"),
        "whole": view("episode:extras=all+metadata/language"),
        "plain": view("n_step"),
        "all": view("slices:length=4"),
    }
    together, apart = (Server({name: table_info(name) for name in views}) for _ in range(2))
    report = push(together, episodes, tables=views, view=None)
    alone = {name: push(apart, episodes, tables=(name,), view=own_view) for name, own_view in views.items()}
    for name in views:
        reference.assert_same_items(together.contents(name), apart.contents(name))
        assert list(together.items[name]) == list(apart.items[name])
    assert report.bytes < 1.5 * max(part.bytes for part in alone.values())


def test_extras_make_other_keys_and_leave_those_of_views_without() -> None:
    server, episodes = Server(), [robot(0)]
    for text in ("transition", "transition:extras=all", "transition:extras=td_error", "transition:extras=none"):
        push(server, episodes, tables=("replay",), view=view(text))
    assert len(server.contents("replay")) == 9


def test_a_table_without_the_extras_is_refused_leaf_by_leaf() -> None:
    signature = view("transition").signature(EpisodeList([robot(0)]).spec())
    server = Server({"replay": table_info("replay", signature=signature)})
    with pytest.raises(SpecMismatch, match=r"extras/td_error: items have float64\[\], table has no such column"):
        push(server, [robot(0)], tables=("replay",), view=view("transition:extras=all"))


def test_a_ledger_goes_with_metadata(tmp_path: Path) -> None:
    server, episodes = Server(), [robot(0), robot(1)]
    options: Any = {"tables": ("replay",), "ledger": tmp_path / "ledger"}
    push(server, episodes, **options, view=view("transition:extras=metadata"))
    again = push(server, episodes, **options, view=view("transition:extras=metadata"))
    assert again.episodes_resumed == 2
    assert push(server, episodes, **options, view=view("transition")).episodes_resumed == 0


def test_what_metadata_costs_in_every_row() -> None:
    """A text costs its bytes in every row; a number hardly anything."""
    plain, text, number = (
        push(
            Server(), [robot(0, 400, language=b"x" * 50)], tables=("replay",), view=view(f"episode:extras={wanted}")
        ).bytes
        for wanted in ("none", "metadata/language", "metadata/return")
    )
    assert 400 * 50 < text - plain < 400 * 52
    assert number - plain < 400
