"""Fills batches from several parts, sample by sample as it is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.feed import Feed, check_feeds
from rlds2reverb.learner.joining import Piece, joined
from rlds2reverb.learner.leaves import columns_of, in_structure
from rlds2reverb.learner.options import PAD
from rlds2reverb.learner.padding import padded, rows_are_free
from rlds2reverb.specs import Nest, flatten


class Interleave:
    """The parts of a mix.

    Args:
      feeds: one per part.
      ragged, pad_to: see `MixOptions`.

    Raises:
      SpecMismatch: the items of two parts differ, as far as they tell.

    Attributes:
      feeds: as given.
      is_over: a part has ended that cannot begin again.
    """

    def __init__(self, feeds: Sequence[Feed], ragged: str, pad_to: int | None = None) -> None:
        self.feeds, self._ragged, self._pad_to = feeds, ragged, pad_to
        self.is_over = False
        self._known = 0
        self._check()

    @property
    def structure(self) -> Nest | None:
        """The nest of the samples; None where it is not known yet."""
        known = [feed.spec if feed.spec is not None else feed.structure for feed in self.feeds]
        return next((one for one in known if one is not None), None)

    def batch(self, parts: Array) -> Batch | None:
        """Samples of these parts.

        Args:
          parts: [B] of which part each sample is to be.

        Returns:
          B samples; the first of them before the one that its part cannot give; None where that is the first.

        Raises:
          SpecMismatch: the items of two parts differ.
          ConfigError: a part is empty.
          Rlds2ReverbError: as the parts do.
        """
        wanted = np.bincount(parts, minlength=len(self.feeds))
        pieces = [piece for feed, count in zip(self.feeds, wanted) for piece in feed.take(int(count))]
        self._check()
        if sum(piece.size for piece in pieces) < len(parts):
            self.is_over = True
            pieces, parts = cut_short(pieces, parts, len(self.feeds))
        return joined_of(self.feeds, pieces, parts, self._ragged, self._pad_to) if len(parts) else None

    def close(self) -> None:
        """Closes all parts."""
        for feed in self.feeds:
            feed.batches.close()

    def _check(self) -> None:
        """Compares the parts whenever one more is known."""
        known = sum(feed.spec is not None for feed in self.feeds)
        if known != self._known:
            check_feeds(self.feeds)
            self._known = known


def joined_of(
    feeds: Sequence[Feed],
    pieces: Sequence[Piece],
    parts: Array,
    ragged: str,
    pad_to: int | None,
    places: Sequence[Array] | None = None,
) -> Batch:
    """One batch of what feeds gave.

    Args:
      feeds: by number.
      pieces: the samples; without `places`, those of a feed in the order in which they stand in the batch.
      parts: [B] of which feed each sample is.
      ragged, pad_to: see `SampleOptions`.
      places: see `joined`.

    Raises:
      ConfigError: a part pads its samples, parts differ in a column's dtype, or items cannot be filled up to one shape.
    """
    batch = joined(pieces, parts, {feed.number: feed.structure for feed in feeds}, places)
    first = feeds[pieces[0].part]
    return _padded(batch, first.structure, first.spec, pad_to) if ragged == PAD else batch


def cut_short(pieces: Sequence[Piece], parts: Array, count: int) -> tuple[list[Piece], Array]:
    """What comes before the first sample that its part did not give: the samples, and [b] their parts.

    Args:
      pieces: the samples that came.
      parts: [B] the parts that were asked for; below 0 for none.
      count: of parts.
    """
    got = np.bincount([one.part for one in pieces], [one.size for one in pieces], count).astype(np.int64)
    lacking = [np.flatnonzero(parts == number)[got[number] :] for number in range(count)]
    ends = [*(places[0] for places in lacking if len(places)), *np.flatnonzero(parts < 0)[:1]]
    parts = parts[: min(ends)] if ends else parts
    return _only(pieces, np.bincount(parts, minlength=count)), parts


def _padded(batch: Batch, structure: Nest, spec: Nest, pad_to: int | None) -> Batch:
    names = list(flatten(structure).values())
    is_free = rows_are_free(flatten(spec).values()) if batch.info.mask is None else [False] * len(names)
    columns, mask, masks = padded(columns_of(batch.data, structure), names, is_free, pad_to)
    return Batch(
        in_structure(columns, structure),
        batch.info._replace(mask=batch.info.mask if mask is None else mask, masks=masks),
    )


def _only(pieces: Sequence[Piece], wanted: Array) -> list[Piece]:
    """The first so many samples of each part."""
    left, out = wanted.copy(), []
    for piece in pieces:
        count = min(piece.size, int(left[piece.part]))
        left[piece.part] -= count
        if count:
            out.append(piece._replace(stop=piece.start + count))
    return out
