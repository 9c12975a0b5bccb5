"""The one data model: an episode is a set of columns with a leading time axis; and the names of episodes.

Row convention (RLDS alignment, stated here once): row t holds (o_t, a_t, r_t, d_t), where reward r_t
and discount d_t are what action a_t earned when taken at observation o_t. The last row holds the final
observation; its action, reward and discount carry no meaning. An episode of T transitions has T+1 rows.
Source: https://github.com/google-research/rlds, "Dataset format".

An episode is named by its stored content, so that the same episode has the same name everywhere: `content:` and 32 hex digits of a digest,
of the record's bytes where a file has records (TFDS), of the stored rows and of the bytes of images and videos where it has these
(LeRobot, JPEG of Minari), of the columns otherwise. Neither a dataset's name, version, size or place nor an episode's number is part of
it. So a dataset that grows, other shards, slices, parts, other workers and a copied folder give the names that were there before.

Two equal episodes have one name. Whoever stores episodes counts them (`Occurrences`): the first keeps the name, the second of the
same content becomes `content:...#2`. Which of them is the second does not matter: they are stored alike. So where items hold
metadata, those are a part of what is counted (`push.keys`). An id that a caller gave an `Episode` is its name as it is; two episodes
of one such id are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from rlds2reverb.specs import ArraySpec, column_spec
from rlds2reverb.text import as_html

CONTENT = "content:"

Names = npt.NDArray[np.uint64]
"""[n] numbers of names, see `number_of`."""

NO_NAMES: Names = np.zeros(0, np.uint64)

_ROWS = re.compile(r"\[(?P<start>\d*):(?P<stop>\d*)\](?P<signs>[#|][^\[\]]*)?\Z", re.ASCII)
"""What `name_of_rows` adds, and what stands behind it: the numbers of copies and passes, and what was done to the episode then."""

ROW_BEHIND = "|last_step=repeat"
"""Behind the name of an episode that got a row behind its last one (`formats.last_step`)."""

_SIGNS = re.compile(rf"(\|\d+|\|set=[0-9a-f]+|{re.escape(ROW_BEHIND)})+\Z", re.ASCII)
"""Behind the names that callers gave: the number of a pass (`formats.mix`), the set of a mixture, a row behind the last one."""

_MERGED_AT = 1 << 16
"""Names that are kept in a Python set before they join the sorted array; at 10^7 episodes the array is merged 150 times."""


def content_name(digest: str) -> str:
    """The name of an episode whose stored content has this digest, in hex digits."""
    return f"{CONTENT}{digest}"


def is_content(name: str) -> bool:
    """Whether a name is that of a content, so that equal episodes share it."""
    return name.startswith(CONTENT)


def copy_name(name: str, number: int) -> str:
    """The name of the `number`-th episode of a content, counted from 1."""
    return name if number == 1 else f"{name}#{number}"


def is_copy(name: str) -> bool:
    """Whether a name is that of the second or a later episode of its content."""
    return is_content(name) and "#" in name


_COPIES = re.compile(r"#\d+|\|\d{1,9}(?![\da-f])", re.ASCII)


def name_of_copies(name: str) -> str:
    """The name that all copies of a content and all passes over it share; another name is its own.

    >>> name_of_copies("content:0a#2[5:]|set=0b|2"), name_of_copies("content:0a[:3]#2"), name_of_copies("run#7|2")
    ('content:0a[5:]|set=0b', 'content:0a[:3]', 'run#7|2')
    """
    return _COPIES.sub("", name) if is_content(name) else name


def name_of_rows(name: str, start: int, stop: int, rows: int) -> str:
    """The name of some of an episode's rows, as Python writes slices: an end that is said lies at a gap.

    >>> name_of_rows("content:0a", 0, 3, 9), name_of_rows("content:0a", 5, 9, 9)
    ('content:0a[:3]', 'content:0a[5:]')
    """
    return f"{name}[{start or ''}:{stop if stop < rows else ''}]"


def name_of_whole(name: str) -> str:
    """The name of the episode that some rows are of, whichever copy of it and whichever pass over it that is.

    >>> name_of_whole("content:0a#2[5:]"), name_of_whole("run#7[:3]|2"), name_of_whole("run#7|2")
    ('content:0a', 'run#7', 'run#7')
    """
    while is_run(name):
        name = _ROWS.sub("", name)
    return re.split("[#|]", name, maxsplit=1)[0] if is_content(name) else _SIGNS.sub("", name)


def gaps_around(name: str) -> tuple[bool, bool]:
    """Whether rows were taken out before the first row of the episode of this name, and behind its last one."""
    match = _ROWS.search(name) if "[" in name else None
    if match is None:
        return False, False
    return bool(match["start"]), bool(match["stop"]) and ROW_BEHIND not in (match["signs"] or "")


def rows_and_signs(name: str) -> tuple[str, str]:
    """What stands behind the name of a content: its rows where it is a run, and the signs of what was done to it and of passes.

    >>> rows_and_signs("content:0a[5:]|set=0b|2"), rows_and_signs("content:0a|2")
    (('[5:]', '|set=0b|2'), ('', '|2'))
    """
    match = _ROWS.search(name) if "[" in name else None
    if match is not None:
        signs = match["signs"] or ""
        return match[0].removesuffix(signs), signs
    _, sign, text = name.partition("|")
    return "", f"{sign}{text}"


def is_run(name: str) -> bool:
    """Whether the episode of this name is some rows of one, because filters took out others."""
    return "[" in name and _ROWS.search(name) is not None


def number_of(name: str) -> int:
    """64 bits for a name: even for contents, odd for ids that callers gave.

    Among 10^7 names two share their number with a probability of 5 in 10^6.
    """
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) & ~1 | (not is_content(name))


class Occurrences:
    """Counts occurrences of names, in 8 bytes a name.

    Attributes:
      copies: names that had come before.
    """

    def __init__(self) -> None:
        self.copies = 0
        self._sorted = NO_NAMES
        self._recent: set[int] = set()
        self._counts: dict[int, int] = {}  # of names that came more than once

    def count(self, name: str) -> int:
        """Adds a name; returns 1 for the first time, 2 for the second, and so on."""
        return self.add(number_of(name))

    def add(self, number: int) -> int:
        """As `count`, by the number of a name."""
        seen = self.seen(number) + 1
        if seen > 1:
            self.copies += 1
            self._counts[number] = seen
            return seen
        self._recent.add(number)
        if len(self._recent) >= _MERGED_AT:
            recent = np.fromiter(self._recent, np.uint64)
            self._sorted = np.sort(np.concatenate([self._sorted, recent]), kind="stable")
            self._recent = set()
        return seen

    def seen(self, number: int) -> int:
        """Occurrences of a name so far, by its number."""
        if (count := self._counts.get(number)) is not None or number in self._recent:
            return count or 1
        if not len(self._sorted):
            return 0
        at = int(np.searchsorted(self._sorted, np.uint64(number)))
        return int(at < len(self._sorted) and int(self._sorted[at]) == number)


@dataclass(frozen=True, eq=False)
class KnownEpisodes:
    """Names with a number each, such as those of a ledger with their items; frozen, in 16 bytes a name, recognised by 95 bits."""

    numbers: Names = field(default_factory=lambda: NO_NAMES)
    values: Names = field(default_factory=lambda: NO_NAMES)

    @staticmethod
    def of(rows: Iterable[tuple[str, int]]) -> KnownEpisodes:
        """From names and numbers below 2^32; a name that comes twice has one of its numbers."""
        flat = np.fromiter(
            (part for name, value in rows for part in (number_of(name), _check(name) << 32 | value)), np.uint64
        )
        pairs = flat.reshape(-1, 2)
        order = np.argsort(pairs[:, 0], kind="stable")
        return KnownEpisodes(pairs[order, 0], pairs[order, 1])

    def __len__(self) -> int:
        return len(self.numbers)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> int | None:
        """A name's number; None for a name that is not there."""
        number = number_of(name)
        at = int(np.searchsorted(self.numbers, np.uint64(number)))
        while at < len(self.numbers) and int(self.numbers[at]) == number:
            value = int(self.values[at])
            if value >> 32 == _check(name):
                return value & 0xFFFFFFFF
            at += 1
        return None


