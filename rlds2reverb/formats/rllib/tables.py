"""RLlib's Parquet files: a row per step, per sample batch, or per episode of the new stack.

Columns become numpy arrays: plain ones, lists of equal lengths, structs, and the tensors of Ray Data. pyarrow alone reads Ray's
extension types as what they are stored in, and tells the type in the field's metadata. Source: ray/air/util/tensor_extensions/arrow.py.

An episode is the state of a `SingleAgentEpisode`, as msgpack with the arrays of msgpack-numpy. Sources: rllib/env/single_agent_episode.py
(`get_state`), rllib/env/utils/infinite_lookback_buffer.py, msgpack_numpy.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlds2reverb.episode import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import needing
from rlds2reverb.formats.arrow import check_row_groups, is_list, stored_values
from rlds2reverb.formats.lru import LRU
from rlds2reverb.formats.pickles import safe_loads
from rlds2reverb.formats.recordings import BrokenEpisode
from rlds2reverb.formats.rllib.index import (
    ACTIONS,
    AGENT_ID,
    AGENT_INDEX,
    DONES,
    EPS_ID,
    INFOS,
    MODULE_ID,
    NEXT_INFOS,
    NEXT_OBS,
    OBS,
    REWARDS,
    TERMINATED,
    TERMINATEDS,
    TRUNCATED,
    TRUNCATEDS,
    UNFINISHED,
    DataFile,
    FoundRows,
    PolicyRows,
    RecordPlace,
    T,
    policy_rows,
)
from rlds2reverb.formats.rllib.records import Columns, Reader, Settings, Store, Wanted, converted, parts
from rlds2reverb.formats.rllib.values import Converter, Leaves, is_packed, texts
from rlds2reverb.text import line_of

_KEYS = (
    EPS_ID,
    AGENT_ID,
    AGENT_INDEX,
    MODULE_ID,
    T,
    TERMINATEDS,
    TRUNCATEDS,
    DONES,
)

_TRIED = 100


def open_tables(files: list[DataFile], settings: Settings) -> Store:
    """The files, by what the first one's rows are.

    Raises:
      SourceError: it is none of RLlib's.
    """
    schema = _first_schema(files)
    if EPISODE in schema.names and pa.types.is_binary(schema.field(EPISODE).type):
        return _RecordTables(files, settings)
    obs, eps = settings.names.of(OBS), settings.names.of(EPS_ID)
    if obs not in schema.names:
        raise SourceError(
            f'{files[0]}: no column "{obs}"; it has {", ".join(schema.names)}. columns=obs:NAME;actions:NAME;... says which are RLlib\'s'
        )
    if "type" in schema.names or (eps in schema.names and pa.types.is_nested(schema.field(eps).type)):
        return _RecordTables(files, settings)
    return _StepTables(files, settings)


def _first_schema(files: list[DataFile]) -> pa.Schema:
    """The schema of the first readable file. Unreadable files are counted by the scan."""
    why: SourceError | None = None
    with closing(_ParquetFiles(files)) as parquet:
        for number in range(min(len(files), _TRIED)):
            try:
                return parquet.opened(number).schema_arrow
            except SourceError as error:
                why = why or error
    raise why or SourceError(f"{files[0]}: no Parquet file")


class _StepTables(Store):
    """Files with a row per step; a part is a row group."""

    def _scan(self, _: Wanted) -> Iterator[FoundRows]:
        with closing(_ParquetFiles(self._files)) as parquet:
            for number, file in enumerate(self._files):
                try:
                    groups = parquet.opened(number).metadata.num_row_groups
                except SourceError as error:
                    self.troubles.add(str(file), str(error))
                    continue
                for group in range(groups):
                    try:
                        part = self._part(parquet, number, group)
                    except BrokenEpisode as broken:
                        self.troubles.add(f"{file}: row group {group}", broken.why)
                        continue
                    yield FoundRows(RecordPlace(number, group, 0), file, part)

    def _part(self, parquet: _ParquetFiles, number: int, group: int) -> PolicyRows:
        file, tells_ends = self._files[number], self._files[number].run is not None
        opened = parquet.opened(number)
        known = {self.settings.names.standard(name): name for name in opened.schema_arrow.names}
        keys = [name for name in (*_KEYS, REWARDS) if name in known]
        ends = [name for name in (OBS, NEXT_OBS) if tells_ends and name in known]
        table = parquet.read(number, group, [known[name] for name in (*keys, *ends)])
        rewards = _key_values(table, known.get(REWARDS)) if REWARDS in known else None
        where = Converter(f"{file}: row group {group}", self.settings.floats)
        return policy_rows(
            lambda name: _key_values(table, known.get(name)),
            self.settings.done_means,
            rows=table.num_rows,
            columns=frozenset(known),
            rewards=np.asarray(rewards) if tells_ends and rewards is not None else None,
            ends=_ends(table, known, where) if tells_ends and table.num_rows else ("", ""),
        )

    def reader(self, wanted: frozenset[str]) -> Reader:
        """Reads the columns of these names; close it after use."""
        return _StepReader(self._files, self.settings, wanted)


class _TableReader(Reader):
    """Columns of Parquet files."""

    def __init__(self, files: list[DataFile], settings: Settings, wanted: frozenset[str]) -> None:
        super().__init__(files, settings, wanted)
        self._parquet = _ParquetFiles(files)

    def close(self) -> None:
        self._parquet.close()


class _StepReader(_TableReader):
    """Columns of row groups, which are one part each."""

    def _where(self, place: RecordPlace) -> str:
        return f"{self._files[place.file]}: row group {place.at}"

    def _columns(self, place: RecordPlace) -> Columns:
        try:
            there = set(self._parquet.opened(place.file).schema_arrow.names)
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        known = {name: self._settings.names.of(name) for name in self._wanted}
        known = {name: column for name, column in known.items() if column in there}
        table = self._parquet.read(place.file, place.at, sorted(known.values()))
        converter = Converter(self._where(place), self._settings.floats)
        made: Columns = {}
        for name, column in known.items():
            try:
                made[0, name] = _leaves_of(table.schema.field(column), table[column], name, converter)
            except BrokenEpisode as broken:
                made[0, name] = broken
        return made


def _key_values(table: pa.Table, column: str | None) -> Array | None:
    """A column of ids, numbers or flags; None if it is missing or empty."""
    if column is None:
        return None
    values = table[column]
    if values.null_count == table.num_rows:
        return None
    if values.null_count:
        raise BrokenEpisode(column, f'column "{column}": {values.null_count:,} rows without a value')
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        encoded = values.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        return np.asarray(np.asarray(encoded.dictionary.to_pylist(), str)[encoded.indices.to_numpy()])
    return np.asarray(values.to_numpy())


def _ends(table: pa.Table, known: dict[str, str], converter: Converter) -> tuple[str, str]:
    def row(name: str, at: int) -> str:
        if name not in known:
            return ""
        leaves = _leaves_of(table.schema.field(known[name]), table[known[name]].slice(at, 1), name, converter)
        return repr({path: np.asarray(column[0]).tolist() for path, column in leaves.items()})

    return row(OBS, 0), row(NEXT_OBS, table.num_rows - 1)


EPISODE = "item"
"""The column of episodes."""
_PARTS = 1 << 16
"""More than a record has parts."""


class _RecordTables(Store):
    """Files with a row per record."""

    def _scan(self, _: Wanted) -> Iterator[FoundRows]:
        with closing(_ParquetFiles(self._files)) as parquet:
            for number, file in enumerate(self._files):
                for group, row, where in self._rows(parquet, number):
                    try:
                        found = self._parts(parquet, number, group, row)
                    except BrokenEpisode as broken:
                        self.troubles.add(where, broken.why)
                        continue
                    for place, part in enumerate(found):
                        yield FoundRows(RecordPlace(number, group, row * _PARTS + place), file, part)

    def _rows(self, parquet: _ParquetFiles, number: int) -> Iterator[tuple[int, int, str]]:
        file = self._files[number]
        try:
            about = parquet.opened(number).metadata
            sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
        except (SourceError, *ERRORS) as error:
            self.troubles.add(str(file), line_of(error))
            return
        for group, rows in enumerate(sizes):
            try:
                _record_at(parquet, number, group, 0, self.settings)
            except BrokenEpisode as broken:
                self.troubles.add(f"{file}: row group {group}", broken.why)
                continue
            for row in range(rows):
                yield group, row, f"{file}: row group {group}, row {row:,}"

    def _parts(self, parquet: _ParquetFiles, number: int, group: int, row: int) -> list[PolicyRows]:
        file = self._files[number]
        record = _record_at(parquet, number, group, row, self.settings)
        if isinstance(record, bytes):
            return [_episode_part(state_of(record))]
        return parts(record, self.settings, str(file), file.run is not None)

    def reader(self, wanted: frozenset[str]) -> Reader:
        """Reads the columns of these names; close it after use."""
        return _RecordReader(self._files, self.settings, wanted)


class _RecordReader(_TableReader):
    """Reads columns of records; each record is a row."""

    def _split(self, place: RecordPlace) -> tuple[tuple[int, ...], int]:
        row, part = divmod(place.part, _PARTS)
        return (place.file, place.at, row), part

    def _where(self, place: RecordPlace) -> str:
        return f"{self._files[place.file]}: row group {place.at}, row {place.part // _PARTS:,}"

    def _columns(self, place: RecordPlace) -> Columns:
        row, where = place.part // _PARTS, self._where(place)
        record = _record_at(self._parquet, place.file, place.at, row, self._settings)
        if isinstance(record, bytes):
            return _episode_columns(state_of(record), self._settings, where, self._wanted)
        return converted(record, self._settings, where, self._wanted)


def _record_at(parquet: _ParquetFiles, number: int, group: int, row: int, settings: Settings) -> Any:
    """A row: the bytes of an episode, or a record as `cells` makes it.

    Raises:
      BrokenEpisode: it cannot be read.
    """
    try:
        names = parquet.opened(number).schema_arrow.names
        if EPISODE in names:
            value = parquet.group(number, group, [EPISODE])[EPISODE][row].as_py()
            if not isinstance(value, bytes):
                raise BrokenEpisode("", f"expected an episode's bytes, found {type(value).__name__}")
            return value
        return _record_of(parquet.group(number, group, names), row, settings.names.of(INFOS))
    except SourceError as error:
        raise BrokenEpisode("", str(error)) from error
    except ERRORS as error:
        raise BrokenEpisode("", line_of(error)) from error


def _record_of(table: pa.Table, row: int, plain: str) -> dict[str, Any]:
    """The columns of a row that have a value there.

    Args:
      table: of records.
      row: its number.
      plain: the name of the column that stays as JSON has it: infos, which become text.

    Raises:
      ValueError, pyarrow.ArrowException: it cannot be read.
    """
    made: dict[str, Any] = {}
    for field, column in zip(table.schema, table.columns):
        one = column.slice(row, 1)
        if not one.null_count:
            joined = pa.concat_arrays(one.chunks)
            made[field.name] = joined.to_pylist()[0] if field.name == plain else _cell(field, joined, plain, 0)
    return made


def _cell(field: pa.Field, column: Any, plain: str, depth: int) -> Any:
    """The value of a column of one row."""
    if depth > _DEEPEST:
        raise ValueError("a nest that is too deep")
    if column.null_count:
        return None
    if _is_tensor(field):
        return _cell_values(field, column, depth)[0]
    column = stored_values(column)
    if pa.types.is_struct(column.type):
        return {
            part.name: values.to_pylist()[0] if part.name == plain else _cell(part, values, plain, depth + 1)
            for part, values in zip(column.type, column.flatten())
        }
    if is_list(column.type):
        return _cell_values(column.type.value_field, column.flatten(), depth)
    return column.to_pylist()[0]


def _cell_values(field: pa.Field, column: Any, depth: int) -> Any:
    """A sequence of values: an array, a dict of arrays, or a list if they make no array."""
    stored = stored_values(column)
    if pa.types.is_struct(stored.type) and not _is_tensor(field) and not stored.null_count and depth <= _DEEPEST:
        return {part.name: _cell_values(part, values, depth + 1) for part, values in zip(stored.type, stored.flatten())}
    try:
        found = dense(field, column)
    except ValueError:
        return stored.to_pylist()
    return stored.to_pylist() if found.dtype == object else np.array(found)


ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    NotImplementedError,
)
"""What pyarrow raises over a damaged file."""
_OPEN_FILES = 4
_KEPT_GROUPS = 2
_NAME, _SHAPE = b"ARROW:extension:name", b"ARROW:extension:metadata"
_VARIABLE = "variable_shaped"
_DEEPEST = 20


class _ParquetFiles:
    """Files and their row groups. The files read last stay open."""

    def __init__(self, files: list[DataFile]) -> None:
        self._files = files
        self._open = LRU[int, pq.ParquetFile](_OPEN_FILES, close=lambda file: file.close(force=True))
        self._groups = LRU[tuple[int, int, tuple[str, ...]], pa.Table](_KEPT_GROUPS)

    def opened(self, number: int) -> pq.ParquetFile:
        """A file.

        Raises:
          SourceError: it is none of Parquet.
        """
        try:
            return self._open.get(number, lambda: pq.ParquetFile(self._files[number].path, memory_map=False))
        except ERRORS as error:
            raise SourceError(f"{self._files[number]}: cannot be read as Parquet: {line_of(error)}") from error

    def group(self, number: int, group: int, columns: list[str]) -> pa.Table:
        """Columns of a row group, kept for the next call; raises as `read`."""
        return self._groups.get((number, group, tuple(columns)), lambda: self.read(number, group, columns))

    def read(self, number: int, group: int, columns: list[str]) -> pa.Table:
        """Columns of a row group.

        Raises:
          BrokenEpisode: it is damaged, or too large.
        """
        where = f"{self._files[number]}: row group {group}"
        try:
            file = self.opened(number)
            check_row_groups(self._files[number].path, file, columns, [group])
            table = file.read_row_group(group, columns=columns)
            rows = file.metadata.row_group(group).num_rows
        except SourceError as error:
            raise BrokenEpisode("", str(error)) from error
        except ERRORS as error:
            raise BrokenEpisode("", f"{where}: cannot be read: {line_of(error)}") from error
        if table.num_rows != rows:
            raise BrokenEpisode("", f"{where}: has {table.num_rows:,} rows, and says {rows:,}")
        return table

    def close(self) -> None:
        self._groups.clear()
        self._open.clear()


def _leaves_of(field: pa.Field, column: Any, name: str, converter: Converter) -> Leaves:
    """A column of a table as arrays.

    Raises:
      BrokenEpisode: it has nulls, rows of different shapes, or values that are neither numbers nor texts.
    """
    try:
        found: Leaves = {}
        _add(
            found,
            "",
            field,
            column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column,
            (name, converter, 0),
        )
    except ERRORS as error:
        raise BrokenEpisode(name, f'column "{name}": {line_of(error)}') from error
    return found


def _add(found: Leaves, path: str, field: pa.Field, column: Any, context: tuple[str, Converter, int]) -> None:
    name, converter, depth = context
    if depth > _DEEPEST:
        raise ValueError("a nest that is too deep")
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    stored = stored_values(column)
    if pa.types.is_struct(stored.type) and not _is_tensor(field):
        _no_nulls(stored)
        for part, values in zip(stored.type, stored.flatten()):
            _add(found, f"{path}/{part.name}" if path else part.name, part, values, (name, converter, depth + 1))
        return
    array = dense(field, column)
    if array.dtype == object:
        found.update({f"{path}/{below}".strip("/"): leaf for below, leaf in _texts(array, name, converter).items()})
    else:
        found[path] = array


def _is_tensor(field: pa.Field) -> bool:
    """Whether a field holds tensors of Ray Data."""
    kind, shape = _extension(field)
    return shape is not None or _VARIABLE in kind


def dense(field: pa.Field, column: Any) -> Array:
    """Rows of one shape as an array; texts as objects.

    Raises:
      ValueError: they have nulls, different shapes, or are neither numbers nor texts.
    """
    kind, shape = _extension(field)
    stored = stored_values(column)
    if _VARIABLE in kind:
        stored = _of_one_shape(stored)
    array = _dense(stored)
    return array if shape is None else array.reshape(len(array), *shape)


def _texts(array: Array, name: str, converter: Converter) -> Leaves:
    """Texts, unpacked if they are packed values."""
    values = [one.decode("ascii", "replace") if isinstance(one, bytes) else one for one in array.ravel().tolist()[:1]]
    if array.ndim == 1 and values and is_packed(values[0]):
        return converter.leaves(
            name,
            [one.decode("ascii", "replace") if isinstance(one, bytes) else one for one in array.tolist()],
            len(array),
        )
    made = np.empty(array.shape, object)
    made.reshape(-1)[:] = [one.encode() if isinstance(one, str) else one for one in array.ravel().tolist()]
    return {"": made}


def _extension(field: pa.Field) -> tuple[str, tuple[int, ...] | None]:
    """The name of a field's extension type ("" for none), and the shape of its tensors."""
    if isinstance(field.type, pa.BaseExtensionType):
        shape = getattr(field.type, "shape", None)
        return field.type.extension_name, None if shape is None else tuple(shape)
    about = field.metadata or {}
    kind = about.get(_NAME, b"").decode("utf-8", "replace")
    if "arrow_tensor" not in kind:
        return kind, None
    shape = json.loads(about.get(_SHAPE, b"null"))
    if isinstance(shape, dict):
        shape = shape.get("shape")
    if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError("a tensor without a shape")
    return kind, tuple(shape)


