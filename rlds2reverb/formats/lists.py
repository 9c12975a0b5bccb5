"""The simplest source: a list of episodes, ours or those of Minari."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    ACTION,
    DISCOUNT,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    Notice,
    is_content,
    is_under,
    metadata_specs,
    note,
)
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.agreement import MOST, agree, spread
from rlds2reverb.formats.rows import flags, terminal_discount, zero_row
from rlds2reverb.formats.source import Source, check_shard, spec_of
from rlds2reverb.specs import ArraySpec, Nest, flatten, nested
from rlds2reverb.text import counted


class EpisodeList(Source):
    """A list of episodes as a source: each an `Episode`, or of the shape of Minari's `EpisodeData` (`episode_of_fields`). Its specs are those of most episodes (with rows) of the whole list, also for a shard (`agreement`).

    Episodes without an id of their own are named by their content; equal ones have one name.

    Raises:
      SourceError: two episodes have the same id, or something in the list is no episode.
    """

    def __init__(self, episodes: Sequence[Any], name: str = "episodes") -> None:
        self.name = name
        self._episodes = [_as_episode(thing, f"{name}: number {number}") for number, thing in enumerate(episodes)]
        self._whole = self._episodes
        seen: set[str] = set()
        for episode in self._episodes:
            if episode.id in seen and not is_content(episode.id):
                raise SourceError(f'{name}: two episodes have the id "{episode.id}"; ids must differ, or be left out')
            seen.add(episode.id)

    @property
    def is_at_hand(self) -> bool:
        return True

    @property
    def episode_count(self) -> int | None:
        return len(self._episodes)

    def episode_lengths(self) -> Sequence[int] | None:
        return [len(episode) for episode in self._episodes]

    @property
    def has_random_access(self) -> bool:
        return True

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        return ((number, self._episodes[number]) for number in numbers)

    @cached_property
    def _looks(self) -> Mapping[int, Mapping[str, ArraySpec]]:
        filled = [number for number, episode in enumerate(self._whole) if len(episode)]
        return {number: flatten(spec_of(self._whole[number])) for number in spread(filled)}

    def spec(self) -> Nest:
        if not self._looks:
            raise SourceError(f"{self.name}: no episode with steps, so there is no step spec")
        return nested(agree(self._looks, MOST).specs)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Which columns some episodes do not have as most have them."""
        looks = self._looks.values()
        specs = agree(self._looks, MOST).specs if looks else {}
        found = []
        for path in dict.fromkeys(path for columns in looks for path in columns):
            unlike = sum(columns.get(path) != specs.get(path) for columns in looks)
            if unlike:
                text = (
                    f"{unlike:,} of {counted(len(looks), 'episode')} looked at have another dtype or shape of it than most, or lack it, or have "
                    "it where most lack it: the spec is that of most, and those are bad"
                )
                found.append(note("spec_of_most", text, unlike, path))
        return tuple(found)

    def metadata_spec(self) -> Nest:
        """The spec of the features that most episodes have."""
        features = {number: metadata_specs(self._whole[number]) for number in spread(range(len(self._whole)))}
        return dict(agree(features, MOST).specs) if features else {}

    def __iter__(self) -> Iterator[Episode]:
        return iter(self._episodes)

    def shard(self, index: int, count: int) -> EpisodeList:
        check_shard(index, count)
        part = EpisodeList((), f"{self.name}[{index}/{count}]")
        part._episodes, part._whole = self._episodes[index::count], self._whole
        return part


_FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")


def _as_episode(thing: Any, where: str) -> Episode:
    if isinstance(thing, Episode):
        return thing
    if all(hasattr(thing, name) for name in _FIELDS):
        return episode_of_fields(thing, where)
    raise SourceError(
        f"{where} is a {type(thing).__name__}, expected an Episode, or an object with {', '.join(_FIELDS)} (Minari's EpisodeData)"
    )


def episode_of_fields(data: Any, where: str = "episode") -> Episode:
    """An episode of an object with the fields of Minari's `EpisodeData` and `EpisodeBuffer`.

    | field | column |
    | --- | --- |
    | `observations`, a nest of dicts and tuples of [T + 1, ...] | `observation` and below; the places of a tuple are `_index_0`, `_index_1`, ... |
    | `actions`, a nest of [T, ...] | `action` and below, with a last row of zeros |
    | `rewards` [T] | `reward`, with a last 0 |
    | `terminations`, `truncations` [T] | the flags and `discount`; without either at the end, the episode is cut off |
    | `infos`, a nest of [T + 1, ...] or None | `infos/...` |
    | `seed`, where it is there | the metadata `seed` |

    Raises:
      SourceError: lengths that do not fit, an end in the middle, or a leaf that is no array.
    """
    rewards, terminations, truncations = (_array(getattr(data, name), name, where) for name in _FIELDS[2:])
    steps = len(rewards)
    columns: dict[str, Array] = {}
    for name, field, rows in ((OBSERVATION, "observations", steps + 1), (ACTION, "actions", steps)):
        leaves = _leaves(getattr(data, field), name, field, where)
        if not leaves:
            raise SourceError(f"{where}: {field}: there are none")
        columns |= {path: _of_length(column, rows, field, where) for path, column in leaves.items()}
    infos = getattr(data, "infos", None)
    for path, column in _leaves(infos or {}, "infos", "infos", where).items():
        columns[path] = _of_length(column, steps + 1, path, where)
    for field, flags_of_steps in (("terminations", terminations), ("truncations", truncations)):
        _of_length(flags_of_steps, steps, field, where)
        if flags_of_steps[:-1].any():
            at = int(np.flatnonzero(flags_of_steps)[0])
            raise SourceError(
                f"{where}: {field}: the episode ends at step {at} of {steps}; give each episode by itself"
            )
    is_terminal = bool(steps and terminations[-1])
    columns[REWARD] = rewards
    for path in [path for path in columns if path == REWARD or is_under(path, ACTION)]:
        columns[path] = np.concatenate([columns[path], zero_row(columns[path])])
    seed = getattr(data, "seed", None)
    return Episode(
        {**columns, DISCOUNT: terminal_discount(steps + 1, is_terminal), **flags(steps + 1, is_terminal)},
        {} if seed is None else {"seed": np.uint64(seed)},
        where=where,
    )


def _leaves(nest: Any, path: str, field: str, where: str) -> dict[str, Array]:
    if isinstance(nest, tuple):
        nest = {f"_index_{place}": part for place, part in enumerate(nest)}
    if not isinstance(nest, Mapping):
        return {path: _array(nest, field, where)}
    leaves: dict[str, Array] = {}
    for key, part in nest.items():
        leaves |= _leaves(part, f"{path}/{key}", field, where)
    return leaves


def _array(values: Any, field: str, where: str) -> Array:
    """An array [T, ...] of numbers, or of `bytes`."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # of unequal shapes
        raise SourceError(f"{where}: {field}: {error}") from error
    if array.dtype.kind == "U":
        texts = [text.encode() for text in array.ravel().tolist()]
        array = np.empty(array.shape, object)
        array.ravel()[:] = texts
    if array.ndim == 0 or (array.dtype.kind == "O" and not all(isinstance(value, bytes) for value in array.flat)):
        raise SourceError(
            f"{where}: {field}: expected arrays of numbers or text with a row per step, got {type(values).__name__}"
        )
    return array


def _of_length(column: Array, rows: int, field: str, where: str) -> Array:
    if len(column) != rows:
        raise SourceError(
            f"{where}: {field}: expected {rows} rows, got {len(column)}; an episode of T rewards has T + 1 observations and infos, and T of all else"
        )
    return column
