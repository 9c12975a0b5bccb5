"""Batches of columns -> batches in the structure of their table: images decoded, rows filled up, weights computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlds2reverb.errors import ConfigError
from rlds2reverb.images import Size, decode_images
from rlds2reverb.learner.batch import Batch, BatchInfo, in_structure, pad_columns, rows_are_free
from rlds2reverb.learner.options import PAD, SampleOptions, SliceSpec
from rlds2reverb.learner.slices import CutBatch, Slicing, Viewing
from rlds2reverb.learner.weights import Weights
from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.wire.messages import TableInfo
from rlds2reverb.wire.sample.batches import Column, FlatBatch


class Packing:
    """Packs columns into batches.

    Raises:
      ConfigError, ViewError: `spec` and the signature differ in their number of columns; or the items cannot be cut as the options say.

    Attributes:
      cutter: cuts the samples; None where they stay whole.
      structure: nest of the names of a batch's columns; None where neither a spec nor a signature gives them.
    """

    def __init__(self, table: TableInfo, options: SampleOptions) -> None:
        self._name, self._options = table.name, options
        structure = table.signature if options.spec is None else options.spec
        cut = options.cut
        self.cutter: Slicing | Viewing | None = None
        if isinstance(cut, SliceSpec):
            self.cutter = Slicing(table, structure, cut)
        elif cut is not None:
            self.cutter = Viewing(table, structure, cut)
        if options.spec is not None and table.signature is not None:
            leaf_count, column_count = len(flatten(options.spec)), len(flatten(table.signature))
            if leaf_count != column_count:
                raise ConfigError(
                    f'table "{table.name}": spec has {leaf_count} leaves, the table\'s items have {column_count} columns'
                )
        self.structure = structure if self.cutter is None else self.cutter.signature
        self._leaves = None if self.structure is None else flatten(self.structure)
        signature = self.structure if self.cutter is not None or table.signature is None else table.signature
        leaves = flatten(signature)
        self._specs = leaves if all(isinstance(leaf, ArraySpec) for leaf in leaves.values()) else {}
        self._has_images = options.decode is not False and any(leaf.image is not None for leaf in self._specs.values())
        self._weights = (
            None if options.weights is None else Weights(table, options.weights, options.beta, options.min_priority)
        )

    def pack(self, flat: FlatBatch) -> Batch:
        """Decodes images, fills rows up and computes weights, as the options say.

        Raises:
          ConfigError: the items do not have the columns of the structure, or cannot be filled up to one shape.
          DecodeError: an encoded image cannot be decoded.
          WireError: with weights, a sample's probability is no probability.
        """
        columns: Sequence[Column] = flat.columns
        if self._leaves is not None and len(columns) != len(self._leaves):
            raise ConfigError(
                f'table "{self._name}": items have {len(columns)} columns, the structure has {len(self._leaves)} leaves: {list(self._leaves)}'
            )
        if self._has_images:
            size = self._options.decode if isinstance(self._options.decode, Size) else None
            columns = [
                _decode_column(column, *leaf, size) for column, leaf in zip(columns, self._specs.items(), strict=True)
            ]
        weight = None if self._weights is None else self._weights.next(flat.info)
        start, mask = (flat.start, flat.mask) if isinstance(flat, CutBatch) else (None, None)
        masks = None
        if self._options.ragged == PAD:
            names = list(map(str, range(len(columns)))) if self._leaves is None else list(self._leaves)
            is_cut = mask is not None
            is_free = [False] * len(columns) if is_cut or not self._specs else rows_are_free(self._specs.values())
            columns, own, masks = pad_columns(columns, names, is_free, self._options.pad_to)
            mask = own if mask is None else mask
        data = list(columns) if self.structure is None else in_structure(columns, self.structure)
        return Batch(data, BatchInfo(*flat.info, weight, mask, masks, start))


def _decode_column(column: Column, name: str, leaf: ArraySpec, size: Size | None) -> Column:
    """The column with its images decoded; B arrays where they differ in size, or in number."""
    if leaf.image is None:
        return column
    is_free = None in leaf.image.shape[0 if size is None else 2 :]
    if not isinstance(column, list) and not is_free:
        return decode_images(column, leaf.image, column=name, size=size)
    values = column if isinstance(column, list) else [column[number, ...] for number in range(len(column))]
    images = [decode_images(value, leaf.image, column=name, size=size) for value in values]
    return images if len({value.shape for value in images}) > 1 else np.stack(images)