def _of_one_shape(column: Any) -> Any:
    """Tensors of variable shape whose shapes are equal, as nested lists."""
    shapes = _dense(column.field("shape"))
    if len(shapes) and (shapes != shapes[0]).any():
        raise ValueError("rows of different shapes")
    values = column.field("data")
    for size in reversed(shapes[0].tolist()[1:] if len(shapes) else []):
        values = _split(values, size)
    return values


def _split(values: Any, size: int) -> Any:
    inner = values.flatten()
    return pa.FixedSizeListArray.from_arrays(inner, size) if size else values


def _dense(column: Any) -> Array:
    """Rows of one shape as an array; texts as objects."""
    _no_nulls(column)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _dense(column.dictionary_decode())
    if is_list(kind):
        inner = _dense(column.flatten())
        if pa.types.is_fixed_size_list(kind):
            return inner.reshape(len(column), kind.list_size, *inner.shape[1:])
        lengths = np.diff(column.offsets.to_numpy())
        if len(lengths) and (lengths != lengths[0]).any():
            raise ValueError("rows of different lengths")
        size = int(lengths[0]) if len(lengths) else 0
        return inner.reshape(len(column), size, *inner.shape[1:])
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        return np.asarray(column.to_numpy(zero_copy_only=False), object)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    raise ValueError(f"values of type {kind}")


