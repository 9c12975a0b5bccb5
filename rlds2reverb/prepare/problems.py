"""What can be wrong with an episode: one code each (`CODES`), found in it (`find_problems`), or by comparison with others (`Endings`).

Some episodes end with the same observation, which is not their own; only comparison shows it. TFDS' d4rl_* sets end
every episode with the last observation of the whole file (`tensorflow_datasets/d4rl/dataset_utils.py`, 4.9.10). A converter that records
the reset observation of a deterministic environment as the last one does the same.

An observation is not the episode's own when other episodes end with the same bits, came to it from different rows, and leapt to it
(`leaps`). Episodes that share a true end (a maze's goal) reach it by a step like any other, and often from the same rows. So each episode
that ends with a known observation votes for or against; it takes `_VOTES` votes for, and more than against. Two digests of a row are kept per
episode.

The state belongs to one stream of episodes. Where several processes read it, each reports how its episodes end (`Ending`, with the leap), and
one process takes these reports in order and finds the problems (`InOrder`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar

import numpy as np
import xxhash

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
    Notice,
    byte_view,
    columns_under,
    faults,
    is_under,
)
from rlds2reverb.formats.transform import SHIFT
from rlds2reverb.images import image_size
from rlds2reverb.interrupts import raise_lost_interrupt
from rlds2reverb.plain import Count, plain, printed
from rlds2reverb.prepare.conventions import TRANSITION, Conventions, ends_terminal
from rlds2reverb.specs import ArraySpec, column_spec, dtype_name, same_dtype, shape_fits
from rlds2reverb.text import as_html, counted

ENDS_ALIKE = "last_observation_shared"
"""The only problem that other episodes decide about."""


@dataclass(frozen=True)
class Code:
    meaning: str  # what is wrong, for people
    is_advice: bool = False  # the data can be stored as it is, but a learner may misread it; only `strict` rejects it
    is_repairable: bool = False  # there is one right answer, which on_invalid="repair" puts in
    is_of_dataset: bool = False  # a notice about the dataset as a whole, so it rejects no episode


_of_dataset = partial(Code, is_advice=True, is_of_dataset=True)

CODES: dict[str, Code] = {
    "no_steps": Code("the episode has no steps"),
    "single_step": Code("the episode has one step, so no transition"),
    "unreadable": Code("the episode cannot be read: a file is damaged, or holds something else than its format says"),
    "unfit": Code(
        "the format that it is converted to cannot hold it: a number or a file that its system does not read, say"
    ),
    "untransformed": Code(
        "a column that the transform reads is not as the dataset's spec says, or holds an integer that floats do not hold exactly"
    ),
    "missing_column": Code("a column that RLDS requires, or that other episodes have, is absent"),
    "extra_column": Code("a column that the dataset's spec does not have"),
    "unequal_lengths": Code("columns have different numbers of rows"),
    "shape": Code("a column's shape is not the dataset's"),
    "dtype": Code("a column's dtype is not the dataset's"),
    "image": Code(
        "a value of an encoded image column is no JPEG or PNG file, or one of another size than the dataset's"
    ),
    "flag_dtype": Code("a flag is not boolean", is_repairable=True),
    "first_missing": Code("the first step is not marked is_first", is_repairable=True),
    "first_inside": Code("a later step is marked is_first"),
    "last_missing": Code(
        "the last step is not marked is_last, as EnvLogger leaves an episode that was cut off", is_repairable=True
    ),
    "last_inside": Code("a step before the last is marked is_last"),
    "terminal_inside": Code("a step before the last is marked is_terminal"),
    "nan": Code("a value is NaN"),
    "infinite": Code("a value is infinite"),
    "discount_range": Code("a discount lies outside [0, 1]"),
    "first_reward_lost": Code('last_reward="shift" would drop a first reward that is not 0'),
    ENDS_ALIKE: Code(
        "the episode ends with the same observation as other episodes, which is not its own, as in TFDS' d4rl_* sets"
    ),
    "no_items": Code("the view makes no item of the episode"),
    "view_refused": Code("the view cannot cut the episode: it is too long, say, or a priority is not a number"),
    "terminal_discount": Code(
        "the transition into a terminal step has a discount other than 0, so learners bootstrap through it",
        is_advice=True,
        is_repairable=True,
    ),
    "terminal_unmarked": Code(
        "the transition into the last step has discount 0, yet the step is not marked is_terminal, as in RL Unplugged's DMLab sets",
        is_advice=True,
    ),
    "last_reward": Code(
        "the last step has a reward, which learners do not see, as in most Open X-Embodiment sets", is_advice=True
    ),
    "zero_last_observation": Code(
        "the last observation is nothing but zeros, as TFDS' d4rl_* sets end where they had none",
        is_advice=True,
    ),
    "rounded_float64": _of_dataset(
        "a float64 column holds only values that float32 has: TFDS writes float64 through float32 unless its encoding is bytes or zlib",
    ),
    "float_image": _of_dataset(
        "an image column of floats holds only whole numbers from 0 to 255, which uint8 has in a quarter of the bytes or less",
    ),
    "duplicate_episode": _of_dataset("episodes are equal to earlier ones; each is stored, and counts, once more"),
    "lost_records": _of_dataset(
        "records of the dataset are missing or cannot be read, as in parquet files of TFDS 4.9.10 with more than 100; they are skipped"
    ),
    "empty_records": _of_dataset("records hold no steps; they are left out"),
    "repeated_records": _of_dataset(
        "files hold the same steps several times, as RLlib's runners write them; they are read once"
    ),
    "episode_count": _of_dataset("files have more or fewer episodes than the dataset says"),
    "episode_length": _of_dataset(
        "episodes have more or fewer steps than the dataset says; read as the files have them"
    ),
    "other_metadata": _of_dataset("parts of the dataset have another description than the first: their tasks differ"),
    "masked_names": _of_dataset("a filter of the file names demonstrations that are not there"),
    "left_out": _of_dataset("something recorded became no column: not every episode has it, say"),
    "mixed_specs": _of_dataset(
        "episodes differ in a column's dtype or shape, or some lack it, in a format whose files declare no spec: those unlike most are bad"
    ),
    "cast": _of_dataset("episodes have a column in another dtype than others; cast, no value changed"),
    "space": _of_dataset("values are stored in another dtype or shape than the dataset says"),
    "jpeg_values": _of_dataset("numbers are stored as JPEG images, which changes them, as Minari 0.5.3 does; decoded"),
    "frame_index": _of_dataset("LeRobot's own numbers of rows do not count the rows of an episode one by one"),
    "stale_pointers": _of_dataset(
        "episodes whose rows are elsewhere than the dataset's description says; found by the keys that the rows carry"
    ),
    "unlisted_episodes": _of_dataset("files hold episodes that the dataset's description does not list; left out"),
    "video_overlap": _of_dataset(
        "episodes share frames of a video, by the dataset's description: their frames may be others' frames"
    ),
    "video_short": _of_dataset(
        "episodes have more rows than their part of a video has time for: frames may be those of another episode"
    ),
    "upside_down": _of_dataset("images are recorded upside down, as LIBERO's are"),
    "both_ends": _of_dataset("episodes end both terminated and truncated"),
    "no_end": _of_dataset("episodes end neither terminated nor truncated, and are read as truncated"),
    "no_ends": _of_dataset("nothing marks where episodes end, so the whole file is one"),
    "no_timeouts": _of_dataset("the file has no time limits, so episodes that they cut run on into the next ones"),
    "unfinished_tail": _of_dataset("rows stand after the last end: an episode without an end, or left out"),
    "terminals_of_demonstrations": _of_dataset(
        "terminals mark the ends of demonstrations, as kitchen's do, which need not be terminal states"
    ),
    "terminals_go_on": _of_dataset("terminals follow terminals, as in antmaze: they mark a state, and end no episode"),
    "root_done": _of_dataset(
        "end flags say that steps begin in a state that is over, as after TorchRL's partial resets; they are not read"
    ),
    "done_inside": _of_dataset("an end is flagged before the last row of an episode"),
    "late_start": _of_dataset("episodes begin after their first step"),
    "ids_return": _of_dataset(
        "an id of a trajectory comes back after others; each time it is read as a new trajectory"
    ),
    "unwritten": _of_dataset(
        "rows at the end are 0 in every column, as rows that were never written; they are left out"
    ),
    "cut_start": _of_dataset("the oldest trajectories of an overwritten ring may lack their beginning"),
    "gaps": _of_dataset("observations after a step are not those of the next step: no-ops were removed, say"),
    "next_differs": _of_dataset(
        "next observations are not the observations of the next step, as after RLlib's n_step or TorchRL's MultiStep"
    ),
    "observations_after": _of_dataset(
        "observations were recorded after their row's action, or seem to be, as LIBERO's and DrQ-v2's are"
    ),
    "final_lost": _of_dataset("last steps are left out, for the observation after them was not recorded"),
    "foreign_last_observation": _of_dataset(
        "last observations are the first ones of the next trajectory, as in Procgen's demonstrations"
    ),
    "repeated_last_observation": _of_dataset(
        "last observations are the ones before them: none was recorded behind the last step"
    ),
    "ends_found_late": _of_dataset(
        "episodes end with the same observation as other episodes, which a push with workers found only after it had stored them"
    ),
    "rows_in_no_item": _of_dataset("episodes of a table are not whole: items hold only some of their rows"),
}
"""Code -> what it means. Documented in docs/validation.md. A notice that is no fault, `Notice.is_note`, has none."""

INTOLERABLE = ("no_steps", "unequal_lengths", "flag_dtype", "unreadable", "untransformed", "view_refused")
"""Codes of episodes that no view can cut."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with one episode.

    Attributes:
      code: a key of `CODES`.
      path: the column, or "" for the episode.
      detail: where in the column, what was expected, what came.
    """

    code: str
    path: str
    detail: str

    def __str__(self) -> str:
        where = f'column "{self.path}": ' if self.path else ""
        return f"{self.code}: {where}{self.detail}"

    @property
    def is_advice(self) -> bool:
        return CODES[self.code].is_advice

    @property
    def is_repairable(self) -> bool:
        return CODES[self.code].is_repairable


EXAMPLES = 3
"""Problems of one code that are kept."""


class Named(Protocol):
    """An episode, or what stands for one; see `Episode`."""

    @property
    def id(self) -> str: ...

    @property
    def recorded_id(self) -> str | None: ...

    @property
    def title(self) -> str: ...


@printed("episode", "episode_id", "path=problem.path", "detail=problem.detail")
@dataclass(frozen=True)
class Example:
    """One problem of one episode.

    Attributes:
      episode: its id.
      episode_id: what the dataset itself calls it, None where it does not.
      title: both, for people.
      problem: what is wrong.
    """

    episode: str
    episode_id: str | None
    title: str
    problem: Problem


class FoundProblem(TypedDict):
    """All problems of one code.

    Attributes:
      episodes: number of episodes that have it.
      problems: number of problems of this code; an episode may have several.
      meaning: what the code means.
      advice: the data can be used, and a learner may misread them.
      examples: the first ones.
    """

    episodes: Count
    problems: Count
    meaning: str
    advice: bool
    examples: list[Example]


@dataclass
class Findings:
    """Problems of many episodes: counted by code, the first few kept.

    Attributes:
      episodes: code -> episodes that have it.
      problems: code -> problems of that kind; an episode may have several.
      examples: code -> the first of them, at most `EXAMPLES` each.
      notices: what is to be said of the dataset as a whole.
      together: codes of one episode -> episodes that have just these.
      lost_by_shift: episodes that last_reward="shift" would reject, because their first reward is not 0.
      mended_by_shift: episodes with the advice `last_reward` that it mends.
    """

    episodes: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    together: Counter[frozenset[str]] = field(default_factory=Counter)
    lost_by_shift: int = 0
    mended_by_shift: int = 0

    def _repr_html_(self) -> str:
        return as_html(self)

    def add(self, episode: Named, problems: Sequence[Problem], is_lost_by_shift: bool = False) -> None:
        codes = frozenset(problem.code for problem in problems)
        self.lost_by_shift += is_lost_by_shift
        self.mended_by_shift += "last_reward" in codes and not is_lost_by_shift
        if codes:
            self.together[codes] += 1
        self.episodes.update(codes)
        self.problems.update(problem.code for problem in problems)
        for problem in problems:
            kept = self.examples.setdefault(problem.code, [])
            if len(kept) < EXAMPLES:
                kept.append(Example(episode.id, episode.recorded_id, episode.title, problem))

    def codes(self, strict: bool = False, allow: Sequence[str] = ()) -> list[str]:
        """Codes found that reject an episode or, with `strict`, the dataset; in the order of `CODES`."""
        found = {*self.episodes, *(notice.code for notice in faults(self.notices))}
        return [code for code in CODES if code in found and code not in allow and (strict or not CODES[code].is_advice)]

    def bad_episodes(self, codes: Sequence[str]) -> int:
        """Number of episodes that have one of these codes."""
        return sum(count for found, count in self.together.items() if not found.isdisjoint(codes))

    def more(self, code: str) -> int:
        """Problems of this kind beyond the examples."""
        return self.problems[code] - len(self.examples.get(code, ()))

    def as_dict(self) -> dict[str, Any]:
        """Code -> `FoundProblem`, as plain values, for JSON."""
        found: dict[str, FoundProblem] = {
            code: {
                "episodes": count,
                "problems": self.problems[code],
                "meaning": CODES[code].meaning,
                "advice": CODES[code].is_advice,
                "examples": self.examples[code],
            }
            for code, count in sorted(self.episodes.items())
        }
        return dict(plain(found))


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
    rows = _JoinedRows.of(episodes)
    problems: list[list[Problem]] = [[] for _ in episodes]
    for check in _content_checks(conventions):
        for number in np.flatnonzero(check.doubts(rows)):
            problems[number] += check.problems(episodes[number], conventions)
    return problems


def _have_good_structure(episodes: Sequence[Episode], columns: Columns) -> bool:
    """Whether all have the same columns, and no check of `_STRUCTURE` finds anything; images are too large to be worth it."""
    first = episodes[0]
    if not first.columns.keys() == columns.keys() >= set(FLAGS) or any(one.image for one in columns.values()):
        return False
    kinds = {path: (column.dtype, column.shape[1:]) for path, column in first.columns.items()}
    for episode in episodes:
        rows = len(episode)
        if episode.faults or rows < 2 or len(episode.columns) != len(kinds):
            return False
        for path, column in episode.columns.items():
            if len(column) != rows or kinds.get(path) != (column.dtype, column.shape[1:]):
                return False
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
        columns = {path: np.concatenate([one.columns[path] for one in episodes]) for path in episodes[0].columns}
        return _JoinedRows(columns, np.append(0, ends[:-1]), ends - 1, is_last)

    def under(self, name: str, is_wanted: Callable[[Array], bool]) -> list[Array]:
        return [column for column in columns_under(self.columns, name).values() if is_wanted(column)]

    def any_row(self, wrong: Array) -> Array:
        """[R, ...] bool -> [k], whether one of an episode's rows is set."""
        found = np.zeros(len(self.first), bool)
        if wrong.any():
            found |= np.logical_or.reduceat(wrong.reshape(len(wrong), -1).any(axis=1), self.first)
        return found

    def any_value(self, columns: Sequence[Array], rows: Array) -> Array:
        """[k], whether a column has something other than zero in an episode's row; `rows` are one of each."""
        return self.either((column[rows] != 0).reshape(len(rows), -1).any(axis=1) for column in columns)

    def either(self, found: Iterable[Array]) -> Array:
        """[k], whether one of these, which are [k] as well, is set."""
        either = np.zeros(len(self.first), bool)
        for one in found:
            either |= one
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
        found = column_spec(column)
        if not same_dtype(found.dtype, spec.dtype):
            yield Problem("dtype", path, f"expected {dtype_name(spec.dtype)}, got {dtype_name(found.dtype)}")
        if not shape_fits(found.shape, spec.shape):
            yield Problem("shape", path, f"expected rows of {list(spec.shape)}, got {list(found.shape)}")


