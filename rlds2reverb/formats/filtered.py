"""A source without the episodes and rows that rules take out (`Filtered`), which sees what it is to leave out once, before anything is read.

Rules judge the episodes as they are recorded, before any transform. That is one pass over the columns that the rules look at, and no other, when
the number of episodes is asked for, or the first of them. From then on the source has a known number of episodes with known lengths, and what was
taken out is counted by rule. So plans, workers, shards, random access and states of a reading need to know nothing of filters.

Rows that are taken out of the middle of an episode leave a gap. The rows before and behind it are read as episodes of their own, its runs: the
first row of each is first, its last row is last. A gap is thereby the end of an episode to all that comes after, to views, formats and statistics
alike, and no item spans it. Of a run that ends in a gap the last row has a recorded action; by RLDS' convention it has no meaning, as any last row's. So a single row between two
gaps holds no transition, and goes (`SINGLE_ROWS`).

| an episode | its name |
| --- | --- |
| with all its rows | as it was |
| the rows from 12 to 79 of it | its name with `[12:80]` behind it; `[:80]` and `[12:]` where they begin or end with the episode |

So what a filter leaves alone keeps its items' keys, and rows that two filters leave alike have the same keys under both.
An episode with faults is judged by validation, and not by rules: it is kept, so that it is not lost without a word.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.episode import IS_FIRST, IS_LAST, Array, Episode, EpisodeCut, KnownEpisode, Notice, name_of_rows, note
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.source import Finding, IsKnown, LeftOut, Source, Wrapper, add_left_out, columns_of
from rlds2reverb.text import counted, shortened

SINGLE_ROWS = "single rows"
"""What rows are counted below that rules leave between two gaps."""


class Rule(ABC):
    """What decides about episodes, and rows of them."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What reports call it."""

    @property
    def label(self) -> str:
        """Where it is equal, so is what is left."""
        return self.text

    @property
    def needs_names(self) -> bool:
        """Whether it looks at `Episode.id`, which some formats make of all columns."""
        return False

    @property
    def mentions(self) -> Collection[str]:
        """Names or keys of single episodes that it was given: those of no episode are told."""
        return ()

    def names_of(self, episode: Episode) -> Collection[str]:
        """What `mentions` may call an episode."""
        return ()

    @abstractmethod
    def columns(self, source: Source) -> Collection[str] | None:
        """Paths of the step columns that it looks at; None for all.

        Raises:
          SourceError: the source has not what it looks at.
        """

    @abstractmethod
    def judge(self, episode: Episode) -> bool | Array:
        """Whether to keep an episode; or [rows] bool, which rows of it."""


