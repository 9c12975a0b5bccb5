"""Files of records that are scanned once, from the first to the last: what the stores of all kinds of files do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import xxhash

from rlds2reverb.readers.rllib.files import DataFile
from rlds2reverb.readers.rllib.index import Found
from rlds2reverb.readers.rllib.repeated import without_repeated
from rlds2reverb.readers.rllib.store import Settings, Troubles


class Scanned(ABC):
    """Files; a kind of them finds its parts, and feeds the digest with what it reads."""

    def __init__(self, files: list[DataFile], settings: Settings) -> None:
        self._files, self._settings = files, settings
        self.troubles = Troubles()
        self._digest = xxhash.xxh3_128()

    @property
    def fingerprint(self) -> str:
        """Of what was read, once all is scanned."""
        return self._digest.hexdigest()

    def scan(self) -> Iterator[Found]:
        """All parts, in the order of the files, each once; what is no record is counted."""
        return without_repeated(self._scan(), self.troubles)

    @abstractmethod
    def _scan(self) -> Iterator[Found]:
        """All parts; reads the files."""
