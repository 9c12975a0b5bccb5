"""What steps are, found out from the first of them and from the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlds2reverb.conventions import filled_spec
from rlds2reverb.episodes import Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.writing.layout import Layout
from rlds2reverb.learner.writing.live import LiveSource
from rlds2reverb.learner.writing.options import WriteOptions
from rlds2reverb.learner.writing.values import DType, spec_of_value
from rlds2reverb.sources.base import checked_spec
from rlds2reverb.sources.transformed import transformed
from rlds2reverb.specs import ArraySpec, Nest, differences, flatten, map_leaves
from rlds2reverb.views.extras import signature_of, wants_metadata
from rlds2reverb.wire.messages import ServerInfo


@dataclass(frozen=True)
class Steps:
    """What steps are.

    Attributes:
      layout: how they are nested.
      specs: path -> spec of a column.
      nest: one of them, whatever its leaves are.
    """

    layout: Layout
    specs: Mapping[str, ArraySpec]
    nest: Nest

    @property
    def spec(self) -> Nest:
        """The nest of specs."""
        return self.layout.nest(self.specs, self.nest)

    def source(self, name: str, example: Episode | None = None) -> LiveSource:
        """Such steps as a source; `example` is an episode with metadata."""
        return LiveSource(name, self.spec, example)


def steps_of(step: Nest, options: WriteOptions, info: ServerInfo) -> Steps:
    """What steps are of which this is the first. A plain number takes the dtype that makes items fit the tables, where one does.

    Raises:
      ConfigError: no dict, or a value that no column holds.
      SpecError: two columns of one path.
    """
    layout = Layout(step)
    found = {path: spec_of_value(path, value) for path, value in zip(layout.paths, layout.values(step))}
    nest = map_leaves(lambda _: None, step)
    specs = {path: spec for path, (spec, _) in found.items()}
    choices = {path: dtypes for path, (_, dtypes) in found.items() if dtypes}
    if choices and not wants_metadata([output.view for output in options.outputs]):
        specs = _settled(specs, choices, lambda tried: _unlike(Steps(layout, tried, nest), options, info))
    return Steps(layout, specs, nest)


def steps_of_spec(spec: Nest) -> Steps:
    """What steps of this spec are.

    Raises:
      ConfigError: no dict, a leaf that is no `ArraySpec`, or one of a shape that is not fixed.
      SpecError: two columns of one path.
    """
    layout, specs = Layout(spec), flatten(spec)
    for path, leaf in specs.items():
        if not isinstance(leaf, ArraySpec) or not isinstance(leaf.dtype, np.dtype) or None in leaf.shape:
            raise ConfigError(
                f'writer: spec: column "{path}": expected an ArraySpec of a numpy dtype and a fixed shape, got {leaf}'
            )
    return Steps(layout, specs, spec)


def _settled(
    specs: dict[str, ArraySpec],
    choices: Mapping[str, Sequence[DType]],
    unlike: Callable[[Mapping[str, ArraySpec]], int],
) -> dict[str, ArraySpec]:
    """The specs with those dtypes that leave the fewest differences from the tables, column by column; as they are when in doubt."""
    least = unlike(specs)
    for path, dtypes in choices.items():
        for dtype in dtypes if least else ():
            tried = {**specs, path: replace(specs[path], dtype=dtype)}
            if (found := unlike(tried)) < least:
                specs, least = tried, found
                break
    return specs


def _unlike(steps: Steps, options: WriteOptions, info: ServerInfo) -> int:
    """Differences between the items and the tables' signatures."""
    source = transformed(steps.source("steps"), options.chosen_transform)
    step_spec = filled_spec(checked_spec(source))
    signatures = [(output, signature_of(output.view, step_spec, ())) for output in options.outputs]
    known: dict[str, Any] = {name: table.signature for name, table in info.tables.items()}
    return sum(
        len(differences(signature, known[table]))
        for output, signature in signatures
        for table in output.tables
        if known.get(table) is not None
    )
