"""Files that releases have written, in tests/data/versions, and what a reading of them gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parents[1] / "data/versions"
"""A folder per release."""

EXPECTED = "expected.json"
"""In each: name of a format -> what a reading gave when the files were written."""

BUNDLED = "bundled:cartpole@train[:4]"


def set_member(path: Path, version: object, program: str, name: str = "format") -> None:
    """Writes another version, and a program, into a file of JSON."""
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, name: version, "program": program}))


def plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return json.loads(msgspec.json.encode(msgspec.to_builtins(value, enc_hook=list)))
