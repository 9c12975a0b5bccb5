"""Opens a source for a command."""

from __future__ import annotations

from rlds2reverb.cli.loading import without_collecting
from rlds2reverb.sources import open_source
from rlds2reverb.sources.base import Source


def opened(name: str) -> Source:
    """The source of this name.

    Raises:
      SourceError: as `open_source`.
    """
    with without_collecting():  # the modules of its format are loaded here
        return open_source(name)