def _check_images(episode: Episode, columns: Columns) -> Iterator[Problem]:
    """By the headers of their files; what follows a header shows only when it is decoded."""
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
    for path, reward in columns_under(episode.columns, REWARD).items():
        if _is_real(reward) and len(reward) > 1 and (reward[-1] != 0).any():
            lost = next((column[0] for column in _lost_by_shift(episode).values()), None)
            way = 'last_reward="shift" moves rewards one step back'
            way = way if lost is None else f"no shift mends it, for the first reward is {lost}"
            where = f"step {len(reward) - 1} (the last) has reward {reward[-1]}, where learners do not look"
            yield Problem("last_reward", path, f"{where}; {way}")


def _check_terminal_discount(episode: Episode) -> Iterator[Problem]:
    if IS_TERMINAL not in episode.columns:
        return
    discounts = columns_under(episode.columns, DISCOUNT).items()
    real = {path: discount for path, discount in discounts if _is_real(discount) and len(discount) > 1}
    into_end = {path: (discount[-2] != 0).any() for path, discount in real.items()}
    if ends_terminal(episode):
        for path, discount in real.items():
            if into_end[path]:
                detail = (
                    f"step {len(discount) - 2} leads into a terminal step with discount {discount[-2]}, expected 0; "
                    'terminal_discount="transition" mends it'
                )
                yield Problem("terminal_discount", path, detail)
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
            f"step {len(episode) - 1} (the last) has nothing but zeros, and changes more than any step before; "
            'last_observation="repeat" puts the one before it in its place, "drop" leaves the last step out',
        )


