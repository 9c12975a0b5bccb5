"""One episode to look at: found by number or name, and sorted by how its columns are shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlds2reverb.episode import IS_LAST, IS_TERMINAL, REWARD, Array, Episode, is_under
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.source import Source, checked_spec
from rlds2reverb.formats.transform import Transform, transformed
from rlds2reverb.identity import Occurrences, copy_name, is_content
from rlds2reverb.images import image_size
from rlds2reverb.look.curves import Curve, range_text
from rlds2reverb.look.pictures import Pictures, pictures_of
from rlds2reverb.prepare.conventions import Conventions, last_row_is_added
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.policy import Standard
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.specs import ArraySpec, column_spec, flatten
from rlds2reverb.text import counted, shortened, visible

_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_MOST_NAMES = 20_000
"""Names that are compared with one that was not found; looking for alike ones takes time."""
_CLOSE = 3


@dataclass(frozen=True)
class Found:
    """An episode, and where it stands.

    Attributes:
      episode: as the source gives it; one that was found by name is called what a push calls it, a copy with its number.
      number: from 0, in the source's order.
      count: how many there are; None where the source does not know.
    """

    episode: Episode
    number: int
    count: int | None


def find(source: Source, wanted: str) -> Found:
    """The episode that is asked for.

    Args:
      source: where to look.
      wanted: a number from 0 on, or from the end (-1 is the last); else the episode's id as `inspect` and `validate` print it, with the
        "#2" of a copy, or the dataset's own name of it (its metadata `episode_id`). Where these names are numbers, one that is no place is looked for among them.

    Raises:
      SourceError: there is none such: says how many there are, and which names are close; or the source cannot be read.
    """
    if _NUMBER.fullmatch(wanted):
        return _numbered(source, int(wanted))
    return _named(source, wanted)


def _numbered(source: Source, wanted: int) -> Found:
    count = source.episode_count
    if wanted < 0 and count is None:
        count = _counted(source)
    number = wanted if wanted >= 0 or count is None else count + wanted
    if number >= 0 and (count is None or number < count):
        for episode in source.episodes(number, number + 1):
            return Found(episode, number, count)
    if _has_numbers_for_names(source):
        return _named(source, str(wanted))
    there = _counted(source) if count is None else count
    raise SourceError(f"{source.name}: episode {wanted}: {_numbers(there)}")


def _has_numbers_for_names(source: Source) -> bool:
    first = next(iter(source), None)
    return first is not None and _NUMBER.fullmatch(first.recorded_id or "") is not None


def _counted(source: Source) -> int:
    return sum(1 for _ in source)


def _numbers(count: int) -> str:
    if not count:
        return "there is no episode"
    return f"expected 0 to {count - 1:,}, or -{count:,} to -1 from the end; there are {counted(count, 'episode')}"


def _named(source: Source, wanted: str) -> Found:
    names: list[str] = []
    occurrences = Occurrences()
    number = -1
    for number, given in enumerate(source):
        episode = _numbered_copy(given, occurrences.count(given.id))
        own = list(_names(episode))
        if wanted in own:
            return Found(episode, number, source.episode_count)
        if len(names) < _MOST_NAMES:
            names += own[:2]
    raise SourceError(
        f'{source.name}: episode "{shortened(visible(wanted))}": no episode has this id or episode_id; '
        f"{counted(number + 1, 'episode')} looked at{_close(wanted, names)}; a number from 0 does as well"
    )


def _numbered_copy(episode: Episode, occurrence: int) -> Episode:
    """The episode under the name that a push gives it, the second and later ones of a content with their number."""
    name = copy_name(episode.id, occurrence) if is_content(episode.id) else episode.id
    return episode if name == episode.id else replace(episode, id=name)


def _names(episode: Episode) -> Iterator[str]:
    """Its id, the dataset's own name, and both as messages have them."""
    yield episode.id
    if episode.recorded_id is not None:
        yield episode.recorded_id
    yield episode.title


def _close(wanted: str, names: list[str]) -> str:
    found = difflib.get_close_matches(wanted, names, _CLOSE) or names[:1]
    kind = "close to it" if difflib.get_close_matches(wanted, names, 1) else "the first is called"
    return f", {kind}: {', '.join(shortened(visible(name)) for name in found)}" if found else ""


