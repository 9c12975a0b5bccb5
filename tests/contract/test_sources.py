"""What every source must do: read the same twice, and give an episode one name, however the source is sharded.

Every format brings its own data: `tests/contract/source_cases/SCHEME.py` has `SOURCES`, kind -> a new source of it, and `PUSHED`, the
kinds that are pushed as well.
"""

from __future__ import annotations

import importlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds2reverb
from rlds2reverb.episode import Array, Episode, metadata_specs
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.filtered import Rule, filtered, rows_of
from rlds2reverb.formats.filters import Exclude
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.options import escape_text, split_options
from rlds2reverb.formats.registry import SOURCES as FORMATS
from rlds2reverb.formats.source import Slice, Source, metadata_spec_of
from rlds2reverb.formats.splits import Split
from rlds2reverb.formats.tfds import bundled_path
from rlds2reverb.prepare.problems import CODES
from rlds2reverb.specs import differences, flatten, nested
from tests.contract.source_cases import data
from tests.contract.source_cases.data import EPISODES
from tests.contract.source_cases.tfds import of_tfds
from tests.support.contract import toy
from tests.support.push import in_memory
from tests.support.raising import outcome_of

FOLDER = Path(data.__file__).parent
WITH_DATA = [file_format.scheme for file_format in FORMATS if (FOLDER / f"{file_format.scheme}.py").exists()]
CASES: dict[str, Any] = {scheme: importlib.import_module(f"{data.__name__[:-5]}.{scheme}") for scheme in WITH_DATA}
CASES[toy.FORMAT.scheme] = toy
"""Scheme -> its data. The toy shows that a new format needs nothing else."""

SOURCES = {f"{scheme}, {kind}": make for scheme, case in CASES.items() for kind, make in case.SOURCES.items()}
PUSHED = [f"{scheme}, {kind}" for scheme, case in CASES.items() for kind in case.PUSHED]


BY_THE_CORE = {file_format.scheme for file_format in (*FORMATS, toy.FORMAT) if file_format.extra is None}
"""Schemes that the core reads by itself; the others need TensorFlow."""


def kinds(*names: str) -> list[Any]:
    """Parameters: the kinds of sources, each with what it needs."""
    return [pytest.param(name, marks=() if name.split(",")[0] in BY_THE_CORE else pytest.mark.full) for name in names]


@pytest.fixture(params=kinds(*SOURCES), scope="module")
def source(request: pytest.FixtureRequest) -> Source:
    return SOURCES[request.param]()


@pytest.mark.parametrize("scheme", [*(file_format.scheme for file_format in FORMATS), toy.FORMAT.scheme])
def test_every_format_has_data_and_some_of_it_is_pushed(scheme: str) -> None:
    assert scheme in CASES, f"write tests/contract/source_cases/{scheme}.py"
    assert set(CASES[scheme].PUSHED) <= set(CASES[scheme].SOURCES)
    assert CASES[scheme].PUSHED


def bytes_of(column: Array) -> bytes:
    return repr(column.tolist()).encode() if column.dtype == object else column.tobytes()


def contents(source: Source) -> list[tuple[str, dict[str, bytes], str]]:
    """Name, columns and metadata of every episode, as values that can be compared."""
    return [
        (
            episode.id,
            {
                path: f"{column.dtype}{column.shape}".encode() + bytes_of(column)
                for path, column in episode.columns.items()
            },
            repr(sorted(episode.metadata.items())),
        )
        for episode in source
    ]


@pytest.mark.parametrize("scheme", kinds(*(scheme for scheme, case in CASES.items() if hasattr(case, "write"))))
def test_names_of_paths_may_hold_any_sign(scheme: str, tmp_path: Path) -> None:
    folder = tmp_path / "written"
    folder.mkdir()
    scheme, _, text = CASES[scheme].write(folder).partition(":")
    place, options = split_options(text)
    place, at, split = place.partition("@")
    before = contents(open_source(f"{scheme}:{text}"))
    path = Path(place)
    moved = path.rename(path.with_name(f"what?@a;b|c,d%3F{''.join(path.suffixes)}"))
    source = open_source(f"{scheme}:{escape_text(moved)}{at}{split}?{options}")
    assert [content[1:] for content in contents(source)] == [content[1:] for content in before]
    assert contents(open_source(source.name)) == contents(source)
    assert contents(open_source(f"mix:{source.name}")) == contents(source)


