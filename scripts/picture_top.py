"""Draws docs/top.svg: what `rlds2reverb top` shows of servers that run, are filled and sampled now.

python scripts/picture_top.py docs/top.svg --server a=localhost:8000 --http http://localhost:8080
"""

from __future__ import annotations

import argparse
import io
import re
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from rlds2reverb.cli.top.addresses import paired
from rlds2reverb.cli.top.keys import Choice
from rlds2reverb.cli.top.service import Address
from rlds2reverb.cli.top.view import screen
from rlds2reverb.cli.top.watching import Target, Watch
from rlds2reverb.connecting import way_to

_SIZE = (80, 18)
_SECONDS = 8.0
"""For rates over several seconds."""


def draw(watch: Watch) -> str:
    """The view as an SVG that asks nobody for fonts."""
    with watch:
        known = watch.wait(lambda _: False, _SECONDS)
    lines = screen(known, Choice(), _SIZE, time.time()).lines
    console = Console(record=True, width=_SIZE[0], file=io.StringIO())
    console.print(Text("\n").join(lines), no_wrap=True, overflow="crop", highlight=False)
    svg = console.export_svg(title="rlds2reverb top", theme=MONOKAI, unique_id="top")
    without_fonts = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"[ \t]+\n", "\n", without_fonts)


def main() -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--server", action="append", required=True)
    parser.add_argument("--http", action="append", default=[])
    given = parser.parse_args()
    targets = [
        Target(name, way_to(address), None if url is None else Address(url))
        for name, address, url in paired(given.server, given.http)
    ]
    given.file.write_text(draw(Watch(targets, interval=1.0, timeout=5.0)), encoding="utf-8")


if __name__ == "__main__":
    main()
