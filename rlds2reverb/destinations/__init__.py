"""Where episodes can be converted to: one module or package per format, known by its entry in `registry`.

Importing this loads no format, no numpy and no optional library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds2reverb.destinations.registry import DESTINATIONS

if TYPE_CHECKING:
    from rlds2reverb.destinations.base import Destination


def open_destination(name: str) -> Destination:
    """A destination from its name. Nothing is made yet.

    Raises:
      ConfigError: an unknown scheme, a name or an option that makes no sense, or an extra that is not installed.
    """
    return DESTINATIONS.open(name)
