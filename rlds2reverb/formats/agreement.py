"""The spec of a dataset whose files declare none: what several of its chosen episodes have.

At most `MOST_LOOKS` episodes are looked at: the first, the last, and some between. They depend on the dataset and on the choice of episodes
only, so that every worker and every shard finds the same spec. An episode that cannot be read is passed over here, and is a bad one when it
is read.

| the episodes looked at | the spec |
| --- | --- |
| all have a column alike | has it |
| differ in a column's dtype or shape | what most have; on a tie, what the earliest has. Those that differ are bad episodes (`mixed_specs`) |
| some lack a column | leaves it out (`left_out`) |
| some lack an action, a reward, a discount or a next observation | has it if most have it; those without are bad episodes (`mixed_specs`) |

The option `spec_from` says otherwise: `most` keeps each column that most have, a number takes the columns of that episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from rlds2reverb.episode import OBSERVATION, STEP_FIELDS, Notice
from rlds2reverb.errors import SourceError
from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.formats.options import Parse, whole_number
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rows import NEXT_OBSERVATION
from rlds2reverb.specs import ArraySpec
from rlds2reverb.text import counted

MOST_LOOKS = 16
_MOST_BYTES = 64 << 20
"""Bytes of values after which no further episode is looked at, where a look reads values and not only headers."""
_MOST_TRIED = 100
"""Episodes that are tried, if none of those before can be read."""

EVERY, MOST = "all", "most"
SpecFrom = str | int
"""`EVERY`: columns that all have; `MOST`: those that most have; or the number of an episode."""

LEFT_OUT, MIXED = "left_out", "mixed_specs"
_NAMED = 3

T = TypeVar("T")


def _spec_from(text: str) -> SpecFrom:
    if text in (EVERY, MOST):
        return text
    try:
        return whole_number(text)
    except ValueError as error:
        raise ValueError(f"expected {EVERY}, {MOST} or the number of an episode") from error


SPEC_OPTIONS: dict[str, Parse] = {"spec_from": _spec_from}


class NoSpecFrom(SourceError):
    """The episode that `spec_from` names is not there, or cannot be read, so that no other may stand in for it."""


def spread(numbers: Sequence[int], most: int = MOST_LOOKS) -> list[int]:
    """At most so many of these numbers: the first, the last, and some between at equal distances.

    >>> spread(range(100), 4), spread(range(2))
    ([0, 33, 66, 99], [0, 1])
    """
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[place * (len(numbers) - 1) // (most - 1)] for place in range(most)]


def looks_at_once(path: Path) -> int:
    """How many episodes to look at side by side: several where each look waits for a bucket."""
    return MOST_LOOKS if isinstance(path, BucketPath) else 1


def look_at(
    numbers: Sequence[int],
    look: Callable[[int], T],
    name: str,
    spec_from: SpecFrom = EVERY,
    at_once: int = 1,
    nbytes: Callable[[T], int] = lambda _look: 0,
    count: int | None = None,
) -> dict[int, T]:
    """What some of these episodes have, by number; those that cannot be read are left out.

    Args:
      numbers: of the chosen episodes, ascending.
      look: of one episode; as a rule by its headers only. Raises `BrokenEpisode` or `SourceError` for one that cannot be read.
      name: of the dataset, for messages.
      spec_from: as the option; the episode of that number is looked at, too.
      at_once: episodes to look at side by side, see `looks_at_once`.
      nbytes: of the values that a look has read. The first and the last episode are always looked at.
      count: number of the dataset's episodes, of which `spec_from` may be any; None if `numbers` are all of them.

    Raises:
      NoSpecFrom: `spec_from` is the number of no episode, or of one that cannot be read.
      SourceError: none of them can be read, with the reason for the first.
    """
    if not len(numbers):
        raise SourceError(f"{name}: has no episodes, so their columns are unknown")
    count = len(numbers) if count is None else count
    if isinstance(spec_from, int) and spec_from >= count:
        raise NoSpecFrom(
            f"{name}: spec_from={spec_from}: expected the number of an episode, and there {'is' if count == 1 else 'are'} "
            f"{counted(count, 'episode')}, counted from 0"
        )
    first_looks = list(
        dict.fromkeys(([spec_from] if isinstance(spec_from, int) else []) + _ends_first(spread(numbers)))
    )
    looks: dict[int, T] = {}
    faults: dict[int, SourceError] = {}

    def try_one(number: int) -> None:
        try:
            looks[number] = look(number)
        except BrokenEpisode as broken:
            faults[number] = SourceError(broken.why)
        except SourceError as error:
            faults[number] = error

    def try_all(places: Sequence[int]) -> None:
        if at_once == 1:
            for place, number in enumerate(places):
                if place < 2 or sum(map(nbytes, looks.values())) <= _MOST_BYTES:
                    try_one(number)
        else:
            with ThreadPoolExecutor(at_once) as pool:
                list(pool.map(try_one, places))

    try_all(first_looks)
    for number in spread(numbers, _MOST_TRIED) if not looks else ():
        if number not in faults and not looks:
            try_one(number)
    if isinstance(spec_from, int) and spec_from in faults:
        raise NoSpecFrom(f"{name}: spec_from={spec_from}: {faults[spec_from]}")
    if not looks:
        raise faults[min(faults)]
    return dict(sorted(looks.items()))


def _ends_first(numbers: Sequence[int]) -> list[int]:
    return [*numbers[:1], *numbers[1:][-1:], *numbers[1:-1]]


def promote(_path: str, specs: Sequence[ArraySpec]) -> ArraySpec | None:
    """The spec of numbers of one shape, some whole and some floats, as floats: whole numbers come by chance. A `Join`."""
    dtypes = [spec.dtype for spec in specs]
    kinds = {dtype.kind for dtype in dtypes}
    if len({spec.shape for spec in specs}) > 1 or not kinds <= set("iuf") or "f" not in kinds or len(kinds) == 1:
        return None
    floats = [dtype for dtype in dtypes if dtype.kind == "f"]
    return ArraySpec(specs[0].shape, np.result_type(*floats))


@dataclass(frozen=True, eq=False)
class Agreement:
    """What the episodes looked at agree on.

    Attributes:
      specs: path -> spec of a row.
      notices: of the columns that are left out, and of those in which episodes differ.
    """

    specs: Mapping[str, ArraySpec]
    notices: tuple[Notice, ...] = ()


def most_alike(looks: Mapping[int, Mapping[str, ArraySpec]]) -> int:
    """The number of the episode whose columns are those of most; of a tie, the earliest."""
    keys = {
        number: frozenset((path, _key(spec)) for path, spec in columns.items()) for number, columns in looks.items()
    }
    counts = Counter(keys.values())
    return max(keys, key=lambda number: (counts[keys[number]], -number))


def unlike_notice(looks: Mapping[int, Mapping[str, ArraySpec]], chosen: int, kind: str) -> Iterator[Notice]:
    """A notice of those that are unlike the chosen one, where no column is left out: they are bad. `kind` names them: "shard"."""
    specs = {path: _key(spec) for path, spec in looks[chosen].items()}
    unlike = {
        number: sorted(
            path for path in {*columns, *specs} if path not in columns or _key(columns[path]) != specs.get(path)
        )
        for number, columns in looks.items()
    }
    unlike = {number: paths for number, paths in unlike.items() if paths}
    if unlike:
        first = min(unlike)
        text = (
            f"{len(unlike):,} of {counted(len(looks), kind)} looked at differ from most in what they have, {kind} {first} in "
            f"{', '.join(unlike[first][:_NAMED])}; their episodes are bad"
        )
        yield Notice(MIXED, text, len(unlike))


Join = Callable[[str, Sequence[ArraySpec]], ArraySpec | None]
"""A column's path and its specs, which differ, that of most first -> one that holds all of them; None where there is none."""