def _check_first_reward(episode: Episode) -> Iterator[Problem]:
    """What a shift of rewards would lose at the start."""
    for path, reward in _lost_by_shift(episode).items():
        detail = (
            f"step 0 has reward {reward[0]}; the data seems to record rewards with the action that earned them, "
            "so it needs no shift"
        )
        yield Problem("first_reward_lost", path, detail)


def _lost_by_shift(episode: Episode) -> dict[str, Array]:
    """The rewards whose first one is not 0: a shift would drop it."""
    rewards = columns_under(episode.columns, REWARD)
    return {path: one for path, one in rewards.items() if one.dtype.kind not in "OSU" and np.any(one[:1])}


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


def _is_numeric(column: Array) -> bool:
    return column.dtype.kind in "biufc"


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


def _doubt_first(rows: _JoinedRows) -> Array:
    is_first = np.concatenate((rows.is_last[-1:], rows.is_last[:-1]))
    return rows.any_row(rows.columns[IS_FIRST] != is_first)


def _doubt_last(rows: _JoinedRows) -> Array:
    return rows.any_row(rows.columns[IS_LAST] != rows.is_last)


def _doubt_terminal(rows: _JoinedRows) -> Array:
    return rows.any_row(rows.columns[IS_TERMINAL] & ~rows.is_last)