class Copies:
    """Decides which episodes are stored once more, when parts of a dataset are read apart and each counts for itself.

    Where a content has a copies in one part and b in another, the names of its first max(a, b) copies are stored. The rest are set aside,
    part by part as they end, and numbered when all have ended.
    """

    def __init__(self) -> None:
        self._stored = Occurrences()
        self._aside: dict[int, list[tuple[int, int]]] = {}

    def take(self, part: int, contents: Iterable[tuple[int, int]]) -> list[bool]:
        """Adds a part: (place of an episode in it, number of its content), ascending; returns whether each is set aside."""
        repeated: list[bool] = []
        local: dict[int, int] = {}
        aside = self._aside.setdefault(part, [])
        for place, content in contents:
            local[content] = local.get(content, 0) + 1
            repeated.append(local[content] <= self._stored.seen(content) and not content % 2)
            if repeated[-1]:
                aside.append((place, content))
            else:
                self._stored.add(content)
        return repeated

    def numbered(self) -> dict[int, dict[int, int]]:
        """Part -> place of an episode that was set aside -> the number of the copy as which it is stored."""
        return {
            part: {place: self._stored.add(content) for place, content in aside}
            for part, aside in sorted(self._aside.items())
            if aside
        }


def _check(name: str) -> int:
    """32 bits of a name that do not depend on `number_of`."""
    return xxhash.xxh32_intdigest(name.encode("utf-8", "surrogatepass"))


