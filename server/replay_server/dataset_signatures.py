"""Signatures of tables that a config takes from a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from rlds2reverb.errors import ConfigError, SourceError, SpecError, ViewError
from rlds2reverb.specs import Nest


class FromDataset(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A signature derived from a dataset: for what `view` makes of its steps. Read when the server starts.

    Attributes:
      from_dataset: as for `push`; a relative path is taken from where the server is started.
      view: text as for --view, or a mapping as in a file for --view-config.
      transform: text or a file as for --transform, or a mapping as in such a file.
      encoded: names images as --encoded does.
    """

    from_dataset: str
    view: str | dict[str, Any] = "two_step"
    transform: str | dict[str, Any] = ""
    encoded: str | tuple[str, ...] = ()


def signature_of_dataset(value: Mapping[str, Any], path: str) -> Nest:
    """The signature that a table needs for a dataset's items.

    Args:
      value: the fields of `FromDataset`, as in the config.
      path: where they stand; for messages.

    Raises:
      ConfigError: an unknown field, or a value that makes no sense.
      SourceError, SpecError, ViewError: the dataset cannot be read, or the view cannot cut it.
    """
    try:
        wanted = msgspec.convert(value, FromDataset, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        return _signature_of(wanted)
    except (ConfigError, SourceError, SpecError, ViewError) as error:
        raise type(error)(f"{path}: {error}") from error


def _signature_of(wanted: FromDataset) -> Nest:
    from rlds2reverb.conventions import filled_spec
    from rlds2reverb.sources import open_source
    from rlds2reverb.sources.base import metadata_spec_of, with_encoded
    from rlds2reverb.sources.transformed import transformed
    from rlds2reverb.transforms.reading import transform_of
    from rlds2reverb.views.extras import signature_of, wants_metadata
    from rlds2reverb.views.registry import view_from
    from rlds2reverb.views.sequence import name_of
    from rlds2reverb.views.trajectory import table_signature

    view, transform = view_from(wanted.view), transform_of(wanted.transform or ())
    encoded = (wanted.encoded,) if isinstance(wanted.encoded, str) else wanted.encoded
    source = transformed(with_encoded(open_source(wanted.from_dataset), encoded), transform)
    metadata_spec = metadata_spec_of(source) if wants_metadata([view]) else ()
    return table_signature(signature_of(view, filled_spec(source.spec()), metadata_spec), name_of(view))
