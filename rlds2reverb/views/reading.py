"""A view from a YAML file. A module of its own, so that only who names a file loads PyYAML."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb import strict_yaml
from rlds2reverb.views.base import View
from rlds2reverb.views.registry import view_from


def read_view(path: Path) -> View:
    """A view from a YAML file; see `registry.view_from`.

    Raises:
      ConfigError: the file cannot be read, or is not YAML.
      ViewError: it names no view, or its options make no sense.
    """
    return view_from(strict_yaml.read(path), str(path))
