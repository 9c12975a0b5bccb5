"""The names under which pushes have stored the episodes of a table, found by the keys of its items; and what is left of each episode.

A key follows from the name of an episode, and of a page in a server's list of episodes all keys can be made (`servers.episodes`). So every
item says which episode it is of, without a change of a table that holds no names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlds2reverb.episode import Array, Notice
from rlds2reverb.formats.recordings import Recording, Recordings, read_each
from rlds2reverb.servers.episodes import EpisodePage
from rlds2reverb.specs import Nest
from rlds2reverb.stored.episodes import StoredEpisodes


@dataclass(frozen=True, eq=False)
class ItemOrigins:
    """Which episode each item of a table is of, by the pages of pushes.

    Attributes:
      episodes: [items] int64, places in `names`; -1 for an item of no page.
      names: of episodes.
      items: items that the push of each has stored in the table.
      pages: with items in the table, and of each [found] int64 places in its keys, and places of their items in the table.
    """

    episodes: Array
    names: Sequence[str]
    items: Sequence[int]
    pages: Sequence[tuple[EpisodePage, Array, Array]]

    @staticmethod
    def of(keys: Array, pages: Iterable[EpisodePage], table: str) -> ItemOrigins:
        """Finds the items with these keys, [n] uint64, in the pages of a table."""
        order = np.argsort(keys, kind="stable")
        sorted_keys = keys[order]
        episodes = np.full(len(keys), -1, np.int64)
        numbers: dict[tuple[int, str], int] = {}
        names, items = list[str](), list[int]()
        found = list[tuple[EpisodePage, Array, Array]]()
        for page in pages:
            if table not in page.tables or page.is_of_stream or not len(keys):
                continue
            own_keys = page.keys_in(table)
            at = np.minimum(np.searchsorted(sorted_keys, own_keys), len(keys) - 1)
            places = np.flatnonzero(sorted_keys[at] == own_keys)
            if not len(places):
                continue
            numbers_in_page = np.zeros(len(page.names), np.int64)
            for place, name in enumerate(page.names):
                number = numbers.setdefault((page.push_seed, (page.key_names or page.names)[place]), len(names))
                if number == len(names):
                    names.append(name)
                    items.append(page.items[place])
                numbers_in_page[place] = number
            spans = np.array(page.stops, np.int64) - np.array(page.starts, np.int64)
            item_places = order[at[places]]
            episodes[item_places] = np.repeat(numbers_in_page, spans)[places]
            found.append((page, places, item_places))
        return ItemOrigins(episodes, names, items, found)


@dataclass(frozen=True, eq=False)
class RunNames:
    """What is known of each run of rows, [runs] each.

    Attributes:
      names: of its episode; "" where no push has listed it.
      are_whole: the run is all of its episode, as far as anybody knows.
    """

    names: Sequence[str]
    are_whole: Array

    @staticmethod
    def of(stored: StoredEpisodes, origins: ItemOrigins, is_end_assumed: bool) -> RunNames:
        """Names runs. An episode of no push, whose end its items do not tell, is whole only where `is_end_assumed`."""
        runs, index, least = stored.runs, stored.index, stored.least
        tells_ends = stored.layout.tells_ends
        count = len(index.sequences)
        lowest, highest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
        np.minimum.at(lowest, index.episodes, origins.episodes)
        np.maximum.at(highest, index.episodes, origins.episodes)
        items = np.bincount(index.episodes, minlength=count)
        runs_in_sequence = np.bincount(np.searchsorted(index.sequences, runs.sequences), minlength=count)
        names, are_whole = list[str](), np.zeros(len(runs), bool)
        for run, sequence in enumerate(np.searchsorted(index.sequences, runs.sequences).tolist()):
            number = int(highest[sequence])
            is_named = number >= 0 and lowest[sequence] == number
            is_alone = bool(runs.is_first[run] and runs.is_last[run])
            if is_named and (not is_alone or runs_in_sequence[sequence] == 1):
                has_all = runs.firsts[run] <= least and items[sequence] == origins.items[number]
                names.append(origins.names[number])
            else:
                # Of a sequence that was cut where episodes begin, each run is an episode wherever it begins.
                has_all = runs.firsts[run] <= least or runs_in_sequence[sequence] > 1
                names.append("")
            if is_alone and has_all:
                # All items of a push may be there, and its last rows in none of them: behind the last whole window.
                is_end_known = not tells_ends and (bool(names[run]) or is_end_assumed)
                are_whole[run] = is_end_known or stored.has_end(run)
        return RunNames(names, are_whole)


class NamedEpisodes(Recordings):
    """Whole episodes of a table, under the names that pushes have given them.

    Args:
      stored: with each run as an episode.
      chosen: [episodes] int64, numbers of the runs.
    """

    def __init__(self, stored: StoredEpisodes, names: RunNames, chosen: Array) -> None:
        self.name, self._stored, self._names, self._chosen = stored.name, stored, names, chosen.tolist()

    @property
    def count(self) -> int:
        return len(self._chosen)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(notice for notice in self._stored.notices if notice.code != "rows_in_no_item")

    def spec(self) -> Nest:
        return self._stored.spec()

    def length_of(self, number: int) -> int | None:
        return self._stored.length_of(self._chosen[number])

    def read(self, numbers: Sequence[int]) -> Iterator[Recording]:
        return read_each(self._read_one, numbers, lambda number: self._stored.name_of(self._chosen[number]))

    def _read_one(self, number: int) -> Recording:
        run = self._chosen[number]
        return replace(self._stored.one(run), metadata={}, content=self._names.names[run])
