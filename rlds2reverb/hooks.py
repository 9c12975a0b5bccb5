"""What the lower layers call and the layers above hand down, so that no module imports one that stands above it.

`rlds2reverb/__init__.py`, which runs before every other module of the package, hands down all hooks. They import what they call when they
are called. Without them (`rlds2reverb.formats` copied out with the modules below it) the package does what it can alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _repr_in_html(thing: object) -> str:
    from html import escape

    return f"<pre>{escape(repr(thing))}</pre>"


show_html: Callable[[Any], str] = _repr_in_html
"""Makes the HTML of an object that a notebook shows. `rlds2reverb.look.notebook` does it."""

formats_from_above: Callable[[], Iterable[Any]] = tuple
"""The formats (`rlds2reverb.formats.registry.Format`) that layers above `rlds2reverb.formats` read or write: `rlds2reverb.stored` has `reverb:`."""


def _refuse(source: Any) -> Any:
    # Not at the top: `import rlds2reverb` loads this module and no other one.
    from rlds2reverb.errors import SourceError

    raise SourceError(
        f"{getattr(source, 'name', source)}: mixture files and statistics need the whole package rlds2reverb, and not rlds2reverb.formats alone; "
        "a mix can name its parts: mix:SOURCE|SOURCE"
    )


open_mixture: Callable[[str], Any] = _refuse
"""Opens the source `mix:FILE.yaml`. `rlds2reverb.prepare.mixture` does it."""

statistics_of: Callable[[Any], Any] = _refuse
"""The statistics of an open source (`DatasetStatistics`). `rlds2reverb.inspection.values` counts them."""