def agree(
    looks: Mapping[int, Mapping[str, ArraySpec]], spec_from: SpecFrom = EVERY, join: Join = lambda _path, _specs: None
) -> Agreement:
    """The spec of a dataset, from the columns of some episodes, path -> spec by number; see the module.

    >>> number, image = ArraySpec((), np.dtype(np.float32)), ArraySpec((8, 8, 3), np.dtype(np.uint8))
    >>> found = agree({0: {"action": number}, 1: {"action": number, "observation/image": image}})
    >>> list(found.specs), [notice.path for notice in found.notices]
    (['action'], ['observation/image'])
    """
    variants = _variants(looks)
    joined = {
        path: join(path, sorted(by_spec, key=lambda spec: -len(by_spec[spec]))) if len(by_spec) > 1 else None
        for path, by_spec in variants.items()
    }
    specs = {path: joined[path] or looks[max(by_spec.values(), key=len)[0]][path] for path, by_spec in variants.items()}
    if isinstance(spec_from, int):
        specs |= {path: joined[path] or spec for path, spec in looks[spec_from].items()}
    odd = {
        number
        for number, columns in looks.items()
        if any(joined[path] is None and _key(spec) != _key(specs[path]) for path, spec in columns.items())
    }
    like_most = {number: columns for number, columns in looks.items() if number not in odd} or looks
    kept = _kept(like_most, list(specs), spec_from, looks)
    notices = [*_differing(looks, variants, joined, specs, kept), *_missing(looks, specs, kept, spec_from)]
    return Agreement({path: specs[path] for path in specs if path in kept}, tuple(notices))