def _doubt_numbers(rows: _JoinedRows) -> Array:
    return rows.either(rows.any_row(~np.isfinite(column)) for column in rows.columns.values() if _is_inexact(column))


def _doubt_discount(rows: _JoinedRows) -> Array:
    return rows.either(rows.any_row((column < 0) | (column > 1)) for column in rows.under(DISCOUNT, _is_real))


def _doubt_last_reward(rows: _JoinedRows) -> Array:
    return rows.any_value(rows.under(REWARD, _is_real), rows.last)


def _doubt_terminal_discount(rows: _JoinedRows) -> Array:
    """A discount of 0 leads into a terminal step, and into no other."""
    terminal = rows.columns[IS_TERMINAL][rows.last]
    return rows.either(rows.any_value([one], rows.last - 1) == terminal for one in rows.under(DISCOUNT, _is_real))


def _doubt_zero_end(rows: _JoinedRows) -> Array:
    return ~rows.any_value(rows.under(OBSERVATION, _is_numeric), rows.last)


def _doubt_first_reward(rows: _JoinedRows) -> Array:
    return rows.any_value(rows.under(REWARD, lambda column: column.dtype.kind not in "OSU"), rows.first)


class _ContentCheck(NamedTuple):
    find: Callable[[Episode], Iterator[Problem]]
    doubts: Callable[[_JoinedRows], Array]  # [k] bool, at least the episodes in which `find` finds something
    flags: tuple[str, ...] = ()  # that it relies on
    is_of_end: bool = False  # whether it is left out where the last observation is mended

    def problems(self, episode: Episode, conventions: Conventions) -> list[Problem]:
        """What it finds, but for what the conventions mend."""
        if self.is_of_end and conventions.mends_end(episode):
            return []
        found = list(self.find(episode))
        if not found:
            return found
        mended = {"last_reward"} if conventions.last_reward == SHIFT else set()
        mended |= {"terminal_discount"} if conventions.terminal_discount == TRANSITION else set()
        return [problem for problem in found if problem.code not in mended]


