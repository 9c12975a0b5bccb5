"""What is said of a dataset as a whole, not of one episode: by a source, which knows its files, or by validation, which saw many episodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Remark:
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


def note(code: str, text: str, count: int = 1, path: str = "") -> Remark:
    """A remark on how the data are read."""
    return Remark(code, text, count, path, is_note=True)


def faults(remarks: Iterable[Remark], allow: Collection[str] = ()) -> list[Remark]:
    """Those that are no notes, and whose codes are not allowed."""
    return [remark for remark in remarks if not remark.is_note and remark.code not in allow]
