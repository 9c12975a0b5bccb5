"""A conversion by several workers gives the dataset, the report and the way on that one process gives."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.conversion import convert as engine
from rlds2reverb.conversion import workers as dividing
from rlds2reverb.conversion.convert import convert
from rlds2reverb.conversion.report import ConvertReport
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, Rlds2ReverbError, SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.workers.driver import Event, Outcome, Task
from tests.contract.destination_cases import data
from tests.support.conversion.digests import digest_files
from tests.support.profiles import examples
from tests.support.raising import outcome_of
from tests.support.workers_in_threads import InThreads
from tests.unit.conversion.test_convert_kills import FORMATS
from tests.unit.conversion.test_convert_odd_episodes import PLACES, VIDEO
from tests.unit.prepare.test_endings import mixture


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads; parts are small, and every episode is synced."""
    in_threads(monkeypatch, ())


def in_threads(monkeypatch: pytest.MonkeyPatch, lost: Collection[int]) -> None:
    monkeypatch.setattr(engine, "choose_executor", lambda workers, ray: lambda job: InThreads(job, workers, lost))
    monkeypatch.setattr(dividing, "PART_BYTES", 300)
    monkeypatch.setattr(engine, "SYNC_SECONDS", 0.0)


def essence(report: Any) -> ConvertReport:
    """The report without what is another with every run."""
    found: ConvertReport = report
    return replace(found, destination="", path="", seconds=0.0, workers=0, parts_again=0)


