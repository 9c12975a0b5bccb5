"""Splits that stay: whether an episode is for training or for validation, by a hash of what it did.

`split="val"` takes about `val_share` of the episodes, and `split="train"` all others. An episode decides for itself: neither its number, nor
the dataset's size, name or place counts. So a set that grows keeps every episode on its side, and a larger share only moves episodes from
train to val.

| split_by | what is hashed | so these are on one side |
| --- | --- | --- |
| nothing | the numbers of the actions, without those of the last row | copies of an episode, in every format |
| a path, such as `task` | this metadata of the episode, or this column, which has one value in all rows | all episodes of a task or a scene |

The name of an episode (`episode`) cannot decide: it is a digest of stored bytes, and a conversion stores others. What all formats keep are the
actions. They are hashed as float32, column by column, and neither the names of the columns count, nor their order, nor whether a number stands
alone or in a vector of one. The last row is left out, because by RLDS' convention its action has no meaning, and formats fill it differently.
With `last_step="repeat"` it counts where it has an action, which is read then, and stands in the last row but one of what a conversion makes of it.
Where a dataset has no `action`, those of `actions` count, as openpi's sets for LeRobot have them, else the numbers of its observations.

A value of `split_by` is compared as the id of an identity (`identity.text_of`): 7, 7.0 and "7" are one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from rlds2reverb.episode import ACTION, METADATA, OBSERVATION, Array, Episode, is_under
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.filtered import Rule
from rlds2reverb.formats.identity import text_of
from rlds2reverb.formats.last_step import decides_last_row, last_row_is_added
from rlds2reverb.formats.options import read_options, some_text, take_options
from rlds2reverb.formats.source import Source, columns_of, metadata_spec_of
from rlds2reverb.specs import flatten, is_number
from rlds2reverb.text import did_you_mean

TRAIN, VAL = PARTS = ("train", "val")

VAL_SHARE = 0.1

_FIELDS = (ACTION, "actions", OBSERVATION)  # the first that has numbers is hashed
_MOST_NUMERIC_DIMENSIONS = 2  # of a row; what has more is a picture


@dataclass(frozen=True)
class Split(Rule):
    """The episodes of one side; a rule of `filtered`.

    Attributes:
      part: "train" or "val".
      val_share: share of the episodes that are for validation.
      by: path of the metadata or the column whose value decides; "" for the actions.
      is_last_real: whether a row will be put behind a last one that has an action or a reward.

    Raises:
      ConfigError: another part, a share that is not between 0 and 1, or no path.
    """

    part: str
    val_share: float = VAL_SHARE
    by: str = ""
    is_last_real: bool = False

    def __post_init__(self) -> None:
        share: Any = self.val_share
        if self.part not in PARTS:
            raise ConfigError(
                f'split (--split) "{self.part}": expected {TRAIN} or {VAL}{did_you_mean(str(self.part), PARTS)}; '
                "a split that TFDS has stored is a part of the name, tfds:NAME@SPLIT"
            )
        if isinstance(share, bool) or not isinstance(share, (int, float, np.number)) or not 0 < share < 1:
            raise ConfigError(
                f"val_share (--val-share) {share}: expected a number between 0 and 1, such as {VAL_SHARE}"
            )
        if not isinstance(self.by, str):
            raise ConfigError(f"split_by (--split-by) {self.by!r}: expected the path of metadata or of a column")
        object.__setattr__(self, "by", self.by.removeprefix(f"{METADATA}/"))

    @property
    def text(self) -> str:
        """What is left out by it is counted below this."""
        return f"split={self.part},val_share={float(self.val_share)}" + (f",split_by={self.by}" if self.by else "")

    def columns(self, source: Source) -> Collection[str]:
        """The columns that it looks at.

        Raises:
          SourceError: the source has no numbers to split by, or no such path.
        """
        specs = columns_of(source.spec(), source.name)
        if not self.by:
            numeric = [path for path, spec in specs.items() if _is_numeric(spec.dtype, len(spec.shape))]
            paths = _of_first_field(numeric)
            if not paths:
                raise SourceError(
                    f"{source.name}: split={self.part}: expected numbers in {', '.join(_FIELDS)}, which tell episodes apart; found {', '.join(specs)}. "
                    "Name metadata or a column to split by: split_by=PATH (--split-by)"
                )
            return {*paths, *filter(decides_last_row, specs)} if self.is_last_real else paths
        if self.by in specs:
            return (self.by,)
        metadata = flatten(metadata_spec_of(source))
        if self.by not in metadata:
            there = [*metadata, *specs]
            raise SourceError(
                f'{source.name}: split_by (--split-by) "{self.by}": expected metadata of the episodes or a column'
                f"{did_you_mean(self.by, there)}; there are: {', '.join(there)}"
            )
        return ()

    def judge(self, episode: Episode) -> bool:
        """Whether an episode is on this side.

        Raises:
          SourceError: it lacks the value of `by`, or its rows have several.
        """
        has_last = self.is_last_real and len(episode) > 0 and not last_row_is_added(episode)
        digest = self._value_digest(episode) if self.by else _actions_digest(episode.columns, has_last)
        is_val = digest < self.val_share * 2.0**64
        return is_val == (self.part == VAL)

    def _value_digest(self, episode: Episode) -> int:
        is_metadata = self.by in episode.metadata
        values = [episode.metadata[self.by]] if is_metadata else [*episode.columns.get(self.by, np.empty(0))]
        texts = {text_of(value) for value in values}
        text = texts.pop() if len(texts) == 1 else None
        if text is None:
            raise SourceError(
                f'{episode.title}: split_by (--split-by) "{self.by}": expected one text or number that all its rows share'
            )
        return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def _actions_digest(columns: Mapping[str, Array], has_last: bool) -> int:
    """64 bits of the numbers that a conversion keeps; see the module."""
    numeric = [path for path, column in columns.items() if _is_numeric(column.dtype, column.ndim - 1)]
    digests = sorted(_numbers_digest(columns[path], has_last) for path in _of_first_field(numeric))
    return xxhash.xxh3_64_intdigest(b"".join(digests))


def _numbers_digest(column: Array, has_last: bool) -> bytes:
    rows = column[:-1] if len(column) > 1 and not has_last else column
    with np.errstate(over="ignore", invalid="ignore"):
        values = rows.astype("<f4").reshape(-1) + np.float32(0)  # -0.0 becomes 0.0
    values[np.isnan(values)] = np.nan  # all bits that mean NaN become one
    return xxhash.xxh3_128_digest(values.tobytes())


def _of_first_field(paths: Collection[str]) -> list[str]:
    """The paths in the first of `_FIELDS` that has any; [] for none."""
    for name in _FIELDS:
        if inside := [path for path in paths if is_under(path, name)]:
            return inside
    return []


def _is_numeric(dtype: np.dtype[Any], dimensions: int) -> bool:
    return is_number(dtype) and dimensions <= _MOST_NUMERIC_DIMENSIONS


# In the name of a dataset of any format: `?split=val`, `?split=val,val_share=0.2,split_by=task`. Some formats have an option of the same name with
# numbers (`split=80+20`), which stays theirs; what TFDS calls a split stands behind "@".

_OPTIONS = ("split", "val_share", "split_by")


def take_split(name: str) -> tuple[str, Split | None]:
    """Splits the name of a dataset into the name without these options, and what they say; None without them.

    Raises:
      SourceError: an option makes no sense.
    """
    bare_name, own = take_options(
        name, lambda option, value: option in _OPTIONS and not (option == "split" and not value[:1].isalpha())
    )
    if not own:
        return name, None
    values = read_options(name, ",".join(own), dict.fromkeys(_OPTIONS, some_text))
    if "split" not in values:
        raise SourceError(f'"{name}": option "{own[0].partition("=")[0]}" goes with split={TRAIN} or split={VAL}')
    try:
        share = float(values.get("val_share", VAL_SHARE))
    except ValueError:
        share = np.nan
    try:
        split = Split(values["split"], share, values.get("split_by", ""))
    except ConfigError as error:
        raise SourceError(f'"{name}": {error}') from error
    return bare_name, split
