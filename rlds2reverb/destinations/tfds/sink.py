"""Records -> a TFDS version directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlds2reverb.destinations.base import Loss, State
from rlds2reverb.destinations.growing_files import lost
from rlds2reverb.destinations.tfds.files import write_files
from rlds2reverb.destinations.tfds.naming import Target
from rlds2reverb.destinations.tfds.shards import bounds, shard_count, shards_of_at_most
from rlds2reverb.destinations.tfds.spool import FRAME_BYTES, LENGTHS, RECORDS, Spool, lengths_in
from rlds2reverb.destinations.whole_files import write_whole
from rlds2reverb.tfds_files.info import FEATURES_FILE, INFO_FILE
from rlds2reverb.tfds_files.names import FileNames

_DESCRIPTION = "Episodes in RLDS form, converted by rlds2reverb."


class TfdsSink:
    """Writes one split.

    Args:
      work: the version directory to be.
      target: what the files are called, and how they are written.
      tree: what features.json says.
      state: of an earlier run.
    """

    def __init__(self, work: Path, target: Target, tree: Mapping[str, Any], state: State | None) -> None:
        self._work, self._target, self._tree = work, target, tree
        self._state: State = {"records": 0, "size": 0} if state is None else state
        is_cut = state is not None and not (work / RECORDS).exists()  # `finish` came so far in an earlier run
        self._spool = None if is_cut else Spool(work, self._state["records"], self._state["size"])

    def write(self, record: bytes) -> Sequence[Loss]:
        """Takes an episode's record; nothing of it is lost."""
        self._opened.append(record)
        return ()

    def sync(self) -> State:
        """Puts all records on disk."""
        self._opened.sync()
        self._state = {"records": self._opened.records, "size": self._opened.size}
        return self._state

    def finish(self) -> None:
        """Cuts the records into files, and describes them."""
        self.close()
        if (self._work / INFO_FILE).exists():
            (self._work / LENGTHS).unlink(missing_ok=True)
            return
        records, total = self._state["records"], self._state["size"] - self._state["records"] * FRAME_BYTES
        shards = self._shards(total, records)
        cuts = bounds(records, shards)
        named = FileNames(self._target.name, self._target.split, self._target.file_format)
        names = [named.of_shard(shard, shards) for shard in range(shards)]
        write_files(self._work, self._target.file_format, names, cuts, lengths_in(self._work, records))
        for name, value in ((FEATURES_FILE, self._tree), (INFO_FILE, self._info(total, cuts))):
            write_whole(self._work / name, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())
        (self._work / LENGTHS).unlink(missing_ok=True)

    def close(self) -> None:
        """Lets go of the spool."""
        if self._spool is not None:
            self._spool.close()

    @property
    def _opened(self) -> Spool:
        if self._spool is None:
            raise lost(self._work / RECORDS, self._state["size"])
        return self._spool

    def _shards(self, total_bytes: int, records: int) -> int:
        if self._target.shards is not None:
            return min(self._target.shards, records)
        if self._target.shard_bytes is not None:
            return shards_of_at_most(self._target.shard_bytes, total_bytes, records)
        return shard_count(total_bytes, records)

    def _info(self, total_bytes: int, cuts: Sequence[int]) -> dict[str, Any]:
        """A message of TFDS in proto3's JSON, which has large numbers as texts."""
        split = {
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "name": self._target.split,
            "numBytes": str(total_bytes),
            "shardLengths": [str(stop - start) for start, stop in pairwise(cuts)],
        }
        return {
            "description": _DESCRIPTION,
            "disableShuffling": True,
            "fileFormat": self._target.file_format,
            "name": self._target.name,
            "splits": [split],
            "version": self._target.version,
        }