def lines(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def told(error: object) -> str:
    return str(error).replace("divided", "alone")


def made(seed: int, bad: Collection[int]) -> list[Episode]:
    """Episodes, every other one of which ends with one and the same observation; those of the numbers `bad` hold a NaN."""
    found = mixture(seed)
    for number in bad:
        reward = np.full(len(found[number]), np.nan, np.float32)
        found[number] = found[number].with_columns(reward=reward)
    return found


@examples(10)
@given(
    seed=st.integers(0, 9),
    bad=st.frozensets(st.integers(0, 11)),
    workers=st.integers(1, 3),
    part_bytes=st.sampled_from([1, 3_000, 1 << 20]),
    action=st.sampled_from(["raise", "skip", "quarantine", "repair"]),
    allow=st.sampled_from([(), ("nan",), ("last_observation_shared",), ("nan", "last_observation_shared")]),
    strict=st.booleans(),
    lost=st.frozensets(st.integers(1, 4)),
)
def test_files_report_quarantine_and_saved_progress_are_those_of_one_process(
    tmp_path_factory: Any,
    seed: int,
    bad: frozenset[int],
    workers: int,
    part_bytes: int,
    action: str,
    allow: tuple[str, ...],
    strict: bool,
    lost: frozenset[int],
) -> None:
    folder, episodes = tmp_path_factory.mktemp("convert"), made(seed, bad)
    found: list[Any] = []
    for name, many in (("alone", None), ("divided", workers)):
        options: dict[str, Any] = {"on_invalid": action, "allow": allow, "strict": strict, "workers": many}
        if action == "quarantine":
            options["quarantine"] = folder / f"{name}.jsonl"
        with pytest.MonkeyPatch.context() as patch:
            in_threads(patch, lost)
            patch.setattr(dividing, "PART_BYTES", part_bytes)
            place = f"tfds:{folder / name / 'own'}"
            found.append(outcome_of(Rlds2ReverbError, lambda: convert(episodes, place, **options)))  # noqa: B023
    alone, divided = found
    assert type(divided) is type(alone)
    if isinstance(alone, ConvertReport):
        assert essence(divided) == essence(alone)
        assert divided.workers == workers
    else:
        assert told(divided) == told(alone)
        assert essence(divided.report).stopped.replace("divided", "alone") == alone.report.stopped
        assert replace(essence(divided.report), stopped="") == replace(essence(alone.report), stopped="")
    # Of a stopped one, progress.json is among them.
    assert digest_files(folder / "divided") == digest_files(folder / "alone")
    assert lines(folder / "divided.jsonl") == lines(folder / "alone.jsonl")


@pytest.mark.parametrize("place", [*FORMATS, "lerobot video"])
def test_every_format_has_the_files_that_one_process_writes(place: str, tmp_path: Path) -> None:
    said = {"language_instruction": b"go", "episode": 3}
    is_video = place == "lerobot video"
    metadata = [{**said, "other": f"task {number % 2}".encode()} for number in range(9)]
    episodes = [
        data.with_images(number, about) if is_video else data.episode(number, metadata=about)
        for number, about in enumerate(metadata)
    ]
    reports = []
    for folder, workers in (("alone", None), ("divided", 2)):
        (tmp_path / folder).mkdir()
        name = (VIDEO if is_video else PLACES[place]).format(tmp_path / folder)
        reports.append(convert(episodes, name, verify=True, workers=workers))
    assert essence(reports[1]) == essence(reports[0])
    assert digest_files(tmp_path / "divided") == digest_files(tmp_path / "alone")


@pytest.mark.parametrize("kind", ["text", "images", "files", "metadata"])
@pytest.mark.parametrize("scheme", ["tfds", "lerobot"])
def test_what_encoders_make_survives_the_way_from_a_worker(
    scheme: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that comes from a worker is pickled."""
    monkeypatch.setattr(engine, "choose_executor", lambda workers, ray: lambda job: Pickling(job, workers))
    source = data.KINDS[kind](tmp_path)
    reports = []
    for folder, workers in (("alone", None), ("divided", 2)):
        (tmp_path / folder).mkdir()
        convert_it = lambda: convert(source, PLACES[scheme].format(tmp_path / folder), workers=workers)  # noqa: B023, E731
        reports.append(outcome_of(ConfigError, convert_it))
    if isinstance(reports[0], ConvertReport):
        assert essence(reports[1]) == essence(reports[0])
    assert digest_files(tmp_path / "divided") == digest_files(tmp_path / "alone")


class Pickling(InThreads):
    def event(self, seconds: float) -> Event | None:
        event: Event | None = pickle.loads(pickle.dumps(super().event(seconds)))
        return event


class Failing(EpisodeList):
    """Cannot be read from episode `stop` on, while `fails`."""

    def __init__(self, episodes: list[Episode], stop: int) -> None:
        super().__init__(episodes, "failing")
        self.stop, self.fails = stop, [True]

    def __iter__(self) -> Iterator[Episode]:
        for number, episode in enumerate(super().__iter__()):
            if number >= self.stop and self.fails:
                raise SourceError(f"episode {number}: broken")
            yield episode


@examples(5)
@given(stop=st.integers(1, 11), runs=st.lists(st.sampled_from([None, 1, 2, 3]), min_size=2, max_size=2))
def test_it_goes_on_with_another_number_of_workers(tmp_path_factory: Any, stop: int, runs: list[int | None]) -> None:
    folder, episodes = tmp_path_factory.mktemp("convert"), made(1, ())
    allowed: dict[str, Any] = {"on_invalid": "skip", "strict": True}
    with pytest.MonkeyPatch.context() as patch:
        in_threads(patch, ())
        convert(episodes, f"tfds:{folder / 'alone' / 'own'}", **allowed)
        source, name = Failing(episodes, stop), f"tfds:{folder / 'divided' / 'own'}"
        with pytest.raises(SourceError, match=f"episode {stop}: broken") as stopped:
            convert(source, name, workers=runs[0], **allowed)
        assert stopped.value.report.episodes_read == stop
        source.fails.clear()
        report = convert(source, name, workers=runs[1], **allowed)
    assert (report.episodes_read, report.episodes_resumed <= stop) == (len(episodes), True)
    assert digest_files(folder / "divided") == digest_files(folder / "alone")


def test_the_source_of_the_run_before_must_be_the_same(tmp_path: Path) -> None:
    episodes, name = made(1, ()), f"tfds:{tmp_path / 'own'}"
    allow = ("last_observation_shared",)
    with pytest.raises(SourceError, match="broken"):
        convert(Failing(episodes, 5), name, workers=2, allow=allow)
    others = [episodes[0], *(replace(episode, id=f"other {number}") for number, episode in enumerate(episodes[1:]))]
    with pytest.raises(ConfigError, match="the last episode that was read is another"):
        convert(EpisodeList(others, "failing"), name, workers=2, allow=allow)


def test_parts_wait_for_their_turn_in_bounded_number() -> None:
    parts = dividing.ConvertParts(0, 100, 2)
    tasks: list[Task] = []
    while (task := parts.next_task(())) is not None:
        if tasks:  # the first one is slow
            parts.on_done(task, Outcome(dividing.PartTaken([], task.stop, 0, ())))
        tasks.append(task)
    assert len(tasks) == 3
    parts.on_done(tasks[0], Outcome(dividing.PartTaken([], tasks[0].stop, 0, ())))
    assert parts.next_task(()) is not None


def test_what_a_part_leaves_comes_next() -> None:
    parts = dividing.ConvertParts(0, 100, 1)
    first = parts.next_task(())
    assert first is not None
    parts.on_done(first, Outcome(dividing.PartTaken([], 1, 1 << 30, ())))
    assert parts.next_task(()) == replace(first, start=1)


def test_a_source_whose_length_only_reading_tells_is_refused(tmp_path: Path) -> None:
    class Unknown(EpisodeList):
        episode_count = None

    source = Unknown(made(1, ()), "unknown")
    with pytest.raises(SourceError, match=r"cannot be divided among workers \(--workers, --ray\); leave them out"):
        convert(source, f"tfds:{tmp_path / 'own'}", workers=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": True}, {"workers": "2"}, {"ray": ""}, {"ray": 6379}])
def test_what_are_no_workers_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--workers|--ray"):
        convert(made(1, ()), f"tfds:{tmp_path / 'own'}", **options)


def test_another_dataset_where_a_worker_stands_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dividing, "kind_of", lambda job, kinds=iter("ab"): next(kinds))
    with pytest.raises(SourceError, match=r"is another dataset on .* than where the conversion was started"):
        convert(made(1, ()), f"tfds:{tmp_path / 'own'}", workers=1)
    assert not digest_files(tmp_path)
