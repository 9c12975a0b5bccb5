"""Checks of one episode -> its problems (`find_problems`).

Checks of structure compare columns with the dataset's spec and with each other; checks of content read the values, and rely on flags that
the former found good. Many short episodes are checked together (`find_problems_of_all`): each check of content has a doubt, one vectorised
look at the rows of all episodes, and only episodes in doubt are checked one by one. A doubt may be wrong about a good episode, never about
a bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlds2reverb.episode import (
    DISCOUNT,
    FLAGS,
    IS_FIRST,
    IS_LAST,
    IS_TERMINAL,
    OBSERVATION,
    REWARD,
    Array,
    Episode,
    columns_under,
    gaps_around,
    is_under,
)
from rlds2reverb.formats.transform import SHIFT
from rlds2reverb.images import image_size
from rlds2reverb.prepare.conventions import TRANSITION, Conventions, ends_terminal
from rlds2reverb.prepare.endings import is_numeric, leaps, numeric_observations
from rlds2reverb.prepare.problems import OTHER_END, SHIFT_REWARDS, ZERO_DISCOUNT, Problem
from rlds2reverb.specs import ArraySpec, column_spec, dtype_name, same_dtype, shape_fits
from rlds2reverb.text import counted

Columns = Mapping[str, ArraySpec]


def find_problems(
    episode: Episode, columns: Columns | None = None, conventions: Conventions = Conventions()
) -> list[Problem]:
    """All problems of an episode, in the order of the checks; [] for a good one. Vectorised over steps.

    Args:
      episode: with the seven RLDS fields (`conventions.fill_absent`).
      columns: path -> spec that every episode must have (`specs.flatten(source.spec())`), or None to judge the
        episode by itself.
      conventions: what will be applied to the episode; problems include what they would lose or bring in, and leave out
        what they mend.
    """
    if episode.faults and not episode.columns:  # nothing else is known of it
        return [Problem("unreadable", path, reason) for path, reason in episode.faults]
    problems: list[Problem] = []
    for structure_check in _STRUCTURE:
        problems += structure_check(episode, columns or {})
    # Checks of content cannot rely on these flags: on none where columns do not go together.
    unreadable = {problem.path for problem in problems if problem.code in ("missing_column", "flag_dtype")}
    if any(problem.code in ("no_steps", "unequal_lengths") for problem in problems):
        unreadable = set(FLAGS)
    for check in _content_checks(conventions):
        if unreadable.isdisjoint(check.flags):
            problems += check.problems(episode, conventions)
    return problems


def find_problems_of_all(
    episodes: Sequence[Episode], columns: Columns, conventions: Conventions = Conventions()
) -> list[list[Problem]]:
    """`find_problems` of every episode. For short ones this takes far less time: a check looks at the rows of all of them at once, and
    then only at the episodes where something seems to be wrong.

    Args:
      columns: path -> spec that every episode must have.
    """
    if len(episodes) < 2 or not _have_good_structure(episodes, columns):
        return [find_problems(episode, columns, conventions) for episode in episodes]
    # Only episodes of good structure are joined: their columns have equal dtypes and shapes, so every doubt can read them all.
    rows = _JoinedRows.of(episodes)
    problems: list[list[Problem]] = [[] for _ in episodes]
    for check in _content_checks(conventions):
        for number in np.flatnonzero(check.doubts(rows)):
            problems[number] += check.problems(episodes[number], conventions)
    return problems


def _have_good_structure(episodes: Sequence[Episode], columns: Columns) -> bool:
    """Whether all have the same columns, and no check of `_STRUCTURE` finds anything; images are too large to be worth it."""
    first = episodes[0]
    if not first.columns.keys() == columns.keys() >= set(FLAGS) or any(spec.image for spec in columns.values()):
        return False
    kinds = {path: (column.dtype, column.shape[1:]) for path, column in first.columns.items()}
    for episode in episodes:
        rows = len(episode)
        if episode.faults or rows < 2 or len(episode.columns) != len(kinds):
            return False
        for path, column in episode.columns.items():
            if len(column) != rows or kinds.get(path) != (column.dtype, column.shape[1:]):
                return False
    # The first one for all: the checks of structure look at dtypes and shapes, and in these the others are like it.
    return not any(True for check in _STRUCTURE for _ in check(first, columns))


class _JoinedRows(NamedTuple):
    """The rows of episodes that have the same columns, one after the other."""

    columns: Mapping[str, Array]  # path -> [R, ...]
    first: Array  # [k], of each episode, the number of its first row
    last: Array
    is_last: Array  # [R] bool

    @staticmethod
    def of(episodes: Sequence[Episode]) -> _JoinedRows:
        ends = np.cumsum([len(episode) for episode in episodes])
        is_last = np.zeros(ends[-1], bool)
        is_last[ends - 1] = True
        columns = {
            path: np.concatenate([episode.columns[path] for episode in episodes]) for path in episodes[0].columns
        }
        return _JoinedRows(columns, np.append(0, ends[:-1]), ends - 1, is_last)

    def under(self, name: str, is_judged: Callable[[Array], bool]) -> list[Array]:
        return [column for column in columns_under(self.columns, name).values() if is_judged(column)]

    def any_row(self, wrong: Array) -> Array:
        """[R, ...] bool -> [k], whether one of an episode's rows is set."""
        # Nearly always nothing is wrong: one look at all rows, and none by episode.
        if not wrong.any():
            return np.zeros(len(self.first), bool)
        doubted: Array = np.logical_or.reduceat(wrong.reshape(len(wrong), -1).any(axis=1), self.first)
        return doubted

    def any_value(self, columns: Sequence[Array], rows: Array) -> Array:
        """[k], whether a column has something other than zero in an episode's row; `rows` are one of each."""
        return self.either((column[rows] != 0).reshape(len(rows), -1).any(axis=1) for column in columns)

    def either(self, doubts: Iterable[Array]) -> Array:
        """[k], whether one of these, which are [k] as well, is set."""
        either = np.zeros(len(self.first), bool)
        for doubt in doubts:
            either |= doubt
        return either


