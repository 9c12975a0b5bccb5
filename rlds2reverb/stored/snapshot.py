"""A table as it was at one moment, wherever it was read from."""

from __future__ import annotations

from dataclasses import dataclass

from rlds2reverb.remarks import Remark
from rlds2reverb.specs import Nest
from rlds2reverb.stored.chunks import Chunks
from rlds2reverb.stored.items import Items


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A table and its items.

    Attributes:
      name: what people call it: the source's name.
      table: its name.
      signature: nest of `ArraySpec`; None when it has none.
      chunks: all that its items refer to, and maybe others.
      items: its items.
      remarks: how it was read.
    """

    name: str
    table: str
    signature: Nest | None
    chunks: Chunks
    items: Items
    remarks: tuple[Remark, ...] = ()
