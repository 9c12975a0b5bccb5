"""The datasets that ship inside this package: TFDS directories that are found by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlds2reverb.datasets import bundled_path
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import Lazily
from rlds2reverb.source_options import escaped

if TYPE_CHECKING:
    from rlds2reverb.sources.base import Source

_open_tfds = Lazily("rlds2reverb.sources.tfds:open_tfds")  # so that a wrong name is told without numpy


def open_bundled(text: str) -> Source:
    """Opens the part of a source name after "bundled:", "NAME[@SPLIT][?OPTIONS]".

    Raises:
      SourceError: no such dataset or split, or an unknown option.
    """
    dataset = re.split("[@?]", text, maxsplit=1)[0]
    try:
        path = bundled_path(dataset)
    except ValueError as error:
        raise SourceError(str(error)) from error
    return _open_tfds(f"{escaped(path)}{text.removeprefix(dataset)}", f"bundled:{text}")  # type: ignore[no-any-return]
