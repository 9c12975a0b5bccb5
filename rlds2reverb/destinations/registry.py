"""The formats that can be written. A new one is a module of its own and an entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import Formats

if TYPE_CHECKING:
    from rlds2reverb.destinations.base import Destination

DESTINATIONS: Formats[Destination] = Formats("destination", ConfigError, ())
