"""How a source is read straight into batches."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.checks import check_count, check_word
from rlds2reverb.learner.options import LIST, RAGGED, check_pad

SHUFFLED = 1024
"""Items of a shuffle buffer, where its size is not said."""


@dataclass(frozen=True)
class LocalOptions:
    """What `local` is told beside what episodes are to be (`EpisodeOptions`). Each field is a keyword of `local`.

    Attributes:
      batch_size: samples per batch.
      table: `info.key` has the keys that items of a push to the table of this name have.
      epochs: how often the source is read; None for no end.
      shuffle: items of the shuffle buffer; True for 1024, 0 or False for the order of the source.
      seed: of the shuffling; each epoch has an order of its own.
      drop_last: leave out the last batch where it is shorter than the others. Batches go across the ends of epochs.
      ragged, pad_to: as for `SampleOptions`.
      decode: decode images that the items hold encoded (`encoded=...`); False leaves their bytes.

    Raises:
      ConfigError: a number out of its range, or a word that is none of those above.
    """

    batch_size: int = 256
    _: KW_ONLY
    table: str = "replay"
    epochs: int | None = 1
    shuffle: int | bool = 0
    seed: int = 0
    drop_last: bool = False
    ragged: str = LIST
    pad_to: int | None = None
    decode: bool = True

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.epochs is not None:
            check_count("epochs", self.epochs)
        if self.shuffle is not False and self.shuffle != 0:
            check_count("shuffle", self.buffer_size)
        check_seed(self.seed)
        check_word("ragged", self.ragged, RAGGED)
        check_pad(self.pad_to, self.ragged)
        if not isinstance(self.table, str):
            raise ConfigError(f"local: table {self.table!r}: expected the name of one table")

    @property
    def buffer_size(self) -> int:
        """Items of the shuffle buffer; 0 without one."""
        return SHUFFLED if self.shuffle is True else self.shuffle


def check_seed(seed: object) -> None:
    """Refuses what `numpy.random.RandomState` does not take.

    Raises:
      ConfigError: no whole number from 0 to 2**32 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 32:
        raise ConfigError(f"seed {seed!r}: expected a whole number from 0 to 2**32 - 1")
