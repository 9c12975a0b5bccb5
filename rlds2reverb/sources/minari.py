"""Minari's datasets as a source: `minari:ID[?OPTIONS]` or `minari:/path[?OPTIONS]`.

| option | values | meaning |
| --- | --- | --- |
| `infos` | `keep`, `drop` | whether infos and further groups become columns; "keep" by default |
| `links` | `inside`, `follow` | whether links, of HDF5 and of the file system, to files outside of the dataset's folder are followed; "inside" by default |
| `spaces` | `told`, `stored` | `stored` takes shapes and dtypes from the files of a dataset that has no spaces |
"""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.readers.minari.places import data_folder
from rlds2reverb.readers.minari.recordings import MinariRecordings, Options
from rlds2reverb.source_options import Parse, one_of, parted, unescaped
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.opening import asked

OPTIONS: dict[str, Parse] = {
    "infos": one_of(keep=True, drop=False),
    "links": one_of(inside=False, follow=True),
    "spaces": one_of(told=False, stored=True),
}
"""Beside those of every format with numbered episodes."""


def folder_of(text: str) -> Path:
    """The folder `data` of what stands behind "minari:".

    Raises:
      SourceError: there is none.
    """
    return data_folder(unescaped(parted(text)[0]))


def open_minari(text: str) -> Source:
    """Opens what stands behind "minari:".

    Raises:
      SourceError: no such dataset, it is damaged or none of Minari's, or an option makes no sense.
    """
    wanted = asked("minari", text, OPTIONS)
    options = wanted.options
    how = Options(options.get("links", False), options.get("infos", True), options.get("spaces", False))
    return wanted.source_of(MinariRecordings(data_folder(wanted.text), wanted.name, how))