def _no_nulls(column: Any) -> None:
    if column.null_count:
        raise ValueError(f"{column.null_count:,} rows without a value")


_FIELDS = {OBS: "observations", ACTIONS: "actions", REWARDS: "rewards"}
_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    RecursionError,
    MemoryError,
    SourceError,
)
_State = Mapping[str, Any]
_LATEST = 1 << 53


def state_of(data: bytes) -> _State:
    """The state of an episode.

    Raises:
      BrokenEpisode: it is no msgpack, or none of an episode.
    """
    with needing("reading RLlib's episodes", "msgpack", SourceError):
        from msgpack import unpackb
    try:
        state = unpackb(data, object_hook=_decoded, strict_map_key=False)
    except _ERRORS as error:
        raise BrokenEpisode("", f"an episode that cannot be unpacked: {error}") from error
    if not isinstance(state, dict) or not {"id_", "observations", "actions", "t_started"} <= state.keys():
        raise BrokenEpisode("", "expected the state of a SingleAgentEpisode")
    return state


def _decoded(value: dict[Any, Any]) -> Any:
    """Decodes what msgpack-numpy writes for arrays and numbers."""
    if b"complex" in value and b"data" in value:
        return complex(value[b"data"])
    if b"nd" not in value:
        return value
    if value.get(b"kind") == b"O":
        return safe_loads(value[b"data"], "an array of objects in an episode")
    dtype = np.dtype(value[b"type"]) if isinstance(value[b"type"], str) else None
    if dtype is None or dtype.hasobject:
        raise ValueError("an array of structures")
    array = np.frombuffer(value[b"data"], dtype)
    return array.reshape(value[b"shape"]) if value[b"nd"] else array[0]


