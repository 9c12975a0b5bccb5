"""How samples of several parts become batches."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.checks import check_count
from rlds2reverb.learner.local_options import check_seed
from rlds2reverb.learner.options import LIST, RAGGED, check_pad

ITEM, BATCH = "item", "batch"
BY = (ITEM, BATCH)


@dataclass(frozen=True)
class MixOptions:
    """Everything about a mix but its parts. Each field is a keyword of `mix`.

    Attributes:
      batch_size: samples per batch.
      seed: of the choices between parts.
      by: "item": each sample is of a part chosen for it alone; "batch": parts are chosen for runs of samples of a batch.
      samples: how many in all; None for no end.
      drop_last: leave out the last batch where it is shorter than the others.
      draws: by "batch": how many runs a batch has; None for as many as there are parts. A part may be drawn more than once.
      sample_from_all: by "batch": one run of every part, in their order, whatever their weights.
      stacked: by "batch": [draws, batch_size / draws, ...] instead of [batch_size, ...].
      ragged, pad_to: as for `SampleOptions`, of the whole batch.

    Raises:
      ConfigError: a number out of its range, a word that is none of those above, or options that do not go together.
    """

    batch_size: int = 256
    _: KW_ONLY
    seed: int = 0
    by: str = ITEM
    samples: int | None = None
    drop_last: bool = False
    draws: int | None = None
    sample_from_all: bool = False
    stacked: bool = False
    ragged: str = LIST
    pad_to: int | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_seed(self.seed)
        for name in ("samples", "draws"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name, words in (("by", BY), ("ragged", RAGGED)):
            if getattr(self, name) not in words:
                raise ConfigError(f"mix: {name} {getattr(self, name)!r}: expected one of {', '.join(words)}")
        check_pad(self.pad_to, self.ragged)
        if self.by == ITEM and (self.draws is not None or self.sample_from_all or self.stacked):
            raise ConfigError('mix: draws, sample_from_all and stacked are of by="batch"; give that, or leave them out')
        if self.sample_from_all and self.draws is not None:
            raise ConfigError("mix: sample_from_all draws every part once; leave out draws")

    def draws_of(self, parts: int) -> int:
        """Runs of a batch.

        Raises:
          ConfigError: the batch cannot be cut into so many equal ones, or all samples into whole batches.
        """
        draws = parts if self.draws is None else self.draws
        if self.batch_size % draws:
            raise ConfigError(
                f"mix: batch_size {self.batch_size} cannot be divided by the {draws} parts that a batch is drawn from; change it, or draws"
            )
        if self.samples is not None and self.samples % self.batch_size:
            raise ConfigError(
                f'mix: samples {self.samples}: by="batch" gives whole batches only; expected a multiple of {self.batch_size}'
            )
        return draws
