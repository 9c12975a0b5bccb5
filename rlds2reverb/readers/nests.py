"""Columns by path as a nest: what `Recordings.spec` gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.specs import ArraySpec, Nest


def nest_of(name: str, specs: Mapping[str, Any]) -> Nest:
    """'/'-joined paths as dicts within dicts.

    Raises:
      SourceError: a column has the name of a group of columns; `name` is what the message calls the dataset.
    """
    nest: dict[str, Nest] = {}
    for path, spec in specs.items():
        *parents, leaf = path.split("/")
        level = nest
        for parent in parents:
            below = level.setdefault(parent, {})
            if not isinstance(below, dict):
                raise SourceError(f'{name}: column "{path}" lies below another column; rename one of them')
            level = below
        if leaf in level:
            raise SourceError(f'{name}: column "{path}" has the name of a group of columns; rename one of them')
        level[leaf] = spec
    return nest


def value_spec(value: Any) -> ArraySpec:
    """The spec of a feature of an episode; text is object."""
    array = np.asarray(value)
    return ArraySpec(array.shape, np.dtype(object) if array.dtype.kind in "OSU" else array.dtype)