def _episode_part(state: _State) -> PolicyRows:
    """What the index needs of an episode.

    Raises:
      BrokenEpisode: a field of it is not what it should be.
    """
    try:
        rows, t, ending = _length(state), int(state["t_started"]), UNFINISHED
        if not 0 <= t < _LATEST:
            raise ValueError(f"t_started is {t:,}")
        if state.get("is_terminated"):
            ending = TERMINATED
        elif state.get("is_truncated"):
            ending = TRUNCATED
        outputs = [str(name) for name in state.get("extra_model_outputs") or {}]
        rewards = _rewards(state, rows)
    except (*_ERRORS, AttributeError) as error:
        raise BrokenEpisode("", f"an episode that is none: {type(error).__name__}: {error}") from error
    ended = np.full(rows, UNFINISHED, np.uint8)
    ended[-1:] = ending
    agent = state.get("agent_id")
    columns = frozenset({OBS, NEXT_OBS, ACTIONS, REWARDS, INFOS, *outputs})
    return PolicyRows(
        rows,
        str(state.get("module_id") or ""),
        False,
        np.full(rows, str(state["id_"])),
        None if agent is None else np.full(rows, str(agent)),
        t + np.arange(rows, dtype=np.int64),
        ended,
        columns,
        rewards,
        (f"{t} of {state['id_']}", ""),
    )