def _check_faults(episode: Episode, _: Columns) -> Iterator[Problem]:
    for path, reason in episode.faults:
        yield Problem("untransformed", path, reason)


def _check_length(episode: Episode, _: Columns) -> Iterator[Problem]:
    lengths = {path: len(column) for path, column in episode.columns.items()}
    if not any(lengths.values()):
        yield Problem("no_steps", "", "expected at least 2 steps, got 0")
    elif len(set(lengths.values())) > 1:
        usual = len(episode.columns[IS_FIRST]) if IS_FIRST in episode.columns else max(lengths.values())
        for path, rows in lengths.items():
            if rows != usual:
                yield Problem(
                    "unequal_lengths", path, f"expected {counted(usual, 'row')} as in the other columns, got {rows:,}"
                )
    elif len(episode) == 1:
        yield Problem("single_step", "", "expected at least 2 steps, got 1")


def _check_columns(episode: Episode, columns: Columns) -> Iterator[Problem]:
    for path in dict.fromkeys((*columns, IS_FIRST, IS_LAST)):
        if path not in episode.columns:
            yield Problem("missing_column", path, f"expected it in every episode; found {sorted(episode.columns)}")
    for path in episode.columns if columns else ():
        if path not in columns:
            yield Problem("extra_column", path, f"the dataset's spec has {sorted(columns)}")


def _check_specs(episode: Episode, columns: Columns) -> Iterator[Problem]:
    for path, spec in columns.items():
        column = episode.columns.get(path)
        if column is None or path in FLAGS:
            continue
        if column.dtype == spec.dtype and column.shape[1:] == spec.shape:
            continue
        own = column_spec(column)
        if not same_dtype(own.dtype, spec.dtype):
            yield Problem("dtype", path, f"expected {dtype_name(spec.dtype)}, got {dtype_name(own.dtype)}")
        if not shape_fits(own.shape, spec.shape):
            yield Problem("shape", path, f"expected rows of {list(spec.shape)}, got {list(own.shape)}")


