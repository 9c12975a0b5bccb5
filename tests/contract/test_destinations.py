"""What every destination must do: write what it can hold so that our own reader gives it back, tell the rest, go on after a stop.

Every format brings its own case: `tests/contract/destination_cases/SCHEME.py` has `name(folder)`, the name of a destination, and `HOLDS`,
the kinds of `cases.data.KINDS` of which nothing is lost.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb.conversion import convert as engine
from rlds2reverb.conversion.convert import convert, planned
from rlds2reverb.conversion.place import PREFIX
from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.episode import Episode, content_digest, metadata_values
from rlds2reverb.errors import ConfigError, ConversionError, Rlds2ReverbError, SourceError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import Destination
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.options import escape_text
from rlds2reverb.formats.registry import DESTINATIONS
from rlds2reverb.formats.source import Source
from rlds2reverb.formats.splits import Split
from tests.contract.destination_cases import data
from tests.contract.destination_cases.coming_back import assert_comes_back
from tests.support.raising import outcome_of

FOLDER = Path(data.__file__).parent
LOSSES = {known.scheme: side.losses for known, side in DESTINATIONS.own_sides().items()}
SCHEMES = [destination.scheme for destination in DESTINATIONS]
CASES: dict[str, Any] = {
    scheme: importlib.import_module(f"{data.__name__[:-5]}.{scheme}")
    for scheme in SCHEMES
    if (FOLDER / f"{scheme}.py").exists()
}


def test_every_format_has_a_case() -> None:
    assert sorted(CASES) == sorted(SCHEMES), "write tests/contract/destination_cases/SCHEME.py"


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def name(scheme: str, tmp_path: Path) -> str:
    """Of a destination whose folder is not there yet."""
    made: str = CASES[scheme].name(tmp_path / "to")
    return made


def contents(source: Source) -> list[Any]:
    """All columns and metadata, as values that can be compared."""
    return [
        (content_digest(episode.columns), repr(sorted(metadata_values(episode, episode.metadata).items())))
        for episode in source
    ]


def written(destination: Destination) -> list[Any]:
    return contents(open_source(destination.source(destination.path)))


def left_over(destination: Destination) -> list[Path]:
    """What a conversion that is done must not leave beside the dataset."""
    return [path for path in destination.path.parent.iterdir() if path.name.startswith(PREFIX)]


class Stopping:
    """A list of episodes that cannot be read to its end."""

    def __init__(self, episodes: list[Episode], stop: int, error: type[BaseException] = SourceError) -> None:
        self._list, self._stop, self._error = EpisodeList(episodes), stop, error
        self.name, self.episode_count = "stopping", len(episodes)
        self.spec, self.metadata_spec = self._list.spec, self._list.metadata_spec
        self.readings = 0

    def __iter__(self) -> Iterator[Episode]:
        self.readings += 1
        for number, episode in enumerate(self._list):
            if number == self._stop and self.readings > 1:  # the first looks at the first episode only
                raise self._error("stopped")
            yield episode

    def shard(self, index: int, count: int) -> Source:
        return self._list.shard(index, count)


@pytest.mark.parametrize("kind", data.KINDS)
def test_what_is_written_comes_back_and_what_is_lost_is_told(scheme: str, name: str, kind: str, tmp_path: Path) -> None:
    source = data.KINDS[kind](tmp_path)
    report = outcome_of(Rlds2ReverbError, lambda: convert(source, name, verify=True))
    if kind in CASES[scheme].HOLDS:
        assert isinstance(report, ConvertReport), report
        assert report.losses == ()
    elif isinstance(report, ConvertReport):
        assert report.losses or kind == "files"  # which come decoded
    else:
        is_told_late = "whole numbers below 2^63 only" in str(report)  # of the values, which no spec says
        assert isinstance(report, ConfigError) or is_told_late, report
        return
    assert report.verified == report.episodes_written == report.episodes_read == data.EPISODES
    losses = LOSSES[scheme]
    assert {loss.code for loss in report.losses} <= set(losses)
    destination = open_destination(name)
    assert_comes_back(list(source), open_source(destination.source(destination.path)), report.losses)
    assert left_over(destination) == []


@pytest.mark.parametrize("kind", data.KINDS)
def test_a_conversion_leaves_every_episode_on_its_side_of_a_split(
    scheme: str, name: str, kind: str, tmp_path: Path
) -> None:
    source = EpisodeList(list(data.KINDS[kind](tmp_path)))
    if isinstance(outcome_of(Rlds2ReverbError, lambda: convert(source, name)), Rlds2ReverbError):
        pytest.skip(f"{scheme} holds none of it")
    destination = open_destination(name)
    written_source = open_source(destination.source(destination.path))
    for share in (0.2, 0.4, 0.6, 0.8):
        split = Split("val", share)
        assert [split.judge(episode) for episode in written_source] == [split.judge(episode) for episode in source]


@pytest.mark.parametrize("column", ["observation", "action", "reward"])
def test_a_value_that_is_not_written_is_found(
    scheme: str, name: str, column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a row before the last one, also where the last one is told to be lost."""
    episodes = data.KINDS["last_row"](tmp_path)
    for place in {name, name.partition("?")[0]}:
        made = open_destination(place)
        encoder_of = made.encoder

        def encoder(content: Any, encoder_of: Any = encoder_of) -> Any:
            encode = encoder_of(content)

            def encodes(episode: Episode) -> Any:
                values = episode.columns[column].copy()
                values[0] = 9
                return encode(episode.with_columns(**{column: values}))

            return encodes

        monkeypatch.setattr(made, "encoder", encoder)
        with pytest.raises(ConversionError, match=f'column "{column}": the values differ'):
            convert(episodes, made, verify=True, restart=True)
        assert not made.path.exists()