def _variants(looks: Mapping[int, Mapping[str, ArraySpec]]) -> dict[str, dict[ArraySpec, list[int]]]:
    """Path -> each spec that it has somewhere -> the numbers of the episodes that have it so."""
    variants: dict[str, dict[ArraySpec, list[int]]] = {}
    for number, columns in looks.items():
        for path, spec in columns.items():
            variants.setdefault(path, {}).setdefault(_key(spec), []).append(number)
    return variants


def _kept(
    like_most: Mapping[int, Mapping[str, ArraySpec]],
    paths: Sequence[str],
    spec_from: SpecFrom,
    looks: Mapping[int, Mapping[str, ArraySpec]],
) -> set[str]:
    """The paths of columns that the dataset has."""
    if isinstance(spec_from, int):
        return set(looks[spec_from])
    counts = Counter(path for columns in like_most.values() for path in columns)
    earliest = next(iter(like_most.values()))
    # Of two halves only one is kept: a path of one may lie below a path of the other.
    of_most = {path for path in paths if 2 * counts[path] + (path in earliest) > len(like_most)}
    if spec_from == MOST:
        return of_most
    of_all = {path for path in paths if counts[path] == len(like_most)}
    by_most = {NEXT_OBSERVATION, *STEP_FIELDS} - {OBSERVATION}
    if not any(path.split("/")[0] == OBSERVATION for path in of_all):  # no observation is worse than some bad episodes
        by_most.add(OBSERVATION)
    return of_all | {path for path in of_most if path.split("/")[0] in by_most}


def _differing(
    looks: Mapping[int, object],
    variants: Mapping[str, Mapping[ArraySpec, list[int]]],
    joined: Mapping[str, ArraySpec | None],
    specs: Mapping[str, ArraySpec],
    kept: set[str],
) -> Iterator[Notice]:
    for path, by_spec in variants.items():
        if path not in kept or len(by_spec) == 1 or joined[path] is not None:
            continue
        odd_specs = {spec: numbers for spec, numbers in by_spec.items() if spec != _key(specs[path])}
        count = sum(map(len, odd_specs.values()))
        told = "; ".join(f"{spec} in {_episodes(numbers)}" for spec, numbers in odd_specs.items())
        text = (
            f"{told}, of {counted(len(looks), 'episode')} looked at; read as {specs[path]}, so episodes that differ are bad. "
            f"spec_from=N reads all as episode N is, for example spec_from={min(map(min, odd_specs.values()))}"
        )
        yield Notice(MIXED, text, count, path)


def _missing(
    looks: Mapping[int, Mapping[str, ArraySpec]], specs: Mapping[str, ArraySpec], kept: set[str], spec_from: SpecFrom
) -> Iterator[Notice]:
    for path in specs:
        lacking = [number for number, columns in looks.items() if path not in columns]
        if path not in kept:
            there = f"{len(looks) - len(lacking):,} of {counted(len(looks), 'episode')} looked at"
            way = (
                "" if spec_from == MOST else f"; spec_from={MOST} keeps what most have, spec_from=N what episode N has"
            )
            yield Notice(LEFT_OUT, f"{there} have it; left out{way}", len(looks) - len(lacking), path)
        elif lacking:
            text = (
                f"{_episodes(lacking)}, of {counted(len(looks), 'episode')} looked at, have none, and episodes without it are bad; "
                f"spec_from={lacking[0]} reads what that episode has"
            )
            yield Notice(MIXED, text, len(lacking), path)


def _episodes(numbers: Sequence[int]) -> str:
    named = ", ".join(map(str, numbers[:_NAMED])) + (", ..." if len(numbers) > _NAMED else "")
    return f"{counted(len(numbers), 'episode')} ({named})"


def _key(spec: ArraySpec) -> ArraySpec:
    """What is compared: shape and dtype without its byte order, which the wire does not have."""
    return ArraySpec(spec.shape, spec.dtype.newbyteorder("="))
