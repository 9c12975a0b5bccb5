"""docs/runbook.md as a page of the service, which has neither the documentation nor a network: rendered once, by `make docs`.

Headings have the anchors that GitHub gives them. Links within the page lead on; what they lead to elsewhere is named in words. Pictures are
part of the page, whose policy lets it load none; so `make docs` follows `make pictures`.
"""

from __future__ import annotations

import base64
import itertools
import re
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "docs" / "runbook.md"
TARGET = ROOT / "server" / "replay_server" / "page" / "runbook.html"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Runbook of the replay server</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="page/style.css">
</head>
<body>
<main class="runbook">
<p><a href="./">Status page</a></p>
{body}</main>
</body>
</html>
"""


def render(text: str) -> str:
    """The page of a text in Markdown."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    for token, inner in itertools.pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", slug(inner.content))
        token.attrs.pop("style", None)  # how a column is set: the page's policy allows no styles but its own
    for token in tokens:
        if token.type == "inline":
            token.children = _without_what_is_far(token.children or [])
    body = parser.renderer.render(tokens, parser.options, {})
    body = body.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")
    return _PAGE.format(body=body.replace("<pre>", '<pre tabindex="0">'))


def slug(heading: str) -> str:
    """Its anchor: lower case, words joined by hyphens, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _without_what_is_far(children: list[Token]) -> list[Token]:
    """With pictures as data, and without links to other pages; their names stand there instead."""
    kept: list[Token] = []
    far: list[str] = []
    for token in children:
        if token.type == "link_open":
            target = str(token.attrGet("href"))
            far.append("" if target.startswith("#") else target)
        if token.type == "image":
            token.attrSet("src", _as_data(SOURCE.parent / str(token.attrGet("src"))))
            kept.append(token)
        elif token.type == "link_close" and (target := far.pop()):
            name = _name(target)
            said = kept.pop() if kept[-1].content and name.endswith(kept[-1].content) else None
            kept.append(_text(name if said else f" ({name})"))
        elif not (token.type == "link_open" and far[-1]):
            kept.append(token)
    return kept


def _as_data(picture: Path) -> str:
    """The address of a PNG file that holds the file itself."""
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"


def _name(target: str) -> str:
    """Of a page or file, as it is found in the project."""
    path = target.partition("#")[0]
    return target if ":" in path else str((SOURCE.parent / path).resolve().relative_to(ROOT.resolve()))


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def wanted() -> str:
    """The page of the runbook as it stands now."""
    return render(SOURCE.read_text(encoding="utf-8"))
