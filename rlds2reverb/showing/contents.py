"""What is in an episode, sorted by how it is shown: header, metadata, images, curves, texts, flags, and the rest by kind alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlds2reverb.conventions import last_row_is_added
from rlds2reverb.episodes import IS_LAST, IS_TERMINAL, REWARD, Array, Episode, is_under
from rlds2reverb.errors import ConfigError
from rlds2reverb.look.pictures import Pictures, pictures_of
from rlds2reverb.showing.curves import Curve, range_text
from rlds2reverb.showing.finding import Found
from rlds2reverb.showing.runs import flag_text, text_lines
from rlds2reverb.specs import ArraySpec, column_spec
from rlds2reverb.validation import Problem
from rlds2reverb.wording import counted, shortened, visible

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
