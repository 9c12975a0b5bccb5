"""What a replay server holds, read back as a dataset: from a checkpoint's folder, or from the running server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds2reverb.formats.registry import Form, Format, Reading

if TYPE_CHECKING:
    from rlds2reverb.formats.source import Source


def _open_reverb(text: str) -> Source:
    from rlds2reverb.stored.source import open_reverb  # with gRPC and numpy, only where a table is opened

    return open_reverb(text)


FORMAT = Format(
    "reverb",
    "replay servers",
    Reading(
        _open_reverb,
        forms=(
            Form("reverb:HOST:PORT/TABLE[?OPTIONS]", "a table of a running Reverb server"),
            Form("reverb:FOLDER[?OPTIONS]", "a checkpoint of Reverb or of `rlds2reverb serve`"),
        ),
    ),
    page="formats/reverb.md",
)
