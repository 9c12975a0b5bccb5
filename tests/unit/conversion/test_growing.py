"""Datasets that grow: a writer that takes episodes one by one, and `append`. Every format that is written, with kills anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb import dataset_writer
from rlds2reverb.conversion import convert as engine
from rlds2reverb.conversion import place as places
from rlds2reverb.conversion.convert import convert, planned
from rlds2reverb.conversion.job import Account
from rlds2reverb.conversion.place import PREFIX
from rlds2reverb.conversion.writer import DatasetWriter
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, ConversionError, InvalidEpisode, SourceError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.source import About
from rlds2reverb.specs import ArraySpec
from tests.contract.destination_cases import data
from tests.contract.test_destinations import CASES, SCHEMES, contents, left_over, written
from tests.unit.conversion.test_convert_kills import FORMATS, Killed, killed_at
from tests.unit.conversion.test_convert_odd_episodes import PLACES, VIDEO

EPISODES = [data.episode(number) for number in range(6)]


@pytest.fixture(params=SCHEMES)
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    made: str = CASES[request.param].name(tmp_path / "to")
    return made


def name_at(folder: Path, place: str = "minari") -> str:
    return PLACES[place].format(folder)


def write(name: str, episodes: Sequence[Episode], **options: Any) -> None:
    with dataset_writer(name, **options) as writer:
        for episode in episodes:
            writer.write(episode)


def played(name: str) -> list[Any]:
    return written(open_destination(name))


@pytest.fixture
def whole(name: str, tmp_path: Path) -> list[Any]:
    """What a conversion of all episodes at once gives."""
    other = name.replace(str(tmp_path / "to"), str(tmp_path / "whole"))
    convert(EPISODES, other)
    return played(other)


def test_a_writer_gives_what_a_conversion_gives(name: str, whole: list[Any]) -> None:
    write(name, EPISODES)
    assert played(name) == whole
    assert left_over(open_destination(name)) == []


def test_a_dataset_grows_by_a_writer_and_by_a_conversion(name: str, whole: list[Any]) -> None:
    write(name, EPISODES[:2])
    write(name, EPISODES[1:4], append=True, checkpoint_every=1)
    assert played(name) == whole[:4]
    report = convert(EPISODES, name, append=True, verify=True)
    assert played(name) == whole
    assert (report.episodes_written, dict(report.rejected), report.verified) == (2, {"duplicate": 4}, 2)
    assert [notice.count for notice in report.notices if notice.code == "appended"] == [4]
    before = played(name)
    assert convert(EPISODES, name, append=True).episodes_written == 0
    assert played(name) == before
    assert left_over(open_destination(name)) == []


def test_an_append_to_nothing_is_a_conversion(name: str, whole: list[Any]) -> None:
    convert(EPISODES, name, append=True)
    assert played(name) == whole


def test_a_writer_that_was_closed_is_gone_on_with(name: str, whole: list[Any]) -> None:
    writer = dataset_writer(name)
    for episode in EPISODES[:3]:
        assert writer.write(episode)
    writer.close()
    writer.close()
    assert not open_destination(name).path.exists()
    with dataset_writer(name) as again:
        assert again.episodes == 3
        # A loop that begins anew plays the same ones again.
        assert [again.write(episode) for episode in EPISODES] == [False] * 3 + [True] * 3
        assert (again.duplicates, again.episodes) == (3, 6)
    assert played(name) == whole


@pytest.mark.parametrize(
    ("place", "exchanges"), [*((place, True) for place in FORMATS), ("minari", False), ("ted", False)]
)
def test_a_kill_anywhere_leaves_the_old_or_the_new_one(
    place: str, exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SYNC_SECONDS", 0.0)
    if not exchanges:
        monkeypatch.setattr(places, "exchange_names", lambda *_: False)
    short = EPISODES[:3]

    def prepare(folder: Path) -> str:
        folder.mkdir()
        name = name_at(folder, place)
        convert(short[:2], name)
        return name

    undisturbed = prepare(tmp_path / "undisturbed")
    old = played(undisturbed)
    with killed_at(None) as made:
        convert(short, undisturbed, append=True)
    calls, new = made(), played(undisturbed)
    assert len(new) == 3
    for number in {1, calls // 2, *range(max(1, calls - 6), calls + 1)}:
        name = prepare(tmp_path / f"{number}")
        with killed_at(number), suppress(Killed):
            convert(short, name, append=True)
        if exchanges or open_destination(name).path.exists():
            assert played(name) in (old, new)
        convert(short, name, append=True)
        assert played(name) == new, number


def test_a_writer_that_is_killed_loses_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    writer = dataset_writer(name, checkpoint_every=2)
    for episode in EPISODES[:5]:
        writer.write(episode)
    writer._stack.close()  # as a kill does: the lock is gone, and nothing was put on disk
    with dataset_writer(name) as again:
        assert again.episodes == 4
        assert [again.write(episode) for episode in EPISODES] == [False] * 4 + [True] * 2
    assert len(played(name)) == 6


@pytest.mark.parametrize("place", FORMATS)
def test_a_writer_that_is_killed_anywhere_is_gone_on_with(place: str, tmp_path: Path) -> None:
    def into(folder: str) -> str:
        (tmp_path / folder).mkdir()
        return name_at(tmp_path / folder, place)

    name = into("whole")
    with killed_at(None) as made:
        write(name, EPISODES[:3], checkpoint_every=1)
    calls = made()
    write(name, EPISODES[3:4], append=True)
    wanted = played(name)
    for number in {calls // 2, *range(max(1, calls - 14), calls + 1, 2)}:
        name = into(f"{number}")
        with killed_at(number), suppress(Killed):
            write(name, EPISODES[:3], checkpoint_every=1)
        write(name, EPISODES[:4], append=True)
        assert played(name) == wanted, number


@pytest.mark.parametrize("is_there", [False, True])
def test_a_writer_that_is_killed_before_the_rename_is_completed(is_there: bool, name: str) -> None:
    if is_there:
        write(name, EPISODES[:1])
    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(DatasetWriter, "_publish", raise_killed)
        write(name, EPISODES[1:3], append=is_there)
    if not is_there:
        with pytest.raises(ConfigError, match="is there already"):
            write(name, EPISODES[3:5])
        assert len(played(name)) == 2
    write(name, EPISODES[3:5], append=True)
    assert len(played(name)) == 4 + is_there


def raise_killed(*_: Any) -> None:
    raise Killed


def test_a_write_that_fails_leaves_no_part_of_the_episode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = dataset_writer(name, checkpoint_every=2)
    for episode in EPISODES[:2]:
        writer.write(episode)
    monkeypatch.setattr(Account, "count_written", raise_loss)
    with pytest.raises(ConversionError, match="too much"):
        writer.write(EPISODES[2])
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="it is closed"), writer:
        pass
    with dataset_writer(name) as again:
        assert again.episodes == 2
        assert again.write(EPISODES[3])
    assert len(played(name)) == 3


def raise_loss(*_: Any) -> None:
    raise ConversionError("too much")


def test_what_somebody_has_put_there_meanwhile_stays(tmp_path: Path) -> None:
    name, other = name_at(tmp_path), name_at(tmp_path / "other")
    write(other, EPISODES[:1])
    with pytest.raises(ConfigError, match="is there already"), dataset_writer(name) as writer:
        writer.write(EPISODES[1])
        open_destination(other).path.rename(open_destination(name).path)
    assert len(played(name)) == 1


def test_what_was_appended_between_the_opening_and_the_lock_is_not_lost(name: str) -> None:
    write(name, EPISODES[:1])
    late = planned(EPISODES[1:2], name, append=True)
    convert(EPISODES[2:4], name, append=True)
    with pytest.raises(ConfigError, match="append once more"):
        late.run()
    assert len(played(name)) == 3
    assert convert(EPISODES[1:2], name, append=True).episodes_written == 1


def test_episodes_that_differ_only_in_video_are_others(tmp_path: Path) -> None:
    pytest.importorskip("av")
    name = VIDEO.format(tmp_path)
    pictures = [data.with_images(number) for number in range(2)]
    seen = {path: column for path, column in pictures[1].columns.items() if column.ndim == 4}
    moves = {path: column for path, column in pictures[0].columns.items() if not path.startswith("observation")}
    first = replace(
        pictures[0],
        columns={**moves, **{path: pictures[0].columns[path][:1].repeat(len(pictures[0]), 0) for path in seen}},
    )
    second = replace(
        first, columns={**moves, **{path: column[:1].repeat(len(pictures[0]), 0) for path, column in seen.items()}}
    )
    writer = dataset_writer(name)
    writer.write(first)
    writer.close()
    with dataset_writer(name) as writer:
        assert [writer.write(episode) for episode in (first, second, first)] == [False, True, True]
    assert len(played(name)) == 3
    with pytest.raises(ConfigError, match="would be encoded once more"):  # before anything is played in vain
        dataset_writer(name, append=True).write(second)


def test_an_error_in_the_loop_keeps_what_was_written(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    with pytest.raises(RuntimeError), dataset_writer(name) as writer:
        writer.write(EPISODES[0])
        raise RuntimeError
    assert not open_destination(name).path.exists()
    with dataset_writer(name) as writer:
        assert writer.episodes == 1
        writer.write(EPISODES[1])
    assert len(played(name)) == 2


def test_two_at_once_are_one_too_many(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    write(name, EPISODES[:2])
    with dataset_writer(name, append=True) as writer:
        writer.write(EPISODES[2])
        with pytest.raises(ConfigError, match="another process is writing it"):
            dataset_writer(name, append=True)
        with pytest.raises(ConfigError, match="another process is writing it"):
            convert(EPISODES, name, append=True)
    assert len(played(name)) == 3


def test_what_is_there_is_not_replaced_unasked(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    write(name, EPISODES[:2])
    with pytest.raises(ConfigError, match="is there already"):
        dataset_writer(name)
    write(name, EPISODES[:1], overwrite=True)
    assert len(played(name)) == 1


def test_other_columns_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    write(name, EPISODES[:2])
    before = played(name)
    other = [
        replace(episode, columns={**episode.columns, "action": episode.columns["action"][:, :1]})
        for episode in EPISODES
    ]
    with pytest.raises(ConfigError, match=r'"action" is float32\[2\] there, and float32\[1\] in the source'):
        convert(other, name, append=True)
    more = [episode.with_columns(**{"infos/speed": episode.columns["reward"]}) for episode in EPISODES]
    with pytest.raises(ConfigError, match='"infos/speed" is not there'):
        convert(more, name, append=True)
    write(name_at(tmp_path / "with"), more[:2])
    with pytest.raises(ConfigError, match='"infos/speed" is not in the source'):
        convert(EPISODES, name_at(tmp_path / "with"), append=True)
    assert played(name) == before


def test_a_dataset_that_changes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    write(name, EPISODES[:2])
    writer = dataset_writer(name, append=True)
    writer.write(EPISODES[2])
    path = open_destination(name).path
    file = next(path.rglob("*.json"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "author": "somebody"}))
    with pytest.raises(ConfigError, match="has changed since"):
        writer.finish()
    assert len(played(name)) == 2


def test_facts_of_the_old_dataset_stay(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    write(name, EPISODES[:1], about=About.of("minari", {"author": "a", "algorithm_name": "x"}))
    with dataset_writer(name, append=True, about=About.of("minari", {"author": "b"})) as writer:
        writer.write(EPISODES[1])
    assert dict(open_source(name).about.facts)["author"] == ["a"]
    assert [loss.path for loss in writer.report().losses] == ["dataset/author"]


@pytest.mark.parametrize("author", ["a", ["a"], ["b", "a"], "b; a"])
def test_people_who_are_the_same_are_no_loss(tmp_path: Path, author: Any) -> None:
    name = name_at(tmp_path)
    write(name, EPISODES[:1], about=About.of("minari", {"author": ["a", "b"] if "b" in author else "a"}))
    with dataset_writer(name, append=True, about=About.of("minari", {"author": author})) as writer:
        writer.write(EPISODES[1])
    assert writer.report().losses == ()


def test_what_an_option_says_of_a_dataset_that_grows_is_no_loss(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    write(name, EPISODES[:1], about=About.of("minari", {"author": "a"}))
    with dataset_writer(f"{name}?author=c", append=True, about=About.of("minari", {"author": "b"})) as writer:
        writer.write(EPISODES[1])
    assert open_source(name).about.facts["author"] == ["c"]
    assert writer.report().losses == ()


def test_a_bad_episode_is_refused_and_the_next_one_comes(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    bad = EPISODES[1].with_columns(reward=EPISODES[1].columns["reward"] * np.float32(np.nan))
    with dataset_writer(name) as writer:
        writer.write(EPISODES[0])
        with pytest.raises(InvalidEpisode, match="nan"):
            writer.write(bad)
        writer.write(EPISODES[2])
    with dataset_writer(name, append=True, on_invalid="skip") as writer:
        assert not writer.write(bad)
        assert writer.write(EPISODES[3])
    assert len(played(name)) == 3


def test_equal_episodes_are_as_many_as_came(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    write(name, [EPISODES[0]] * 3)
    assert len(played(name)) == 3
    write(name, [EPISODES[0]] * 4, append=True)  # three of them are there
    assert len(played(name)) == 4
    write(name, [EPISODES[0]] * 4, append=True, duplicates="keep")
    assert len(played(name)) == 8
    # And a source that has more of them than the dataset.
    report = convert([replace(EPISODES[0], id=f"{number}") for number in range(10)], name, append=True, verify=True)
    assert (report.episodes_written, dict(report.rejected)) == (2, {"duplicate": 8})


def test_a_kill_while_equal_episodes_are_appended_counts_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SYNC_SECONDS", 0.0)
    name = name_at(tmp_path)
    write(name, [EPISODES[0]] * 2)

    class Stopping(list[Any]):
        stops_at = 99

        def __getitem__(self, at: Any) -> Any:
            if at == self.stops_at:
                raise RuntimeError("stopped")
            return super().__getitem__(at)

        def __iter__(self) -> Any:
            return (self[at] for at in range(len(self)))

    every = [replace(EPISODES[at], id=f"{number}") for number, at in enumerate((0, 1, 0, 0, 2, 1))]
    for stops_at in (2, 3, 5, 99):
        source = Stopping(every)
        source.stops_at = stops_at
        with suppress(RuntimeError):
            convert(source, name, append=True)
    digests = [digest for digest, _ in played(name)]
    assert sorted(digests.count(digest) for digest in set(digests)) == [1, 2, 3]


def test_bounds_of_the_spec_are_kept(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    episode = EPISODES[0]
    spec: dict[str, Any] = {path: ArraySpec(column.shape[1:], column.dtype) for path, column in episode.columns.items()}
    spec["action"] = replace(spec["action"], minimum=-9.0, maximum=9.0)
    write(name, [episode], spec=spec)
    back: Any = open_source(name).spec()
    assert back["action"].maximum == 9.0


def test_nothing_written_is_no_dataset(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    with pytest.raises(SourceError, match="no episode was written"), dataset_writer(name):
        pass
    write(name, EPISODES[:1])
    write(name, [], append=True)
    assert len(played(name)) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(PREFIX)] == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"append": True, "overwrite": True}, "contradict"),
        ({"checkpoint_every": 0}, "at least 1"),
        ({"duplicates": "drop"}, '"skip" or "keep"'),
        ({"where": "success"}, "filters, map and transform are of sources"),
        ({"apend": True}, 'did you mean "append"'),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        dataset_writer(name_at(tmp_path), **options)
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_append_and_overwrite_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contradict"):
        convert(EPISODES, name_at(tmp_path), append=True, overwrite=True)


def test_workers_append_the_same(tmp_path: Path) -> None:
    name = name_at(tmp_path)
    source = "bundled:cartpole"
    convert(open_source(source).first(5), name)
    assert convert(source, name, append=True, limit=8, workers=1).episodes_written == 3
    convert(open_source(source).first(8), name_at(tmp_path / "whole"))
    assert contents(open_source(name)) == contents(open_source(name_at(tmp_path / "whole")))


@pytest.mark.parametrize("place", ["tfds", "minari", "lerobot"])
def test_image_files_stay_the_files_that_they_are(place: str, tmp_path: Path) -> None:
    source = data.KINDS["files"](tmp_path)
    whole, name = name_at(tmp_path / "whole", place), name_at(tmp_path, place)
    report = convert(source, whole)
    convert(source.first(2), name)
    assert convert(source, name, append=True).encoded == report.encoded
    assert played(name) == played(whole)
    files = {
        destination: open_source(open_destination(destination).source(open_destination(destination).path))
        for destination in (name, whole)
    }
    if report.encoded:
        assert contents(files[name].with_encoded(report.encoded)) == contents(files[whole].with_encoded(report.encoded))