def _check_images(episode: Episode, columns: Columns) -> Iterator[Problem]:
    """Judges image files by their headers; what follows a header shows only when it is decoded."""
    for path, spec in columns.items():
        if spec.image is None:
            continue
        column = episode.columns.get(path)
        if column is None or column.dtype != object:
            continue
        height, width, _ = spec.image.shape
        sizes = [image_size(value) if isinstance(value, bytes) else None for value in column.ravel()]
        fit = [size is not None and shape_fits(size, (height, width)) for size in sizes]
        wrong = ~np.array(fit, bool).reshape(column.shape)
        if wrong.any():
            size = sizes[fit.index(False)]
            came = "no such file" if size is None else f"{size[0]} by {size[1]} pixels"
            expected = f"expected files of {spec.image}, got {came}"
            yield from _stray("image", path, wrong, 0, expected)


def _check_flag_dtypes(episode: Episode, _: Columns) -> Iterator[Problem]:
    for path in FLAGS:
        flag = episode.columns.get(path)
        if flag is not None and (flag.dtype != bool or flag.ndim != 1):
            yield Problem("flag_dtype", path, f"expected bool[T], got {dtype_name(flag.dtype)}{list(flag.shape)}")


def _check_first(episode: Episode) -> Iterator[Problem]:
    first = episode.columns[IS_FIRST]
    if not first[0]:
        yield Problem("first_missing", IS_FIRST, "expected True at step 0, got False")
    yield from _stray("first_inside", IS_FIRST, first[1:], 1, "only step 0 may be first")


def _check_last(episode: Episode) -> Iterator[Problem]:
    last = episode.columns[IS_LAST]
    if not last[-1]:
        yield Problem("last_missing", IS_LAST, f"expected True at step {len(last) - 1}, got False")
    yield from _stray("last_inside", IS_LAST, last[:-1], 0, f"only step {len(last) - 1} may be last")


def _check_terminal(episode: Episode) -> Iterator[Problem]:
    terminal = episode.columns.get(IS_TERMINAL)
    if terminal is not None:
        yield from _stray(
            "terminal_inside", IS_TERMINAL, terminal[:-1], 0, f"only step {len(terminal) - 1} may be terminal"
        )


def _check_numbers(episode: Episode) -> Iterator[Problem]:
    """NaN and infinite values; not in the reward and discount of the last step, which carry no meaning."""
    for path, column in episode.columns.items():
        if not _is_inexact(column) or np.isfinite(column).all():
            continue
        is_of_transitions = is_under(path, REWARD) or is_under(path, DISCOUNT)
        meaningful = column[:-1] if is_of_transitions and len(column) > 1 else column
        yield from _stray("nan", path, np.isnan(meaningful), 0, "expected numbers")
        yield from _stray("infinite", path, np.isinf(meaningful), 0, "expected finite numbers")


def _check_discount(episode: Episode) -> Iterator[Problem]:
    for path, discount in columns_under(episode.columns, DISCOUNT).items():
        if _is_real(discount) and len(discount) > 1:
            outside = (discount[:-1] < 0) | (discount[:-1] > 1)
            yield from _stray("discount_range", path, outside, 0, "expected values in [0, 1]", discount)


def _check_last_reward(episode: Episode) -> Iterator[Problem]:
    if gaps_around(episode.id)[1]:  # filters cut it there, and its last row is one of many that have a reward
        return
    for path, reward in columns_under(episode.columns, REWARD).items():
        if _is_real(reward) and len(reward) > 1 and (reward[-1] != 0).any():
            lost = next((column[0] for column in _lost_by_shift(episode).values()), None)
            fact = f"step {len(reward) - 1} (the last) has reward {reward[-1]}, where learners do not look"
            if lost is None:
                yield Problem("last_reward", path, fact, SHIFT_REWARDS)
            else:
                yield Problem("last_reward", path, f"{fact}; no shift mends it, for the first reward is {lost}")