def _episode_columns(state: _State, settings: Settings, where: str, wanted: frozenset[str]) -> Columns:
    """(0, name) -> the column [T, ...], or the reason why it cannot be read."""
    made: Columns = {}
    converter, rows = Converter(where, settings.floats), _length(state)
    outputs = state.get("extra_model_outputs") or {}
    for name in wanted - {OBS, NEXT_OBS, INFOS}:
        buffer = state.get(_FIELDS[name]) if name in _FIELDS else outputs.get(name)
        if buffer is not None:
            made[0, name] = _column(converter, name, buffer, rows)
    infos = _infos(state, rows)
    made[0, INFOS], made[0, NEXT_INFOS] = {"": infos[:-1]}, {"": infos[1:]}
    observations = _column(converter, OBS, state["observations"], rows + 1)
    made[0, OBS] = made[0, NEXT_OBS] = observations
    if not isinstance(observations, BrokenEpisode):
        made[0, OBS] = {path: column[:-1] for path, column in observations.items()}
        made[0, NEXT_OBS] = {path: column[1:] for path, column in observations.items()}
    return made


def _rewards(state: _State, rows: int) -> Array | None:
    return (
        Converter("", np.dtype(np.float64)).leaves(REWARDS, _after_lookback(state["rewards"]), rows).get("")
        if rows
        else None
    )


