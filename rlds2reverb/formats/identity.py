"""Names of episodes by what a user says is stable, in place of their stored content (`episode`).

| identity | two episodes are the same when these are equal |
| --- | --- |
| `columns=PATH,PATH` | these columns, or all columns below these paths: paths, dtypes, shapes, values |
| `columns=numeric` | all columns of numbers that are no pictures: rows of at most two dimensions |
| `id=PATH` | the dataset's place, and this metadata of the episode, or this column, which has one value in all rows |
| `id=PATH,name=NAME` | the same, with a name in place of the dataset's place |

The dataset's place is where it was opened (`Episode.dataset`): an absolute path with links followed, or the URL in a bucket; of TFDS the
version directory and the split of the record. However it is spelled and whichever of its episodes are chosen, it is the same; each part of a
mix has its own. Episodes of a source that does not say it have what stands before "#" and "?" in their `where`.

An id is compared as text: a whole number is the same in every dtype, also as a float, and as text ("7"). Any other float is that of its
float64, so that 0.1 of float32 (0.10000000149011612) is not 0.1 of float64.

Paths are the dataset's own, before any transform. Nothing else of an episode is part of its name, so two episodes of one identity are
refused: items of the second would have the keys of the first.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash

from rlds2reverb.episode import (
    METADATA,
    Array,
    Episode,
    KnownEpisode,
    NamelessColumn,
    Occurrences,
    columns_under,
    content_digest,
    is_content,
    is_under,
    number_of,
    rows_and_signs,
)
from rlds2reverb.errors import ConfigError, SourceError
from rlds2reverb.formats.source import IsKnown, Source, Without, Wrapper, columns_of, metadata_spec_of, unless_known
from rlds2reverb.specs import ArraySpec, flatten
from rlds2reverb.text import did_you_mean, shortened

IdentityLike = str | None
"""An identity as text, see the module's table; None for names by content."""

COLUMNS, ID, NAME, NUMERIC = "columns", "id", "name", "numeric"
_EXPECTED = f"expected {COLUMNS}=PATH,PATH, {COLUMNS}={NUMERIC}, {ID}=PATH, or {ID}=PATH,{NAME}=NAME"
_MOST_NUMERIC_DIMENSIONS = 2  # of a row: a matrix is of numbers, what has more is a picture or a stack of them
_PREFIX = "identity:"


@dataclass(frozen=True)
class Identity:
    """What names an episode.

    Attributes:
      text: as the user wrote it.
      columns: paths of columns, or of nests of them; `NUMERIC` alone for all columns of numbers. () for an id.
      id: path of the metadata or column that has it; "" for columns.
      name: of the dataset, beside the id; None for its place.
    """

    text: str
    columns: tuple[str, ...] = ()
    id: str = ""
    name: str | None = None

    def reads(self, path: str, spec: ArraySpec) -> bool:
        """Whether a column is part of the names."""
        is_named = path == self.id or any(is_under(path, name) for name in self.columns)
        return _is_numeric(spec.dtype, len(spec.shape)) if self.columns == (NUMERIC,) else is_named

    def name_of(self, episode: Episode) -> str:
        """The episode's name. Raises `_Nameless` if it lacks what names it."""
        digest = self._digest_of_columns(episode.columns) if self.columns else self._digest_of_id(episode)
        # A mix that reads a part again gives its episodes a name for each pass, and its filters leave runs of them.
        rows, signs = rows_and_signs(episode.id) if is_content(episode.id) else ("", "")
        return f"{_PREFIX}{digest}{rows}{signs}"

    def _digest_of_columns(self, columns: Mapping[str, Array]) -> str:
        if self.columns == (NUMERIC,):
            named = {path: column for path, column in columns.items() if _is_numeric(column.dtype, column.ndim - 1)}
            if not named:
                raise _Nameless("", f"identity {self.text}: the episode has no columns of numbers")
        else:
            named = {}
            for path in self.columns:
                under = columns_under(columns, path)
                if not under:
                    raise _Nameless(path, f"identity {self.text}: the episode has no such column")
                named |= under
        try:
            return content_digest(named)
        except NamelessColumn as nameless:
            raise _Nameless(nameless.path, nameless.why) from nameless

    def _digest_of_id(self, episode: Episode) -> str:
        if self.id in episode.metadata:
            value = text_of(episode.metadata[self.id])
        elif self.id in episode.columns:
            values = {text_of(value) for value in episode.columns[self.id].tolist()}
            value = values.pop() if len(values) == 1 else None
        else:
            raise _Nameless(self.id, f"identity {self.text}: the episode has no such metadata and no such column")
        if value is None:
            raise _Nameless(self.id, f"identity {self.text}: expected one text or number that all its rows share")
        place = episode.dataset or episode.where.rpartition("#")[0].partition("?")[0]
        return xxhash.xxh3_128_hexdigest(repr((place if self.name is None else self.name, value)).encode())


class _Nameless(Exception):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why