def _content_checks(conventions: Conventions) -> tuple[_ContentCheck, ...]:
    return (*_CONTENT, *(_SHIFT if conventions.last_reward == SHIFT else ()), *_END)


_CONTENT = (
    _ContentCheck(_check_first, _doubt_first, (IS_FIRST,)),
    _ContentCheck(_check_last, _doubt_last, (IS_LAST,)),
    _ContentCheck(_check_terminal, _doubt_terminal, (IS_TERMINAL,)),
    _ContentCheck(_check_numbers, _doubt_numbers),
    _ContentCheck(_check_discount, _doubt_discount),
    _ContentCheck(_check_last_reward, _doubt_last_reward, (IS_LAST,)),
    _ContentCheck(_check_terminal_discount, _doubt_terminal_discount, (IS_LAST, IS_TERMINAL)),
)
_SHIFT = (
    _ContentCheck(_check_first_reward, _doubt_first_reward),
    _ContentCheck(_check_shifted_numbers, _doubt_numbers),
)
"""For episodes whose rewards will be shifted."""
_END = (_ContentCheck(_check_zero_end, _doubt_zero_end, (IS_LAST,), is_of_end=True),)


FEWEST_STEPS = 5
"""Shorter episodes do not show how far a step takes."""

_FARTHER = 1.1
"""By how much a leap must exceed the longest step before it; steps of one grid differ by rounding."""


