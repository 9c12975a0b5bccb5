"""What can be wrong with an episode: one code each, said once here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """A kind of problem.

    Attributes:
      meaning: what is wrong, for people.
      is_advice: the data can be stored as it is, but a learner may misread it; only `strict` rejects it.
      is_repairable: there is one right answer, which on_invalid="repair" puts in.
      is_of_dataset: a remark about the dataset as a whole, so it rejects no episode.
    """

    meaning: str
    is_advice: bool = False
    is_repairable: bool = False
    is_of_dataset: bool = False


CODES: dict[str, Code] = {
    "no_steps": Code("the episode has no steps"),
    "single_step": Code("the episode has one step, so no transition"),
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
    "last_observation_shared": Code(
        "the episode ends with the very observation of others, which is not its own, as in TFDS' d4rl_* sets"
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
    "rounded_float64": Code(
        "a float64 column holds only values that float32 has: TFDS writes float64 through float32 unless its encoding is bytes or zlib",
        is_advice=True,
        is_of_dataset=True,
    ),
    "float_image": Code(
        "an image column of floats holds only whole numbers from 0 to 255, which uint8 has in a quarter of the bytes or less",
        is_advice=True,
        is_of_dataset=True,
    ),
    "lost_records": Code(
        "files of the dataset hold fewer episodes than it says, as parquet files of TFDS 4.9.10 with more than 100",
        is_advice=True,
        is_of_dataset=True,
    ),
    "both_ends": Code("episodes end both terminated and truncated", is_advice=True, is_of_dataset=True),
    "no_end": Code("episodes end neither terminated nor truncated", is_advice=True, is_of_dataset=True),
    "cast": Code(
        "episodes have a column in another dtype than others; cast, no value changed",
        is_advice=True,
        is_of_dataset=True,
    ),
    "left_out": Code(
        "something recorded became no column: not every episode has it, say", is_advice=True, is_of_dataset=True
    ),
    "space": Code(
        "values are stored in another dtype or shape than the dataset says", is_advice=True, is_of_dataset=True
    ),
    "episode_count": Code(
        "files have more or fewer episodes than the dataset says", is_advice=True, is_of_dataset=True
    ),
}
"""Code -> what it means. Documented in docs/validation.md."""


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
        """Whether the episode can be stored all the same."""
        return CODES[self.code].is_advice

    @property
    def is_repairable(self) -> bool:
        """Whether there is one right answer."""
        return CODES[self.code].is_repairable
