"""`inspect --html`: the options of the page, and how it is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from rlds2reverb.cli import output
from rlds2reverb.cli.options import with_options
from rlds2reverb.errors import ConfigError
from rlds2reverb.formats import Lazily
from rlds2reverb.reports.inspected import Inspection
from rlds2reverb.reports.watching import Watcher

_collector: Callable[[int, Inspection], Watcher] = Lazily("rlds2reverb.report.collector:Collector")
_page_of: Callable[[Any, int], bytes] = Lazily("rlds2reverb.report.page:page_of")
_dataset: Callable[[Inspection, str], Any] = Lazily("rlds2reverb.report.content:Dataset")
_check_place: Callable[[Path], None] = Lazily("rlds2reverb.report.writing:check_place")
_write_page: Callable[[Path, bytes], None] = Lazily("rlds2reverb.report.writing:write_page")
"""Loaded only where a page is asked for."""

_LARGEST_SEED = 2**63 - 1

html_options = with_options(
    click.option(
        "--html",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write a page about the dataset, too: one file with charts, images and problems, under 3 MB, that needs no network. A file that is there is replaced.",
    ),
    click.option(
        "--against",
        metavar="SOURCE",
        help="With --html: put another dataset beside it, read with the same options; charts have both, on the same axes.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, _LARGEST_SEED),
        help="With --html: chooses the episodes and texts that the page shows; 0 without it. The same data and seed give the same bytes.",
    ),
)


@dataclass(frozen=True)
class WantedPage:
    """The page that is asked for.

    Attributes:
      path: where it goes.
      others: names of the datasets to put beside it, at most one.
      seed: chooses what is shown.
    """

    path: Path
    others: tuple[str, ...]
    seed: int

    @property
    def watch(self) -> Callable[[Inspection], Watcher]:
        """Makes what collects for the page; it can be sent to workers."""
        return partial(_collector, self.seed)

    def write(self, found: Sequence[tuple[Inspection, str]]) -> None:
        """Writes the page of one dataset or two, each with the config of a server for it or "", and tells so on stderr."""
        page = _page_of([_dataset(inspection, config) for inspection, config in found], self.seed)
        _write_page(self.path, page)
        output.talk(f"wrote {self.path}: {len(page) / 1e6:.2f} MB")


def wanted_page(path: Path | None, against: str | None, seed: int | None) -> WantedPage | None:
    """What the options ask for; None for no page.

    Raises:
      ConfigError: the file cannot be written, or an option makes no sense without it.
    """
    if path is None:
        if against is not None or seed is not None:
            raise ConfigError(f"{'--seed' if against is None else '--against'} is of the page; give --html FILE, too")
        return None
    _check_place(path)
    return WantedPage(path, () if against is None else (against,), seed or 0)
