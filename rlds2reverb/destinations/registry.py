"""The formats that can be written. A new one is a module of its own and an entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import Form, Format, Formats, Lazily

if TYPE_CHECKING:
    from rlds2reverb.destinations.base import Destination

DESTINATIONS: Formats[Destination] = Formats(
    "destination",
    ConfigError,
    (
        Format(
            "lerobot",
            Lazily("rlds2reverb.destinations.lerobot.destination:open_lerobot"),
            "writing LeRobot datasets",
            extra="parquet",
            forms=(Form("lerobot:PATH[?OPTIONS]", "a folder that LeRobot reads, in its version 3.0"),),
        ),
    ),
)
