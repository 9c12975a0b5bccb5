"""Which files a path of il-representations' data stands for."""

from __future__ import annotations

from pathlib import Path

from rlds2reverb.errors import SourceError

SHARDS = (".tar.zst", ".tar.zstd", ".tar", ".zst", ".zstd")


def shards(path: Path) -> list[Path]:
    """The shards of a file, a folder or a pattern, by name.

    Raises:
      SourceError: there is none.
    """
    if path.is_dir():
        found = [one for one in path.iterdir() if one.name.endswith(SHARDS) and not one.name.startswith(".")]
        expected = f"files *{', *'.join(SHARDS)} in it"
    elif path.exists():
        return [path]
    else:
        found = [one for one in path.parent.glob(path.name) if one.is_file()] if path.name else []
        expected = "a file, a folder of shards, or a pattern that fits some"
    if not found:
        raise SourceError(f"{path}: not found; expected {expected}")
    return sorted(found)
