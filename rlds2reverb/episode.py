"""The one data model: an episode is a set of columns with a leading time axis.

Row convention (RLDS alignment, stated here once): row t holds (o_t, a_t, r_t, d_t), where reward r_t
and discount d_t are what action a_t earned when taken at observation o_t. The last row holds the final
observation; its action, reward and discount carry no meaning. An episode of T transitions has T+1 rows.
Source: https://github.com/google-research/rlds, "Dataset format".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from rlds2reverb.display import as_html
from rlds2reverb.identity import content_name, is_content
from rlds2reverb.specs import ArraySpec, column_spec

Array = npt.NDArray[Any]

OBSERVATION = "observation"
ACTION = "action"
REWARD = "reward"
DISCOUNT = "discount"
IS_FIRST = "is_first"
IS_LAST = "is_last"
IS_TERMINAL = "is_terminal"
FLAGS = (IS_FIRST, IS_LAST, IS_TERMINAL)
EPISODE_ID = "episode_id"
"""Metadata by which many datasets name their episodes, such as `episode_metadata/episode_id`."""

STEP_FIELDS = (OBSERVATION, ACTION, REWARD, DISCOUNT, IS_FIRST, IS_LAST, IS_TERMINAL)
"""The seven step fields of RLDS, in the order in which TF-Agents names them."""

_LONGEST_NAME = 200


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode as columns.

    Attributes:
      columns: path -> array [T, ...]. Nested features have '/'-joined paths (`observation/image`).
        The arrays are made read-only; text columns have dtype object and hold `bytes`.
      metadata: episode-level features by path, each a numpy array or scalar.
      id: names the episode wherever it is met (`identity`): a digest of what is stored of it, or what the caller gave.
      where: where it was read, for messages: the dataset, and the file and record or the number there; "" where it came from no file.
      faults: what could not be made of it on the way in: (path of a recorded column, why). Validation refuses an episode that has any.

    Columns of unequal length are not refused here: validation reports them, so that a quarantine
    report can name them.

    Raises:
      TypeError: a column is not an array, has no time axis, or (without an id) holds objects that are no text.
    """

    columns: Mapping[str, Array]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    faults: tuple[tuple[str, str], ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
        columns = {path: _read_only(path, column) for path, column in self.columns.items()}
        object.__setattr__(self, "columns", MappingProxyType(columns))
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))
        if not self.id:
            object.__setattr__(self, "id", content_name(content_digest(columns)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Episode, (dict(self.columns), dict(self.metadata), self.id, self.faults, self.where)

    def __len__(self) -> int:
        """The number of rows T. When the lengths differ, that of the first column."""
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __repr__(self) -> str:
        columns = ", ".join(f"{p}: {c.dtype}{list(c.shape)}" for p, c in self.columns.items())
        return f"Episode({self.id!r}, {len(self)} steps, {columns})"

    def _repr_html_(self) -> str:
        return as_html(self)

    @property
    def recorded_id(self) -> str | None:
        """The dataset's own name of the episode, on one line: its metadata `episode_id`, nested or not; None when it has none."""
        paths = [path for path in self.metadata if path.split("/")[-1] == EPISODE_ID]
        return _as_name(self.metadata[min(paths, key=len)]) if paths else None

    @property
    def title(self) -> str:
        """Where it was read, else its id, and the dataset's own name behind it if there is one; for messages."""
        recorded, name = self.recorded_id, self.where or self.id
        return name if recorded is None else f"{name} ({EPISODE_ID} {recorded})"

    @property
    def nbytes(self) -> int:
        """Bytes of all columns; a text column counts the bytes of its text."""
        return sum(column_bytes(column) for column in self.columns.values())

    def with_columns(self, **columns: Array) -> Episode:
        """A copy with these columns added or replaced; see `with_only_columns`."""
        return self.with_only_columns({**self.columns, **columns})

    def with_only_columns(self, columns: Mapping[str, Array]) -> Episode:
        """A copy with these columns and no other. The metadata stay, and an id that was given; a name by content is that of the new columns.

        `dataclasses.replace(episode, columns=...)` keeps the name, for columns that follow from those that it has.
        """
        return replace(self, columns=columns, id="" if is_content(self.id) else self.id)


def columns_under(columns: Mapping[str, Array], name: str) -> dict[str, Array]:
    """The column `name`, or all below it; their order is settled by the table's signature."""
    return {path: column for path, column in columns.items() if is_under(path, name)}


def columns_below(columns: Mapping[str, Array], name: str) -> dict[str, Array]:
    """The column `name`, or all below it, by what their paths have behind `name/`; "" for the column itself."""
    return {path[len(name) + 1 :]: column for path, column in columns.items() if is_under(path, name)}


def is_under(path: str, name: str) -> bool:
    """Whether a path is `name`, or one of the nest below it."""
    return path == name or path.startswith(f"{name}/")


def place_of(array: Array, among: list[Array]) -> int:
    """Where this very array, not an equal one, stands in the list; it is appended when it is new."""
    for place, one in enumerate(among):
        if one is array:
            return place
    among.append(array)
    return len(among) - 1


@dataclass(frozen=True)
class KnownEpisode:
    """Stands for an episode that a source was not asked to make anything of, because whoever reads it knows its name.

    Attributes:
      id: see `Episode`.
    """

    id: str


def content_digest(columns: Mapping[str, Array]) -> str:
    """32 hex digits that depend on every path, dtype, shape and value of the columns; raises as `content_hash`."""
    return content_hash(columns).hexdigest()


def content_hash(columns: Mapping[str, Array]) -> xxhash.xxh3_128:
    """What `content_digest` is made of, to be gone on with.

    Raises:
      TypeError: a column holds objects that are neither bytes nor str.
    """
    digest = xxhash.xxh3_128()
    for path in sorted(columns):
        column = columns[path]
        digest.update(_header(path, column.dtype, column.shape))
        if column.dtype == object:
            for value in column.ravel():
                text = _text_bytes(path, value)
                digest.update(len(text).to_bytes(8, "little"))
                digest.update(text)
        else:
            digest.update(byte_view(np.ascontiguousarray(column)))
    return digest


@lru_cache(4096)
def _header(path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What stands before the values of a column. To write a dtype takes longer than to hash a short column."""
    return f"{path}|{dtype}|{shape}|".encode("utf-8", "surrogatepass")


def byte_view(column: Array) -> Any:
    """The bytes of a C-ordered array as a flat uint8 array, without a copy; Any, because it is used as a buffer."""
    return column.reshape(-1).view(np.uint8)


def _as_name(value: Any) -> str | None:
    """A text or a number as one line of at most `_LONGEST_NAME` characters; None for anything else, and for an empty text."""
    plain = value.item() if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 else value
    if isinstance(plain, bytes):
        plain = plain.decode("utf-8", "backslashreplace")
    if not isinstance(plain, (str, int, float)):
        return None
    text = str(plain).strip()
    text = text if text.isprintable() else ascii(text)
    return (text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}...") or None


def _text_bytes(path: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    raise TypeError(f'column "{path}": expected text (bytes or str) in a column of objects, got {type(value).__name__}')


def _read_only(path: str, column: Array) -> Array:
    if not isinstance(column, np.ndarray):
        raise TypeError(f'column "{path}": expected a numpy array [T, ...], got {type(column).__name__}')
    if column.ndim == 0:
        raise TypeError(f'column "{path}": expected a leading time axis, got a scalar array')
    view = column.view()
    view.flags.writeable = False
    return view


def column_bytes(column: Array) -> int:
    """Bytes of all values; of text, those of the text."""
    if column.dtype == object:
        return sum(len(text) for text in column.ravel() if isinstance(text, (bytes, str)))
    return column.nbytes


# What a dataset says of a whole episode (its name, its task, its language), as columns of the steps: the value in every row.
#
# Paths of such columns begin with `metadata/`, as in `metadata/language_instruction`. A repeated value takes no memory here. What it
# costs on the server depends on its dtype: docs/views/extras.md.

METADATA = "metadata"
"""The field of a step under which metadata stands."""


def metadata_path(name: str) -> str:
    """The column of a feature of the episode: `metadata/` and its path."""
    return f"{METADATA}/{name}"


def metadata_specs(episode: Episode) -> dict[str, ArraySpec]:
    """Path of a feature (without `metadata/`) -> its spec, of every feature that a column can hold."""
    values = {name: _as_array(value) for name, value in episode.metadata.items()}
    return {name: column_spec(value[None]) for name, value in values.items() if value is not None}


def metadata_columns(episode: Episode, names: Collection[str]) -> dict[str, Array]:
    """Column path -> [T, ...] of the features of these names (without `metadata/`); what is absent, or no array, is left out.

    T is the number of rows of is_first, or of the first column where that is absent. The arrays are read-only.
    """
    rows = len(episode.columns.get(IS_FIRST, ())) or len(episode)
    values = {name: _as_array(episode.metadata[name]) for name in names if name in episode.metadata}
    return {metadata_path(name): _repeated(value, rows) for name, value in values.items() if value is not None}


def metadata_values(episode: Episode, names: Collection[str]) -> dict[str, Any]:
    """Name -> value, as a column of steps would hold it: an array, a number, or `bytes`; what is absent, or no array, is left out."""
    values = {name: _as_array(episode.metadata[name]) for name in names if name in episode.metadata}
    return {name: value[()] for name, value in values.items() if value is not None}


def with_metadata(episode: Episode, columns: Mapping[str, ArraySpec]) -> Episode:
    """The episode with these features of it as further columns; `columns` has their names (without `metadata/`) as keys."""
    if not columns:
        return episode
    return replace(episode, columns={**episode.columns, **metadata_columns(episode, columns)})


def _repeated(value: Array, rows: int) -> Array:
    return np.broadcast_to(value, (rows, *value.shape))


def _as_array(value: Any) -> Array | None:
    """One row of a column: numbers as they are, text as an array of `bytes`; None for what is neither."""
    if isinstance(value, (bytes, str)):
        return _text([value], ())
    if isinstance(value, (bool, int, float, complex)):
        try:
            plain = np.asarray(value)
        except OverflowError:
            return None
        return None if plain.dtype == object else plain
    if not isinstance(value, (np.ndarray, np.generic)):
        return None
    array = np.asarray(value)
    return _text(array.ravel().tolist(), array.shape) if array.dtype.kind in "OSU" else array


def _text(values: list[Any], shape: tuple[int, ...]) -> Array | None:
    """An array of `bytes`; None when a value is no text."""
    flat = np.empty(len(values), object)
    for number, value in enumerate(values):
        if not isinstance(value, (bytes, str)):
            return None
        try:
            flat[number] = value.encode() if isinstance(value, str) else bytes(value)
        except UnicodeEncodeError:
            return None
    return flat.reshape(shape)


# What is said of a dataset as a whole, not of one episode: by a source, which knows its files, or by validation, which saw many episodes.


@dataclass(frozen=True)
class Notice:
    """One thing about a dataset that whoever uses it should know; nothing that keeps an episode from being read.

    A note tells how the data are read: which convention was taken, what an option did. It finds no fault with them. Any other remark is
    advice: a fault of the data or of their producer, which `strict` refuses and `allow` tolerates.

    Attributes:
      code: what kind of thing. That of advice is a key of `validation.CODES`; that of a note is none.
      text: what was found, where, and how to go on; one line.
      count: of what the text speaks of: records, say, or values.
      path: the step column, or "" for the dataset.
      is_note: whether it is a note.
    """

    code: str
    text: str
    count: int = 1
    path: str = ""
    is_note: bool = False

    def __str__(self) -> str:
        where = f'column "{self.path}": ' if self.path else ""
        return f"{self.code}: {where}{self.text}"

    @property
    def line(self) -> str:
        """For people: `note CODE: ...` or `advice CODE: ...`."""
        return f"{'note' if self.is_note else 'advice'} {self}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def note(code: str, text: str, count: int = 1, path: str = "") -> Notice:
    """A remark on how the data are read."""
    return Notice(code, text, count, path, is_note=True)


def faults(notices: Iterable[Notice], allow: Collection[str] = ()) -> list[Notice]:
    """Those that are no notes, and whose codes are not allowed."""
    return [remark for remark in notices if not remark.is_note and remark.code not in allow]