def numeric_observations(episode: Episode) -> dict[str, Array]:
    """The observation's columns of numbers by path; {} if one has another length than the episode, or no rows."""
    columns = columns_under(episode.columns, OBSERVATION)
    numeric = {path: column for path, column in columns.items() if _is_numeric(column)}
    return numeric if all(len(column) == len(episode) > 0 for column in numeric.values()) else {}


def leaps(observations: Mapping[str, Array]) -> bool:
    """Whether some value of a float column changes more in the last step than in any step before.

    Ignored are values that never changed before (in a maze they may change in the last step for the first time), whole numbers (games and
    mazes count by them), and episodes of fewer than `FEWEST_STEPS` rows.

    Args:
      observations: path -> [T, ...] of one length.
    """
    for column in observations.values():
        if column.dtype.kind != "f" or len(column) < FEWEST_STEPS:
            continue
        rows = column.reshape(len(column), -1)  # [T, values]
        if not _is_fractional(rows[-1]) and not _is_fractional(rows[-2]):
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            longest = np.abs(np.diff(rows[:-1], axis=0)).max(axis=0, initial=0)
            last = np.abs(rows[-1] - rows[-2])
            if np.any((longest > 0) & (last > _FARTHER * longest)):
                return True
    return False


def _is_fractional(row: Array) -> bool:
    finite = row[np.isfinite(row)]
    return bool(np.any(finite != np.rint(finite)))


class Titled(Protocol):
    @property
    def title(self) -> str: ...


_Known = TypeVar("_Known")
_Titled = TypeVar("_Titled", bound=Titled)

MOST_HELD = 8
"""Most episodes that wait for later ones."""

_VOTES = 2
_MOST_SINGLE, _MOST_SHARED, _MOST_BEFORES = 16, 16, 16
_FEW_BYTES = 512
"""A row of more bytes is remembered by its digest."""
_DOUBTED = 5
"""After so many episodes with it, an observation that was not recognised makes no episode wait."""


