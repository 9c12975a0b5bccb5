"""Storages of PyTrees: `storage_metadata.json` names the files, `a/b.memmap` for what was `{"a": {"b": ...}}`, numbers for tuples and lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.paths import stays_in
from rlds2reverb.readers.ted.folders import Folder
from rlds2reverb.readers.ted.leaves import sized_leaf
from rlds2reverb.wording import shortened

_SINGLE = "_-single-tensor-_"


def read_pytree(path: Path, metadata: Mapping[str, Any]) -> Folder:
    """The leaves of a PyTree; their first size is the batch.

    Raises:
      SourceError: there are none, they differ in their first size, or one is not as the metadata say.
    """
    if not isinstance(metadata, dict) or not metadata:
        raise SourceError(f"{path}: storage_metadata.json names no leaf of the PyTree")
    leaves = {}
    for name, one in metadata.items():
        file = path / f"{name.replace('.', '/')}.memmap"
        if not isinstance(one, dict) or not stays_in(path, file):
            raise SourceError(f"{path}: leaf {shortened(repr(name))} of the PyTree leads out of the folder, or is none")
        key = "observation" if name == _SINGLE else name.replace(".", "/")
        leaves[key] = sized_leaf(file, one.get("dtype"), one.get("shape"))
    sizes = {leaf.shape[:1] for leaf in leaves.values()}
    if len(sizes) != 1 or () in sizes:
        raise SourceError(f"{path}: leaves of the PyTree differ in their first size: {sorted(sizes)}")
    return Folder(path, sizes.pop(), leaves)