def _check_terminal_discount(episode: Episode) -> Iterator[Problem]:
    if IS_TERMINAL not in episode.columns:
        return
    discounts = columns_under(episode.columns, DISCOUNT).items()
    real = {path: discount for path, discount in discounts if _is_real(discount) and len(discount) > 1}
    into_end = {path: (discount[-2] != 0).any() for path, discount in real.items()}
    if ends_terminal(episode):
        for path, discount in real.items():
            if into_end[path]:
                fact = f"step {len(discount) - 2} leads into a terminal step with discount {discount[-2]}, expected 0"
                yield Problem("terminal_discount", path, fact, ZERO_DISCOUNT)
    elif episode.columns[IS_LAST][-1:].any() and into_end and not any(into_end.values()):
        detail = (
            f"step {len(episode) - 2} leads into the last step with discount 0, so learners take it as terminal, "
            "and the step says that it is not"
        )
        yield Problem("terminal_unmarked", IS_TERMINAL, detail)


def _check_zero_end(episode: Episode) -> Iterator[Problem]:
    observations = numeric_observations(episode)
    if not any(np.any(column[-1]) for column in observations.values()) and leaps(observations):
        yield Problem(
            "zero_last_observation",
            OBSERVATION,
            f"step {len(episode) - 1} (the last) has nothing but zeros, and changes more than any step before",
            OTHER_END,
        )


def check_first_reward(episode: Episode) -> Iterator[Problem]:
    """What a shift of rewards would lose at the start."""
    for path, reward in _lost_by_shift(episode).items():
        detail = (
            f"step 0 has reward {reward[0]}; the data seems to record rewards with the action that earned them, "
            "so it needs no shift"
        )
        yield Problem("first_reward_lost", path, detail)


def _lost_by_shift(episode: Episode) -> dict[str, Array]:
    """The rewards whose first one is not 0: a shift would drop it. Behind a gap it belongs to an action that filters took out."""
    if gaps_around(episode.id)[0]:
        return {}
    rewards = columns_under(episode.columns, REWARD)
    return {path: reward for path, reward in rewards.items() if reward.dtype.kind not in "OSU" and np.any(reward[:1])}


def loses_by_shift(episode: Episode) -> bool:
    """Whether last_reward="shift" would drop a reward of the episode, so that it is rejected as `first_reward_lost`."""
    return bool(_lost_by_shift(episode))


def _check_shifted_numbers(episode: Episode) -> Iterator[Problem]:
    """What a shift of rewards would bring in from the last step, which `_check_numbers` ignores."""
    for path, reward in columns_under(episode.columns, REWARD).items():
        if _is_inexact(reward) and len(reward) > 1 and not np.isfinite(reward[-1]).all():
            code = "nan" if np.isnan(reward[-1]).any() else "infinite"
            detail = f"step {len(reward) - 1} (the last) has reward {reward[-1]}, which a shift would use"
            yield Problem(code, path, detail)


def _is_inexact(column: Array) -> bool:
    return column.dtype.kind in "fc" or _is_bfloat16(column)


def _is_real(column: Array) -> bool:
    return column.dtype.kind in "fiu" or _is_bfloat16(column)


def _is_bfloat16(column: Array) -> bool:
    return column.dtype.kind == "V" and column.dtype.name == "bfloat16"  # numpy takes a microsecond for a name


def _stray(
    code: str, path: str, wrong: Array, offset: int, expected: str, values: Array | None = None
) -> Iterator[Problem]:
    """One problem for all steps where `wrong` ([T'] or [T', ...]) is set: the first step, and their number."""
    if wrong.ndim > 1:
        wrong = wrong.reshape(len(wrong), -1).any(axis=1)
    steps = np.nonzero(wrong)[0]
    if len(steps):
        first = int(steps[0]) + offset
        step = f"step {first}" + ("" if values is None else f" ({values[first]})")
        where = f"{step} differs" if len(steps) == 1 else f"{len(steps):,} steps differ, the first is {step}"
        yield Problem(code, path, f"{expected}; {where}")


