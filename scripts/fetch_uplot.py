"""Fetches uPlot, the library that draws the charts of reports, from npm's registry: `python scripts/fetch_uplot.py`.

It calls `npm pack`, checks the files against `rlds2reverb/look/assets/uplot.sha256`, and puts them beside it. `--new VERSION` takes another version
and writes its digests; look at what changed before it is committed.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ASSETS = Path(__file__).parent.parent / "rlds2reverb" / "look" / "assets"
VERSION = "1.6.32"
DIGESTS = ASSETS / "uplot.sha256"
FILES = {
    "package/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "package/dist/uPlot.min.css": "uPlot.min.css",
    "package/LICENSE": "uPlot.LICENSE",
}
"""File of the package -> file here."""


def fetched(version: str) -> dict[str, bytes]:
    """The files of a version, by the names that they have here."""
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"uplot@{version}"],  # noqa: S607
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
        with tarfile.open(Path(folder) / packed.stdout.split()[-1]) as archive:
            return {name: _member(archive, path) for path, name in FILES.items()}


def digests(files: dict[str, bytes]) -> str:
    """The text of `uplot.sha256`."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))


def main() -> None:
    """Fetches, checks and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--new", metavar="VERSION", help="take this version, and write its digests")
    new = parser.parse_args().new
    files = fetched(new or VERSION)
    if new is None and digests(files) != DIGESTS.read_text(encoding="utf-8"):
        sys.exit(f"the registry's uplot {VERSION} is not what {DIGESTS.name} says; nothing was written")
    for name, data in files.items():
        (ASSETS / name).write_bytes(data)
    DIGESTS.write_text(digests(files), encoding="utf-8")


def _member(archive: tarfile.TarFile, path: str) -> bytes:
    found = archive.extractfile(path)
    if found is None:
        sys.exit(f"uplot has no file {path}")
    return found.read()


if __name__ == "__main__":
    main()
