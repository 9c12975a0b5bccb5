"""Draws the pictures of the README: the system, and a terminal whose lines come from docs/tutorials/first_push.md.

`python scripts/draw_readme.py` writes them to docs/pictures/. They load nothing, and are readable on light and dark.
"""

from __future__ import annotations

import re
from html import escape
from itertools import pairwise
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "tutorials" / "first_push.md"
SHOWN = ("rlds2reverb push", "python sample.py")
"""Commands of the page that the terminal shows, with what they print."""
_STYLE = """<style>
text { font: 13px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; }
.mono { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.card { fill: #ffffff; stroke: #d1d9e0; }
.box { fill: #f6f8fa; stroke: #818b98; }
.main { fill: #ddf4ff; stroke: #0969da; }
.title { font-weight: bold; }
.quiet { fill: #59636e; font-size: 11px; }
.road { stroke: #59636e; stroke-width: 1.5; fill: none; }
.head { fill: #59636e; }
.prompt { fill: #1a7f37; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.card { fill: #0d1117; stroke: #3d444d; }
.box { fill: #151b23; stroke: #656c76; }
.main { fill: #121d2f; stroke: #4493f8; }
.quiet { fill: #9198a1; }
.road { stroke: #9198a1; }
.head { fill: #9198a1; }
.prompt { fill: #3fb950; }
}
</style>"""
_COLUMNS = (
    (
        16,
        "box",
        "Datasets",
        ("RLDS, TFDS, Open X", "Minari, D4RL, robomimic", "LeRobot, RLlib, TorchRL", "episodes of your own"),
    ),
    (
        254,
        "main",
        "rlds2reverb",
        ("checks each episode", "transforms, views", "sends each item once", "runs the server, too"),
    ),
    (
        492,
        "box",
        "Reverb server",
        ("tables and limiters", "checkpoints, restored", "health and metrics", "one, or several as one"),
    ),
    (730, "box", "Learners", ("numpy batches", "PyTorch, TorchRL", "JAX, RLlib", "TensorFlow, TF-Agents")),
)


def _svg(width: int, height: int, title: str, body: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    card = f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", _STYLE, card, *body, "</svg>\n"])


def _arrow(start: int, end: int, y: int) -> str:
    tip = end - 7 if end > start else end + 7
    return f'<path class="road" d="M{start} {y}H{tip}"/><path class="head" d="M{end} {y}L{tip} {y - 4}V{y + 4}Z"/>'


def system() -> str:
    """Datasets, this project, the server, and learners, from left to right."""
    body = []
    for x, kind, title, lines in _COLUMNS:
        body.append(f'<rect class="{kind}" x="{x}" y="24" width="186" height="132" rx="6"/>')
        body.append(f'<text class="title" x="{x + 14}" y="50">{escape(title)}</text>')
        body += [f'<text x="{x + 14}" y="{76 + 21 * row}">{escape(line)}</text>' for row, line in enumerate(lines)]
    body += [_arrow(203, 253, 90), _arrow(441, 491, 90), _arrow(679, 729, 75), _arrow(729, 679, 110)]
    said = ((228, "read"), (466, "push"), (704, "sample"))
    body += [
        f'<text class="quiet" x="{x}" y="{64 if x == 704 else 79}" text-anchor="middle">{text}</text>'
        for x, text in said
    ]
    body.append('<text class="quiet" x="704" y="129" text-anchor="middle">write</text>')
    title = "Datasets are read, checked and pushed by rlds2reverb into a Reverb server; learners sample it, and actors write"
    return _svg(932, 180, title, body)


def terminal_lines() -> list[str]:
    """Commands with a prompt, each followed by what the page says that it prints; the same command is shown once."""
    blocks = re.findall(r"^```(sh|text)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines: dict[str, list[str]] = {}
    for (kind, command), (following, printed) in pairwise(blocks):
        if kind == "sh" and following == "text" and command.startswith(SHOWN):
            lines.setdefault(command.rstrip("\n"), printed.splitlines())
    return [line for command, printed in lines.items() for line in (f"$ {command}", *printed, "")][:-1]


def terminal() -> str:
    """A still of the tutorial's terminal."""
    lines = terminal_lines()
    body = []
    for row, line in enumerate(lines):
        kind = "mono prompt" if line.startswith("$ ") else "mono"
        body.append(f'<text class="{kind}" xml:space="preserve" x="18" y="{30 + 18 * row}">{escape(line)}</text>')
    width = 36 + 8 * max(len(line) for line in lines)
    return _svg(width, 30 + 18 * len(lines), "A terminal: a push into the table replay, and batches out of it", body)


PICTURES = {"system": system, "terminal": terminal}


def main() -> None:
    """Writes both."""
    for name, draw in PICTURES.items():
        (DOCS / "pictures" / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
