"""What `local` takes: batches, epochs, shuffling."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.identity import Identity, IdentityLike, identity_of
from rlds2reverb.images import SizeLike
from rlds2reverb.learner.options import (
    LIST,
    RAGGED,
    TABLE_MIN,
    TRAJECTORY,
    SliceSpec,
    check_count,
    check_number,
    check_pad,
    check_rank,
    check_weights,
    check_word,
    read_decode,
)
from rlds2reverb.prepare.options import EpisodeKeywords, EpisodeOptions

GLOBAL = "global"
"""The word for `shuffle` that asks for a permutation of all items in place of a buffer."""

UNIFORM, PRIORITIZED = "uniform", "prioritized"
"""The words for `sampler`, as a table's."""

_DEFAULT_BUFFER = 1024  # items, for shuffle=True


@dataclass(frozen=True)
class LocalOptions(EpisodeOptions):
    """Options of `local`: those of the episodes, and a few more. Each field is a keyword of `local`.

    Attributes:
      batch_size: samples per batch.
      table: name of a table; `info.key` has the keys that a push to it would give its items.
      epochs: how often the source is read; None for no end.
      shuffle: items of the shuffle buffer; True for 1024, 0 or False for the order of the source. "global" makes each epoch a permutation of
        all items of the source, in which every item is equally likely at every position; see `local` for what it needs and costs.
      sampler: draw items with replacement, in place of `shuffle`: "uniform", each equally likely, or "prioritized", by priority ** exponent
        as a table does (`priority=` of the view; all are read once before the first batch). An epoch is as many draws as there are items.
        Needs what shuffle="global" needs.
      exponent: of sampler="prioritized"; TorchRL's and RLlib's alpha.
      weights, beta: importance weights in `info.weight` for sampler="prioritized": "batch_max", "unscaled", "acme" or "table_min", see
        `learner.weights`, and their exponent, a number. The smallest priority of "table_min" is that of all items.
      slices: cut a slice out of each item, whose start is drawn anew every time; items are whole episodes (view "episode", the default
        then). `batch_size` counts slices. Ranks and workers need `strict=False`. Of `SliceSpec`, `per_episode` stays 1, and `by` "trajectory".
      shuffle_bytes: most bytes of items that are held for shuffle="global" or a sampler. The order does not depend on it.
      seed: of the shuffling; each epoch has an order of its own.
      drop_last: leave out the last batch if it is shorter than the others. Batches extend across the ends of epochs.
      rank, world_size: this process of a training run of so many. Every rank gets other items and the same number of batches; see
        `learner.local.shares`. Items that are left over at the end of the last epoch, fewer than `world_size`, go to none.
      ragged, pad_to: as for `SampleOptions`.
      identity: as for a push: what names an episode in place of its content, and so decides `info.key`.
      decode: decode images that the items hold encoded (`encoded=...`); False leaves their bytes, a size decodes to that size, as for
        `SampleOptions`.

    Raises:
      ConfigError: as `EpisodeOptions`; a number out of its range, or an unknown word.
    """

    batch_size: int = 256
    _: KW_ONLY
    table: str = "replay"
    epochs: int | None = 1
    shuffle: int | bool | str = 0
    sampler: str | None = None
    exponent: float = 1.0
    weights: str | None = None
    beta: float | None = None
    slices: SliceSpec | None = None
    shuffle_bytes: int = 512 << 20
    seed: int = 0
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    ragged: str = LIST
    pad_to: int | None = None
    decode: bool | SizeLike = True
    identity: IdentityLike = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("batch_size", self.batch_size)
        if self.epochs is not None:
            check_count("epochs", self.epochs)
        if isinstance(self.shuffle, str) and self.shuffle != GLOBAL:
            raise ConfigError(f'shuffle "{self.shuffle}": expected the items of a buffer, True or False, or "{GLOBAL}"')
        if self.shuffle not in (False, 0, GLOBAL):
            check_count("shuffle", self.buffer_size)
        self._check_sampler()
        self._check_slices()
        check_count("shuffle_bytes", self.shuffle_bytes)
        check_seed(self.seed)
        rank, world_size = check_rank("local", self.rank, self.world_size)
        vars(self).update(rank=rank, world_size=world_size, decode=read_decode(self.decode))
        check_word("ragged", self.ragged, RAGGED)
        check_pad(self.pad_to, self.ragged)
        identity_of(self.identity)  # refuses what makes no sense
        if not isinstance(self.table, str):
            raise ConfigError(f"local: table {self.table!r}: expected the name of one table")

    def _check_sampler(self) -> None:
        if self.sampler is not None:
            check_word("sampler", self.sampler, (UNIFORM, PRIORITIZED))
            if self.shuffle not in (False, 0):
                raise ConfigError(
                    f'local: sampler="{self.sampler}" draws items, so shuffle={self.shuffle!r} has no meaning; give one of them'
                )
        given = [name for name in ("weights", "beta") if getattr(self, name) is not None]
        given += ["exponent"] if self.exponent != 1.0 else []
        if given and self.sampler != PRIORITIZED:
            raise ConfigError(f'local: {given[0]} goes with sampler="{PRIORITIZED}"; others draw all items alike')
        check_number("exponent", self.exponent)
        if callable(self.beta):
            raise ConfigError(
                "local: beta: expected a number; a function of the batch's number could not be restored by a state"
            )
        check_weights(self.weights, self.beta, 1.0 if self.weights == TABLE_MIN else None)

    def _check_slices(self) -> None:
        if self.slices is None:
            return
        if not isinstance(self.slices, SliceSpec):
            raise ConfigError(f"local: slices {self.slices!r}: expected a SliceSpec")
        if self.slices.per_episode != 1 or self.slices.by != TRAJECTORY:
            raise ConfigError(
                'local: slices: expected one slice of each episode that comes (per_episode=1, by="trajectory"); sampler="uniform" of the view sequence '
                "draws every start of every episode equally likely"
            )

    @property
    def is_global(self) -> bool:
        """Whether items come in an order of all of them, so that each pass begins with others."""
        return self.shuffle == GLOBAL or self.sampler is not None

    @property
    def chosen_identity(self) -> Identity | None:
        """What names episodes; None for their content."""
        return identity_of(self.identity)

    @property
    def decodes_here(self) -> bool:
        return self.decode is not False

    @property
    def buffer_size(self) -> int:
        """Items of the shuffle buffer; 0 without one."""
        if self.shuffle is True:
            return _DEFAULT_BUFFER
        return 0 if isinstance(self.shuffle, str) else self.shuffle

    @property
    def order_label(self) -> dict[str, Any]:
        """What orders items beside `shuffle` and the seed; {} without a sampler and slices. States on disk hold it."""
        drawn = {} if self.sampler is None else {"sampler": self.sampler, "exponent": float(self.exponent)}
        return drawn if self.slices is None else {**drawn, "slices": asdict(self.slices)}


def check_seed(seed: object) -> None:
    """Raises ConfigError for a seed that `numpy.random.RandomState` does not take."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 32:
        raise ConfigError(f"seed {seed!r}: expected a whole number from 0 to 2**32 - 1")


class LocalKeywords(EpisodeKeywords, total=False):
    """`LocalOptions` as keywords, without `batch_size`."""

    table: str
    epochs: int | None
    shuffle: int | bool | str
    sampler: str | None
    exponent: float
    weights: str | None
    beta: float | None
    slices: SliceSpec | None
    shuffle_bytes: int
    seed: int
    drop_last: bool
    rank: int
    world_size: int
    ragged: str
    pad_to: int | None
    decode: bool | SizeLike
    identity: IdentityLike