_STRUCTURE: tuple[Callable[[Episode, Columns], Iterator[Problem]], ...] = (
    _check_faults,
    _check_length,
    _check_columns,
    _check_specs,
    _check_images,
    _check_flag_dtypes,
)


def _doubt_numbers(rows: _JoinedRows) -> Array:
    return rows.either(rows.any_row(~np.isfinite(column)) for column in rows.columns.values() if _is_inexact(column))


def _doubt_terminal_discount(rows: _JoinedRows) -> Array:
    """A discount of 0 leads into a terminal step, and into no other."""
    terminal = rows.columns[IS_TERMINAL][rows.last]
    discounts = rows.under(DISCOUNT, _is_real)
    return rows.either(rows.any_value([discount], rows.last - 1) == terminal for discount in discounts)


class _ContentCheck(NamedTuple):
    find: Callable[[Episode], Iterator[Problem]]
    doubts: Callable[[_JoinedRows], Array]  # [k] bool, at least the episodes in which `find` finds something
    flags: tuple[str, ...] = ()  # that it relies on
    is_of_end: bool = False  # whether it is left out where the last observation is mended

    def problems(self, episode: Episode, conventions: Conventions) -> list[Problem]:
        """What it finds, but for what the conventions mend."""
        if self.is_of_end and conventions.mends_end(episode):
            return []
        mended = {"last_reward"} if conventions.last_reward == SHIFT else set()
        mended |= {"terminal_discount"} if conventions.terminal_discount == TRANSITION else set()
        if conventions.adds_row(episode):  # the last row leads into the end then, and learners see its reward
            discounts = columns_under(episode.columns, DISCOUNT).values()
            is_zero = all(not np.any(discount[-1:]) for discount in discounts if _is_real(discount))
            mended |= {"last_reward", "terminal_discount"} if is_zero else {"last_reward"}
        return [problem for problem in self.find(episode) if problem.code not in mended]


def _content_checks(conventions: Conventions) -> tuple[_ContentCheck, ...]:
    return (*_CONTENT, *(_SHIFT if conventions.last_reward == SHIFT else ()), *_END)


_CONTENT = (
    # Rolled by one, "is the last row of its episode" is "is the first row".
    _ContentCheck(
        _check_first, lambda rows: rows.any_row(rows.columns[IS_FIRST] != np.roll(rows.is_last, 1)), (IS_FIRST,)
    ),
    _ContentCheck(_check_last, lambda rows: rows.any_row(rows.columns[IS_LAST] != rows.is_last), (IS_LAST,)),
    _ContentCheck(
        _check_terminal, lambda rows: rows.any_row(rows.columns[IS_TERMINAL] & ~rows.is_last), (IS_TERMINAL,)
    ),
    _ContentCheck(_check_numbers, _doubt_numbers),
    _ContentCheck(
        _check_discount,
        lambda rows: rows.either(
            rows.any_row((column < 0) | (column > 1)) for column in rows.under(DISCOUNT, _is_real)
        ),
    ),
    _ContentCheck(_check_last_reward, lambda rows: rows.any_value(rows.under(REWARD, _is_real), rows.last), (IS_LAST,)),
    _ContentCheck(_check_terminal_discount, _doubt_terminal_discount, (IS_LAST, IS_TERMINAL)),
)
_SHIFT = (
    _ContentCheck(
        check_first_reward,
        lambda rows: rows.any_value(rows.under(REWARD, lambda column: column.dtype.kind not in "OSU"), rows.first),
    ),
    _ContentCheck(_check_shifted_numbers, _doubt_numbers),
)
"""For episodes whose rewards will be shifted."""
_END = (
    _ContentCheck(
        _check_zero_end,
        lambda rows: ~rows.any_value(rows.under(OBSERVATION, is_numeric), rows.last),
        (IS_LAST,),
        is_of_end=True,
    ),
)