def test_a_source_reads_the_same_twice(source: Source) -> None:
    whole = contents(source)
    assert contents(source) == whole
    for earlier, other in itertools.combinations(whole, 2):
        assert earlier[0] != other[0] or earlier[1] == other[1]
    assert source.episode_count in (len(whole), None)


@pytest.mark.parametrize("kind", kinds(*SOURCES))
def test_the_same_data_in_another_folder_have_the_same_names(kind: str) -> None:
    one, other = SOURCES[kind](), SOURCES[kind]()
    assert [episode.id for episode in one] == [episode.id for episode in other]


def test_a_column_of_objects_holds_text_and_nothing_else(source: Source) -> None:
    for episode in source:
        for path, column in episode.columns.items():
            if column.dtype == object:
                assert {type(value) for value in column.ravel().tolist()} <= {bytes}, path


def test_the_metadata_of_every_episode_is_what_the_source_says(source: Source) -> None:
    wanted = flatten(metadata_spec_of(source))
    for part in (source, source.first(2), source.shard(0, 2)):
        assert flatten(metadata_spec_of(part)) == wanted
        for episode in part:
            found = metadata_specs(episode)
            assert set(found) == set(wanted)
            assert differences(nested(found), nested(wanted)) == []


def test_it_tells_how_long_its_episodes_are_or_that_it_does_not_know(source: Source) -> None:
    for part in (source, source.first(2), source.shard(1, 2), source.slice(1, 3), Slice(source, range(0, 99, 2))):
        lengths = part.episode_lengths()
        assert lengths is None or list(lengths) == [len(episode) for episode in part]
        assert (lengths is None) == (source.episode_lengths() is None)


COUNTED_BY_READING = ("ilr", "mix", "npz", "reverb", "rlds", "rllib", "ted", "toy")
"""Formats that know how long episodes are only once they were read."""


@pytest.mark.parametrize("kind", kinds(*(kind for kind in SOURCES if kind.split(",")[0] not in COUNTED_BY_READING)))
def test_formats_that_know_how_long_episodes_are_tell_it(kind: str) -> None:
    assert SOURCES[kind]().episode_lengths() is not None


SEQUENTIAL = ("ilr", "mix", "rlds")
"""Formats that read an episode only after those before it."""


@pytest.mark.parametrize("kind", kinds(*SOURCES))
def test_episodes_are_read_by_their_numbers_where_a_format_can(kind: str) -> None:
    source = SOURCES[kind]()
    assert source.has_random_access == (kind.split(",")[0] not in SEQUENTIAL)
    if not source.has_random_access:
        return
    for part in (source, source.first(3), source.shard(1, 2), Slice(source, range(1, 99, 3))):
        whole, lengths = contents(part), [len(episode) for episode in part]
        assert list(part.count_lengths()) == lengths
        assert part.episode_count == len(whole)
        for numbers in ([], range(len(whole)), [*range(len(whole))[::2]], [*range(len(whole))[-1:]]):
            found = list(part.at(numbers))
            assert sorted(number for number, _ in found) == list(numbers)
            assert all(contents(EpisodeList([episode])) == [whole[number]] for number, episode in found)


@pytest.mark.parametrize("kind", kinds(*(kind for kind in SOURCES if kind.split(",")[0] not in SEQUENTIAL)))
def test_a_global_shuffle_has_exactly_the_items_of_the_source(kind: str) -> None:
    if SOURCES[kind]().episode_count == 0:
        pytest.skip("an empty list has no spec")
    options: dict[str, Any] = {"on_invalid": "skip", "allow": ["last_observation_shared"], "view": "episode"}

    def keys(**more: Any) -> list[int]:
        made = rlds2reverb.local(SOURCES[kind](), **options, **more)
        return [int(key) for batch in made for key in batch.info.key]

    assert sorted(keys(shuffle="global")) == sorted(keys())
    assert keys(shuffle="global", batch_size=1, shuffle_bytes=1) == keys(shuffle="global")


@pytest.mark.parametrize("count", [1, 2, 3, EPISODES + 2])
def test_shards_share_out_the_episodes_and_leave_their_names(source: Source, count: int) -> None:
    whole = contents(source)
    for index in range(count):
        shard = source.shard(index, count)
        assert contents(shard) == whole[index::count], index
        assert shard.episode_count in (len(whole[index::count]), None)


def test_a_span_is_a_slice_of_the_whole(source: Source) -> None:
    whole = contents(source)
    for start, stop in ((0, 1), (1, 3), (2, EPISODES + 5), (3, 3)):
        assert contents(source.slice(start, stop)) == whole[start:stop]


