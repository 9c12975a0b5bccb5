"""The columns of a batch, by its structure: what is a leaf, in which order they stand, and the way back into the nest.

A list in a batch may be a container, or a leaf: items that differ in shape. Only the structure tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from rlds2reverb.specs import Nest, map_with_path
from rlds2reverb.wire.sample.batches import Column


def paths_of(data: Nest, told: Nest | None) -> Nest:
    """The nest of a batch's columns, with its path in place of every leaf.

    Args:
      data: of the batch.
      told: the structure that its origin tells; None where it tells none. Then a list at the top has one entry per column, and any
        other list is a leaf.
    """
    if told is not None:
        return map_with_path(lambda path, _: path, told)
    if isinstance(data, list):  # a table without a signature
        return [str(number) for number in range(len(data))]
    return map_with_path(lambda path, _: path, _without_lists(data))


def columns_of(data: Nest, paths: Nest) -> list[Column]:
    """The columns of a batch in the order of `paths_of`. A list of arrays in the place of a leaf is one column."""
    return list(_columns(data, paths))


def in_structure(columns: Iterable[object], structure: Nest) -> Nest:
    """The nest with columns, as many as it has leaves and in their order, in place of the leaves."""
    return _nested(iter(columns), structure)


def _nested(left: Iterator[object], structure: Nest) -> Nest:
    """The structure with what is left in place of its leaves, one after the other; as `map_with_path`, which costs more."""
    fill = partial(_nested, left)
    if isinstance(structure, Mapping):
        keys = sorted(structure)
        return dict(zip(keys, map(fill, map(structure.__getitem__, keys))))
    if not isinstance(structure, (list, tuple)):
        return next(left)
    if hasattr(structure, "_fields"):
        return type(structure)(*map(fill, structure))
    return type(structure)(map(fill, structure))


def _columns(data: Nest, paths: Nest) -> Iterator[Column]:
    if isinstance(paths, str):  # of a leaf
        yield data
    elif isinstance(paths, Mapping):
        for key in sorted(paths):
            yield from _columns(data[key], paths[key])
    else:
        for one, inside in zip(data, paths, strict=True):
            yield from _columns(one, inside)


def _without_lists(data: Nest) -> Nest:
    """The nest with a leaf in place of every list: items that differ in shape."""
    if isinstance(data, list):
        return None
    if isinstance(data, Mapping):
        return {key: _without_lists(child) for key, child in data.items()}
    if isinstance(data, tuple):
        inside = [_without_lists(child) for child in data]
        return type(data)(*inside) if hasattr(data, "_fields") else tuple(inside)
    return data
