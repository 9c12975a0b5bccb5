"""Whether two conversions wrote the same files."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_files(folder: Path) -> dict[str, str]:
    """Every file below a folder, by a digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
