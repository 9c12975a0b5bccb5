"""What can be wrong with an episode or a dataset: one code for each kind (`CODES`), and one `Problem` for each place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rlds2reverb.text import Remedy, in_python

ENDS_ALIKE = "last_observation_shared"
"""The only problem that other episodes decide about."""


@dataclass(frozen=True)
class Code:
    meaning: str  # what is wrong, for people
    is_advice: bool = False  # the data can be stored as it is, but a learner may misread it; only `strict` rejects it
    is_repairable: bool = False  # there is one right answer, which on_invalid="repair" puts in
    is_of_dataset: bool = False  # a notice about the dataset as a whole, so it rejects no episode
    remedy: Remedy | None = None  # how to go on, where that does not depend on the episode


# The remedies that a problem may carry. Not every problem of a code has its remedy: a shift of rewards helps only some episodes.
SHIFT_REWARDS = Remedy("{} moves rewards one step back", (("last_reward", "shift"),))
ZERO_DISCOUNT = Remedy("{} mends it", (("terminal_discount", "transition"),))
OTHER_END = Remedy(
    "{} puts the observation before it in its place, {} leaves the last step out",
    (("last_observation", "repeat"), ("last_observation", "drop")),
)

_OF_DATASET = {
    "rounded_float64": "a float64 column holds only values that float32 has: TFDS writes float64 through float32 unless its encoding is bytes or zlib",
    "float_image": "an image column of floats holds only whole numbers from 0 to 255, which uint8 has in a quarter of the bytes or less",
    "duplicate_episode": "episodes are equal to earlier ones; each is stored, and counts, once more",
    "lost_records": "records of the dataset are missing or cannot be read, as in parquet files of TFDS 4.9.10 with more than 100; they are skipped",
    "empty_records": "records hold no steps; they are left out",
    "repeated_records": "files hold the same steps several times, as RLlib's runners write them; they are read once",
    "episode_count": "files have more or fewer episodes than the dataset says",
    "episode_length": "episodes have more or fewer steps than the dataset says; read as the files have them",
    "other_metadata": "parts of the dataset have another description than the first: their tasks differ",
    "masked_names": "a filter of the file names demonstrations that are not there",
    "left_out": "something recorded became no column: not every episode has it, say",
    "mixed_specs": "episodes differ in a column's dtype or shape, or some lack it, in a format whose files declare no spec: those unlike most are bad",
    "cast": "episodes have a column in another dtype than others; cast, no value changed",
    "space": "values are stored in another dtype or shape than the dataset says",
    "jpeg_values": "numbers are stored as JPEG images, which changes them, as Minari 0.5.3 does; decoded",
    "frame_index": "LeRobot's own numbers of rows do not count the rows of an episode one by one",
    "stale_pointers": "episodes whose rows are elsewhere than the dataset's description says; found by the keys that the rows carry",
    "unlisted_episodes": "files hold episodes that the dataset's description does not list; left out",
    "video_overlap": "episodes share frames of a video, by the dataset's description: their frames may be others' frames",
    "video_short": "episodes have more rows than their part of a video has time for: frames may be those of another episode",
    "upside_down": "images are recorded upside down, as LIBERO's are",
    "both_ends": "episodes end both terminated and truncated",
    "no_end": "episodes end neither terminated nor truncated, and are read as truncated",
    "no_ends": "nothing marks where episodes end, so the whole file is one",
    "no_timeouts": "the file has no time limits, so episodes that they cut run on into the next ones",
    "unfinished_tail": "rows stand after the last end: an episode without an end, or left out",
    "terminals_of_demonstrations": "terminals mark the ends of demonstrations, as kitchen's do, which need not be terminal states",
    "terminals_go_on": "terminals follow terminals, as in antmaze: they mark a state, and end no episode",
    "ends_differ": "end flags of one step say different things: those of several agents, or `terminated` and `truncated` beside `done`",
    "root_done": "end flags say that steps begin in a state that is over, as after TorchRL's partial resets; they are not read",
    "done_inside": "an end is flagged before the last row of an episode",
    "late_start": "episodes begin after their first step",
    "ids_return": "an id of a trajectory comes back after others; each time it is read as a new trajectory",
    "unwritten": "rows at the end are 0 in every column, as rows that were never written; they are left out",
    "cut_start": "the oldest trajectories of an overwritten ring may lack their beginning",
    "gaps": "observations after a step are not those of the next step: no-ops were removed, say",
    "next_differs": "next observations are not the observations of the next step, as after RLlib's n_step or TorchRL's MultiStep",
    "observations_after": "observations were recorded after their row's action, or seem to be, as LIBERO's and DrQ-v2's are",
    "final_lost": "last steps are left out, for the observation after them was not recorded",
    "foreign_last_observation": "last observations are the first ones of the next trajectory, as in Procgen's demonstrations",
    "no_last_observation": "observations after last steps are 0 in every column, as in TorchRL's OpenX, Roboset and VD4RL: none was recorded",
    "repeated_last_observation": "last observations are the ones before them: none was recorded behind the last step",
    "ends_found_late": "episodes end with the same observation as other episodes, which a push with workers found only after it had stored them",
    "rows_in_no_item": "episodes of a table are not whole: items hold only some of their rows",
}
"""Notices about the dataset as a whole."""

CODES: dict[str, Code] = {
    "no_steps": Code("the episode has no steps"),
    "single_step": Code("the episode has one step, so no transition"),
    "unreadable": Code("the episode cannot be read: a file is damaged, or holds something else than its format says"),
    "unfit": Code(
        "the format that it is converted to cannot hold it: a number or a file that its system does not read, say"
    ),
    "untransformed": Code(
        "a column that the transform reads is not as the dataset's spec says, or holds what an operation is not defined for; or the transform drops every row"
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
    "first_reward_lost": Code(
        "a shift of rewards would drop a first reward that is not 0",
        remedy=Remedy("leave {} out", (("last_reward", "shift"),)),
    ),
    ENDS_ALIKE: Code(
        "the episode ends with the same observation as other episodes, which is not its own, as in TFDS' d4rl_* sets",
        remedy=OTHER_END,
    ),
    "no_items": Code(
        "the view makes no item of the episode", remedy=Remedy("another view, or its options, may make items of it")
    ),
    "view_refused": Code(
        "the view cannot cut the episode: it is too long, say, or a priority is not a number",
        remedy=Remedy("another view, or its options, may cut it"),
    ),
    "terminal_discount": Code(
        "the transition into a terminal step has a discount other than 0, so learners bootstrap through it",
        is_advice=True,
        is_repairable=True,
        remedy=ZERO_DISCOUNT,
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
        remedy=OTHER_END,
    ),
    **{code: Code(meaning, is_advice=True, is_of_dataset=True) for code, meaning in _OF_DATASET.items()},
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
      fact: where in the column, what was expected, what came.
      remedy: what mends it, where an option does.
    """

    code: str
    path: str
    fact: str
    remedy: Remedy | None = None

    def __str__(self) -> str:
        where = f'column "{self.path}": ' if self.path else ""
        return f"{self.code}: {where}{self.detail}"

    @property
    def detail(self) -> str:
        """Where in the column, what was expected, what came; then the remedy, as Python spells it."""
        return self.fact if self.remedy is None else f"{self.fact}; {self.remedy.render(in_python)}"

    @property
    def is_advice(self) -> bool:
        return CODES[self.code].is_advice

    @property
    def is_repairable(self) -> bool:
        return CODES[self.code].is_repairable


class Named(Protocol):
    """An episode, or what stands for one; see `Episode`."""

    @property
    def id(self) -> str: ...

    @property
    def recorded_id(self) -> str | None: ...

    @property
    def title(self) -> str: ...
