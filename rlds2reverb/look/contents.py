"""One episode to look at: found by number or name, and sorted by how its columns are shown."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds2reverb.episode import (
    IS_LAST,
    IS_TERMINAL,
    REWARD,
    Array,
    Episode,
    Occurrences,
    copy_name,
    is_content,
    is_under,
)
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.filtered import filtered
from rlds2reverb.formats.last_step import last_row_is_added
from rlds2reverb.formats.mapped import mapped
from rlds2reverb.formats.source import Source, checked_spec
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.images import image_size
from rlds2reverb.look.collector import INSTRUCTIONS
from rlds2reverb.look.curves import Curve, range_text
from rlds2reverb.look.pictures import Pictures, pictures_of
from rlds2reverb.prepare.conventions import Conventions, fill_absent
from rlds2reverb.prepare.options import EpisodeOptions
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.prepare.standard import Standard
from rlds2reverb.specs import ArraySpec, column_spec, flatten, is_number
from rlds2reverb.text import at_index, counted, shortened, visible

_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_MOST_NAMES = 20_000
"""Names that are compared with one that was not found, which takes time."""
_CLOSE = 3


@dataclass(frozen=True)
class FoundEpisode:
    """An episode, its number in the source from 0 on, and the number of all, if known. One found by name is called as in a push, a copy with its number."""

    episode: Episode
    number: int
    count: int | None


def find(source: Source, name: str) -> FoundEpisode:
    """The episode of this name.

    The name is a number from 0 on, or from the end (-1 is the last); else the episode's id as `inspect` and `validate` print it, with the
    "#2" of a copy, or the dataset's own name of it (its metadata `episode_id`). Where these names are numbers, a number out of range is
    looked for among them.

    Raises:
      SourceError: there is no such episode: the message gives the number of episodes, and names that are close; or the source cannot be read.
    """
    if not _NUMBER.fullmatch(name):
        return _find_named(source, name)
    asked_number, count = int(name), source.episode_count
    if asked_number < 0 and count is None:
        count = sum(1 for _ in source)
    number = asked_number if asked_number >= 0 or count is None else count + asked_number
    if number >= 0 and (count is None or number < count):
        for episode in source.episodes(number, number + 1):
            return FoundEpisode(episode, number, count)
    first = next(iter(source), None)
    if first is not None and _NUMBER.fullmatch(first.recorded_id or ""):  # names are numbers
        return _find_named(source, str(asked_number))
    there = sum(1 for _ in source) if count is None else count
    expected = "there is no episode"
    if there:
        expected = (
            f"expected 0 to {there - 1:,}, or -{there:,} to -1 from the end; there are {counted(there, 'episode')}"
        )
    raise SourceError(f"{source.name}: episode {asked_number}: {expected}")


def _find_named(source: Source, searched: str) -> FoundEpisode:
    names: list[str] = []
    occurrences = Occurrences()
    number = -1
    for number, episode in enumerate(source):
        if is_content(episode.id):  # as a push names it: the second and later ones of a content have a number
            name = copy_name(episode.id, occurrences.count(episode.id))
            episode = episode if name == episode.id else replace(episode, id=name)
        own = [episode.id] if episode.recorded_id is None else [episode.id, episode.recorded_id]
        if searched in (*own, episode.title):
            return FoundEpisode(episode, number, source.episode_count)
        if len(names) < _MOST_NAMES:
            names += own
    close = difflib.get_close_matches(searched, names, _CLOSE)
    hint = ", ".join(shortened(visible(name)) for name in close or names[:1])
    if hint:
        hint = f", {'close to it' if close else 'the first is called'}: {hint}"
    raise SourceError(
        f'{source.name}: episode "{shortened(visible(searched))}": no episode has this id or episode_id; '
        f"{counted(number + 1, 'episode')} looked at{hint}; a number from 0 does as well"
    )


_MOST_RUNS = 6
_MOST_CHARACTERS = 400
_MOST_VALUES = 4  # of a row with several texts


def text_lines(column: Array) -> tuple[str, ...]:
    """[T, ...] texts as lines: one for each run of equal rows; a single one without its steps when all rows are equal.

    >>> text_lines(np.array([b"reach", b"reach", b"grip"], object))
    ('0 to 1: "reach"', '2: "grip"')
    """
    rows: list[tuple[bytes, ...]] = []
    for row in column:
        values = row.ravel().tolist() if isinstance(row, np.ndarray) else [row]
        rows.append(
            tuple(
                value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass") for value in values
            )
        )
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
    steps = ", ".join(_steps(start, stop) for start, stop in runs[:_MOST_RUNS])
    more = sum(stop - start for start, stop in runs[_MOST_RUNS:])
    return f"at {steps}" + (f" and {more:,} more steps" if more else "")


def _runs(values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of each run of equal values."""
    start = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[start]:
            yield start, at
            start = at


