"""The judge itself: it finds what must not be there."""

from __future__ import annotations

import pytest

from tests.support.look.pages import Page


@pytest.mark.parametrize(
    "html",
    [
        "<div>",
        "<div><span></div></span>",
        "<script>alert(1)</script>",
        '<div onclick="x">a</div>',
        '<img src="http://example.com/a.png">',
        '<div style="background:#fff">a</div>',
        '<div style="border:0;color:red">a</div>',
        "<!-- a -->",
    ],
)
def test_it_refuses(html: str) -> None:
    with pytest.raises(AssertionError):
        Page(html)


def test_it_reads_text_rows_and_pictures() -> None:
    page = Page(
        '<div>a &lt;b&gt;<img src="data:image/png;base64,AAAA"><table><tr><th>n</th><td>1</td></tr></table></div>'
    )
    assert page.text == "a <b>n1"
    assert page.row("n") == "1"
    assert page.pictures == ["data:image/png;base64,AAAA"]
