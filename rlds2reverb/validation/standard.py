"""What makes an episode good: it fits the dataset's spec, and the conventions of the push lose nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rlds2reverb.conventions import Conventions, fill_absent, filled_spec
from rlds2reverb.episodes import Episode
from rlds2reverb.metadata import metadata_path, with_metadata
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.validation.checks import find_problems
from rlds2reverb.validation.problems import Problem


@dataclass(frozen=True)
class Standard:
    """What makes an episode good, the same for a push, for `inspect` and for `validate`. Absent fields are filled in here alone.

    Attributes:
      columns: path -> spec that every episode must have, absent fields filled in; {} to judge an episode by itself.
      conventions: what is mended in good episodes before they are cut.
      metadata: path -> spec of the metadata that every episode must have, because items hold it.
    """

    columns: Mapping[str, ArraySpec] = field(default_factory=dict)
    conventions: Conventions = Conventions()
    metadata: Mapping[str, ArraySpec] = field(default_factory=dict)

    @staticmethod
    def of(
        step_spec: Nest, conventions: Conventions, metadata: Mapping[str, ArraySpec] = MappingProxyType({})
    ) -> Standard:
        """The standard of a dataset; `step_spec` is that of its steps as recorded."""
        return Standard(flatten(filled_spec(step_spec)), conventions, metadata)

    def examine(self, episode: Episode) -> tuple[Episode, list[Problem]]:
        """An episode as recorded -> the same with absent fields filled in, and all that is wrong with it."""
        filled = fill_absent(episode)
        return filled, self.problems(filled)

    def problems(self, filled: Episode) -> list[Problem]:
        """All that is wrong with an episode that has been filled; metadata in items is judged as the columns that it becomes."""
        if not self.metadata or not filled.columns:
            return find_problems(filled, self.columns, self.conventions)
        columns = {metadata_path(name): spec for name, spec in self.metadata.items()}
        return find_problems(with_metadata(filled, self.metadata), {**self.columns, **columns}, self.conventions)

    def put(self, good: Episode) -> Episode:
        """What views cut: a good episode, already filled, mended as the conventions say."""
        return self.conventions.apply(good)
