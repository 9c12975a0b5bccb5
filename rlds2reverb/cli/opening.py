"""Opens a source for a command, and says so when it takes long."""

from __future__ import annotations

import sys

from rlds2reverb.cli import output
from rlds2reverb.cli.loading import without_collecting
from rlds2reverb.sources import open_source
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.registry import SOURCES


def opened(name: str) -> Source:
    """The source of this name. On a terminal a line first says what takes long.

    Raises:
      SourceError: as `open_source`.
    """
    format_ = SOURCES.named(name)
    if format_ is not None and format_.extra == "tfds" and "tensorflow" not in sys.modules and sys.stderr.isatty():
        output.talk("loading TensorFlow, which reads the source ...")
    with without_collecting():
        return open_source(name)