def _steps(start: int, stop: int) -> str:
    return f"{start:,}" if stop == start + 1 else f"{start:,} to {stop - 1:,}"


def _row_text(values: tuple[bytes, ...]) -> str:
    shown = ", ".join(_text(value) for value in values[:_MOST_VALUES])
    return f"{shown}, ..." if len(values) > _MOST_VALUES else shown or "no values"


def _text(value: bytes) -> str:
    if (size := image_size(value)) is not None:
        return f"image file of {size[0]} x {size[1]}"
    return f'"{shortened(visible(value[: 4 * _MOST_CHARACTERS + 4]), _MOST_CHARACTERS)}"'


MOST_CURVES = 8
"""Of one column; more dimensions are counted. Where they are drawn one below the other, fewer."""
MOST_COLUMNS = 40  # of each sort; more are counted


@dataclass(frozen=True)
class Panel:
    """A column of numbers: dtype and shape of a row, curves of the first `MOST_CURVES` dimensions, and the number of all dimensions."""

    path: str
    kind: str
    curves: tuple[Curve, ...]
    dimensions: int

    @property
    def moving(self) -> tuple[Curve, ...]:
        """The curves that are drawn: those whose values differ."""
        return tuple(curve for curve in self.curves if not curve.is_still)

    @property
    def still_texts(self) -> tuple[str, ...]:
        """The dimensions that are not drawn, and their values: "discount = 1"; one text for a column that is not drawn at all."""
        still = [curve for curve in self.curves if curve.is_still]
        values = [range_text([curve]) for curve in still]
        name = visible(self.path)
        if still and len(still) == len(self.curves):
            more = ", ..." if len(values) > _MOST_VALUES else ""
            all_of_it = values[0] if len(set(values)) == 1 else f"[{', '.join(values[:_MOST_VALUES])}{more}]"
            return (f"{name} = {all_of_it}{self._first_of}",)
        return tuple(f"{name}{curve.label} = {value}" for curve, value in zip(still, values))

    @property
    def range_line(self) -> str:
        """Kind and range of what is drawn, and the number of dimensions that are not looked at."""
        return f"{self.kind}  {range_text(self.moving)}{self._first_of}"

    @property
    def _first_of(self) -> str:
        more = self.dimensions - len(self.curves)
        return f"  (first {len(self.curves)} of {self.dimensions:,} dimensions)" if more else ""


@dataclass(frozen=True)
class Contents:
    """An episode, ready to be shown. All text is cleaned: none of it can move a terminal's cursor.

    Attributes:
      title: which episode of the source it is, by its index.
      name: its id, and the dataset's own name of it.
      caption: the instruction of a robot's episode, "" without one; where it changes, each with its steps.
      facts: (name, text): length, return, how it ends, what is wrong.
      metadata: path -> value as text.
      panels: in the order of the steps' fields.
      texts: path -> lines.
      flags: path -> at which steps it is true.
      others: path -> kind, of what is not drawn.
      left_out: "image column", "number column", ... -> number of further ones.
      steps: rows of the episode.
    """

    title: str
    name: str
    caption: str
    facts: tuple[tuple[str, str], ...]
    metadata: Mapping[str, str]
    images: tuple[Pictures, ...]
    panels: tuple[Panel, ...]
    texts: Mapping[str, tuple[str, ...]]
    flags: Mapping[str, str]
    others: Mapping[str, str]
    left_out: Mapping[str, int]
    steps: int

    @property
    def drawn(self) -> tuple[Panel, ...]:
        """The panels that have a curve."""
        return tuple(panel for panel in self.panels if panel.moving)

    @property
    def other_texts(self) -> dict[str, tuple[str, ...]]:
        """The texts but that of the caption."""
        return {path: lines for path, lines in self.texts.items() if "; ".join(lines) != self.caption}

    @property
    def constants(self) -> str:
        """The numbers that stay the same in all steps, on one line; "" without any."""
        texts = [text for panel in self.panels if self.steps for text in panel.still_texts]
        more = f"; and {len(texts) - MOST_COLUMNS:,} more" if len(texts) > MOST_COLUMNS else ""
        return "; ".join(texts[:MOST_COLUMNS]) + more