def _column(converter: Converter, name: str, buffer: Any, rows: int) -> Leaves | BrokenEpisode:
    try:
        data = _after_lookback(buffer)
        return converter.leaves(name, data, rows, keeps_dtype=True)
    except BrokenEpisode as broken:
        return broken
    except _ERRORS as error:
        return BrokenEpisode(name, f'column "{name}": {type(error).__name__}: {error}')


def _infos(state: _State, rows: int) -> Array:
    """The infos of all observations, as text; "" if they are not recorded."""
    buffer = state.get("infos")
    found = list(_after_lookback(buffer)) if isinstance(buffer, dict) else []
    return texts(found if len(found) == rows + 1 else [None] * (rows + 1))


def _after_lookback(buffer: Any) -> Any:
    """The part of a buffer that belongs to the episode, without the steps before it."""
    lookback, data = buffer["lookback"], buffer["data"]
    if not isinstance(lookback, int) or lookback < 0:
        raise ValueError(f"a lookback of {lookback!r}")
    return _cut(data, lookback)


def _cut(data: Any, start: int) -> Any:
    if isinstance(data, dict):
        return {key: _cut(part, start) for key, part in data.items()}
    return data[start:]


def _length(state: _State) -> int:
    actions = _after_lookback(state["actions"])
    while isinstance(actions, dict):
        actions = next(iter(actions.values()))
    return len(actions)