def repeated_ids(names: Names) -> Any:
    """Numbers of the given ids that come more than once."""
    unique_names, counts = np.unique(names[names % 2 == 1], return_counts=True)
    return unique_names[counts > 1]


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


class EpisodeCut(NamedTuple):
    """The columns that rows were taken from, and which rows: from `start` to `stop`."""

    columns: Mapping[str, Array]
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode as columns.

    Attributes:
      columns: path -> array [T, ...]. Nested features have '/'-joined paths (`observation/image`).
        The arrays are made read-only; text columns have dtype object and hold `bytes`.
      metadata: episode-level features by path, each a numpy array or scalar.
      id: the episode's name: a digest of its stored content, or the id that the caller gave.
      where: where it was read, for messages: the dataset, and the file and record or the number there; "" where it came from no file.
      faults: columns that could not be read: (path of a recorded column, why). Validation refuses an episode that has any.
      dataset: where its dataset lies, the same text however the dataset is spelled and whichever of its episodes are read; "" where that is
        not known.
      is_last_recorded: whether the last row is known to have an action, even if it is zeros, as a transform may make it.
      cut: of some rows of an episode (`is_run`), what they were taken from; None where that is not at hand, as in another process.

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
    dataset: str = ""
    is_last_recorded: bool = False
    cut: EpisodeCut | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        columns = {path: _read_only(path, column) for path, column in self.columns.items()}
        object.__setattr__(self, "columns", MappingProxyType(columns))
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))
        if not self.id:
            object.__setattr__(self, "id", content_name(content_digest(columns)))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.id, self.faults, self.where, self.dataset, self.is_last_recorded)
        return Episode, (dict(self.columns), dict(self.metadata), *fields)

    def __len__(self) -> int:
        """The number of rows T. When the lengths differ, that of the first column."""
        for column in self.columns.values():
            return len(column)
        return 0

    def __repr__(self) -> str:
        columns = ", ".join(f"{p}: {c.dtype}{list(c.shape)}" for p, c in self.columns.items())
        return f"Episode({self.id!r}, {len(self)} steps, {columns})"

    _repr_html_ = as_html

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

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all columns; a text column counts the bytes of its text."""
        return sum(column_bytes(column) for column in self.columns.values())

    def with_columns(self, **columns: Array) -> Episode:
        """A copy with these columns added or replaced; see `with_only_columns`."""
        return self.with_only_columns({**self.columns, **columns})

    def with_only_columns(self, columns: Mapping[str, Array]) -> Episode:
        """A copy with these columns and no other. The metadata stay, and an id that was given; a name by content is that of the new columns.

        `dataclasses.replace(episode, columns=...)` keeps the name, for columns that follow from the old ones.
        """
        return replace(self, columns=columns, id="" if is_content(self.id) else self.id)


def columns_under(columns: Mapping[str, Array], name: str) -> dict[str, Array]:
    """The column `name`, or all below it."""
    return {path: columns[path] for path in _paths_under(tuple(columns), name)}


@lru_cache(4096)
def _paths_under(paths: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(path for path in paths if is_under(path, name))


def repeats_row_before(columns: Iterable[Array], row: int) -> bool:
    """Whether a row equals the one before it in every column, to the byte. Nearly every row differs in the first column, so it costs little."""
    return all(
        column[row : row + 1].tolist() == column[row - 1 : row].tolist()
        if column.dtype.kind in "OSU"
        else column[row : row + 1].tobytes() == column[row - 1 : row].tobytes()
        for column in columns
    )


def columns_below(columns: Mapping[str, Array], name: str) -> dict[str, Array]:
    """As `columns_under`, by the part of their paths behind `name/`; "" for the column itself."""
    return {path[len(name) + 1 :]: column for path, column in columns.items() if is_under(path, name)}


def is_under(path: str, name: str) -> bool:
    """Whether a path is `name`, or below it."""
    return path == name or path.startswith(f"{name}/")


def place_of(array: Array, among: list[Array]) -> int:
    """The index of this very array, not of an equal one, in the list; a new one is appended."""
    for place, listed in enumerate(among):
        if listed is array:
            return place
    among.append(array)
    return len(among) - 1


@dataclass(frozen=True)
class KnownEpisode:
    """Stands for an episode that was not read, because the reader of the source knows its name."""

    id: str  # see `Episode`


class NamelessColumn(TypeError):
    """A column holds objects whose bytes nothing fixes, so that no name can be made of them.

    Attributes:
      path: the column's.
      why: what was expected, and what was found.
    """

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(path, kind)
        self.path, self.why = path, f"expected text (bytes or str) in a column of objects, got {kind}"

    def __str__(self) -> str:
        return f'column "{self.path}": {self.why}'


def content_digest(columns: Mapping[str, Array]) -> str:
    """32 hex digits that depend on every path, dtype, shape and value of the columns; raises as `content_hash`."""
    return content_hash(columns).hexdigest()


def content_hash(columns: Mapping[str, Array]) -> xxhash.xxh3_128:
    """The unfinished hash of `content_digest`.

    Raises:
      NamelessColumn: a column of objects holds one that is neither `bytes` nor `str`.
    """
    digest = xxhash.xxh3_128()
    for path in sorted(columns):
        column = columns[path]
        digest.update(_header(path, column.dtype, column.shape))
        if column.dtype == object:
            for value in column.ravel():
                if isinstance(value, str):
                    text = value.encode("utf-8", "surrogatepass")
                elif isinstance(value, bytes):
                    text = value
                else:
                    raise NamelessColumn(path, type(value).__name__)
                digest.update(len(text).to_bytes(8, "little"))
                digest.update(text)
        else:
            digest.update(byte_view(np.ascontiguousarray(column)))
    return digest


@lru_cache(4096)
def _header(path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Precedes the values of a column. To write a dtype takes longer than to hash a short column."""
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