def identity_of(text: IdentityLike) -> Identity | None:
    """Parses an identity; None for None.

    Raises:
      ConfigError: it is none of the module's table.

    >>> identity_of("id=episode_index,name=aloha").name
    'aloha'
    """
    if text is None:
        return None
    where = f"identity (--identity) {shortened(repr(text))}"
    if not isinstance(text, str):
        raise ConfigError(f"{where}: {_EXPECTED}")
    key, sign, value = text.partition("=")
    if not sign or key not in (COLUMNS, ID) or not value:
        raise ConfigError(f"{where}: {_EXPECTED}{'' if key in (COLUMNS, ID) else did_you_mean(key, (COLUMNS, ID))}")
    if key == ID:
        path, comma, further = value.partition(",")
        name = further.removeprefix(f"{NAME}=")
        if not path or (comma and (name == further or not name)):
            raise ConfigError(f"{where}: {_EXPECTED}")
        return Identity(text, id=path.removeprefix(f"{METADATA}/"), name=name if comma else None)
    paths = tuple(value.split(","))
    if not all(paths) or len(set(paths)) < len(paths):
        raise ConfigError(f"{where}: a path is empty, or stands twice")
    if NUMERIC in paths and len(paths) > 1:
        raise ConfigError(f"{where}: {NUMERIC} means all columns of numbers; leave the others out, or name each column")
    return Identity(text, columns=tuple(sorted(paths)))


def with_identity(source: Source, identity: Identity | None) -> Source:
    """The source with its episodes named by an identity; the source itself for None.

    Raises:
      SourceError: the source has none of the columns, or no such metadata.
    """
    if identity is None:
        return source
    columns = columns_of(source.spec(), source.name)
    for path in identity.columns:
        if not any(replace(identity, columns=(path,)).reads(column, spec) for column, spec in columns.items()):
            raise _missing(source, identity, path, columns)
    if identity.id and identity.id not in columns:
        metadata = flatten(metadata_spec_of(source))
        if identity.id not in metadata:
            raise _missing(source, identity, identity.id, [*metadata, *columns])
    return Identified(source, identity)


def _missing(source: Source, identity: Identity, path: str, there: Collection[str]) -> SourceError:
    listed = ", ".join(there) or "none"
    return SourceError(
        f'{source.name}: identity {identity.text}: no "{path}"{did_you_mean(path, there)}; there are: {listed}'
    )


class Identified(Wrapper):
    """The episodes of a source, named by an identity. One that lacks what names it cannot be read, and keeps its name.

    An episode is read before its name is known, also where a ledger has it.
    """

    def __init__(self, source: Source, identity: Identity) -> None:
        super().__init__(source)
        self._identity = identity

    def encoded(self, paths: Collection[str]) -> Identified:
        return Identified(self._source.encoded(paths), self._identity)

    def without(self, paths: Collection[str]) -> Source:
        """Columns that name episodes are read, and dropped once these have their names."""
        columns = columns_of(self._source.spec(), self.name)
        naming = {path for path in paths if path in columns and self._identity.reads(path, columns[path])}
        other_paths = set(paths) - naming
        named = Identified(self._source.without(other_paths), self._identity)
        return Without(named, naming) if naming else named

    def read(
        self, start: int = 0, stop: int | None = None, is_known: IsKnown | None = None
    ) -> Iterator[Episode | KnownEpisode]:
        return unless_known(self._named(start, stop), is_known)

    def at(self, numbers: Sequence[int]) -> Iterator[tuple[int, Episode]]:
        return ((number, self._renamed(episode)) for number, episode in self._source.at(numbers))

    def _named(self, start: int, stop: int | None) -> Iterator[Episode]:
        """Raises `SourceError` at the second episode of one name."""
        occurrences, numbers = Occurrences(), array("Q")
        for episode in self._source.episodes(start, stop):
            named = self._renamed(episode)
            number = number_of(named.id)
            if not is_content(named.id) and occurrences.add(number) > 1:
                place = start + numbers.index(number)
                first = next(iter(self._source.episodes(place, place + 1)))
                raise SourceError(
                    f"{self.name}: two episodes have one identity ({self._identity.text}), and their items would have the same keys: "
                    f"{first.title} and {episode.title}. Nothing of the second was sent; choose columns or an id that tell them apart"
                )
            numbers.append(number)
            yield named

    def _renamed(self, episode: Episode) -> Episode:
        if episode.faults and not episode.columns:
            return episode
        try:
            return replace(episode, id=self._identity.name_of(episode))
        except _Nameless as nameless:
            return replace(episode, columns={}, faults=(*episode.faults, (nameless.path, nameless.why)))


def _is_numeric(dtype: np.dtype[Any], dimensions: int) -> bool:
    return dtype.kind in "biufc" and dimensions <= _MOST_NUMERIC_DIMENSIONS


def text_of(value: Any) -> str | None:
    """A number or text as text, see the module; None for anything else."""
    plain = value.item() if isinstance(value, (np.ndarray, np.generic)) and value.size == 1 else value
    if isinstance(plain, bytes):
        return plain.decode("utf-8", "backslashreplace")
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    return str(plain) if isinstance(plain, (str, int, float)) else None
