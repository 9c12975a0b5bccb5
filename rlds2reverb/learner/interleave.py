"""Fills batches from several parts, sample by sample as it is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.learner.batch import Batch
from rlds2reverb.learner.feed import Feed, check_feeds
from rlds2reverb.learner.joining import Piece, columns_of, joined
from rlds2reverb.learner.options import PAD
from rlds2reverb.learner.padding import padded, rows_are_free
from rlds2reverb.specs import Nest, flatten, map_with_path


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
        got = np.bincount([one.part for one in pieces], [one.size for one in pieces], len(self.feeds)).astype(np.int64)
        if (got < wanted).any():
            self.is_over = True
            parts = parts[: _first_lacking(parts, got)]
            pieces = _only(pieces, np.bincount(parts, minlength=len(self.feeds)))
        if not len(parts):
            return None
        structures = {feed.number: feed.structure for feed in self.feeds}
        batch = joined(pieces, parts, structures)
        return self._padded(batch, structures[pieces[0].part]) if self._ragged == PAD else batch

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

    def _padded(self, batch: Batch, structure: Nest) -> Batch:
        names = list(flatten(structure).values())
        specs = [] if self.structure is None else list(flatten(self.structure).values())
        is_free = rows_are_free(specs)
        columns, mask, masks = padded(columns_of(batch.data, structure), names, is_free, self._pad_to)
        left = iter(columns)
        data = map_with_path(lambda _path, _leaf: next(left), structure)
        mask = batch.info.mask if mask is None else mask
        return Batch(data, batch.info._replace(mask=mask, masks=masks))


def _first_lacking(parts: Array, got: Array) -> int:
    """The place of the first sample that its part did not give."""
    places = [np.flatnonzero(parts == number)[count:] for number, count in enumerate(got)]
    return int(min(place[0] for place in places if len(place)))


def _only(pieces: Sequence[Piece], wanted: Array) -> list[Piece]:
    """The first so many samples of each part."""
    left, out = wanted.copy(), []
    for piece in pieces:
        count = min(piece.size, int(left[piece.part]))
        left[piece.part] -= count
        if count:
            out.append(piece._replace(stop=piece.start + count))
    return out