class Ending(NamedTuple):
    # the observations of the last row and of the row before it, or digests
    last: bytes
    before: bytes
    has_leapt: bool | None = None  # whether it leapt to the last row; None before this is computed

    def for_others(self, episode: Episode) -> Ending:
        """With the leap, and in few bytes: to be sent to another process."""
        digest = xxhash.xxh3_128_digest
        return self.with_leap(episode)._replace(last=digest(self.last), before=digest(self.before))

    def with_leap(self, episode: Episode) -> Ending:
        return self._replace(has_leapt=_has_leapt(episode))


class Single(NamedTuple):
    """An observation with which one episode has ended: the episode's title, and the row before it."""

    title: str
    before: bytes


@dataclass(frozen=True)
class Shared:
    """An observation with which several episodes have ended.

    Attributes:
      title: of the first of them.
      befores: the rows before it; the first few.
      episodes: their number.
      votes_for, votes_against: of the episodes after the first, on whether it is not their own.
    """

    title: str
    befores: tuple[bytes, ...]
    episodes: int = 1
    votes_for: int = 0
    votes_against: int = 0

    @property
    def is_false(self) -> bool:
        return self.votes_for >= _VOTES and self.votes_for > self.votes_against

    @property
    def is_open(self) -> bool:
        """Whether more episodes may still show that it is not theirs."""
        return self.episodes < _DOUBTED and not self.is_false

    def with_episode(self, before: bytes, has_leapt: bool) -> Shared:
        is_other_way = before not in self.befores
        is_for = is_other_way and has_leapt
        return Shared(
            self.title,
            (*self.befores, before)[:_MOST_BEFORES] if is_other_way else self.befores,
            self.episodes + 1,
            self.votes_for + is_for,
            self.votes_against + (not is_for),
        )


@dataclass(frozen=True)
class Endings:
    """The ends of the episodes so far. A value: adding one gives a new one."""

    episodes: int = 0  # their number
    # last observations of one episode each, the oldest first; at most `_MOST_SINGLE`
    single: Mapping[bytes, Single] = field(default_factory=dict)
    # last observations of several episodes, the least recently met first; at most `_MOST_SHARED`
    shared: Mapping[bytes, Shared] = field(default_factory=dict)

    def after(self, episode: Titled, ending: Ending | None) -> Endings:
        """With one more episode. It must be an `Episode` where the ending has no leap."""
        if ending is None:
            return Endings(self.episodes + 1, self.single, self.shared)
        if ending.last not in self.single and ending.last not in self.shared:
            single = {**self.single, ending.last: Single(episode.title, ending.before)}
            return Endings(self.episodes + 1, _newest(single, _MOST_SINGLE), self.shared)
        single, shared = dict(self.single), dict(self.shared)
        first = single.pop(ending.last, None)
        same = shared.pop(ending.last) if first is None else Shared(first.title, (first.before,))
        is_other_way = ending.before not in same.befores
        has_leapt = bool(ending.has_leapt)
        if ending.has_leapt is None and is_other_way:
            assert isinstance(episode, Episode)  # a name comes with the leap
            has_leapt = _has_leapt(episode)
        shared[ending.last] = same.with_episode(ending.before, has_leapt)
        return Endings(self.episodes + 1, single, _newest(shared, _MOST_SHARED))

    def problems(self, ending: Ending | None) -> list[Problem]:
        same = None if ending is None else self.shared.get(ending.last)
        if same is None or not same.is_false:
            return []
        detail = (
            f"{same.episodes:,} episodes so far, the first is {same.title}, end with this very observation, and leap to it; at most one owns it. "
            'last_observation="repeat" puts the one before it in its place, "drop" leaves the last step out'
        )
        return [Problem(ENDS_ALIKE, OBSERVATION, detail)]

    @property
    def is_open(self) -> bool:
        """Whether later episodes may show a problem of those so far."""
        return (self.episodes < 2 and bool(self.single)) or any(one.is_open for one in self.shared.values())


def ending_of(episode: Episode, conventions: Conventions = Conventions()) -> Ending | None:
    """How an episode ends; None without an observation of floats, with one row, with columns of different lengths, or where the end is mended."""
    if conventions.mends_end(episode):
        return None
    columns = list(numeric_observations(episode).values())
    if "f" not in [column.dtype.kind for column in columns] or len(columns[0]) < 2:
        return None
    return Ending(
        b"".join([_mark(column[-1]) for column in columns]), b"".join([_mark(column[-2]) for column in columns])
    )


