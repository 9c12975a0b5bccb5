"""Episodes whose items are sent a few at a time: which items are whose, and which are left."""

from __future__ import annotations

import numpy as np

from rlds2reverb.episodes import Array
from rlds2reverb.wire.insert.requests import EncodedEpisode


class Piece:
    """An episode whose items are sent a few at a time.

    Attributes:
      encoded: the episode.
      left: its items that are not stored yet.
      new: table -> keys of its items that were new.
    """

    def __init__(self, encoded: EncodedEpisode) -> None:
        self.encoded, self.left = encoded, len(encoded.item_keys)
        self.new: dict[str, list[Array]] = {}
        keys = np.concatenate(list(encoded.table_keys.values()))
        tables = np.repeat(list(encoded.table_keys), [len(own) for own in encoded.table_keys.values()])
        order = np.argsort(keys)
        self._keys, self._tables = keys[order], tables[order]

    def keys_of(self, request_keys: Array) -> dict[str, Array]:
        """Table -> which of these keys ([n] uint64) are of its items, in their order."""
        at = np.minimum(np.searchsorted(self._keys, request_keys), len(self._keys) - 1)
        mine, tables = self._keys[at] == request_keys, self._tables[at]
        found = {table: request_keys[mine & (tables == table)] for table in self.encoded.table_keys}
        return {table: keys for table, keys in found.items() if len(keys)}