class Rules(tuple[Rule, ...]):
    """The rules of one reading, in the order in which they judge; what one takes out, those behind it do not see.

    A worker gets them with what they have found out already, and with what rules in names have (`share_findings`), so that it need not read the
    source for it again.

    Attributes:
      found: `Finding.key` -> what was found out, in this process.
      known: the same, what came with the rules from another process.
    """

    def __init__(self, _: Iterable[Rule] = ()) -> None:
        self.found: dict[Hashable, Any] = {}
        self.known: Mapping[Hashable, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Rules, (tuple(self),), {"known": self.all}

    @property
    def all(self) -> dict[Hashable, Any]:
        """What was found out anywhere."""
        return {**self.known, **self.found}


def share_findings(source: Source, rules: Rules) -> None:
    """Has what is found out about a source by its name, such as the verdicts of a split in it, go to workers with these rules, and come with them."""
    for finding in source.findings:
        finding.share_with(rules)


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What rules leave of a source, run by run.

    Attributes:
      numbers: [runs] int64, the number of each one's episode in the source, ascending.
      starts, stops: [runs] int64, its rows in the episode.
      rows: [runs] int64, of the whole episode.
      left_out: rule -> what it takes out.
      unmet: rule -> those that it `mentions` and that are of no episode, sorted.
    """

    numbers: Array
    starts: Array
    stops: Array
    rows: Array
    left_out: Mapping[str, LeftOut]
    unmet: Mapping[str, tuple[str, ...]]


class Judging(Finding[Verdicts]):
    """The verdicts of rules about a source, which all sources share that are made of it. It is read when they are first asked for."""

    def __init__(self, source: Source, rules: Sequence[Rule]) -> None:
        self.rules = rules if isinstance(rules, Rules) else Rules(rules)
        super().__init__(self.rules)
        self._source = source

    @property
    def key(self) -> Hashable:
        """Of one process all sources of this name and number of episodes are the same."""
        return self._source.name, self._source.episode_count, tuple(rule.label for rule in self.rules)

    @property
    def left_out(self) -> Mapping[str, LeftOut]:
        """Rule -> what it takes out; {} before the source was read."""
        return self.value.left_out if "value" in vars(self) else {}

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Names that are of no episode; () before the source was read."""
        unmet = self.value.unmet if "value" in vars(self) else {}
        return tuple(
            note(
                "unmet_names",
                f"{rule}: {counted(len(names), 'name')} of no episode: {shortened(', '.join(names))}",
                len(names),
            )
            for rule, names in unmet.items()
        )

    def check(self) -> None:
        for rule in self.rules:
            rule.columns(self._source)  # refuses another function of the same name

    def find(self) -> Verdicts:
        """Raises `SourceError` if the data cannot be read, lack what a rule looks at, or nothing is left of them."""
        left_out: Mapping[str, LeftOut] = {rule.text: LeftOut() for rule in self.rules}
        runs: list[tuple[int, int, int, int]] = []
        unmet = {rule.text: set(rule.mentions) for rule in self.rules if rule.mentions}
        number = -1
        for number, episode in enumerate(self._light_episodes()):
            rows = len(episode)
            for rule in self.rules if unmet else ():
                if rule.text in unmet:
                    unmet[rule.text].difference_update(rule.names_of(episode))
            if episode.faults or not _is_even(episode):  # validation judges it
                runs.append((number, 0, rows, rows))
                continue
            kept = self._kept_rows(episode, left_out)
            if kept is None:
                runs.append((number, 0, rows, rows))
                continue
            pairs = runs_of(kept)
            long_pairs = [(start, stop) for start, stop in pairs if stop - start > 1]
            runs += [(number, start, stop, rows) for start, stop in long_pairs]
            if len(long_pairs) < len(pairs):
                single = LeftOut(steps=len(pairs) - len(long_pairs), emptied=int(not long_pairs))
                left_out = add_left_out([left_out, {SINGLE_ROWS: single}])
        if number >= 0 and not runs:
            by_rule = "; ".join(f"{rule} takes out {counts}" for rule, counts in left_out.items())
            raise SourceError(
                f"{self._source.name}: nothing is left of {counted(number + 1, 'episode')}, expected at least one: {by_rule}"
            )
        table = np.array(runs, np.int64).reshape(-1, 4)
        met_not = {rule: tuple(sorted(names)) for rule, names in unmet.items() if names}
        return Verdicts(table[:, 0], table[:, 1], table[:, 2], table[:, 3], left_out, met_not)

    def _light_episodes(self) -> Iterator[Episode]:
        """The episodes with few columns, and with the names that they have with all of them where a rule looks at these."""
        light = self._light_source()
        if light is self._source or not any(rule.needs_names for rule in self.rules):
            return light.episodes()
        # As known episodes: most formats name one before they decode it.
        whole = self._source.read(is_known=lambda _: True)
        return (replace(episode, id=named.id) for episode, named in zip(light.episodes(), whole))

    def _light_source(self) -> Source:
        """The source with the columns that rules look at, and the one that says how many rows there are."""
        wanted = {IS_FIRST, IS_LAST}
        for rule in self.rules:
            paths = rule.columns(self._source)
            if paths is None:
                return self._source
            wanted.update(paths)
        columns = columns_of(self._source.spec(), self._source.name)
        return self._source.without([path for path in columns if path not in wanted])

    def _kept_rows(self, episode: Episode, left_out: Mapping[str, LeftOut]) -> Array | None:
        """[rows] bool; None for all of them. Counts what is left out."""
        kept = np.ones(len(episode), bool)
        for rule in self.rules:
            verdict, counts = rule.judge(episode), left_out[rule.text]
            before = int(np.count_nonzero(kept))
            is_out = not isinstance(verdict, np.ndarray) and not verdict
            kept &= verdict
            after = int(np.count_nonzero(kept))
            counts.steps += before - after
            if is_out or (before and not after):
                counts.episodes += is_out
                counts.emptied += not is_out
                return kept
        return None if kept.all() else kept


def filtered(source: Source, rules: Sequence[Rule]) -> Source:
    """The source without what rules take out; the source itself without rules."""
    return Filtered(source, rules) if rules else source


def runs_of(kept: Array) -> list[tuple[int, int]]:
    """[rows] bool -> (start, stop) of the rows that are kept side by side.

    >>> runs_of(np.array([True, True, False, True]))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(kept.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2]))


class Filtered(Wrapper):
    """What rules leave of a source: its episodes, and the runs of those that lost rows.

    Args:
      source: to be read.
      rules: in the order in which they judge; what one takes out, those behind it do not see.
      name: for messages; by default the source's.
      judging: of a source with the same episodes, whose verdicts count; None to judge this one.
    """

    def __init__(self, source: Source, rules: Sequence[Rule], name: str = "", judging: Judging | None = None) -> None:
        super().__init__(source, name)
        self._judging = Judging(source, rules) if judging is None else judging

    def _of(self, source: Source) -> Filtered:
        return Filtered(source, self._judging.rules, self.name, self._judging)

    @property
    def findings(self) -> tuple[Finding[Any], ...]:
        return (*self._source.findings, self._judging)

    @property
    def _verdicts(self) -> Verdicts:
        return self._judging.value

    @property
    def filtered(self) -> Mapping[str, LeftOut]:
        return add_left_out([self._source.filtered, self._judging.left_out])

    @property
    def notices(self) -> tuple[Notice, ...]:
        return (*self._source.notices, *self._judging.notices)

    @property
    def episode_count(self) -> int | None:
        return len(self._verdicts.numbers)

    def episode_lengths(self) -> Sequence[int] | None:
        verdicts = self._verdicts
        lengths: list[int] = (verdicts.stops - verdicts.starts).tolist()
        return lengths

    def count_lengths(self) -> Sequence[int]:
        return self.episode_lengths() or []

    def encoded(self, paths: Collection[str]) -> Filtered:
        return self._of(self._source.encoded(paths))

    def without(self, paths: Collection[str]) -> Filtered:
        return self._of(self._source.without(paths))

    @cached_property
    def _picked(self) -> tuple[Source, Array, Array]:
        """The episodes of which something is left, [episodes + 1] the first run of each, and [runs] the place of each one's episode among them."""
        numbers, firsts, places = np.unique(self._verdicts.numbers, return_index=True, return_inverse=True)
        return self._source.pick(numbers.tolist()), np.append(firsts, len(places)), places

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        runs = range(len(self._verdicts.numbers))[start:stop]
        if not runs:
            return
        picked, firsts, places = self._picked
        first, end = int(places[runs[0]]), int(places[runs[-1]]) + 1

        def runs_at(place: int) -> range:
            return range(max(int(firsts[place]), runs.start), min(int(firsts[place + 1]), runs.stop))

        # The runs of the episodes that the source asked `is_known` for, and has not given yet: whether each is known.
        asked = deque[list[bool]]()

        def ask(name: str, place: int) -> list[bool]:
            return [is_known is not None and is_known(self._run_name(name, run)) for run in runs_at(place)]

        next_place = itertools.count(first)

        def is_each_known(name: str) -> bool:
            asked.append(ask(name, next(next_place)))
            return all(asked[-1])

        episodes = picked.read(first, end, None if is_known is None else is_each_known)
        for place, episode in enumerate(episodes, first):
            known = asked.popleft() if asked else ask(episode.id, place)  # a source may also not ask
            for run, is_run_known in zip(runs_at(place), known):
                if isinstance(episode, KnownEpisode) or is_run_known:
                    yield KnownEpisode(self._run_name(episode.id, run))
                else:
                    yield self._run(episode, run)

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        picked, _, places = self._picked
        runs_at: dict[int, list[int]] = {}
        for run in numbers:
            runs_at.setdefault(int(places[run]), []).append(run)
        for place, episode in picked.at(list(runs_at)):
            for run in runs_at[place]:
                yield run, self._run(episode, run)

    def _rows(self, run: int) -> tuple[int, int] | None:
        """Of a run; None for a whole episode."""
        verdicts = self._verdicts
        start, stop, rows = (int(column[run]) for column in (verdicts.starts, verdicts.stops, verdicts.rows))
        return None if stop - start == rows else (start, stop)

    def _run_name(self, name: str, run: int) -> str:
        rows = self._rows(run)
        return name if rows is None else name_of_rows(name, *rows, int(self._verdicts.rows[run]))

    def _run(self, episode: Episode, run: int) -> Episode:
        rows = self._rows(run)
        return episode if rows is None else rows_of(episode, *rows, int(self._verdicts.rows[run]))


def _is_even(episode: Episode) -> bool:
    return len({len(column) for column in episode.columns.values()}) <= 1


def rows_of(episode: Episode, start: int, stop: int, rows: int) -> Episode:
    """Some of an episode's `rows` as an episode: the first of them is first, the last one is last.

    Where the columns differ in length, all their rows stay, so that validation finds them.
    """
    name, where = (
        name_of_rows(episode.id, start, stop, rows),
        episode.where and name_of_rows(episode.where, start, stop, rows),
    )
    if not _is_even(episode):
        return replace(episode, id=name, where=where)
    columns = {path: column[start:stop] for path, column in episode.columns.items()}
    for flag, row in ((IS_FIRST, 0), (IS_LAST, -1)):
        if flag in columns and len(columns[flag]):
            columns[flag] = columns[flag].copy()
            columns[flag][row] = True
    whole = EpisodeCut(episode.columns, 0, rows) if episode.cut is None else episode.cut
    cut = EpisodeCut(whole.columns, whole.start + start, whole.start + stop)
    return replace(episode, columns=columns, id=name, where=where, cut=cut)
