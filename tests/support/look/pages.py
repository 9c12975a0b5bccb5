"""HTML as a browser takes it apart: what is open must be closed, and nothing runs or is fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser

ALLOWED = {
    *("bdi", "details", "div", "img", "path", "span", "strong", "summary", "svg"),
    *("table", "tbody", "td", "th", "thead", "tr"),
}
ATTRIBUTES = {
    *("alt", "aria-label", "colspan", "d", "open", "opacity", "role", "scope", "src", "style", "title", "viewbox"),
}
PICTURE = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+=*")


class Page(HTMLParser):
    """What a piece of HTML holds: `text`, `pictures` (data URIs), `cells` (rows of tables).

    Raises:
      AssertionError: a tag is not closed, or runs or fetches something.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[str] = []
        self._texts: list[str] = []
        self.pictures: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(html)
        self.close()
        assert self._open == []
        self.text = "".join(self._texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        assert {name for name, _ in attrs} <= ATTRIBUTES, attrs
        given = dict(attrs)
        assert not re.search(r"url|expression|background:(?!none)|[;\"]color:(?!inherit)", given.get("style") or "")
        if tag == "img":
            assert PICTURE.fullmatch(given["src"] or "")
            self.pictures.append(given["src"] or "")
            return
        self._open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self._texts.append(data)
        if any(tag in ("td", "th") for tag in self._open):
            self.cells[-1][-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        raise AssertionError(f"a declaration: {decl}")

    def row(self, name: str) -> str:
        """The rest of the row that begins with this cell."""
        (found,) = [row for row in self.cells if row[0] == name]
        return " | ".join(found[1:])
