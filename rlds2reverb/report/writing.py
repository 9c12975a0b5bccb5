"""A page -> a file, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.destinations.whole_files import unfinished_file, whole_or_none
from rlds2reverb.errors import ConfigError
from rlds2reverb.files import can_be_replaced, writing


def check_place(path: Path) -> None:
    """Refuses a place where no file can be written, before anything is read.

    Raises:
      ConfigError: says which.
    """
    if str(path) == "-":
        raise ConfigError("--html -: a page does not go to stdout; name a file")
    if not can_be_replaced(path) or not can_be_replaced(unfinished_file(path)):
        raise ConfigError(
            f"--html {path}: no file can be written there; its folder must exist, and let you write in it. "
            "A file that is there is replaced, but no folder, device or pipe"
        )


def write_page(path: Path, page: bytes) -> None:
    """Writes the file; one that is there is replaced.

    Raises:
      WriteError: the disk is full, say.
    """
    way_out = "no page is left there, and one from before stays. Make room or name another file, and run the same again"
    with writing(f"--html {path}", way_out), whole_or_none(path) as unfinished:
        unfinished.write_bytes(page)
