"""The library that draws is the published one, and the page's own files are beside it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rlds2reverb import look

ASSETS = Path(str(look.__file__)).with_name("assets")


def test_the_library_is_the_published_one() -> None:
    lines = ASSETS.joinpath("uplot.sha256").read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in lines] == ["uPlot.LICENSE", "uPlot.iife.min.js", "uPlot.min.css"]
    for line in lines:
        digest, name = line.split()
        assert hashlib.sha256(ASSETS.joinpath(name).read_bytes()).hexdigest() == digest, name


def test_no_asset_names_an_address_that_is_fetched() -> None:
    for name in ("probe.js", "report.js", "report.css", "uPlot.min.css", "player.js", "player.css"):
        text = ASSETS.joinpath(name).read_text(encoding="utf-8")
        assert "http" not in text
        assert "url(" not in text
        assert "@import" not in text
