"""Files that are scanned once, from the first to the last: what the stores of all kinds of files do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from rlds2reverb.readers.rllib.files import DataFile
from rlds2reverb.readers.rllib.index import Found
from rlds2reverb.readers.rllib.repeated import without_repeated
from rlds2reverb.readers.rllib.store import Settings, Stamps, Troubles, Wanted


class ScannedFiles(ABC):
    """Files; a kind of them finds its parts.

    Attributes:
      settings: how they are read.
      troubles: what was left out.
      stamps: tell whether a file was written anew.
    """

    def __init__(self, files: list[DataFile], settings: Settings) -> None:
        self._files, self.settings = files, settings
        self.troubles, self.stamps = Troubles(), Stamps(files)

    def scan(self, wanted: Wanted, /) -> Iterator[Found]:
        """All parts, in the order of the files, each once; what is no record is counted. Columns that are wanted later may be kept."""
        return without_repeated(self._scan(wanted), self.troubles)

    @abstractmethod
    def _scan(self, wanted: Wanted) -> Iterator[Found]:
        """All parts; reads the files."""
