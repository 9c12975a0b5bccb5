"""What a push does with ends that are not the episodes' own, and with what a source tells of itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2reverb import Episode
from rlds2reverb.episode import Notice, note
from rlds2reverb.errors import InvalidEpisode, SourceError
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.push.plan import PushPlan
from tests.support.push.in_memory import Server, planned, push
from tests.unit.prepare.test_endings import episode_of, poisoned, walk

LOST = Notice("lost_records", "train-00001.parquet holds 100 episodes of 150", 50)


def d4rl(count: int = 6) -> list[Episode]:
    episodes = poisoned(np.random.default_rng(0), count)
    return [episode.with_columns(discount=np.ones(len(episode), np.float32)) for episode in episodes]


def transitions(source: list[Episode]) -> int:
    return sum(len(episode) - 1 for episode in source)


class Telling(EpisodeList):
    """A list that knows something of itself; more once it has been read."""

    notices: tuple[Notice, ...] = ()

    def __init__(self, episodes: list[Episode], *notices: Notice) -> None:
        super().__init__(episodes, "telling")
        self.notices = notices

    def __iter__(self) -> Iterator[Episode]:
        yield from super().__iter__()
        self.notices += (Notice("lost_records", "and more at the end"),)


class TestASharedEnd:
    def test_is_refused_before_anything_is_stored(self) -> None:
        server = Server()
        with pytest.raises(InvalidEpisode, match="last_observation_shared") as error:
            push(server, d4rl())
        assert server.items == {}
        assert error.value.report is not None
        assert error.value.report.rejected == {"last_observation_shared": 1}

    def test_can_be_tolerated_left_out_or_repaired_no_other_way(self) -> None:
        source, server = d4rl(), Server()
        assert push(server, source, allow=("last_observation_shared",)).items_confirmed == transitions(source)
        assert push(Server(), source, on_invalid="skip").rejected == {"last_observation_shared": len(source)}
        with pytest.raises(InvalidEpisode, match="last_observation_shared"):
            push(Server(), source, on_invalid="repair")

    @pytest.mark.parametrize(("choice", "lost"), [("repeat", 0), ("drop", 1)])
    def test_is_done_without_on_request_and_counted(self, choice: str, lost: int) -> None:
        source, server = d4rl(), Server()
        report = push(server, source, last_observation=choice)
        assert report.items_confirmed == transitions(source) - lost * len(source)
        assert (report.ends_mended, report.rejected, report.advice) == (len(source), {}, {})
        again = push(server, source, last_observation=choice)
        assert again.items_new == 0
        assert push(server, source, allow=("last_observation_shared",)).items_new == transitions(source)

    def test_is_written_down_for_every_episode_in_quarantine(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        push(Server(), d4rl(), on_invalid="quarantine", quarantine=path)
        assert path.read_text().count("last_observation_shared") == 6

    def test_counts_for_episodes_that_the_ledger_has(self, tmp_path: Path) -> None:
        """Those that were resumed are known by their ends, too."""
        source, server, ledger = d4rl(8), Server(), tmp_path / "ledger.db"
        assert push(server, source[:2], ledger=ledger).episodes_pushed == 2  # two do not show it
        report = push(server, source, ledger=ledger, on_invalid="skip")
        assert (report.episodes_resumed, report.rejected) == (2, {"last_observation_shared": 6})

    def test_of_a_shard_is_seen_by_its_own_episodes_only(self) -> None:
        shard = EpisodeList(d4rl(6)).shard(0, 3)
        assert push(Server(), list(shard)).rejected == {}

    def test_an_episode_of_which_dropping_leaves_nothing_is_told(self) -> None:
        short = episode_of(walk(np.random.default_rng(0), 2), "short")
        with pytest.raises(InvalidEpisode, match="no_items: two_step makes no item of 1 step"):
            push(Server(), [short], last_observation="drop")


class TestRemarks:
    def test_are_in_the_plan_and_in_the_report(self) -> None:
        source = Telling([episode_of(walk(np.random.default_rng(0), 9))], LOST)
        assert planned(Server(), source).as_dict()["notices"] == [
            {"code": "lost_records", "text": LOST.text, "count": 50, "path": "", "is_note": False}
        ]
        assert [remark.text for remark in push(Server(), source).notices] == [LOST.text, "and more at the end"]

    def test_are_those_of_the_columns_too(self) -> None:
        rng = np.random.default_rng(0)
        source = [episode_of(walk(rng, 20).astype(np.float64), f"{number}") for number in range(3)]
        (remark,) = push(Server(), source).notices
        assert (remark.code, remark.path) == ("rounded_float64", "observation")
        assert str(remark).startswith('rounded_float64: column "observation": every value of ')

    def test_stop_a_strict_push_unless_they_are_tolerated(self) -> None:
        source: Any = Telling([episode_of(walk(np.random.default_rng(0), 9))], LOST)
        with pytest.raises(
            SourceError, match=r"telling: lost_records: .*; tolerate .* \(--allow lost_records\), or leave out strict"
        ):
            planned(Server(), source, strict=True)
        assert isinstance(planned(Server(), source, strict=True, allow=("lost_records",)), PushPlan)

    def test_that_are_notes_stop_no_strict_push(self) -> None:
        source: Any = Telling([episode_of(walk(np.random.default_rng(0), 9))], note("last_step", "it is repeated"))
        assert [remark.line for remark in planned(Server(), source, strict=True).notices] == [
            "note last_step: it is repeated"
        ]

    def test_of_the_first_episodes_are_those_of_the_source_and_others_have_none(self) -> None:
        source = Telling([], LOST)
        assert source.first(3).notices == (LOST,)
        assert EpisodeList([]).first(3).notices == EpisodeList([]).notices == ()