_MOST_RUNS = 6
_MOST_CHARACTERS = 400
_MOST_VALUES = 4
"""Of a row with several texts."""


def text_lines(column: Array) -> tuple[str, ...]:
    """[T, ...] texts as lines: one for each run of equal rows; a single one without its steps when all rows are equal.

    >>> text_lines(np.array([b"reach", b"reach", b"grip"], object))
    ('0 to 1: "reach"', '2: "grip"')
    """
    rows = [_row(row) for row in column]
    runs = list(_runs(rows))
    if len(runs) == 1:
        return (_row_text(rows[0]),)
    lines = [f"{_steps(start, stop)}: {_row_text(rows[start])}" for start, stop in runs[:_MOST_RUNS]]
    more = len(runs) - len(lines)
    return (*lines, f"and {more:,} more texts") if more > 0 else tuple(lines)


def flag_text(column: Array) -> str:
    """[T] of bool: where it is true.

    >>> flag_text(np.array([True, False, True, True])), flag_text(np.array([False])), flag_text(np.array([True]))
    ('at 0, 2 to 3', 'never', 'always')
    """
    if not column.any():
        return "never"
    if column.all():
        return "always"
    runs = [(start, stop) for start, stop in _runs(column.tolist()) if column[start]]
    told = ", ".join(_steps(start, stop) for start, stop in runs[:_MOST_RUNS])
    more = sum(stop - start for start, stop in runs[_MOST_RUNS:])
    return f"at {told}" + (f" and {more:,} more steps" if more else "")


