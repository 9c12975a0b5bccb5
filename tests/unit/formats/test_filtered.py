"""What is left of a source when rules took out episodes and rows, against a slow reference; any rules, any reading."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb import Episode
from rlds2reverb.episode import Array, KnownEpisode
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.filtered import Filtered, Rule, filtered
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.source import LeftOut, Source, as_source
from tests.support import strategies
from tests.unit.formats.tfds.test_read import write

EPISODES = [
    strategies.episode(np.random.default_rng(number), 3 + number % 4, episode_id=f"e{number}") for number in range(9)
]
ROWS = [len(episode) for episode in EPISODES]


class Plain:
    """A source that offers no more than it must."""

    name = "plain"

    def __iter__(self) -> Any:
        return iter(EPISODES)

    def spec(self) -> Any:
        return EpisodeList(EPISODES).spec()


@dataclass(frozen=True)
class Table(Rule):
    """A rule that says of each episode, by its place among the names, what it keeps."""

    verdicts: tuple[Any, ...]
    names: tuple[str, ...]
    written: str = "table"

    @property
    def text(self) -> str:
        return self.written

    @property
    def needs_names(self) -> bool:
        return True

    def columns(self, source: Source) -> tuple[str, ...]:
        return ()

    def judge(self, episode: Episode) -> bool | Array:
        verdict = self.verdicts[self.names.index(episode.id)]
        return verdict if isinstance(verdict, bool) else np.array(verdict, bool)


def tables(rows: list[int]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """One or two tables of verdicts."""
    verdict = [st.booleans() | st.lists(st.booleans(), min_size=count, max_size=count) for count in rows]
    return st.lists(st.tuples(*verdict), min_size=1, max_size=2)


def reference(episodes: list[Episode], rules: list[tuple[Any, ...]]) -> list[tuple[str, dict[str, list[Any]]]]:
    """Name and columns of all that is left, row by row."""
    left = []
    for number, episode in enumerate(episodes):
        kept = [
            all(rule[number] if isinstance(rule[number], bool) else rule[number][row] for rule in rules)
            for row in range(len(episode))
        ]
        row = 0
        while row < len(kept):
            if not kept[row]:
                row += 1
                continue
            start = row
            while row < len(kept) and kept[row]:
                row += 1
            columns = {path: column[start:row].tolist() for path, column in episode.columns.items()}
            if row - start == 1 < len(kept):  # a single row between gaps holds no transition
                continue
            columns["is_first"][0] = columns["is_last"][-1] = True
            name = (
                episode.id
                if row - start == len(kept)
                else f"{episode.id}[{start or ''}:{row if row < len(kept) else ''}]"
            )
            left.append((name, columns))
    return left


def contents(source: Any) -> list[tuple[str, dict[str, list[Any]]]]:
    return [
        (read_episode.id, {path: column.tolist() for path, column in read_episode.columns.items()})
        for read_episode in source
    ]


def rules_of(rules: list[tuple[Any, ...]], names: list[str]) -> list[Table]:
    return [Table(rule, tuple(names), f"rule {number}") for number, rule in enumerate(rules)]


@given(tables(ROWS), st.integers(0, 12), st.integers(0, 12), st.sets(st.integers(0, 12)), st.booleans())
def test_a_filtered_source_is_the_runs_that_are_left(
    rules: list[tuple[Any, ...]], start: int, length: int, known: set[int], is_plain: bool
) -> None:
    whole = reference(EPISODES, rules)
    inner = as_source(Plain()) if is_plain else EpisodeList(EPISODES)
    source = filtered(inner, rules_of(rules, [episode.id for episode in EPISODES]))
    if not whole:
        with pytest.raises(SourceError, match="nothing is left of 9 episodes, expected at least one: rule 0 takes out"):
            list(source)
        return
    stop = start + length
    assert contents(source) == whole
    assert contents(source.slice(start, stop)) == whole[start:stop]
    assert contents(source.shard(1, 2)) == whole[1::2]
    assert source.episode_count == len(whole)
    assert list(source.episode_lengths() or ()) == [len(columns["is_first"]) for _, columns in whole]
    known_names = {whole[place][0] for place in known if place < len(whole)}
    asked: list[str] = []

    def is_known(name: str) -> bool:
        asked.append(name)
        return name in known_names

    read = list(source.read(start, stop, is_known))
    assert asked == [name for name, _ in whole[start:stop]]
    assert [read_episode.id for read_episode in read] == asked
    assert [isinstance(read_episode, KnownEpisode) for read_episode in read] == [name in known_names for name in asked]
    if source.has_random_access:
        numbers = sorted({start % len(whole), stop % len(whole)})
        assert contents(dict(sorted(source.at(numbers)))[number] for number in numbers) == [whole[n] for n in numbers]
    without = source.without(["reward"])
    assert contents(without) == [
        (name, {path: column for path, column in columns.items() if path != "reward"}) for name, columns in whole
    ]


@given(tables(ROWS))
def test_what_is_left_out_is_counted_by_the_first_rule_that_takes_it(rules: list[tuple[Any, ...]]) -> None:
    counts = {f"rule {number}": LeftOut() for number in range(len(rules))}
    for number, rows in enumerate(ROWS):
        kept, is_emptied = [True] * rows, False
        for place, rule in enumerate(rules):
            verdict, count = rule[number], counts[f"rule {place}"]
            before = sum(kept)
            kept = [was and (verdict if isinstance(verdict, bool) else verdict[row]) for row, was in enumerate(kept)]
            count.steps += before - sum(kept)
            if not any(kept):
                is_emptied = True
                count.episodes += isinstance(verdict, bool)
                count.emptied += not isinstance(verdict, bool)
                break
        if not is_emptied and not all(kept):
            edges = "".join("x" if is_kept else " " for is_kept in kept).split()
            single = edges.count("x")
            count = counts.setdefault("single rows", LeftOut()) if single else LeftOut()
            count.steps += single
            count.emptied += len(edges) == single
    if not reference(EPISODES, rules):
        return
    source = filtered(EpisodeList(EPISODES), rules_of(rules, [episode.id for episode in EPISODES]))
    assert source.filtered == {}
    list(source)
    assert source.filtered == counts
    assert source.first(1).filtered == counts


@given(st.data())
def test_records_of_tfds_are_picked_by_their_place(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any))
    source = open_source(f"tfds:{write(tmp_path_factory.mktemp('x'), train=lengths)}")
    episodes = list(source)
    kept = data.draw(st.lists(st.booleans(), min_size=len(episodes), max_size=len(episodes)).filter(any))
    numbers = [number for number, is_kept in enumerate(kept) if is_kept]
    whole = contents(episodes[number] for number in numbers)
    picked = source.pick(numbers)
    assert contents(picked) == whole
    assert [number for number, _ in sorted(picked.at(range(len(numbers))), key=lambda pair: pair[0])] == [
        *range(len(numbers))
    ]
    assert picked.episode_lengths() == [len(episodes[number]) for number in numbers]


def test_a_run_of_what_fails_later_has_the_name_that_it_was_asked_by() -> None:
    table = Table(([True, True, False],), ("e0",))
    source = filtered(EpisodeList(EPISODES[:1]), [table])
    list(source)
    failed = replace(EPISODES[0], columns={}, faults=(("action", "cannot be read"),))
    (run,) = Filtered(EpisodeList([failed]), [table], judging=source._judging)  # type: ignore[attr-defined]
    assert (run.id, run.faults) == ("e0[:2]", failed.faults)


def test_columns_of_unequal_length_are_left_to_validation() -> None:
    uneven = EPISODES[0].with_columns(reward=np.zeros(2, np.float32))
    names = tuple(episode.id for episode in EPISODES)
    rule = Table(tuple([row != 2 for row in range(rows)] for rows in ROWS), names)

    class Whole(Table):
        def columns(self, source: Source) -> None:  # type: ignore[override]
            return None

    for chosen in (rule, Whole(rule.verdicts, names)):  # judged without the short column, and with it
        first = next(iter(filtered(EpisodeList([uneven, *EPISODES[1:]]), [chosen])))
        assert [len(first.columns[path]) for path in ("action", "reward")] == [3, 2]


@pytest.mark.parametrize("verdict", [True, False, []])
def test_an_episode_without_rows_is_kept_or_counted(verdict: Any) -> None:
    empty = replace(EPISODES[0], columns={path: column[:0] for path, column in EPISODES[0].columns.items()})
    source = filtered(EpisodeList([empty, EPISODES[1]]), [Table((verdict, True), ("e0", "e1"))])
    assert [len(episode) for episode in source] == [0, ROWS[1]][verdict is False :]
    assert source.filtered["table"] == LeftOut(episodes=int(verdict is False))


def test_an_episode_with_faults_is_left_to_validation() -> None:
    bad = replace(EPISODES[0], columns={}, faults=(("action", "cannot be read"),))
    rules = [Table((False,) * len(EPISODES), tuple(episode.id for episode in EPISODES))]
    source = Filtered(EpisodeList([bad, *EPISODES[1:]]), rules)
    (episode,) = source
    assert episode.faults == bad.faults
    assert source.filtered["table"].episodes == len(EPISODES) - 1
