"""The engine: one dataset at its place or none, on from where it was, bad episodes by the policy, counts that reconcile."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlds2reverb import files
from rlds2reverb.conversion import convert as engine
from rlds2reverb.conversion import place, verify
from rlds2reverb.conversion.convert import convert, planned
from rlds2reverb.conversion.report import Losses, lines, reported_rows
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError, ConversionError, InvalidEpisode, SourceError, WriteError
from rlds2reverb.formats import open_destination, open_source
from rlds2reverb.formats.destination import LAST_ROW, Content, Destination, Encode, Loss, made_flags, unchanged
from rlds2reverb.formats.tfds.write import TfdsDestination
from rlds2reverb.locks import lock_file
from rlds2reverb.prepare.progress import Progress
from tests.contract.destination_cases import data
from tests.contract.test_destinations import Stopping
from tests.support import strategies
from tests.support.profiles import examples
from tests.support.project import ROOT
from tests.unit.prepare.test_endings import mixture


@pytest.fixture
def name(tmp_path: Path) -> str:
    return f"tfds:{tmp_path / 'to' / 'my_set'}"


@pytest.fixture
def episodes() -> list[Episode]:
    return [data.episode(number) for number in range(data.EPISODES)]


@pytest.fixture(autouse=True)
def always_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SYNC_SECONDS", 0.0)


def back(name: str) -> list[Episode]:
    destination = open_destination(name)
    return list(open_source(destination.source(destination.path)))


def bad(number: int) -> Episode:
    """An episode with a NaN."""
    one = data.episode(number)
    reward = one.columns["reward"].copy()
    reward[0] = np.nan
    return one.with_columns(reward=reward)


def unmarked(number: int) -> Episode:
    """An episode whose first step is not marked."""
    one = data.episode(number)
    return one.with_columns(is_first=np.zeros(len(one), bool))


def with_bad(episodes: list[Episode]) -> list[Episode]:
    return [episodes[0], bad(1), *episodes[2:]]


def test_a_bad_episode_stops_it_and_another_policy_goes_on(name: str, episodes: list[Episode]) -> None:
    with pytest.raises(InvalidEpisode, match="nan") as caught:
        convert(with_bad(episodes), name)
    report: Any = caught.value.report
    assert (report.episodes_read, report.episodes_written, report.rejected) == (2, 1, {"nan": 1})
    assert "InvalidEpisode" in report.stopped
    assert not open_destination(name).path.exists()
    report = convert(with_bad(episodes), name, on_invalid="skip", verify=True)
    assert report.episodes_read == report.episodes_written + sum(report.rejected.values()) == 4
    assert report.rejected == {"nan": 1}
    assert report.verified == len(back(name)) == 3


def test_bad_episodes_are_reported_once(name: str, episodes: list[Episode], tmp_path: Path) -> None:
    listed = tmp_path / "bad.jsonl"
    report = convert(with_bad(episodes), name, on_invalid="quarantine", quarantine=listed, verify=True)
    assert report.rejected == {"nan": 1}
    (line,) = listed.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["code"] == "nan"


def test_bad_episodes_are_mended(name: str, episodes: list[Episode]) -> None:
    report = convert([*episodes[:2], unmarked(2)], name, on_invalid="repair", verify=True)
    assert report.repaired == {"first_missing": 1}
    assert back(name)[2].columns["is_first"].tolist() == [True, False, False, False]


def test_what_is_tolerated_is_written_as_it_is(name: str, episodes: list[Episode]) -> None:
    report = convert(with_bad(episodes), name, allow=("nan",), verify=True)
    assert report.episodes_written == 4
    assert np.isnan(back(name)[1].columns["reward"][0])


@pytest.mark.parametrize("code", ["missing_column", "shape", "dtype"])
def test_episodes_of_another_spec_cannot_be_tolerated(name: str, episodes: list[Episode], code: str) -> None:
    with pytest.raises(ConfigError, match="one spec"):
        convert(episodes, name, allow=(code,))


def test_what_the_format_cannot_hold_cannot_be_tolerated(name: str, episodes: list[Episode]) -> None:
    with pytest.raises(ConfigError, match=r"--allow\): unfit: .*--on-invalid skip"):
        convert(episodes, name, allow=("nan", "unfit"))


def test_when_all_are_bad_nothing_is_left_behind(name: str) -> None:
    with pytest.raises(SourceError, match=r"no episode is left.*nan 2"):
        convert([bad(0), bad(1)], name, on_invalid="skip")
    destination = open_destination(name)
    assert list(destination.path.parent.iterdir()) == []


def test_absent_fields_stay_absent(name: str, episodes: list[Episode]) -> None:
    plain = [
        episode.with_only_columns({path: column for path, column in episode.columns.items() if path != "discount"})
        for episode in episodes
    ]
    convert(plain, name, verify=True)
    assert "discount" not in back(name)[0].columns


def test_conventions_and_transforms_are_applied(name: str, episodes: list[Episode]) -> None:
    report = convert(
        episodes,
        name,
        last_reward="shift",
        transform="rename=action:act,drop=discount",
        verify=True,
        limit=2,
        allow=["first_reward_lost"],
    )
    assert report.episodes_written == 2
    assert report.transform
    for before, after in zip(episodes, back(name)):
        assert "discount" not in after.columns
        assert np.array_equal(after.columns["act"], before.columns["action"])
        assert np.array_equal(after.columns["reward"][:-1], before.columns["reward"][1:])


def test_it_goes_on_after_an_interruption(name: str, episodes: list[Episode]) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        convert(Stopping(episodes, 3, KeyboardInterrupt), name)
    assert vars(caught.value)["report"].stopped == "interrupted"
    report = convert(Stopping(episodes, -1), name, verify=True)
    assert report.episodes_resumed
    assert report.episodes_written == report.verified == 4


@pytest.mark.parametrize("stop", [2, 3, 5, 8, 11])
def test_ends_that_are_not_their_own_are_found_wherever_it_was_stopped(name: str, stop: int) -> None:
    episodes = mixture(3)
    whole = convert(episodes, f"{name}_whole", on_invalid="skip")
    assert whole.rejected
    with pytest.raises(SourceError, match="stopped"):
        convert(Stopping(episodes, stop), name, on_invalid="skip")
    report = convert(Stopping(episodes, -1), name, on_invalid="skip")
    assert (report.rejected, report.episodes_written) == (whole.rejected, whole.episodes_written)
    kept = [[episode.columns["observation"].tobytes() for episode in back(each)] for each in (name, f"{name}_whole")]
    assert kept[0] == kept[1]


@settings(examples(10), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        strategies.episodes(
            max_steps=5, specs={"observation/a": (np.dtype(np.float32), (2,)), "action": (np.dtype(object), ())}
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 4),
)
def test_any_episodes_come_back(episodes: list[Episode], shards: int) -> None:
    with TemporaryDirectory() as folder:
        named = [replace(episode, id=f"episode {number}") for number, episode in enumerate(episodes)]
        report = convert(named, f"tfds:{folder}/my_set?shards={shards}", verify=True, allow=["last_observation_shared"])
        assert report.verified == len(episodes)


def test_text_of_any_kind_and_numbers_of_any_byte_order_are_written(name: str) -> None:
    one = data.episode(1)
    columns = {
        "said": np.array(["a", "bc", "é"]),
        "told": np.array([b"a", b"bc", b""]),
        "far": np.arange(3, dtype=">f8"),
    }
    convert([one.with_columns(**columns)], name, verify=True)
    (found,) = back(name)
    assert found.columns["said"].tolist() == [b"a", b"bc", "é".encode()]
    assert found.columns["told"].tolist() == [b"a", b"bc", b""]
    assert found.columns["far"].tolist() == [0, 1, 2]


def test_a_place_that_appears_meanwhile_is_not_replaced(name: str, episodes: list[Episode]) -> None:
    stopped(name, episodes)
    path = open_destination(name).path
    path.mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        convert(Stopping(episodes, -1), name)
    path.rmdir()
    assert convert(Stopping(episodes, -1), name).episodes_resumed


def test_a_lock_whose_file_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, open_file = tmp_path / "lock", os.open

    def opened_and_removed(*arguments: Any) -> int:
        descriptor = open_file(*arguments)
        path.unlink()
        return descriptor

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", opened_and_removed)
        with lock_file(path) as is_ours:
            assert not is_ours
    with lock_file(path) as is_ours:
        assert is_ours


def test_a_lock_of_another_process_holds_until_that_ends(name: str, episodes: list[Episode]) -> None:
    path = open_destination(name).path
    program = (
        "import sys; from pathlib import Path; from rlds2reverb.conversion.place import Place, open_place\n"
        f"with open_place(Place(Path({str(path)!r}))): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            for _ in range(2):  # the first look at the file takes nothing away from who holds it
                with pytest.raises(ConfigError, match="another process is writing it"):
                    convert(episodes, name)
        finally:
            other.kill()
    assert convert(episodes, name).episodes_written == 4


def test_what_a_process_forks_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    reader, writer = os.pipe()
    with lock_file(path) as is_ours:
        assert is_ours
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with lock_file(path) as is_ours:
            assert is_ours
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_anything_may_be_in_the_lock_file(name: str, episodes: list[Episode]) -> None:
    folder = place.Place(open_destination(name).path).folder
    folder.mkdir(parents=True)
    (folder / "lock").write_bytes(b"no database, and long enough to be looked at " * 100)
    assert convert(episodes, name).episodes_written == 4


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_as_that(
    name: str, episodes: list[Episode], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.lockf", refused)
        with pytest.raises(WriteError, match=r"lock: cannot be locked: .*write into a folder of another file system"):
            convert(episodes, name)
    assert convert(episodes, name).episodes_written == 4


def test_a_lock_that_is_no_file_is_told(name: str, episodes: list[Episode]) -> None:
    folder = place.Place(open_destination(name).path).folder
    (folder / "lock").mkdir(parents=True)
    with pytest.raises(WriteError, match="lock: cannot be written: Is a directory"):
        convert(episodes, name)


def test_two_locks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path) as is_ours, lock_file(path) as is_ours_too:
        assert (is_ours, is_ours_too) == (True, False)


def stopped(name: str, episodes: list[Episode], **options: Any) -> None:
    with pytest.raises(SourceError, match="stopped"):
        convert(Stopping(episodes, 3), name, **options)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"limit": 2}, "another source and another options"),
        ({"terminal_discount": "transition"}, "another options"),
        ({"strict": True, "allow_loss": ["all"]}, "another policy"),
        ({"transform": "drop=discount"}, "another source and another options"),
    ],
)
def test_another_conversion_does_not_go_on_from_it(
    name: str, episodes: list[Episode], options: dict[str, Any], what: str
) -> None:
    stopped(name, episodes, on_invalid="skip")
    options = {"on_invalid": "skip", **options}
    with pytest.raises(ConfigError, match=rf"{what}.*--restart"):
        convert(Stopping(episodes, -1), name, **options)
    report = convert(Stopping(episodes, -1), name, restart=True, **options)
    assert not report.episodes_resumed


def test_another_source_or_destination_does_not_go_on_from_it(name: str, episodes: list[Episode]) -> None:
    stopped(name, episodes)
    with pytest.raises(ConfigError, match=r"another source.*--restart"):
        convert([data.episode(number) for number in range(5, 9)], name)
    with pytest.raises(ConfigError, match=r"another destination.*--restart"):
        convert(Stopping(episodes, -1), f"{name}?shards=2")


def test_a_progress_file_that_is_damaged_is_told(name: str, episodes: list[Episode]) -> None:
    stopped(name, episodes)
    (progress,) = open_destination(name).path.parent.glob("*/progress.json")
    told = json.loads(progress.read_text(encoding="utf-8"))
    saved = {**told["saved"], "stage": "written"}
    for damaged in (
        [],
        "x",
        {},
        {"stage": "written"},
        {**told, "format": 1},
        {**told, "saved": saved},
        {**told, "saved": 3},
    ):
        progress.write_text(json.dumps(damaged), encoding="utf-8")
        with pytest.raises(ConfigError, match=r"progress\.json.*--restart"):
            convert(episodes, name)
    for text in ("{", "[" * 100_000):
        progress.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"progress\.json.*--restart"):
            convert(episodes, name)
    assert convert(episodes, name, restart=True).episodes_written == 4


def test_a_link_in_place_of_the_folder_is_refused(name: str, episodes: list[Episode], tmp_path: Path) -> None:
    path = open_destination(name).path
    victim = tmp_path / "victim"
    (victim / "data").mkdir(parents=True)
    path.parent.mkdir(parents=True)
    (path.parent / f"{place.PREFIX}{path.name}").symlink_to(victim)
    with pytest.raises(ConfigError, match="is a link"):
        convert(episodes, name)
    assert (victim / "data").exists()


def test_two_conversions_into_one_place_are_refused(name: str, episodes: list[Episode]) -> None:
    destination = open_destination(name)
    with (
        place.open_place(place.place_of(destination, destination.path)),
        pytest.raises(ConfigError, match="another process is writing it"),
    ):
        convert(episodes, name)
    assert convert(episodes, name).episodes_written == 4


@pytest.mark.parametrize("stop", ["save", "rename", "result", "discard"])
def test_a_kill_while_it_replaces_what_is_there_loses_nothing(
    name: str, episodes: list[Episode], stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(episodes[:2], name)

    class Killed(BaseException):
        pass

    renames = []

    def rename(self: Path, target: Path) -> Path:
        renames.append(self)
        if len(renames) == (1 if stop == "rename" else 2):
            raise Killed
        return self.replace(target)

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if stop in ("rename", "result"):
            patched.setattr(Path, "rename", rename)
        elif stop == "discard":
            patched.setattr(place.Place, "discard", kill)
        else:
            patched.setattr(place.Place, "publish", kill)
        with pytest.raises(Killed):
            convert(episodes, name, overwrite=True)
    report = convert(episodes, name, overwrite=True)
    assert report.episodes_read == report.episodes_written == report.episodes_resumed == 4 or stop == "discard"
    assert len(back(name)) == 4
    assert [path.name for path in open_destination(name).path.parent.iterdir()] == ["1.0.0"]


def test_what_differs_is_found(name: str, episodes: list[Episode], monkeypatch: pytest.MonkeyPatch) -> None:
    other = open_source([*episodes[:2], bad(2), episodes[3]])
    monkeypatch.setattr(verify, "open_source", lambda name: other)
    with pytest.raises(ConversionError, match=r'episode 2, from episode 2: column "reward": the values differ'):
        convert(episodes, name, verify=True)
    assert not open_destination(name).path.exists()


@pytest.mark.parametrize(("found", "what"), [(slice(0, 3), "has 3 episodes, and more"), (slice(0, 9), "has more than")])
def test_episodes_that_are_missing_or_too_many_are_found(
    name: str, found: slice, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    five = [data.episode(number) for number in range(5)]
    other = open_source(five[found])
    monkeypatch.setattr(verify, "open_source", lambda name: other)
    with pytest.raises(ConversionError, match=what):
        convert(five[:4], name, verify=True)


def test_differences_name_columns_and_metadata() -> None:
    wanted = Episode(
        {"a": np.zeros(2), "b": np.zeros(2), "c": np.zeros(2)}, {"m": 1.0, "n": np.int64(1), "t": b"x"}, "w"
    )
    found = Episode({"a": np.zeros(2, np.float32), "b": np.zeros(2)}, {"n": np.int64(2), "t": b"x"}, "f")
    assert verify.differences(wanted, found, {"metadata/m": "all"}) == [
        'column "a": expected float64[2], found float32[2]',
        'column "c": is not there',
        'metadata "n": the values differ',
    ]


class Losing(TfdsDestination):
    """A destination that cannot hold all actions; `action` makes what it holds of them, and `told` is what it says."""

    least = 1
    told: Sequence[Loss] = (Loss("actions", "actions are left out", "action"),)

    @staticmethod
    def action(action: Any) -> Any:
        return action * 0

    @property
    def least_rows(self) -> int:
        return self.least

    def flags(self, episode: Episode) -> Any:
        return made_flags(episode)

    def losses(self, content: Content) -> list[Loss]:
        return [Loss("no_discount", "discounts are left out", "discount")]

    def encoder(self, content: Content) -> Encode:
        return unchanged

    def sink(self, work: Path, content: Content, state: Any) -> Any:
        sink, encode = super().sink(work, content, state), super().encoder(content)
        write = sink.write

        def losing(episode: Episode) -> list[Loss]:
            write(encode(episode.with_columns(action=self.action(episode.columns["action"]))))
            return list(self.told) if episode.id.endswith(("1", "2")) else []

        sink.write = losing  # type: ignore[method-assign, assignment]
        return sink


@pytest.fixture
def losing(name: str) -> Any:
    destination: Any = open_destination(name)
    return Losing(destination._target)


def without_last(action: Any) -> Any:
    return np.concatenate([action[:-1], action[-1:] + 1])


def test_all_rows_but_those_told_are_compared(losing: Any, episodes: list[Episode]) -> None:
    losing.told = [Loss("actions", "the last one is another", "action", LAST_ROW)]
    losing.action = without_last
    report = convert(episodes[1:3], losing, verify=True)
    assert [(loss.rows, loss.episodes) for loss in report.losses] == [("all", None), ("last", 2)]
    losing.action = lambda action: action * 0
    with pytest.raises(ConversionError, match='column "action": the values differ'):
        convert(episodes[1:3], losing, verify=True, overwrite=True)


def test_a_loss_of_no_path_excuses_nothing_not_even_a_column_without_a_name(
    losing: Any, episodes: list[Episode]
) -> None:
    losing.told = [Loss("whole", "something of the episode")]
    with pytest.raises(ConversionError, match='column "action": the values differ'):
        convert(episodes, losing, verify=True)
    assert lines([Loss("a", "b"), Loss("c", "d", "")]) == ["a: b", 'c: "": d']


def test_flags_that_do_not_come_back_are_told(losing: Any, episodes: list[Episode]) -> None:
    losing.action, losing.told = (lambda action: action), []
    odd = episodes[1].with_columns(is_terminal=np.arange(len(episodes[1])) < 1)
    report = convert([episodes[0], odd], losing, allow=["terminal_inside"])
    assert [(loss.code, loss.path, loss.episodes) for loss in report.losses[1:]] == [("flags", "is_terminal", 1)]
    with pytest.raises(ConversionError, match="flags"):
        convert(
            [episodes[0], odd],
            losing,
            allow=["terminal_inside"],
            strict=True,
            allow_loss=["no_discount"],
            overwrite=True,
        )
    losing.told = [Loss("ends", "told by the sink", "is_terminal")]
    report = convert([episodes[0], odd], losing, allow=["terminal_inside"], overwrite=True)
    assert [loss.code for loss in report.losses[1:]] == ["ends"]


def test_episodes_that_are_too_short_for_the_format_are_rejected_whatever_is_allowed(
    losing: Any, episodes: list[Episode], tmp_path: Path
) -> None:
    losing.least, losing.action, losing.told = 2, (lambda action: action), []
    short = episodes[1].with_only_columns({path: column[:1] for path, column in episodes[1].columns.items()})
    short = short.with_columns(is_last=np.ones(1, bool))
    listed = tmp_path / "bad.jsonl"
    options: dict[str, Any] = {"verify": True, "on_invalid": "quarantine", "quarantine": listed}
    report = convert([episodes[0], short, episodes[3]], losing, allow=["single_step"], **options)
    assert (report.episodes_read, report.episodes_written, report.verified) == (3, 2, 2)
    assert report.rejected == {"single_step": 1}
    (line,) = listed.read_text(encoding="utf-8").splitlines()
    assert "at least 2 steps" in json.loads(line)["detail"]
    for allowed in ((), ("single_step",)):
        with pytest.raises(InvalidEpisode, match=r"single_step.*--on-invalid") as raised:
            convert([episodes[0], short], losing, overwrite=True, restart=True, allow=allowed)
        assert ("tolerate" in str(raised.value)) == (not allowed)
        assert ("allow (--allow) cannot change that" in str(raised.value)) == bool(allowed)


def test_many_losses_of_single_episodes_are_found_by_number() -> None:
    losses = Losses((Loss("all", "", "a"), Loss("whole", "")))
    for number in range(0, 9, 2):
        losses.add(number, [Loss("x", "", "b", LAST_ROW)] * 2)
    losses.add(8, [Loss("y", "", "b")])
    losses.add(9, [Loss("x", "", "b", LAST_ROW)])
    assert [losses.reported(number).get("b") for number in range(11)] == ["last", None] * 4 + ["all", "last", None]
    assert {losses.reported(number)["a"] for number in range(11)} == {"all"}
    again = Losses(losses.of_all)
    again.restore(json.loads(json.dumps(losses.as_state())))
    assert again.counted() == losses.counted()
    assert reported_rows({"a": "last", "a/b": "all"}, "a/b/c") == "all"
    assert reported_rows({"": "all"}, "a") is None


def test_losses_are_counted_and_not_compared(losing: Destination, episodes: list[Episode]) -> None:
    still = [
        episode.with_columns(action=episode.columns["action"] * (number in (1, 2)))
        for number, episode in enumerate(episodes)
    ]
    report = convert(still, losing, verify=True)
    assert [(loss.code, loss.path, loss.episodes) for loss in report.losses] == [
        ("no_discount", "discount", None),
        ("actions", "action", 2),
    ]
    assert report.as_dict()["losses"][1]["episodes"] == 2


def test_what_is_lost_untold_is_found(losing: Destination, episodes: list[Episode]) -> None:
    with pytest.raises(ConversionError, match='column "action": the values differ'):
        convert(episodes, losing, verify=True)


def test_losses_are_refused_strictly_unless_allowed(losing: Destination, episodes: list[Episode]) -> None:
    with pytest.raises(ConversionError, match=r"no_discount.*allow_loss=no_discount"):
        convert(episodes, losing, strict=True)
    with pytest.raises(ConversionError, match=r"episode 1: .*actions"):
        convert(episodes, losing, strict=True, allow_loss=["no_discount"])
    for allowed in (["no_discount", "actions"], ["all"]):
        assert convert(episodes, losing, strict=True, allow_loss=allowed, restart=True, overwrite=True).losses


def test_counts_of_losses_go_on(losing: Destination, episodes: list[Episode]) -> None:
    with pytest.raises(SourceError, match="stopped"):
        convert(Stopping(episodes, 3), losing)
    report = convert(Stopping(episodes, -1), losing)
    assert [(loss.code, loss.episodes) for loss in report.losses] == [("no_discount", None), ("actions", 2)]


def test_progress_is_told(name: str, episodes: list[Episode], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    monkeypatch.setattr("rlds2reverb.conversion.convert._PROGRESS_SECONDS", 0.0)
    convert(episodes, name, on_progress=told.append)
    assert [progress.episodes for progress in told] == [1, 2, 3, 4]
    assert {progress.episode_count for progress in told} == {4}
    assert told[-1].bytes == sum(episode.nbytes for episode in episodes)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": True}, "limit"),
        ({"allow_loss": "all"}, "allow_loss"),
        ({"allow_loss": ["last_rwo"]}, "allow_loss.*last_rwo.*last_row"),
        ({"nonsense": 1}, "nonsense.*no such option"),
        ({"on_invalid": "quarantine"}, "quarantine"),
        ({"decode": True, "encoded": "all"}, "contradict"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    name: str, episodes: list[Episode], options: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        planned(episodes, name, **options)


def test_a_source_without_flags_is_refused(name: str) -> None:
    with pytest.raises(SourceError, match="not RLDS: steps lack is_first"):
        planned([Episode({"a": np.zeros(3)})], name)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, episodes: list[Episode]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be made"):
        convert(episodes, f"tfds:{tmp_path / 'file' / 'my_set'}")


_CONVERT = """
import sys
from rlds2reverb.formats import converting
converting.SYNC_SECONDS = 0.0
from rlds2reverb.conversion.convert import convert
convert("bundled:half_cheetah@" + "+".join(["train"] * 30), sys.argv[1])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_it_goes_on_after_a_kill(name: str) -> None:
    destination = open_destination(name)
    source = "bundled:half_cheetah@" + "+".join(["train"] * 30)
    progress = destination.path.parent / f"{place.PREFIX}{destination.path.name}" / "progress.json"
    with subprocess.Popen([sys.executable, "-c", _CONVERT, name], env=dict(os.environ)) as process:
        while not progress.exists() and process.poll() is None:
            time.sleep(0.001)
        process.kill()
    assert convert(source, name, verify=True).verified == 120