def test_the_sides_of_a_split_are_the_whole(source: Source) -> None:
    whole = contents(source)

    def side(part: str) -> Any:
        return outcome_of(SourceError, lambda: contents(filtered(source, [Split(part, 0.5)])))

    parts = [side("train"), side("val")]
    if not whole or any("expected numbers in" in str(part) for part in parts):
        return
    left = [[] if isinstance(part, SourceError) else part for part in parts]
    assert sorted(name for part in left for name, *_ in part) == sorted(name for name, *_ in whole)
    for part in left:
        assert part == [content for content in whole if content in part]


class EverySecondAndNoThirdRow(Rule):
    """A rule that leaves every second episode, and of the longer ones a gap."""

    def __init__(self) -> None:
        self.number = 0

    @property
    def text(self) -> str:
        return "some"

    def columns(self, _: Source) -> tuple[str, ...]:
        return ()

    def judge(self, episode: Episode) -> bool | Array:
        self.number += 1
        rows: Array = np.arange(len(episode))
        return rows != 2 if self.number % 2 else False


def test_what_a_filter_leaves_is_read_in_every_way_alike(source: Source) -> None:
    left: list[Any] = []
    for episode_read in (episode for number, episode in enumerate(source) if number % 2 == 0):
        parts = [(0, 2), (3, len(episode_read))] if len(episode_read) > 2 and not episode_read.faults else []
        left += [
            rows_of(episode_read, start, stop, len(episode_read)) for start, stop in parts if stop - start > 1
        ] or [episode_read]
    if not left:
        return
    made = filtered(source, [EverySecondAndNoThirdRow()])
    whole = contents(made)
    assert whole == contents(EpisodeList(left))
    assert made.episode_count == len(whole)
    assert list(made.episode_lengths() or ()) == [len(episode) for episode in left]
    assert contents(made.slice(1, 3)) == whole[1:3]
    if made.has_random_access:
        found = dict(made.at(range(len(whole))))
        assert contents(EpisodeList([found[number] for number in range(len(whole))])) == whole


def test_an_episode_is_left_out_by_the_name_that_it_has_with_all_columns(source: Source) -> None:
    whole = contents(source)
    names = [name for name, *_ in whole]
    if len(set(names)) < 2:
        return
    left = filtered(source, [Exclude.of([names[1], "content:of no episode"])])
    assert contents(left) == [
        content for content, episode in zip(whole, source) if content[0] != names[1] or episode.faults
    ]


def test_a_shard_of_a_shard_is_one_of_the_whole(source: Source) -> None:
    whole = contents(source)
    assert contents(source.shard(1, 2).shard(1, 3)) == whole[1::2][1::3] == whole[3::6]
    assert contents(source.shard(1, 2).shard(0, 1)) == whole[1::2]


def test_a_shard_has_the_spec_of_the_whole_also_when_it_is_empty(source: Source) -> None:
    if source.episode_count == 0:
        pytest.skip("an empty list has no spec")
    spec = flatten(source.spec())
    assert flatten(source.shard(1, 2).spec()) == spec
    assert flatten(source.shard(100, 101).spec()) == spec
    assert contents(source.shard(100, 101)) == []


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_a_shard_that_does_not_exist_is_refused(source: Source, index: int, count: int) -> None:
    with pytest.raises(SourceError, match=f"shard {index} of {count}"):
        source.shard(index, count)


@pytest.mark.parametrize("kind", kinds(*PUSHED))
def test_parts_pushed_by_several_workers_add_nothing_to_what_a_whole_push_stored(kind: str) -> None:
    server = in_memory.Server()
    source = SOURCES[kind]()
    in_memory.push(server, source)
    whole = dict(server.items["replay"])
    for index in range(3):
        in_memory.push(server, source.shard(index, 3))
    assert server.items["replay"].keys() == whole.keys()


def test_a_copy_elsewhere_names_its_shards_alike(tmp_path: Path) -> None:
    whole = [episode.id for episode in of_tfds("train[:4]")]
    shutil.copytree(bundled_path("cartpole"), tmp_path / "copy")
    copy = open_source(f"tfds:{tmp_path / 'copy'}@train[:4]")
    assert [[episode.id for episode in copy.shard(index, 3)] for index in range(3)] == [
        whole[index::3] for index in range(3)
    ]


def test_what_a_source_says_of_itself_is_a_note_or_advice_that_can_be_allowed(source: Source) -> None:
    contents(source)
    for remark in source.notices:
        assert remark.is_note != (remark.code in CODES), remark
        assert remark.text
        assert "\n" not in remark.text