def _read_only(path: str, column: Array) -> Array:
    if not isinstance(column, np.ndarray):
        raise TypeError(f'column "{path}": expected a numpy array [T, ...], got {type(column).__name__}')
    if column.ndim == 0:
        raise TypeError(f'column "{path}": expected a leading time axis, got a scalar array')
    if not column.flags.writeable:
        return column
    view = column.view()
    view.flags.writeable = False
    return view


def column_bytes(column: Array) -> int:
    """Bytes of all values; for text, those of the text."""
    if column.dtype == object:
        return sum(len(text) for text in column.ravel() if isinstance(text, (bytes, str)))
    return column.nbytes


# Metadata of a whole episode (its name, its task, its language) as columns of the steps: the value in every row, under a path such as
# `metadata/language_instruction`. A repeated value takes no memory here. Its cost on the server depends on its dtype: docs/views/extras.md.

METADATA = "metadata"
"""The field of a step under which metadata stands."""


def metadata_path(name: str) -> str:
    """The column of a feature of the episode."""
    return f"{METADATA}/{name}"


def metadata_specs(episode: Episode) -> dict[str, ArraySpec]:
    """Path of a feature (without `metadata/`) -> its spec, for every feature that a column can hold."""
    values = {name: _as_array(value) for name, value in episode.metadata.items()}
    return {name: column_spec(value[None]) for name, value in values.items() if value is not None}


def metadata_columns(episode: Episode, names: Collection[str]) -> dict[str, Array]:
    """Column path -> [T, ...] of the features of these names (without `metadata/`); what is absent, or no array, is left out.

    T is the number of rows of is_first, or of the first column where that is absent. The arrays are read-only.
    """
    rows = len(episode.columns.get(IS_FIRST, ())) or len(episode)
    values = {name: _as_array(episode.metadata[name]) for name in names if name in episode.metadata}
    return {
        metadata_path(name): np.broadcast_to(value, (rows, *value.shape))
        for name, value in values.items()
        if value is not None
    }


def metadata_values(episode: Episode, names: Collection[str]) -> dict[str, Any]:
    """Name -> value, as a column of steps would hold it: an array, a number, or `bytes`; what is absent, or no array, is left out."""
    values = {name: _as_array(episode.metadata[name]) for name in names if name in episode.metadata}
    return {name: value[()] for name, value in values.items() if value is not None}


def with_metadata(episode: Episode, columns: Mapping[str, ArraySpec]) -> Episode:
    """The episode with these features of it as further columns; `columns` has their names (without `metadata/`) as keys."""
    if not columns:
        return episode
    return replace(episode, columns={**episode.columns, **metadata_columns(episode, columns)})


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


@dataclass(frozen=True)
class Notice:
    """A finding about a dataset as a whole, by a source, which knows its files, or by validation, which saw many episodes.

    A note tells how the data are read: the convention that was chosen, the effect of an option. It finds no fault. Any other notice is
    advice: a fault of the data or of their producer, which `strict` refuses and `allow` tolerates.

    Attributes:
      code: its kind. That of advice is a key of `problems.CODES`; that of a note is not.
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
        """`note CODE: ...` or `advice CODE: ...`."""
        return f"{'note' if self.is_note else 'advice'} {self}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def note(code: str, text: str, count: int = 1, path: str = "") -> Notice:
    """A notice of how the data are read."""
    return Notice(code, text, count, path, is_note=True)


def faults(notices: Iterable[Notice], allow: Collection[str] = ()) -> list[Notice]:
    """Those that are no notes, and whose codes are not allowed."""
    return [notice for notice in notices if not notice.is_note and notice.code not in allow]
