"""Episode -> every problem in it. Vectorised over steps; never changes anything, never stops at the first.

The dataset's spec, where given, says which columns, shapes and dtypes all episodes must have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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
    is_under,
)
from rlds2reverb.formats.transform import SHIFT
from rlds2reverb.images import image_size
from rlds2reverb.prepare.conventions import TRANSITION, Conventions, ends_terminal
from rlds2reverb.prepare.endings import leaps, numeric_observations
from rlds2reverb.prepare.problems import Problem
from rlds2reverb.specs import ArraySpec, column_spec, dtype_name, same_dtype, shape_fits
from rlds2reverb.text import counted

Columns = Mapping[str, ArraySpec]
_ContentChecks = tuple[tuple[Callable[[Episode], Iterator[Problem]], tuple[str, ...]], ...]


def find_problems(
    episode: Episode, columns: Columns | None = None, conventions: Conventions = Conventions()
) -> list[Problem]:
    """All problems of an episode, in the order of the checks; [] for a good one.

    Args:
      episode: with the seven RLDS fields (`conventions.fill_absent`).
      columns: path -> spec that every episode must have (`specs.flatten(source.spec())`), or None to judge the
        episode by itself.
      conventions: how a push would put the episode; problems include what they would lose or bring in, and leave out
        what they mend.
    """
    if episode.faults and not episode.columns:  # nothing else is known of it
        return [Problem("unreadable", path, reason) for path, reason in episode.faults]
    problems = [problem for check in _STRUCTURE for problem in check(episode, columns or {})]
    unreadable = _unreadable_flags(problems)
    checks = _CONTENT + _SHIFT if conventions.last_reward == SHIFT else _CONTENT
    checks += () if conventions.mends_end(episode) else _END
    readable = [check for check, flags in checks if unreadable.isdisjoint(flags)]
    mended = _mended_codes(conventions)
    return problems + [problem for check in readable for problem in check(episode) if problem.code not in mended]


def _mended_codes(conventions: Conventions) -> set[str]:
    """Codes of what the conventions mend in every episode."""
    shifted = {"last_reward"} if conventions.last_reward == SHIFT else set()
    return shifted | ({"terminal_discount"} if conventions.terminal_discount == TRANSITION else set())


def _unreadable_flags(problems: list[Problem]) -> set[str]:
    """Flags that the checks of content cannot rely on: all of them where columns do not go together."""
    if any(problem.code in ("no_steps", "unequal_lengths") for problem in problems):
        return set(FLAGS)
    return {problem.path for problem in problems if problem.code in ("missing_column", "flag_dtype")}


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
                    "unequal_lengths", path, f"expected {counted(usual, 'row')} as in the others, got {rows:,}"
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
        found = column_spec(column)
        if not same_dtype(found.dtype, spec.dtype):
            yield Problem("dtype", path, f"expected {dtype_name(spec.dtype)}, got {dtype_name(found.dtype)}")
        if not shape_fits(found.shape, spec.shape):
            yield Problem("shape", path, f"expected rows of {list(spec.shape)}, got {list(found.shape)}")


def _check_images(episode: Episode, columns: Columns) -> Iterator[Problem]:
    """Encoded images by the headers of their files; what follows a header shows only when it is decoded."""
    for path, spec in columns.items():
        column = episode.columns.get(path)
        if spec.image is None or column is None or column.dtype != object:
            continue
        height, width, _ = spec.image.shape
        sizes = [image_size(value) if isinstance(value, bytes) else None for value in column.ravel()]
        fit = [size is not None and shape_fits(size, (height, width)) for size in sizes]
        wrong = ~np.array(fit, bool).reshape(column.shape)
        if wrong.any():
            found = sizes[fit.index(False)]
            came = "no such file" if found is None else f"{found[0]} by {found[1]} pixels"
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
        if not _is_inexact(column):
            continue
        is_of_transition = is_under(path, REWARD) or is_under(path, DISCOUNT)
        meaningful = column[:-1] if is_of_transition and len(column) > 1 else column
        if np.isfinite(meaningful).all():
            continue
        yield from _stray("nan", path, np.isnan(meaningful), 0, "expected numbers")
        yield from _stray("infinite", path, np.isinf(meaningful), 0, "expected finite numbers")


def _check_discount(episode: Episode) -> Iterator[Problem]:
    for path, discount in columns_under(episode.columns, DISCOUNT).items():
        if _is_real(discount) and len(discount) > 1:
            outside = (discount[:-1] < 0) | (discount[:-1] > 1)
            yield from _stray("discount_range", path, outside, 0, "expected values in [0, 1]", discount)


def _check_last_reward(episode: Episode) -> Iterator[Problem]:
    for path, reward in columns_under(episode.columns, REWARD).items():
        if _is_real(reward) and len(reward) > 1 and np.any(reward[-1] != 0):
            yield Problem(
                "last_reward",
                path,
                f"step {len(reward) - 1} (the last) has reward {reward[-1]}, where learners do not look; "
                'last_reward="shift" moves rewards one step back',
            )


def _check_terminal_discount(episode: Episode) -> Iterator[Problem]:
    if IS_TERMINAL not in episode.columns:
        return
    discounts = columns_under(episode.columns, DISCOUNT).items()
    real = {path: discount for path, discount in discounts if _is_real(discount) and len(discount) > 1}
    into_end = {path: np.any(discount[-2]) for path, discount in real.items()}
    if ends_terminal(episode):
        for path in (path for path in real if into_end[path]):
            detail = _TERMINAL_DISCOUNT.format(len(real[path]) - 2, real[path][-2])
            yield Problem("terminal_discount", path, detail)
    elif episode.columns[IS_LAST][-1:].any() and into_end and not any(into_end.values()):
        yield Problem("terminal_unmarked", IS_TERMINAL, _UNMARKED.format(len(episode) - 2))


def _check_zero_end(episode: Episode) -> Iterator[Problem]:
    observations = numeric_observations(episode)
    if not any(np.any(column[-1]) for column in observations.values()) and leaps(observations):
        yield Problem(
            "zero_last_observation",
            OBSERVATION,
            f"step {len(episode) - 1} (the last) has nothing but zeros, and changes more than any step before; "
            'last_observation="repeat" puts the one before it in its place, "drop" leaves the last step out',
        )


def _check_first_reward(episode: Episode) -> Iterator[Problem]:
    """What a shift of rewards would lose at the start."""
    for path, reward in columns_under(episode.columns, REWARD).items():
        if reward.dtype.kind not in "OSU" and np.any(reward[:1]):
            detail = (
                f"step 0 has reward {reward[0]}; the data seems to record rewards with the action that earned them, "
                "so it needs no shift"
            )
            yield Problem("first_reward_lost", path, detail)


def _check_shifted_numbers(episode: Episode) -> Iterator[Problem]:
    """What a shift of rewards would bring in from the last step, where `_check_numbers` does not look."""
    for path, reward in columns_under(episode.columns, REWARD).items():
        if _is_inexact(reward) and len(reward) > 1 and not np.isfinite(reward[-1]).all():
            code = "nan" if np.isnan(reward[-1]).any() else "infinite"
            detail = f"step {len(reward) - 1} (the last) has reward {reward[-1]}, which a shift would use"
            yield Problem(code, path, detail)


def _is_inexact(column: Array) -> bool:
    return column.dtype.kind in "fc" or column.dtype.name == "bfloat16"


def _is_real(column: Array) -> bool:
    return column.dtype.kind in "fiu" or column.dtype.name == "bfloat16"


def _stray(
    code: str, path: str, wrong: Array, offset: int, expected: str, values: Array | None = None
) -> Iterator[Problem]:
    """One problem for all steps where `wrong` ([T'] or [T', ...]) is set; names the first and counts them."""
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
_CONTENT: _ContentChecks = (
    (_check_first, (IS_FIRST,)),
    (_check_last, (IS_LAST,)),
    (_check_terminal, (IS_TERMINAL,)),
    (_check_numbers, ()),
    (_check_discount, ()),
    (_check_last_reward, (IS_LAST,)),
    (_check_terminal_discount, (IS_LAST, IS_TERMINAL)),
)
"""Check -> the flags that it relies on."""
_SHIFT: _ContentChecks = ((_check_first_reward, ()), (_check_shifted_numbers, ()))
"""As `_CONTENT`, for episodes whose rewards will be shifted."""
_END: _ContentChecks = ((_check_zero_end, (IS_LAST,)),)
"""As `_CONTENT`, for episodes whose last observation stays."""
_TERMINAL_DISCOUNT = (
    'step {} leads into a terminal step with discount {}, expected 0; terminal_discount="transition" mends it'
)
_UNMARKED = "step {} leads into the last step with discount 0, so learners take it as terminal, and the step says that it is not"