def contents_of(
    place: FoundEpisode, columns: Mapping[str, ArraySpec], problems: Sequence[Problem], chosen: Sequence[str] = ()
) -> Contents:
    """An episode as it is shown: the `chosen` columns or nests of them, () for all. The specs of its source's steps distinguish images from text.

    Raises:
      ConfigError: a path leads to no column; the message lists the columns.
    """
    episode = place.episode
    there = _choose_columns(episode.columns, chosen)
    images: list[Pictures] = []
    numbers: list[str] = []
    texts: list[str] = []
    flags: list[str] = []
    others: list[str] = []
    for path, column in there.items():
        pictures = pictures_of(path, column, columns.get(path))
        if pictures is not None:
            images.append(pictures)
        elif column.dtype.kind == "b" and column.ndim == 1:
            flags.append(path)
        elif column.dtype.kind in "OSU":
            texts.append(path)
        elif is_number(column.dtype) and 0 not in column.shape[1:]:
            numbers.append(path)
        else:
            others.append(path)
    sorts: dict[str, Sequence[object]] = {
        "image column": images,
        "number column": numbers,
        "text column": texts,
        "flag": flags,
        "other column": others,
    }
    return Contents(
        title=at_index("Episode", place.number, place.count),
        name=visible(episode.title),
        caption=_caption(episode),
        facts=tuple(_facts(episode, problems)),
        metadata=_metadata(episode),
        images=tuple(images[:MOST_COLUMNS]),
        panels=tuple(_panel(path, there[path]) for path in numbers[:MOST_COLUMNS]),
        texts={path: text_lines(there[path]) for path in texts[:MOST_COLUMNS]},
        flags={path: flag_text(there[path]) for path in flags[:MOST_COLUMNS]},
        others={path: str(column_spec(there[path])) for path in others[:MOST_COLUMNS]},
        left_out={name: len(columns) - MOST_COLUMNS for name, columns in sorts.items() if len(columns) > MOST_COLUMNS},
        steps=len(episode),
    )


def _caption(episode: Episode) -> str:
    texts = {
        path: column for path, column in episode.columns.items() if column.dtype.kind in "OSU" and column.ndim == 1
    }
    columns, metadata = (
        {path.rpartition("/")[2]: leaf for path, leaf in of.items()} for of in (texts, episode.metadata)
    )
    for name in INSTRUCTIONS:
        if name in columns:
            return "; ".join(text_lines(columns[name]))
        if isinstance(metadata.get(name), (bytes, str)):
            return _value(metadata[name])
    return ""


def _choose_columns(columns: Mapping[str, Array], chosen: Sequence[str]) -> dict[str, Array]:
    for pattern in chosen:
        if not any(is_under(path, pattern) for path in columns):
            raise ConfigError(
                f'--columns "{pattern}": no such column, and no nest of that name; there are {shortened(visible(", ".join(columns)))}'
            )
    return {
        path: column
        for path, column in columns.items()
        if not chosen or any(is_under(path, pattern) for pattern in chosen)
    }


def _panel(path: str, column: Array) -> Panel:
    shape = column.shape[1:]
    dimensions = int(np.prod(shape, dtype=np.int64))
    flat = column.reshape(len(column), dimensions)[:, :MOST_CURVES].astype(np.float64)
    curves = []
    for number in range(flat.shape[1]):
        label = f"[{', '.join(str(index) for index in np.unravel_index(number, shape))}]" if shape else ""
        curves.append(Curve(label, flat[:, number]))
    return Panel(path, str(column_spec(column)), tuple(curves), dimensions)


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
    return ", ".join(f"{total:,.6g}" for total in sums)


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
    values = {visible(path): _value(value) for path, value in list(episode.metadata.items())[:MOST_COLUMNS]}
    more = len(episode.metadata) - len(values)
    return {**values, "...": f"and {more:,} more"} if more > 0 else values


def _value(value: object) -> str:
    """A value of the metadata on one line."""
    if isinstance(value, bytes):
        return f'"{shortened(visible(value))}"'
    if isinstance(value, np.ndarray) and value.ndim and value.size > MOST_CURVES:
        first = ", ".join(_value(number) for number in value.ravel()[:MOST_CURVES].tolist())
        return shortened(f"{column_spec(value[None])}: {first}, ...")
    plain = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(plain, bytes):
        return _value(plain)
    text = shortened(visible(str(plain)))
    return f'"{text}"' if isinstance(plain, str) else text


def contents_at(
    source: Source,
    name: str,
    columns: Sequence[str] = (),
    options: EpisodeOptions = EpisodeOptions(),
) -> Contents:
    """One episode of a source as it is shown.

    `name` is as in `find`, among the episodes that filters leave; `columns` are paths of columns or of nests, () for all. Filters, map and
    transform are applied first. The conventions are applied to a good episode, as in a push; a bad one is shown as it is.

    Raises:
      SourceError: there is no such episode, or the source cannot be read.
      ConfigError: there is no such column, or the steps do not allow the transform.
    """
    left = mapped(filtered(source, options.rules), options.chosen_map)
    source = transformed(left, options.chosen_transform)
    source = source.with_encoded(list(source.images()))
    spec = checked_spec(source)
    place = find(source, name)
    standard = Standard.of(spec, options.conventions)
    filled = fill_absent(place.episode)
    problems = standard.problems(filled)
    if standard.conventions != Conventions() and all(problem.is_advice for problem in problems):
        place = replace(place, episode=standard.normalise(filled))
    return contents_of(place, flatten(spec), problems, columns)
