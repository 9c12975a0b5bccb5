"""The policy raises, skips, quarantines, mends or tolerates as it is told, and counts every episode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.errors import ConfigError, EpisodeProblem, InvalidEpisode, ViewError, WriteError
from rlds2reverb.prepare.checks import find_problems
from rlds2reverb.prepare.policy import ACTIONS, Policy
from rlds2reverb.prepare.problems import CODES, Problem
from rlds2reverb.prepare.standard import Standard
from tests.support.disks import fill, small_disk_at
from tests.support.prepare import faults

FAULTS = st.lists(st.sampled_from(sorted(faults.SPOILERS)), max_size=3, unique=True)
EPISODES = st.lists(st.tuples(FAULTS, st.booleans()), max_size=6)
SPEC = faults.spec(faults.good(np.random.default_rng(0), 6))
STANDARD = Standard(SPEC)


def an_episode(names: tuple[Any, ...] | list[str] = (), terminal: bool = True, seed: int = 0) -> Episode:
    rng = np.random.default_rng(seed)
    chosen = [name for name in names if terminal or not faults.SPOILERS[name].needs_terminal]
    return faults.spoiled(rng, faults.good(rng, 7, terminal), chosen)[0]


class Verdict(NamedTuple):
    episode: Episode | None
    mended: tuple[Problem, ...]


def judge(policy: Policy, episode: Episode, standard: Standard = STANDARD) -> Verdict:
    """What becomes of an episode by itself."""
    filled, problems, mended = policy.examine(episode, standard)
    return Verdict(filled if policy.accepts(episode, problems, mended) else None, mended)


def codes(problems: Sequence[EpisodeProblem]) -> list[str]:
    return [problem.code for problem in problems]


def bad_codes(episode: Episode, strict: bool = False, allow: tuple[Any, ...] | set[str] = ()) -> list[str]:
    problems = find_problems(episode, SPEC)
    return [problem.code for problem in problems if problem.code not in allow and (strict or not problem.is_advice)]


def lines(path: Path) -> list[dict[str, str | None]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


class TestRaise:
    def test_is_the_default(self) -> None:
        with pytest.raises(InvalidEpisode):
            judge(Policy(), an_episode(["nan"]))

    def test_carries_every_problem_but_advice(self) -> None:
        with pytest.raises(InvalidEpisode) as error:
            judge(Policy("raise"), an_episode(["infinite", "last_reward", "first_missing", "nan"]))
        assert codes(error.value.problems) == ["first_missing", "nan", "infinite"]
        assert error.value.episode_id == "good"

    def test_lets_a_good_episode_through_as_it_is(self) -> None:
        episode, policy = an_episode(), Policy("raise")
        verdict = judge(policy, episode)
        assert verdict.episode is episode
        assert verdict.mended == ()
        assert not policy.rejected
        assert not policy.advice
        assert not policy.repaired

    def test_lets_advice_through_and_counts_it(self) -> None:
        policy = Policy()
        episode = an_episode(["last_reward", "terminal_discount"])
        verdict = judge(policy, episode)
        assert verdict.episode is episode
        assert policy.advice == {"last_reward": 1, "terminal_discount": 1}


class TestSkip:
    @settings(max_examples=40)
    @given(EPISODES, st.booleans(), st.sets(st.sampled_from(["nan", "shape", "last_reward", "first_missing"])))
    def test_judges_each_episode_by_its_problems_and_counts_it_once(
        self, described: list[tuple[list[str], bool]], strict: bool, allow: set[str]
    ) -> None:
        policy = Policy("skip", strict=strict, allow=tuple(allow))
        kept, rejected = 0, []
        for seed, (names, terminal) in enumerate(described):
            episode = an_episode(names, terminal, seed)
            bad = bad_codes(episode, strict, allow)
            verdict = judge(policy, episode)
            assert verdict.episode is (None if bad else episode)
            kept += verdict.episode is not None
            rejected += bad[:1]
        assert kept + sum(policy.rejected.values()) == len(described)
        assert dict(policy.rejected) == {code: rejected.count(code) for code in rejected}

    def test_counts_a_rejected_episode_under_its_first_problem_and_none_of_its_advice(self) -> None:
        policy = Policy("skip")
        judge(policy, an_episode(["nan", "first_missing", "last_reward"]))
        assert dict(policy.rejected) == {"first_missing": 1}
        assert not policy.advice


class TestStrict:
    def test_rejects_advice(self) -> None:
        with pytest.raises(InvalidEpisode) as error:
            judge(Policy(strict=True), an_episode(["last_reward"]))
        assert codes(error.value.problems) == ["last_reward"]

    def test_tolerates_what_is_allowed(self) -> None:
        policy = Policy(strict=True, allow=("last_reward",))
        episode = an_episode(["last_reward"])
        verdict = judge(policy, episode)
        assert verdict.episode is episode
        assert not policy.advice


class TestAllow:
    @pytest.mark.parametrize("name", ["nan", "first_inside", "discount_range", "missing_column", "extra_column"])
    def test_lets_an_episode_through_whose_problems_are_all_tolerated(self, name: str) -> None:
        episode = an_episode([name])
        assert judge(Policy(allow=(name, "infinite")), episode).episode is episode
        with pytest.raises(InvalidEpisode):
            judge(Policy(allow=("infinite",)), episode)

    def test_does_not_hide_another_problem(self) -> None:
        with pytest.raises(InvalidEpisode) as error:
            judge(Policy(allow=("nan",)), an_episode(["nan", "infinite"]))
        assert codes(error.value.problems) == ["infinite"]

    @pytest.mark.parametrize("code", ["no_steps", "unequal_lengths", "flag_dtype"])
    def test_refuses_what_no_view_can_cut(self, code: str) -> None:
        with pytest.raises(
            ConfigError, match=rf"allow \(--allow\): {code} cannot be tolerated: no view can cut such an episode"
        ):
            Policy(allow=("nan", code))


class TestQuarantine:
    @settings(max_examples=40)
    @given(EPISODES)
    def test_writes_a_line_for_every_problem_of_a_rejected_episode(
        self, tmp_path_factory: pytest.TempPathFactory, described: list[tuple[list[str], bool]]
    ) -> None:
        path = tmp_path_factory.mktemp("quarantine") / "bad.jsonl"
        policy = Policy("quarantine", path)
        expected = []
        for seed, (names, terminal) in enumerate(described):
            episode = an_episode(names, terminal, seed)
            problems = [problem for problem in find_problems(episode, SPEC) if not problem.is_advice]
            verdict = judge(policy, episode)
            assert verdict.episode is (None if problems else episode)
            expected += [
                {
                    "episode": "good",
                    "episode_id": None,
                    "code": problem.code,
                    "path": problem.path,
                    "detail": problem.detail,
                }
                for problem in problems
            ]
        assert lines(path) == expected
        assert sum(policy.rejected.values()) == sum(
            bool(bad_codes(an_episode(names, terminal, seed))) for seed, (names, terminal) in enumerate(described)
        )

    def test_names_the_episode_as_the_dataset_does_too(self, tmp_path: Path) -> None:
        named = replace(an_episode(["nan"]), metadata={"episode_metadata/episode_id": np.int64(71)})
        judge(Policy("quarantine", tmp_path / "bad.jsonl"), named)
        assert [(line["episode"], line["episode_id"]) for line in lines(tmp_path / "bad.jsonl")] == [("good", "71")]
        with pytest.raises(InvalidEpisode, match=r"^episode good \(episode_id 71\): nan: ") as error:
            judge(Policy(), named)
        assert error.value.episode_id == "good"

    def test_appends_to_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.jsonl"
        for _ in range(2):
            judge(Policy("quarantine", str(path)), an_episode(["nan"]))
        assert [line["code"] for line in lines(path)] == ["nan", "nan"]

    def test_writes_no_file_when_nothing_is_bad(self, tmp_path: Path) -> None:
        judge(Policy("quarantine", tmp_path / "bad.jsonl"), an_episode())
        assert not (tmp_path / "bad.jsonl").exists()

    def test_writes_text_as_it_is(self, tmp_path: Path) -> None:
        policy = Policy("quarantine", tmp_path / "bad.jsonl")
        policy.reject(an_episode(), [Problem("no_items", "größe", "日本\nx")])
        text = (tmp_path / "bad.jsonl").read_text(encoding="utf-8")
        assert '"größe"' in text
        assert text.count("\n") == 1
        assert lines(tmp_path / "bad.jsonl")[0]["detail"] == "日本\nx"


class TestRepair:
    @pytest.mark.parametrize("name", ["first_missing", "last_missing", "terminal_discount"])
    def test_mends_and_counts(self, name: str) -> None:
        policy = Policy("repair")
        verdict = judge(policy, an_episode([name]))
        good = an_episode()
        assert verdict.episode is not None
        assert all(np.array_equal(verdict.episode.columns[path], column) for path, column in good.columns.items())
        assert codes(verdict.mended) == [name]
        assert dict(policy.repaired) == {name: 1}
        assert not policy.rejected

    def test_raises_for_the_rest_and_tells_only_what_is_left(self) -> None:
        policy = Policy("repair")
        with pytest.raises(InvalidEpisode) as error:
            judge(policy, an_episode(["first_missing", "nan"]))
        assert codes(error.value.problems) == ["nan"]
        assert not policy.repaired

    def test_mends_a_flags_dtype_first_and_then_what_it_says(self) -> None:
        good = an_episode()
        flags = np.zeros((7, 1), np.uint8)
        bad = good.with_columns(is_first=flags, is_last=flags, is_terminal=good.columns["is_terminal"].astype(np.int8))
        bad = bad.with_columns(discount=np.ones(7, np.float32))
        policy = Policy("repair")
        verdict = judge(policy, bad)
        assert verdict.episode is not None
        assert find_problems(verdict.episode, SPEC) == []
        assert verdict.episode.columns["is_first"].tolist() == [True] + [False] * 6
        assert verdict.episode.columns["is_last"].tolist() == [False] * 6 + [True]

    def test_accepts_flags_that_the_whole_dataset_has_as_numbers(self) -> None:
        good = an_episode()
        as_numbers = {
            name: good.columns[name].astype(np.uint8)[:, None] for name in ("is_first", "is_last", "is_terminal")
        }
        bad = good.with_columns(**as_numbers)
        policy = Policy("repair")
        assert codes(judge(policy, bad, Standard(faults.spec(bad))).mended) == ["flag_dtype"] * 3
        assert not policy.advice

    def test_leaves_advice_that_it_cannot_mend(self) -> None:
        policy = Policy("repair")
        verdict = judge(policy, an_episode(["last_reward", "terminal_discount"]))
        assert (policy.advice, codes(verdict.mended)) == ({"last_reward": 1}, ["terminal_discount"])


class TestRejectionByOthers:
    PROBLEMS = (Problem("no_items", "", "too short"), Problem("first_reward_lost", "reward", "lost"))

    @pytest.mark.parametrize("action", ["raise", "repair"])
    def test_raises(self, action: str) -> None:
        policy = Policy(action)
        with pytest.raises(InvalidEpisode) as error:
            policy.reject(an_episode(), self.PROBLEMS)
        assert error.value.problems == self.PROBLEMS
        assert policy.rejected == {"no_items": 1}

    def test_is_counted_once(self) -> None:
        policy = Policy("skip")
        policy.reject(an_episode(), self.PROBLEMS)
        assert dict(policy.rejected) == {"no_items": 1}

    def test_does_not_raise_for_what_is_tolerated(self) -> None:
        policy = Policy("raise", allow=("no_items",))
        policy.reject(an_episode(), self.PROBLEMS[:1])
        assert dict(policy.rejected) == {"no_items": 1}
        with pytest.raises(InvalidEpisode):
            policy.reject(an_episode(), self.PROBLEMS)


class TestWhatAViewRefuses:
    ERROR = ViewError("too long")

    @pytest.mark.parametrize("action", ["raise", "repair"])
    def test_raises_and_names_the_episode(self, action: str) -> None:
        policy = Policy(action)
        with pytest.raises(ViewError, match=r"^episode good: too long$") as caught:
            policy.reject_refused(an_episode(), self.ERROR)
        assert caught.value.__cause__ is self.ERROR
        assert policy.rejected == {"view_refused": 1}

    def test_is_rejected_like_any_other(self, tmp_path: Path) -> None:
        policy = Policy("quarantine", tmp_path / "bad.jsonl")
        assert policy.reject_refused(an_episode(), self.ERROR).code == "view_refused"
        assert policy.rejected == {"view_refused": 1}
        assert [(line["code"], line["detail"]) for line in lines(tmp_path / "bad.jsonl")] == [
            ("view_refused", "too long")
        ]

    def test_ends_the_push_under_any_policy_when_it_is_asked_to(self) -> None:
        policy = Policy("skip")
        with pytest.raises(ViewError, match=r"^episode good: too long$"):
            policy.reject_refused(an_episode(), self.ERROR, must_stop=True)
        assert policy.rejected == {"view_refused": 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "drop"}, r'on_invalid \(--on-invalid\) "drop": expected one of raise, skip, quarantine, repair'),
        ({"action": "quarantine"}, "give both or neither"),
        ({"action": "skip", "quarantine": "bad.jsonl"}, "give both or neither"),
        (
            {"allow": ("nan", "nonsense", "bad")},
            r"allow \(--allow\): unknown code bad, nonsense; known: .*single_step",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Policy(**arguments)


def test_the_actions_are_those_documented() -> None:
    assert ACTIONS == ("raise", "skip", "quarantine", "repair")
    assert all(f'"{action}"' in str(Policy.__doc__) for action in ACTIONS)


def test_every_code_that_a_view_can_cut_can_be_tolerated() -> None:
    never = ("no_steps", "unequal_lengths", "flag_dtype", "unreadable", "untransformed", "view_refused")
    tolerated = [code for code in CODES if code not in never]
    Policy(allow=tuple(tolerated))


def test_a_full_disk_names_the_report_and_leaves_whole_lines(tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "disk", 1 << 20) as disk:
        report = disk / "bad.jsonl"
        policy = Policy("quarantine", report)
        fill(disk, 8192)
        with pytest.raises(
            WriteError,
            match=r"quarantine file .*bad\.jsonl: cannot be written: No space.* of episode good are not in it",
        ):
            while True:
                judge(policy, an_episode(["nan", "infinite", "first_missing"]))
        assert len(lines(report)) % 3 == 0
        fill(disk, 65536)
        judge(policy, an_episode(["nan"]))
        assert lines(report)[-1]["code"] == "nan"
