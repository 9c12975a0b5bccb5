"""Names of episodes, keys of items, and the server of an episode: functions of the data and of how it is pushed."""

from __future__ import annotations

import secrets
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import (
    Episode,
    KnownEpisode,
    Names,
    Notice,
    Occurrences,
    content_digest,
    copy_name,
    is_content,
    is_copy,
    metadata_values,
    number_of,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.source import Source
from rlds2reverb.prepare.policy import REPAIR
from rlds2reverb.prepare.preparation import Output, duplicates_notice
from rlds2reverb.push.options import ONCE
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.wire.insert import Part, seed


def new_key_bits(again: bool) -> int | None:
    """64 random bits for the keys of a push with `again`; None without `again`."""
    return secrets.randbits(64) if again else None


class ItemNames:
    """Names the items of one output, episode by episode.

    Args:
      data: identifies the conventions, the transform, and which images stay encoded (`Preparation.identity`).
      again: `new_key_bits`; None for the keys of every equal push.

    Attributes:
      identity: two pushes with the same identity make the same items of an episode.
      push_seed: 64 bits that the keys of all items depend on.
      key_name: names the last episode in item keys; for a stream, all episodes so far, on which its items may depend.
    """

    def __init__(self, output: Output, data: str, again: int | None = None) -> None:
        self.identity = f"{output.view.label}|{data}"
        self.key_name = ""
        self._tables, self._is_of_stream = output.tables, output.is_of_stream
        self.push_seed = seed(self.identity) if again is None else again

    def take_in(self, key_name: str) -> None:
        """Takes the next episode, one without items included."""
        self.key_name = f"{seed(self.key_name, key_name):016x}" if self._is_of_stream else key_name

    def part(self, cut: Cut, tables: Sequence[str] | None = None) -> Part:
        """The items of the last episode, for these tables of the output; None for all."""
        return Part(self._tables if tables is None else tables, self.push_seed, self.key_name, cut)


def names_in_ledger(plan: PushPlan) -> list[str]:
    """What a ledger calls a push, per output."""
    mended = (REPAIR,) if plan.options.on_invalid == REPAIR else ()
    return [
        "|".join((ItemNames(output, plan.ready.identity).identity, *mended, *output.tables))
        for output in plan.options.outputs
    ]


def dataset_of(source: Source) -> str:
    """What a ledger calls a dataset: its name without the options that choose episodes of it."""
    return dataset_name(source.name)


def dataset_name(name: str) -> str:
    """As `dataset_of`, by the name of the source."""
    return name.partition("?")[0].partition(", first ")[0]


class EpisodeNames:
    """Names the episodes that one push reads: numbers copies of one content, and does not read what a ledger has.

    Args:
      knows: whether the episode of a name need not be read; called in the source's thread.
      copies: position of an episode -> number of the copy that it is stored as; all other episodes are left out. None to count copies.
      is_task: whether this is a task of a distributed push, which needs `contents` and `names`.

    Attributes:
      copies: number of episodes that equal earlier ones.
    """

    def __init__(
        self,
        knows: Callable[[str], bool],
        plan: PushPlan,
        copies: Mapping[int, int] | None = None,
        is_task: bool = False,
    ) -> None:
        self.copies = 0
        self._knows, self._metadata = knows, sorted(plan.metadata)
        self._stores_once = plan.options.duplicates == ONCE
        self._copy_numbers, self._is_task = copies, is_task
        self._occurrences = Occurrences()
        # (content, name) of the episodes that the source asked `is_known` for, and has not given yet.
        self._claimed = deque[tuple[str, str]]()
        self._place = 0
        self._contents, self._names = array("Q"), array("Q")

    @property
    def contents(self) -> Names:
        """[episodes] uint64 of a task, in the order of the source: numbers of the contents, or of the ids that the caller gave."""
        return np.array(self._contents, np.uint64)

    @property
    def names(self) -> Names:
        """[episodes] uint64 of a task, in the order of the source: numbers of the names given."""
        return np.array(self._names, np.uint64)

    @property
    def notices(self) -> tuple[Notice, ...]:
        return duplicates_notice(self.copies)

    def read(self, source: Source) -> Iterator[Episode | KnownEpisode]:
        """The episodes of a source, under the names that their items get.

        Raises:
          SourceError: two episodes have one id; or the source asks `is_known` for other episodes than it gives.
        """
        if self._metadata:
            for episode in self._with_metadata(source):
                yield from self._take_claimed(episode)
            return
        for episode in source.read(is_known=self._claim):
            if not self._claimed and isinstance(episode, Episode) and self._claim(episode.id):
                # The source does not ask, and has read what is stored already.
                yield from self._take_claimed(KnownEpisode(episode.id))
                continue
            if not self._claimed or self._claimed[0][0] != episode.id:
                claimed = f'"{self._claimed[0][0]}"' if self._claimed else "none"
                raise SourceError(
                    f'{source.name}: read gives episode "{episode.id}" where it asked is_known for {claimed}: expected one call per episode, with its '
                    "id, in order; or none at all"
                )
            yield from self._take_claimed(episode)

    def _take_claimed(self, episode: Episode | KnownEpisode) -> Iterator[Episode | KnownEpisode]:
        """The episode that was claimed first, under its name; nothing if this task leaves it out."""
        _, name = self._claimed.popleft()
        if name:
            self.copies += is_copy(name)
            yield episode if episode.id == name else replace(episode, id=name)

    def _with_metadata(self, source: Source) -> Iterator[Episode | KnownEpisode]:
        """With metadata in the items, metadata is part of the content, so an episode is read before its name is known."""
        for episode in source.episodes():
            name = episode.id
            if is_content(name):
                # What is missing, or no value that a column holds, makes the episode a bad one when it is checked.
                values = metadata_values(episode, self._metadata)
                held = {}
                for path in values:
                    value = episode.metadata[path]
                    # [1, ...]; text as an object, for numpy's own text drops NULs at the end
                    held[path] = np.asarray(value, object if isinstance(value, (bytes, str)) else None)[None]
                name = f"{name}|{content_digest(held)}"
            yield KnownEpisode(name) if self._claim(name) else episode

    def _claim(self, content: str) -> bool:
        """Names the next episode, "" for one that this task leaves out; returns whether it need not be read."""
        place, self._place = self._place, self._place + 1
        if self._copy_numbers is not None:
            number = self._copy_numbers.get(place, 0)
        else:
            number = self._occurrences.count(content)
            if number > 1 and not is_content(content):
                raise SourceError(
                    f'two episodes have the id "{content}", and their items the same keys; nothing of the second was sent. Ids must differ, '
                    "or be left out: then episodes are named by their content"
                )
        name = copy_name(content, number) if number else ""
        if self._is_task:
            self._contents.append(number_of(content))
            self._names.append(number_of(name))
        self._claimed.append((content, name))
        return not name or self._knows(content if self._stores_once else name)


class Placement:
    """Which server an episode goes to: rendezvous hashing of its name and the servers' names, in any order.

    The name of an episode and that of a server give a number, and the server with the largest one gets the episode. So the n-th server
    takes about one episode in n, and no other episode moves. Source: Thaler and Ravishankar 1998, highest random weight.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def of(self, episode_id: str) -> str:
        """Name of the server that gets the episode.

        >>> placement = Placement(["a:8000", "b:8000", "c:8000"])
        >>> [placement.of(f"cartpole/{number}")[0] for number in range(8)]
        ['b', 'a', 'a', 'a', 'c', 'a', 'b', 'b']
        """
        return max(self._names, key=lambda name: (seed(name, episode_id), name))
