"""Values of one step, pickled each for itself, as rows of columns.

Pickles of arrays of one dtype and shape are equal but for the array's own bytes. So once the first was read, those bytes are cut out
of the others without reading them as pickles; what differs anywhere else is read by `safe_pickle`.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.errors import SourceError
from rlds2reverb.readers.pickles import safe_loads
from rlds2reverb.readers.recordings import BrokenEpisode
from rlds2reverb.specs import ArraySpec

PICKLES = ("pickle", "pkl", "pyd")
KINDS = (*PICKLES, "npy")
"""How a member's value may be written; what stands behind the first dot of its key."""

Row = tuple[bytes, ...]
"""The bytes of every leaf of one step's value, in the order of `Values.leaves`."""

_TEXT = ArraySpec((), np.dtype(object))


def loaded(data: bytes, kind: str, where: str, inert: Collection[str] = frozenset()) -> Any:
    """A value, as it was written.

    Raises:
      SourceError: damaged, or refused by `safe_pickle`.
    """
    if kind in PICKLES:
        return safe_loads(data, where, inert)
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, SyntaxError, TypeError, MemoryError) as error:
        raise SourceError(f"{where}: cannot be read as a numpy array: {error}") from error


def leaves_of(value: Any, path: str = "", depth: int = 0) -> dict[str, Array | bytes]:
    """Path -> array, or text as `bytes`, of a value or of the dictionaries that it is; what is neither is left out."""
    if isinstance(value, Mapping):
        found: dict[str, Array | bytes] = {}
        for key in sorted(value, key=str) if depth < 8 else ():
            below = str(key).replace("/", "_")
            found |= leaves_of(value[key], f"{path}/{below}" if path else below, depth + 1)
        return found
    leaf = _leaf(value)
    return {} if leaf is None else {path: leaf}


def _leaf(value: Any) -> Array | bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    if (
        isinstance(value, (bool, float, np.ndarray, np.generic))
        or (isinstance(value, int) and abs(value) < 1 << 63)
        or (isinstance(value, (list, tuple)) and all(isinstance(one, (bool, int, float)) for one in value))
    ):
        array = np.asarray(value)
    else:
        return None
    return array if array.dtype.kind in "biufc" else None


def spec_of(leaf: Array | bytes) -> ArraySpec:
    """What a leaf is."""
    return _TEXT if isinstance(leaf, bytes) else ArraySpec(leaf.shape, leaf.dtype)


@dataclass(frozen=True)
class _Template:
    """The pickle of an array without the array's bytes."""

    start: bytes
    end: bytes
    size: int

    def payload(self, data: bytes) -> bytes | None:
        """The array's bytes; None for another pickle."""
        at = len(self.start)
        if len(data) != self.size or not data.startswith(self.start) or not data.endswith(self.end):
            return None
        return data[at : self.size - len(self.end)]

    @staticmethod
    def of(data: bytes, array: Array) -> _Template | None:
        """That of a pickle which holds the array; None where its bytes do not stand in it once, as they are."""
        places = [
            place + 1 + {"SHORT_BINBYTES": 1, "BINBYTES": 4, "BINBYTES8": 8}[code.name]
            for code, argument, place in pickletools.genops(data)
            if code.name in ("SHORT_BINBYTES", "BINBYTES", "BINBYTES8")
            and argument == array.tobytes()
            and place is not None
        ]
        if len(places) != 1 or not array.nbytes:
            return None
        start, end = data[: places[0]], data[places[0] + array.nbytes :]
        other = bytes(byte ^ 1 for byte in array.tobytes())
        try:
            again = np.asarray(safe_loads(start + other + end, ""))
        except SourceError:
            return None
        same = again.shape == array.shape and again.dtype == array.dtype and again.tobytes() == other
        return _Template(start, end, len(data)) if same else None


class Values:
    """How the values of one key are read: told by the first of them, which has to be representative of all.

    Attributes:
      leaves: path within the value -> its spec.
    """

    def __init__(self, first: Any, template: _Template | None = None) -> None:
        self.leaves = {path: spec_of(leaf) for path, leaf in leaves_of(first).items()}
        self._template = template

    @staticmethod
    def of_pickle(data: bytes, kind: str, where: str) -> Values:
        """Learns from one member.

        Raises:
          SourceError: it cannot be read.
        """
        value = loaded(data, kind, where)
        is_array = kind in PICKLES and isinstance(value, (np.ndarray, np.generic)) and value.dtype != object
        return Values(value, _Template.of(data, np.asarray(value)) if is_array else None)

    def row(self, data: bytes, kind: str, key: str, where: str) -> Row:
        """The bytes of one value's leaves.

        Raises:
          BrokenEpisode: it cannot be read, or is of another shape or dtype than the first.
        """
        if self._template is not None and (payload := self._template.payload(data)) is not None:
            return (payload,)
        try:
            found = leaves_of(loaded(data, kind, where))
        except SourceError as error:
            raise BrokenEpisode(key, str(error)) from error
        return self.row_of(found, key, where)

    def row_of(self, found: Mapping[str, Array | bytes], key: str, where: str) -> Row:
        """The bytes of these leaves, when they are those of the first value; others than its are not looked at."""
        row = []
        for path, spec in self.leaves.items():
            leaf = found.get(path)
            if leaf is None or spec_of(leaf) != spec:
                got = "nothing" if leaf is None else str(spec_of(leaf))
                raise BrokenEpisode(
                    f"{key}/{path}" if path else key, f"{where}: expected {spec}, as the first step has, found {got}"
                )
            row.append(leaf if isinstance(leaf, bytes) else leaf.tobytes())
        return tuple(row)

    def columns(self, rows: Sequence[Row]) -> dict[str, Array]:
        """Path -> [T, ...]."""
        return {path: _column(spec, [row[at] for row in rows]) for at, (path, spec) in enumerate(self.leaves.items())}


def _column(spec: ArraySpec, rows: list[bytes]) -> Array:
    if spec.dtype == object:
        column = np.empty(len(rows), object)
        column[:] = rows
        return column
    shape = tuple(size or 0 for size in spec.shape)
    return np.ndarray((len(rows), *shape), spec.dtype, b"".join(rows))