def _has_leapt(episode: Episode) -> bool:
    """Whether the last observation has a value other than zero, and a leap leads to it."""
    observations = numeric_observations(episode)
    return any(np.any(column[-1]) for column in observations.values()) and leaps(observations)


class InOrder(Generic[_Titled]):
    """Finds the problems of ends, episode by episode; a few episodes wait for the next ones.

    Args:
      endings: of the episodes before these, where a reading continues.

    Attributes:
      endings: of all so far.
    """

    def __init__(self, endings: Endings = Endings()) -> None:
        self.endings = endings
        self._held = deque[tuple[_Titled, "Ending | None"]]()

    def add(self, episode: _Titled, ending: Ending | None) -> bool:
        """Adds an episode. Returns whether the waiting episodes are decided, so that `held` can give them."""
        self.endings = self.endings.after(episode, ending)
        self._held.append((episode, ending))
        return not self.endings.is_open or len(self._held) >= MOST_HELD

    def held(self) -> Iterator[tuple[_Titled, list[Problem]]]:
        """Removes the waiting episodes, and gives them in order, with their problems."""
        while self._held:
            episode, ending = self._held.popleft()
            yield episode, self.endings.problems(ending)


def with_problems_of_ends(
    episodes: Iterable[_Titled],
    conventions: Conventions = Conventions(),
    endings: Endings = Endings(),
    on_clear: Callable[[Endings], object] = lambda _: None,
    ending: Callable[[Any], Ending | None] | None = None,
) -> Iterator[tuple[_Titled, list[Problem]]]:
    """Every episode, in order, with the problems that only comparison with others shows.

    An episode waits while later ones may show a problem: the first for the second, where it has observations of floats, and episodes that end
    alike for a few more. At most `MOST_HELD` wait. When an error stops the reading, the waiting ones come first.

    Args:
      episodes: as recorded, in the order of the source; or anything with a title, where `ending` is given.
      conventions: an end that these mend is no problem.
      endings: of the episodes before these, where a reading continues.
      on_clear: called with the endings so far whenever no episode waits: from here a reading can continue.
      ending: how an episode ends, with the leap; by default `ending_of`.
    """
    order, ending = InOrder[_Titled](endings), ending or partial(ending_of, conventions=conventions)
    try:
        for episode in episodes:
            raise_lost_interrupt()  # else what is read may be spoiled by it
            if order.add(episode, ending(episode)):
                yield from order.held()
                on_clear(order.endings)
    except Exception:
        yield from order.held()
        raise
    yield from order.held()
    on_clear(order.endings)


def _newest(known: dict[bytes, _Known], most: int) -> dict[bytes, _Known]:
    """Without the first entry, if there are more than `most`."""
    if len(known) > most:
        del known[next(iter(known))]
    return known


def _mark(row: Array) -> bytes:
    """The bytes of a row, or their digest where they are many."""
    if row.nbytes <= _FEW_BYTES:
        return row.tobytes()
    return xxhash.xxh3_128_digest(byte_view(np.ascontiguousarray(row)))


def state_of(endings: Endings) -> dict[str, Any]:
    """Plain values for JSON, which `endings_of` reads; digests as hexadecimal text."""
    single = [[last.hex(), one.title, one.before.hex()] for last, one in endings.single.items()]
    shared = [
        [last.hex(), one.title, [row.hex() for row in one.befores], one.episodes, one.votes_for, one.votes_against]
        for last, one in endings.shared.items()
    ]
    return {"episodes": endings.episodes, "single": single, "shared": shared}


def endings_of(state: dict[str, Any]) -> Endings:
    from_hex = bytes.fromhex
    single = {from_hex(last): Single(title, from_hex(before)) for last, title, before in state["single"]}
    shared = {
        from_hex(last): Shared(title, tuple(map(from_hex, befores)), *votes)
        for last, title, befores, *votes in state["shared"]
    }
    return Endings(state["episodes"], single, shared)