def _runs(values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of each run of equal values."""
    start = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[start]:
            yield start, at
            start = at


def _steps(start: int, stop: int) -> str:
    return f"{start:,}" if stop == start + 1 else f"{start:,} to {stop - 1:,}"


def _row(row: Any) -> tuple[bytes, ...]:
    values = row.ravel().tolist() if isinstance(row, np.ndarray) else [row]
    return tuple(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass") for value in values)


def _row_text(values: tuple[bytes, ...]) -> str:
    shown = ", ".join(_text(value) for value in values[:_MOST_VALUES])
    return f"{shown}, ..." if len(values) > _MOST_VALUES else shown or "no values"


def _text(value: bytes) -> str:
    if (size := image_size(value)) is not None:
        return f"image file of {size[0]} x {size[1]}"
    return f'"{shortened(visible(value[: 4 * _MOST_CHARACTERS + 4]), _MOST_CHARACTERS)}"'


MOST_CURVES = 8
"""Of one column; more dimensions are counted. Where they are drawn one below the other, fewer."""
MOST_COLUMNS = 40
"""Of each sort; more are counted."""


@dataclass(frozen=True)
class Panel:
    """A column of numbers.

    Attributes:
      path: the column's.
      kind: dtype and shape of a row.
      curves: of the first dimensions, `MOST_CURVES` at most.
      dimensions: how many there are.
    """

    path: str
    kind: str
    curves: tuple[Curve, ...]
    dimensions: int


def range_line(panel: Panel) -> str:
    """Kind and range of a panel, and what of it is not drawn."""
    more = panel.dimensions - len(panel.curves)
    first = f"  (first {len(panel.curves)} of {panel.dimensions:,} dimensions)" if more else ""
    return f"{panel.kind}  {range_text(panel.curves)}{first}"


@dataclass(frozen=True)
class Contents:
    """An episode, ready to be shown. All text is cleaned: none of it can move a terminal's cursor.

    Attributes:
      title: which episode it is, on one line.
      facts: (name, text): length, return, how it ends, what is wrong.
      metadata: path -> value as text.
      images: columns of images.
      panels: columns of numbers, in the order of the steps' fields.
      texts: path -> lines.
      flags: path -> at which steps it is true.
      others: path -> kind, of what is not drawn.
      left_out: what is only counted -> how many: "image column", "number column", ...
      steps: rows of the episode.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    metadata: Mapping[str, str]
    images: tuple[Pictures, ...]
    panels: tuple[Panel, ...]
    texts: Mapping[str, tuple[str, ...]]
    flags: Mapping[str, str]
    others: Mapping[str, str]
    left_out: Mapping[str, int]
    steps: int


@dataclass
class _Sorted:
    """The columns, as they are taken in."""

    images: list[Pictures] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def left_out(self) -> dict[str, int]:
        """What they are called -> how many there is no room for."""
        sorts: dict[str, Sequence[object]] = {
            "image column": self.images,
            "number column": self.numbers,
            "text column": self.texts,
            "flag": self.flags,
            "other column": self.others,
        }
        return {name: len(found) - MOST_COLUMNS for name, found in sorts.items() if len(found) > MOST_COLUMNS}


def contents_of(
    found: Found, columns: Mapping[str, ArraySpec], problems: Sequence[Problem], chosen: Sequence[str] = ()
) -> Contents:
    """What is to be shown of an episode.

    Args:
      found: the episode, and where it stands.
      columns: path -> spec of its source's steps; tells encoded images from text.
      problems: what is wrong with it.
      chosen: paths of columns, or of nests of them, to show; () for all.

    Raises:
      ConfigError: a path leads to no column; says which there are.
    """
    episode = found.episode
    there = _chosen(episode.columns, chosen)
    of_kind = _sorted(there, columns)
    numbers, texts, flags, others = (
        names[:MOST_COLUMNS] for names in (of_kind.numbers, of_kind.texts, of_kind.flags, of_kind.others)
    )
    return Contents(
        title=_title(found),
        facts=tuple(_facts(episode, problems)),
        metadata=_metadata(episode),
        images=tuple(of_kind.images[:MOST_COLUMNS]),
        panels=tuple(_panel(path, there[path]) for path in numbers),
        texts={path: text_lines(there[path]) for path in texts},
        flags={path: flag_text(there[path]) for path in flags},
        others={path: str(column_spec(there[path])) for path in others},
        left_out=of_kind.left_out(),
        steps=len(episode),
    )


def _chosen(columns: Mapping[str, Array], chosen: Sequence[str]) -> dict[str, Array]:
    for one in chosen:
        if not any(is_under(path, one) for path in columns):
            raise ConfigError(
                f'--columns "{one}": no such column, and no nest of that name; there are {shortened(visible(", ".join(columns)))}'
            )
    return {
        path: column for path, column in columns.items() if not chosen or any(is_under(path, one) for one in chosen)
    }


def _sorted(columns: Mapping[str, Array], specs: Mapping[str, ArraySpec]) -> _Sorted:
    made = _Sorted()
    for path, column in columns.items():
        pictures = pictures_of(path, column, specs.get(path))
        if pictures is not None:
            made.images.append(pictures)
        elif column.dtype.kind == "b" and column.ndim == 1:
            made.flags.append(path)
        elif column.dtype.kind in "OSU":
            made.texts.append(path)
        elif (column.dtype.kind in "biuf" or column.dtype.name == "bfloat16") and 0 not in column.shape[1:]:
            made.numbers.append(path)
        else:
            made.others.append(path)
    return made


def _panel(path: str, column: Array) -> Panel:
    shape = column.shape[1:]
    dimensions = int(np.prod(shape, dtype=np.int64))
    flat = column.reshape(len(column), dimensions)[:, :MOST_CURVES].astype(np.float64)
    curves = tuple(Curve(_label(number, shape), flat[:, number]) for number in range(flat.shape[1]))
    return Panel(path, str(column_spec(column)), curves, dimensions)


def _label(number: int, shape: tuple[int, ...]) -> str:
    if not shape:
        return ""
    return f"[{', '.join(str(index) for index in np.unravel_index(number, shape))}]"


def _title(found: Found) -> str:
    of = "" if found.count is None else f" of {found.count:,}"
    return f"episode {found.number:,}{of}: {visible(found.episode.title)}"


def _facts(episode: Episode, problems: Sequence[Problem]) -> Iterator[tuple[str, str]]:
    yield "length", counted(len(episode), "step")
    if (total := _return(episode)) is not None:
        yield "return", total
    yield "ends", _ends(episode)
    for problem in problems[:MOST_COLUMNS]:
        kind = "advice" if problem.is_advice else "problem"
        where = f'column "{visible(problem.path)}": ' if problem.path else ""
        yield f"{kind} {problem.code}", where + shortened(visible(problem.detail))
    if len(problems) > MOST_COLUMNS:
        yield "problems", f"and {len(problems) - MOST_COLUMNS:,} more"


def _return(episode: Episode) -> str | None:
    """The sum of the rewards, one for each dimension where there are several."""
    reward = episode.columns.get(REWARD)
    if reward is None or reward.dtype.kind not in "fiu" or reward.ndim > 2 or reward[:1].size > MOST_CURVES:
        return None
    with np.errstate(invalid="ignore", over="ignore"):  # of rewards that are not finite
        sums = np.atleast_1d(reward.sum(axis=0, dtype=np.float64))
    return ", ".join(f"{one:,.6g}" for one in sums)


def _ends(episode: Episode) -> str:
    last, terminal = (episode.columns.get(path) for path in (IS_LAST, IS_TERMINAL))
    rows = len(episode)
    if not rows:
        return "there is no step"
    parts = []
    if _is_flag(terminal, rows):
        parts.append("terminal" if _last(terminal) else "truncated: the last row is not terminal")
    else:
        parts.append(f"no {IS_TERMINAL}, so it counts as truncated")
    if _is_flag(last, rows) and not _last(last):
        parts.append(f"the last row is not marked {IS_LAST}")
    if rows > 1 and len({len(column) for column in episode.columns.values()}) == 1:
        added = last_row_is_added(episode)
        parts.append(
            "the last row was added for the last observation" if added else "the last row holds an action or a reward"
        )
    return "; ".join(parts)


def _is_flag(column: Array | None, rows: int) -> bool:
    return column is not None and column.dtype == bool and column.shape == (rows,)


def _last(column: Array | None) -> bool:
    return column is not None and bool(column[-1])


def _metadata(episode: Episode) -> dict[str, str]:
    told = {visible(path): _value(value) for path, value in list(episode.metadata.items())[:MOST_COLUMNS]}
    more = len(episode.metadata) - len(told)
    return {**told, "...": f"and {more:,} more"} if more > 0 else told


def _value(value: object) -> str:
    """A value of the metadata on one line."""
    if isinstance(value, bytes):
        return _quoted(visible(value))
    if isinstance(value, np.ndarray) and value.ndim and value.size > MOST_CURVES:
        first = ", ".join(_value(one) for one in value.ravel()[:MOST_CURVES].tolist())
        return shortened(f"{column_spec(value[None])}: {first}, ...")
    plain = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(plain, bytes):
        return _value(plain)
    return _quoted(plain) if isinstance(plain, str) else shortened(visible(str(plain)))


def _quoted(text: str) -> str:
    return f'"{shortened(visible(text))}"'


def contents_at(
    source: Source,
    wanted: str,
    columns: Sequence[str] = (),
    transform: Transform = Transform(),
    conventions: Conventions = Conventions(),
) -> Contents:
    """What is to be shown of one episode.

    Args:
      source: where it is.
      wanted: its number or its name, see `find`.
      columns: paths of columns, or of nests of them, to show; () for all.
      transform: what is done to the columns first.
      conventions: what is mended in a good episode, as a push would. A bad one is shown as it is.

    Raises:
      SourceError: there is no such episode, or the source cannot be read.
      ConfigError: there is no such column, or the steps do not allow the transform.
    """
    source = transformed(source, transform)
    source = source.with_encoded(list(source.images()))
    spec = checked_spec(source)
    found = find(source, wanted)
    shown, problems = _mended(
        found, Standard.of(spec, EpisodeOptions(transform=transform, **vars(conventions)).conventions)
    )
    return contents_of(shown, flatten(spec), problems, columns)


def _mended(found: Found, standard: Standard) -> tuple[Found, list[Problem]]:
    filled, problems = standard.examine(found.episode)
    if standard.conventions == Conventions() or not all(problem.is_advice for problem in problems):
        return found, problems
    return replace(found, episode=standard.normalise(filled)), problems
