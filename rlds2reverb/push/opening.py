"""A source as a push reads it: opened, transformed, its spec checked, and what the views make of it. No table is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlds2reverb.conventions import absent_fields, filled_spec
from rlds2reverb.errors import SourceError
from rlds2reverb.push.options import PushOptions
from rlds2reverb.remarks import faults
from rlds2reverb.sources import open_source
from rlds2reverb.sources.base import (
    Source,
    check_steps,
    checked_spec,
    known_count,
    metadata_spec_of,
    remarks_of,
    with_encoded,
)
from rlds2reverb.sources.transformed import transformed
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.views.extras import metadata_in_items, signature_of, wants_metadata


@dataclass(frozen=True)
class Opened:
    """A source, ready to be read as the options say.

    Attributes:
      source: the episodes, as the transform makes them.
      options: how.
      recorded_spec: of the steps, without what is filled in.
      step_spec: of the steps, absent fields filled in.
      filled: step fields that the dataset lacks and that are filled (`conventions`).
      signatures: of the items, one per output.
      metadata: path -> spec of the episodes' metadata that items hold.
    """

    source: Source
    options: PushOptions
    recorded_spec: Nest
    step_spec: Nest
    filled: tuple[str, ...]
    signatures: tuple[Nest, ...]
    metadata: Mapping[str, ArraySpec]

    @property
    def identity(self) -> str:
        """See `identity_of`."""
        return identity_of(self.options, self.step_spec)


def opened(source: Any, options: PushOptions) -> Opened:
    """Opens a source as the options say. No episode is read, unless items hold metadata that only an episode can tell.

    Args:
      source: anything that `open_source` takes.
      options: how.

    Raises:
      SourceError: the source cannot be opened, has no spec, lacks is_first or is_last, or cannot keep images encoded; strictly, it tells of a fault in itself;
        or workers are to share it, and it does not know how many episodes it has.
      ViewError: a view cannot cut such steps.
      ConfigError: a transform that the steps do not allow.
    """
    source = with_encoded(open_source(source), options.encoded_paths)
    source = transformed(source, options.chosen_transform)
    spec = checked_spec(source)
    check_remarks(source, options)
    if options.is_divided:
        known_count(source)
    filled, step_spec = _fields_to_fill(source, spec), filled_spec(spec)
    views = [output.view for output in options.outputs]
    metadata_spec = metadata_spec_of(source) if wants_metadata(views) else ()
    signatures = tuple(signature_of(view, step_spec, metadata_spec) for view in views)
    return Opened(source, options, spec, step_spec, filled, signatures, metadata_in_items(views, metadata_spec))


def identity_of(options: PushOptions, step_spec: Nest) -> str:
    """What two pushes by the same views must share for their items to be the same: conventions, transform, and which images stay encoded."""
    encoded = [path for path, leaf in flatten(step_spec).items() if leaf.image is not None]
    return f"{options.data_label}|encoded={','.join(encoded)}" if encoded else options.data_label


def _fields_to_fill(source: Source, spec: Nest) -> tuple[str, ...]:
    check_steps(source, spec)
    return absent_fields(spec)


def check_remarks(source: Source, options: PushOptions) -> None:
    """Refuses, strictly, a source that tells of a fault in itself, unless that is allowed. Notes are no faults.

    Raises:
      SourceError: says what it tells.
    """
    told = faults(remarks_of(source), options.allow)
    if options.strict and told:
        code = told[0].code
        raise SourceError(
            f"{source.name}: {'; '.join(map(str, told))}; tolerate {code} with allow=({code!r},) (--allow {code}), or leave out strict (--strict)"
        )