class Killed(BaseException):
    pass


def kill(*_: Any, **__: Any) -> None:
    raise Killed


def killed_at(what: str, episodes: Any, name: str, **options: Any) -> None:
    """A conversion that ends before a method of `Place` does anything."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(place.Place, what, kill)
        with pytest.raises(Killed):
            convert(episodes, name, **options)


def test_what_another_one_left_at_the_end_is_not_taken_for_this_one(name: str, episodes: list[Episode]) -> None:
    convert(episodes[:1], name)
    killed_at("discard", episodes[:2], name, overwrite=True)
    with pytest.raises(ConfigError, match="is there already"):
        convert(episodes, name)
    assert len(back(name)) == 2
    killed_at("discard", episodes[:3], name, overwrite=True)
    report = convert(episodes, name, overwrite=True, verify=True)
    assert report.episodes_written == report.verified == len(back(name)) == 4
    assert [path.name for path in open_destination(name).path.parent.iterdir()] == ["1.0.0"]


def test_what_is_at_its_place_is_verified_where_that_is_asked_for_later(name: str, episodes: list[Episode]) -> None:
    killed_at("discard", episodes, name)
    assert convert(episodes, name, verify=True).verified == 4
    killed_at("discard", episodes, name, overwrite=True)
    (open_destination(name).path / "dataset_info.json").unlink()
    with pytest.raises(SourceError):
        convert(episodes, name, overwrite=True, verify=True)


def test_what_was_put_aside_comes_back_when_its_successor_does_not_come(
    name: str, episodes: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(episodes[:1], name)
    renames = []

    def rename(self: Path, target: Path) -> Path:
        renames.append(self)
        if len(renames) == 2:
            raise Killed
        return self.replace(target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            convert(episodes, name, overwrite=True)
    assert not open_destination(name).path.exists()
    with pytest.raises(SourceError):
        convert(Stopping(episodes, 0), name, restart=True, overwrite=True)
    assert len(back(name)) == 1
    assert [path.name for path in open_destination(name).path.parent.iterdir()] == ["1.0.0"]


@pytest.mark.parametrize("left", [(), ("lock",), ("lock", "data")])
def test_a_folder_without_progress_is_no_conversion(name: str, episodes: list[Episode], left: tuple[str, ...]) -> None:
    path = convert(episodes, name).path
    folder = Path(path).parent / f"{place.PREFIX}{Path(path).name}"
    folder.mkdir()
    for left_name in left:
        (folder / left_name).mkdir() if left_name == "data" else (folder / left_name).touch()
    with pytest.raises(ConfigError, match="is there already"):
        convert(episodes, name)
    assert not folder.exists()


def test_a_result_that_was_taken_away_is_written_again(name: str, episodes: list[Episode]) -> None:
    killed_at("discard", episodes, name)
    path = open_destination(name).path
    path.rename(path.with_name("elsewhere"))
    assert convert(episodes, name, verify=True).verified == 4


def test_others_episodes_in_the_middle_are_another_source(name: str) -> None:
    """Of one name, with as many episodes and the same first one."""
    many = [data.episode(number) for number in range(8)]
    with pytest.raises(SourceError, match="stopped"):
        convert(Stopping(many, 4), name)
    other = [*many[:2], *reversed(many[2:])]
    with pytest.raises(ConfigError, match=r"another source: the last episode that was read.*--restart"):
        convert(Stopping(other, -1), name)
    assert convert(Stopping(many, -1), name, verify=True).episodes_resumed == 4


@pytest.mark.parametrize(("one", "other"), [("seed=4", "seed=5"), ("weights=1+1", "weights=1+2")])
def test_another_order_of_a_mix_is_another_source(
    name: str, one: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = "mix:bundled:cartpole@train[:2]|bundled:cartpole@train[2:]|?"
    killed_at("publish", parts + one, name)
    with pytest.raises(ConfigError, match="another source"):
        convert(parts + other, name)
    assert convert(parts + one, name).episodes_resumed


def test_a_source_that_was_moved_is_the_same_one(name: str, tmp_path: Path) -> None:
    folders = [tmp_path / "here" / "own", tmp_path / "there" / "own"]
    convert("bundled:cartpole", f"tfds:{folders[0]}")
    killed_at("publish", f"tfds:{folders[0]}/1.0.0", name)
    folders[0].parent.rename(folders[1].parent)
    assert convert(f"tfds:{folders[1]}/1.0.0", name).episodes_resumed


def test_states_are_put_on_disk_with_the_names_of_their_files(
    name: str, episodes: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files, "sync", lambda path: synced.append(path.name))
    convert(episodes, name)
    at = synced.index(".progress.json.unfinished")
    assert synced[at + 1] == f"{place.PREFIX}1.0.0"


def test_how_much_is_kept_is_told(name: str, episodes: list[Episode], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError) as caught:
        convert(Stopping(episodes, 3), name)
    assert vars(caught.value)["report"].episodes_kept == 3
    with pytest.raises(SourceError) as caught:
        convert(Stopping(episodes, 3), name)
    assert vars(caught.value)["report"].episodes_kept == 3
    assert convert(Stopping(episodes, -1), name).episodes_kept == 0
    monkeypatch.setattr(engine, "SYNC_SECONDS", 60.0)
    with pytest.raises(SourceError) as caught:
        convert(Stopping(episodes, 3), name, overwrite=True)
    assert vars(caught.value)["report"].episodes_kept == 0


@pytest.mark.parametrize("to", ["tfds:{}/own", "minari:{}/own-v0", "ted:{}/own.h5", "ilr:{}/own", "lerobot:{}/own"])
def test_episodes_of_rllibs_new_stack_go_to_every_format(to: str, tmp_path: Path) -> None:
    name = f"rllib:{ROOT / 'tests' / 'data' / 'rllib' / 'episodes'}"
    written = to.format(tmp_path)
    assert convert(name, written, verify=True).episodes_written == 2
    if to.startswith("tfds"):
        infos = [episode.columns["infos"].tolist() for episode in open_source(name)]
        others = [episode.columns["infos"].tolist() for episode in back(written)]
        assert others == infos
        assert {type(text) for some in others for text in some} == {bytes}
