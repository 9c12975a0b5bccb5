"""Where the values of a step stand: learnt from one step, so that those after it are taken apart without looking around."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import Nest, flatten, map_with_path


class _Branch(NamedTuple):
    """A container of a step.

    Attributes:
      is_mapping: or a list or tuple.
      children: (key or place, its branch or None for a value), in the order of `specs.flatten`.
    """

    is_mapping: bool
    children: tuple[tuple[Any, Any], ...]


class Layout:
    """How steps are nested.

    Args:
      step: one of them, or its spec.

    Attributes:
      paths: of the columns, in the order of `specs.flatten`.

    Raises:
      ConfigError: not a dict, or nothing in it.
      SpecError: two columns of one path.
    """

    def __init__(self, step: Nest) -> None:
        if not isinstance(step, Mapping):
            raise ConfigError(f"step: expected a dict of the step's fields, got {type(step).__name__}")
        self.paths = tuple(flatten(step))
        if not self.paths:
            raise ConfigError("step: expected the step's fields, got none")
        self._root = _branch(step)
        self._flat = tuple(self._root.children) if all(inner is None for _, inner in self._root.children) else ()
        self._keys = tuple(key for key, _ in self._flat)

    def values(self, step: Nest) -> list[Any]:
        """The values of a step, in the order of `paths`.

        Raises:
          ConfigError: it is nested in another way; names a column.
        """
        if self._keys and type(step) is dict and len(step) == len(self._keys):
            try:
                return [step[key] for key in self._keys]
            except KeyError:
                raise self._difference(step) from None
        values: list[Any] = []
        if not _collect(self._root, step, values):
            raise self._difference(step)
        return values

    def nest(self, values: Mapping[str, Any], step: Nest) -> Nest:
        """A nest as a step of this layout is, with values by path."""
        return map_with_path(lambda path, _: values[path], step)

    def _difference(self, step: Nest) -> ConfigError:
        if not isinstance(step, Mapping):
            return ConfigError(f"step: expected a dict of the step's fields, got {type(step).__name__}")
        found = flatten(step)
        absent = [path for path in self.paths if path not in found]
        further = [path for path in found if path not in self.paths]
        said = [f'column "{path}" is not there' for path in absent]
        said += [f'column "{path}" was not there' for path in further]
        listed = "; ".join(said) or "lists, tuples and dicts are nested in another way"
        return ConfigError(
            f"step: differs from the first one: {listed}. Expected {', '.join(self.paths)}. Nothing of this step was taken"
        )


def _branch(nest: Nest) -> Any:
    """The branch of a container; None for a value."""
    if isinstance(nest, Mapping):
        return _Branch(True, tuple((key, _branch(nest[key])) for key in sorted(nest)))
    if isinstance(nest, (list, tuple)):
        return _Branch(False, tuple((place, _branch(child)) for place, child in enumerate(nest)))
    return None


def _collect(branch: _Branch, nest: Nest, values: list[Any]) -> bool:
    """Appends the values of a container; whether it is nested so."""
    wanted = (Mapping,) if branch.is_mapping else (list, tuple)
    if not isinstance(nest, wanted) or len(nest) != len(branch.children):
        return False
    for key, inner in branch.children:
        if branch.is_mapping and key not in nest:
            return False
        child = nest[key]
        if inner is None:
            if isinstance(child, (Mapping, list, tuple)):
                return False
            values.append(child)
        elif not _collect(inner, child, values):
            return False
    return True
