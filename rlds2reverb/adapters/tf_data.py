"""Samples as a `tf.data.Dataset`.

Batches come through `from_generator`: measured, no other way into tf.data is cheaper for each tensor. TensorFlow cannot interrupt a
call into Python, so a dataset of a table without samples would hang where its iterator is deleted. The
generator therefore bounds its waits: it yields zeros for "nothing yet", which a filter removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds2reverb.adapters.common import INFO_DTYPES, Arrays, Server, infos_of, open_client, poll
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError
from rlds2reverb.extras import needing
from rlds2reverb.images import Size
from rlds2reverb.keywords import make_options, takes_options
from rlds2reverb.learner.batch import Batch, BatchInfo, columns_of
from rlds2reverb.learner.options import LIST, PAD, SampleKeywords, SampleOptions, SliceSpec
from rlds2reverb.learner.packing import Packing
from rlds2reverb.servers.tables import table_of
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves, map_with_path
from rlds2reverb.wire.messages import TableInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

with needing("the adapter for tf.data", "tfds", ModuleNotFoundError):
    import tensorflow as tf

_POLL_SECONDS = 0.1


@takes_options(SampleOptions, ragged=PAD)
def as_dataset(
    server: Server,
    table: str,
    batch_size: int = SampleOptions.batch_size,
    rows: int | None = None,
    **options: Unpack[SampleKeywords],
) -> tf.data.Dataset:
    """A table's samples as a dataset: every iterator of it samples on streams of its own, and closes them when it is deleted.

    Elements are (data, `BatchInfo`) of tensors. Data has the structure of the sampled items, with tuples in place of lists, which
    tf.data does not have: that of the table's signature, or of the items that `slices` and `view` cut. Shapes and dtypes follow
    from it; free sizes are None. The batch axis is known where all batches are full: without an end, or with `drop_last`.
    `info.weight` is present with `weights`, `info.start` with `slices` and `view`; `info.masks` never is.

    An error of sampling ends the iterator with a `tf.errors.OpError` that has our error's text in its message.

    Args:
      server: a client, which must stay open; or "host:port", a list of addresses, or a function that connects: then every iterator
        has a connection of its own.
      table: its name.
      batch_size: samples per batch.
      rows: of all items, where the signature leaves their number free; makes the shapes static.
      options: the other fields of `SampleOptions`, by name. `ragged` is "pad" by default: `info.mask` is present where the signature
        leaves numbers of rows free, and with `slices`; "list" makes such columns a `tf.RaggedTensor`. `spec`, for a table without
        signature, has leaves with shape and dtype.

    Raises:
      ConfigError: the server has no such table, the table has no signature and `spec` is not given, or an option makes no sense.
      ServerUnreachable: no answer within the deadline.
    """
    options.setdefault("ragged", PAD)
    asked = make_options(SampleOptions, "as_dataset", batch_size, **options)
    if rows is not None:
        asked = replace(asked, ragged=LIST)  # padding would hide items of fewer rows
    source = Source.of(server, table, asked)
    layout = DatasetLayout(source, rows)
    return make_dataset(source, layout.arrays, layout.specs(), layout.pack)


@dataclass(frozen=True)
class Source:
    """The table and options of a dataset; `structure` is the nest of the items' specs, with tuples in place of lists."""

    server: Server
    table: TableInfo
    structure: Nest
    options: SampleOptions

    @staticmethod
    def of(server: Server, table: str, options: SampleOptions) -> Source:
        """Asks the server. Raises as `as_dataset` does."""
        with open_client(server) as client:
            info = table_of(client.server_info(), table)
        if options.spec is not None:
            options = replace(options, spec=map_leaves(array_spec, options.spec))
        structure = Packing(info, options).structure
        if structure is None:
            raise ConfigError(
                f'table "{table}": it has no signature, so the dtypes and shapes of its items are not known; '
                "give spec=, a nest of leaves with shape and dtype"
            )
        return Source(server, info, without_lists(structure), options)

    @property
    def leaves(self) -> dict[str, ArraySpec]:
        """Path -> spec of a tensor, of decoded images with the option `decode`."""

        def decoded(spec: ArraySpec) -> ArraySpec:
            decode = self.options.decode
            if spec.image is None or decode is False:
                return spec
            height, width, channels = spec.image.shape
            if isinstance(decode, Size):
                height, width = decode.height, decode.width
            return ArraySpec((*spec.shape, height, width, channels), spec.image.dtype)

        return {path: decoded(leaf) for path, leaf in flatten(self.structure).items()}

    def flat(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, with a list of columns as data."""
        paths = map_with_path(lambda path, _: path, self.structure)
        for data, info in batches:
            yield Batch(columns_of(data, paths), info)


def without_lists(nest: Nest) -> Nest:
    if isinstance(nest, Mapping):
        return {key: without_lists(child) for key, child in nest.items()}
    if hasattr(nest, "_fields"):
        return type(nest)(*map(without_lists, nest))
    return tuple(map(without_lists, nest)) if isinstance(nest, (list, tuple)) else nest


def make_dataset(
    source: Source,
    arrays: Callable[[Iterator[Batch]], Iterator[Arrays]],
    specs: Sequence[tf.TensorSpec],
    packed: Callable[..., Any],
) -> tf.data.Dataset:
    """A dataset whose iterators each sample anew.

    Args:
      arrays: batches of columns -> the arrays of each element.
      specs: of the tensors of these arrays.
      packed: tensors -> element: (data, an info with `times_sampled`).
    """
    nothing = tuple(
        np.full([size or 0 for size in spec.shape], b"" if spec.dtype == tf.string else 0, spec.dtype.as_numpy_dtype)
        for spec in specs
    )

    def elements() -> Iterator[Arrays]:
        with open_client(source.server) as client, client.sample(source.table.name, **vars(source.options)) as sampler:
            with closing(poll(arrays(source.flat(sampler)), _POLL_SECONDS)) as polls:
                for arrays_or_none in polls:
                    yield nothing if arrays_or_none is None else arrays_or_none

    polls = tf.data.Dataset.from_generator(elements, output_signature=tuple(specs))
    # TensorFlow would make an ordinary map parallel, and read as many batches ahead as there are cores.
    packs = polls.map(tf.autograph.experimental.do_not_convert(packed), num_parallel_calls=1)
    # A filter is not cancelled; a prefetch is, and then ends the filter behind it. Without it, ending a thread that reads this
    # (`.prefetch(m).take(n)`, a parallel map) would wait for that thread as long as the table is empty.
    return packs.prefetch(1).filter(_is_there)


@tf.autograph.experimental.do_not_convert  # type: ignore[misc]
def _is_there(_: Any, info: Any) -> tf.Tensor:
    return tf.reduce_any(info.times_sampled > 0)  # of a sample, it counts the sample itself


def array_spec(leaf: Any) -> ArraySpec:
    if isinstance(leaf, ArraySpec):
        return leaf
    dtype = leaf.dtype.as_numpy_dtype if isinstance(leaf.dtype, tf.DType) else leaf.dtype
    return ArraySpec(tuple(leaf.shape), np.dtype(dtype), getattr(leaf, "name", "") or "")


def is_full(options: SampleOptions) -> bool:
    """Whether every batch has `batch_size` samples."""
    return options.drop_last or options.samples is options.epochs is options.end_after_seconds is None


class DatasetLayout:
    """Batch -> arrays, and tensors -> element. Free columns are those whose number of rows the signature leaves free."""

    def __init__(self, source: Source, rows: int | None) -> None:
        self._source, self._rows = source, rows
        self._leaves = {
            path: leaf if rows is None or leaf.shape[:1] != (None,) else replace(leaf, shape=(rows, *leaf.shape[1:]))
            for path, leaf in source.leaves.items()
        }
        self._free = [leaf.shape[:1] == (None,) for leaf in self._leaves.values()]
        self._is_padded = source.options.ragged == PAD
        self._is_cut, self._is_weighted = source.options.cut is not None, source.options.weights is not None
        self._is_sliced = isinstance(source.options.cut, SliceSpec)
        self._has_mask = self._is_sliced or (self._is_padded and any(self._free))
        self._batch = source.options.batch_size if is_full(source.options) else None

    def specs(self) -> list[tf.TensorSpec]:
        """Specs of the columns (values and numbers of rows of ragged ones), of the infos, and of the mask."""
        specs = []
        for leaf, is_free in zip(self._leaves.values(), self._free):
            first = (None,) if is_free and not self._is_padded else (self._batch, *leaf.shape[:1])
            specs.append(tf.TensorSpec((*first, *leaf.shape[1:]), leaf.dtype))
            if is_free and not self._is_padded:
                specs.append(tf.TensorSpec((self._batch,), tf.int64))
        more = [np.float32] * self._is_weighted + [np.int64] * self._is_cut
        specs += [tf.TensorSpec((self._batch,), dtype) for dtype in (*INFO_DTYPES, *more)]
        return [*specs, tf.TensorSpec((self._batch, None), tf.bool)] if self._has_mask else specs

    def arrays(self, batches: Iterator[Batch]) -> Iterator[Arrays]:
        """The arrays of each batch, as of `specs`."""
        for data, info in batches:
            self._check_rows(data)
            columns: list[Array] = []
            for column, is_free in zip(data, self._free):
                if is_free and not self._is_padded:  # the values and lengths that make a RaggedTensor
                    columns += [np.concatenate(list(column)), np.array([len(item) for item in column], np.int64)]
                else:
                    columns.append(column)
            extras = [field for field in (info.weight, info.start) if field is not None]
            mask = [self._mask(data, info)] if self._has_mask else []
            yield (*columns, *infos_of(info), *extras, *mask)

    def pack(self, *tensors: tf.Tensor) -> tuple[Nest, BatchInfo]:
        """Tensors -> element."""
        left = iter(tensors)
        columns = [
            tf.RaggedTensor.from_row_lengths(next(left), next(left), validate=False)
            if is_free and not self._is_padded
            else next(left)
            for is_free in self._free
        ]
        fields = dict(zip(BatchInfo._fields, (next(left) for _ in INFO_DTYPES)))
        for name, is_there in (("weight", self._is_weighted), ("start", self._is_cut), ("mask", self._has_mask)):
            if is_there:
                fields[name] = next(left)
        return tf.nest.pack_sequence_as(self._source.structure, columns), BatchInfo(**fields)

    def _mask(self, data: Sequence[Any], info: BatchInfo) -> Array:
        if info.mask is not None:
            return info.mask
        most = max(column.shape[1] for column, is_free in zip(data, self._free) if is_free)
        return np.ones((len(info.key), most), bool)

    def _check_rows(self, data: Sequence[Any]) -> None:
        for (path, leaf), column in zip(self._leaves.items(), data):
            if self._rows is not None and leaf.shape[:1] == (self._rows,):
                lengths = {len(item) for item in column} if isinstance(column, list) else {column.shape[1]}
                if lengths != {self._rows}:
                    raise ConfigError(
                        f'table "{self._source.table.name}", column "{path}": expected items of {self._rows} rows, as rows= says; '
                        f"got {', '.join(map(str, sorted(lengths)))}"
                    )
