"""Columns by path as a nest: what `Recordings.spec` gives, and the specs of what stands in an episode's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.specs import ArraySpec, Nest


def nested(leaves: Mapping[str, Any], name: str = "") -> Nest:
    """The way back from `specs.flatten`: '/'-joined paths become nested dicts.

    Args:
      leaves: path -> leaf.
      name: what messages call the dataset; "" for a message without.

    Raises:
      SourceError: a leaf has the name of a group of leaves.
    """
    where = f"{name}: " if name else ""
    nest: dict[str, Nest] = {}
    for path, value in leaves.items():
        *parents, leaf = path.split("/")
        level = nest
        for parent in parents:
            below = level.setdefault(parent, {})
            if not isinstance(below, dict):
                raise SourceError(f'{where}column "{path}" lies below another column; rename one of them')
            level = below
        if leaf in level:
            raise SourceError(f'{where}column "{path}" has the name of a group of columns; rename one of them')
        level[leaf] = value
    return nest


def value_spec(value: Any) -> ArraySpec:
    """The spec of a feature of an episode; text is object."""
    array = np.asarray(value)
    return ArraySpec(array.shape, np.dtype(object) if array.dtype.kind in "OSU" else array.dtype)