def test_what_is_written_is_found_under_any_name(scheme: str, tmp_path: Path) -> None:
    folder = tmp_path / "what?@a;b|c,d%3F"
    folder.mkdir()
    name: str = CASES[scheme].name(Path(escape_text(folder)) / "to")
    report = convert(data.KINDS["plain"](tmp_path), name, verify=True)
    assert report.verified == data.EPISODES
    assert Path(report.path).is_relative_to(folder)


def test_every_loss_says_what_is_lost(scheme: str) -> None:
    assert all(text and not text.endswith(".") and "\n" not in text for text in LOSSES[scheme].values())


@pytest.mark.parametrize("stop", range(1, data.EPISODES + 1))
def test_a_conversion_that_was_stopped_goes_on(
    name: str, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    episodes = data.KINDS["plain"](tmp_path)
    monkeypatch.setattr(engine, "SYNC_SECONDS", 0.0)
    destination = open_destination(name)
    if stop < data.EPISODES:
        with pytest.raises(SourceError, match="stopped"):
            convert(Stopping(episodes, stop), name)
    else:
        planned(Stopping(episodes, -1), name)  # nothing is written by planning
    assert not destination.path.exists()
    report = convert(Stopping(episodes, -1), name, verify=True)
    assert report.episodes_read == report.episodes_written == report.verified == data.EPISODES
    assert report.episodes_resumed < data.EPISODES
    whole = CASES[scheme].name(tmp_path / "whole")
    convert(Stopping(episodes, -1), whole)
    assert written(destination) == written(open_destination(whole))
    assert left_over(destination) == []


def test_what_was_written_after_the_last_sync_is_cut_off(name: str, tmp_path: Path) -> None:
    episodes = data.KINDS["plain"](tmp_path)
    destination, job = open_destination(name), planned(episodes, name).job
    preparer = job.ready.preparer()
    encoded = [job.examine(preparer, episode).written().encoded for episode in job.source]
    destination.path.mkdir(parents=True)
    work = tmp_path / "work"
    work.mkdir()
    first = destination.sink(work, job.content, None)
    first.write(encoded[0])
    state = first.sync()
    first.write(encoded[1])
    first.close()
    second = destination.sink(work, job.content, state)
    for episode in encoded[1:]:
        second.write(episode)
    state = second.sync()
    second.finish()
    second.close()
    once = contents(open_source(destination.source(result(work, destination))))
    again = destination.sink(work, job.content, state)
    again.finish()
    again.close()
    again.close()
    assert contents(open_source(destination.source(result(work, destination)))) == once
    assert len(once) == data.EPISODES


def result(work: Path, destination: Destination) -> Path:
    file = work / destination.path.name
    return file if file.is_file() else work


def test_a_full_disk_is_told_and_the_conversion_goes_on_when_there_is_room(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(engine, "SYNC_SECONDS", 0.0)
    rng = np.random.default_rng(3)
    episodes = [
        data.episode(number, {"observation": rng.normal(size=(2 + number % 3, 8_192)).astype(np.float32)})
        for number in range(data.EPISODES)
    ]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, before[1]))
    try:
        error = outcome_of(OSError, lambda: convert(episodes, name))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not isinstance(error, ConvertReport) or open_destination(name).path.exists()
    if isinstance(error, OSError):
        assert not open_destination(name).path.exists()
        report = convert(episodes, name, verify=True)
        assert report.episodes_written == report.verified == data.EPISODES


def test_what_is_there_is_replaced_only_when_that_is_asked_for(name: str, tmp_path: Path) -> None:
    episodes = data.KINDS["plain"](tmp_path)
    convert(episodes, name)
    destination = open_destination(name)
    before = written(destination)
    with pytest.raises(ConfigError, match=r"is there already.*--overwrite"):
        convert(episodes[:2], name)
    assert written(destination) == before
    convert(episodes[:2], name, overwrite=True)
    assert written(destination) == before[:2]
    assert left_over(destination) == []


def test_a_source_without_episodes_is_refused(name: str) -> None:
    with pytest.raises(SourceError):
        convert([], name)
    assert not open_destination(name).path.exists()


def test_an_unknown_option_is_refused(name: str) -> None:
    joined = "," if "?" in name else "?"
    with pytest.raises(ConfigError, match="nonsense"):
        open_destination(f"{name}{joined}nonsense=1")
