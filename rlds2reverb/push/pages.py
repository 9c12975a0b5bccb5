"""The episodes that a push sends, written into the server's own list of them as it goes, so that they can be deleted later."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from rlds2reverb.cuts import Cut
from rlds2reverb.episode import Array
from rlds2reverb.errors import reason_of
from rlds2reverb.servers.episodes import EpisodePage, PushPages, tidy_pages, write_pages
from rlds2reverb.servers.own_tables import MOST_ITEMS
from rlds2reverb.transport.base import Transport

LOG = logging.getLogger("rlds2reverb.push")

PAGE_EPISODES, PAGE_ITEMS = 4096, 1 << 20
"""Most of a page, about. Fewer make more requests, more are lost when a push without a ledger is killed: until it runs again, those cannot be deleted by name."""

MOST_UNWRITTEN = 64
"""Pages that are kept while the list cannot be written; with so many the push goes on without it."""

LEDGER_SECONDS = 1.0
"""A ledger has an episode only once a page has it, so that it can be deleted; so often pages are written for that."""


_AFTER_ERROR_SECONDS = 2.0


class PageKind(NamedTuple):
    """What the episodes of a page have in common; see `EpisodePage`."""

    tables: tuple[str, ...]
    push_seed: int
    is_of_stream: bool


# Name, name in keys, [items] rows of its items, row of its first step. What they give is computed for a whole page: numpy's calls for each
# episode would take a tenth of what a short one costs.
_Waiting = list[tuple[str, str, Array, int]]


class PageWriter:
    """Collects the episodes that one push sends to one server, and writes them page by page.

    Never makes a push fail: what cannot be written is kept, and tried again with the next page.

    Args:
      push: id of the journal's entry.
      source: its name.
      seconds: for each writing.
      listed: items of the list when the push began.

    Attributes:
      failure: why episodes are not listed, on one line; "" while all that was written is.
    """

    def __init__(self, transport: Transport, push: str, source: str, seconds: float, listed: int = 0) -> None:
        self._transport, self._push, self._source, self.seconds = transport, push, source, seconds
        self._waiting: dict[PageKind, _Waiting] = {}
        self._items = 0  # that wait, about: what is held of them is bounded
        self._unwritten: list[EpisodePage] = []
        self._has_given_up = False
        self._untidied = listed
        self._pages: list[str] = []  # names of those that are written
        self._written_at = time.monotonic()
        self.failure = ""

    @property
    def is_due(self) -> bool:
        """Whether a ledger has waited for `LEDGER_SECONDS`."""
        return time.monotonic() - self._written_at > LEDGER_SECONDS

    def add(self, kind: PageKind, name: str, key_name: str, cut: Cut) -> None:
        """Adds an episode with items; writes a page when it is full."""
        waiting = self._waiting.get(kind)
        if waiting is None:
            waiting = self._waiting[kind] = []
        waiting.append((name, key_name, cut.anchors, cut.origin))
        self._items += len(cut.anchors)
        if len(waiting) >= PAGE_EPISODES:
            self._write([self._page(kind, self._waiting.pop(kind))])
        elif self._items >= PAGE_ITEMS:
            self.flush()

    def flush(self) -> None:
        """Writes what waits."""
        if self._waiting or self._unwritten:
            self._write(self._take_waiting())

    def finish(self) -> None:
        """Writes what waits, and which pages the push consists of."""
        pages = self._take_waiting()
        if pages or self._unwritten or self._pages:
            self._write(pages, PushPages(push=self._push, source=self._source, pages=tuple(self._pages)))

    @contextmanager
    def finished_beside(self) -> Iterator[None]:
        """Finishes in a thread while the block runs, which must not touch this. After an error it waits a moment, and gives up."""
        thread = threading.Thread(target=self.finish, daemon=True, name="rlds2reverb-pages")
        thread.start()
        try:
            yield
            thread.join()  # in here, because an interruption may come while it waits
        except BaseException:
            thread.join(_AFTER_ERROR_SECONDS)
            if thread.is_alive():
                self._has_given_up, self.failure = True, self.failure or "the push was stopped"
            raise

    def take_listed(self, rows: Sequence[tuple[str, int]]) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """Rows (episode, items) of episodes that were added before: those whose page is written, and those that may be written later."""
        if self._has_given_up:
            return [], []
        waiting = {episode[0] for episodes in self._waiting.values() for episode in episodes}
        waiting.update(name for page in self._unwritten for name in page.names)
        return [row for row in rows if row[0] not in waiting], [row for row in rows if row[0] in waiting]

    def _take_waiting(self) -> list[EpisodePage]:
        waiting, self._waiting, self._items = self._waiting, {}, 0
        self._written_at = time.monotonic()
        return [self._page(kind, episodes) for kind, episodes in waiting.items()]

    def _page(self, kind: PageKind, waiting: _Waiting) -> EpisodePage:
        names, key_names, rows, origins = zip(*waiting)
        items = [len(own) for own in rows]
        begins, all_rows = np.cumsum(items) - items, np.concatenate(rows)
        return EpisodePage(
            push=self._push,
            source=self._source,
            tables=kind.tables,
            push_seed=kind.push_seed,
            is_of_stream=kind.is_of_stream,
            names=names,
            key_names=() if key_names == names else key_names,
            starts=tuple((np.minimum.reduceat(all_rows, begins) - origins).tolist()),
            stops=tuple((np.maximum.reduceat(all_rows, begins) - origins + 1).tolist()),
            items=tuple(items),
        )

    def _write(self, pages: Sequence[EpisodePage], whole: PushPages | None = None) -> None:
        if self._has_given_up:
            return
        self._unwritten += pages
        try:
            names = write_pages(self._transport, self._unwritten, self.seconds, whole)
        except Exception as error:
            if not self.failure:
                LOG.warning("server %s: its list of episodes could not be written: %s", self._transport.address, error)
            self.failure = reason_of(error)
            if len(self._unwritten) >= MOST_UNWRITTEN:
                self._unwritten, self._has_given_up = [], True
            return
        self._pages += names
        self._unwritten, self.failure = [], ""
        self._untidied += len(names)
        # As it goes: of 40,000 small pages, which a day with a ledger makes, reading takes half a minute.
        if self._untidied >= MOST_ITEMS:
            self._untidied = 0
            try:
                tidy_pages(self._transport, self.seconds)
            except Exception as error:  # all pages are there; the next one joins them
                LOG.warning("server %s: its list of episodes could not be tidied: %s", self._transport.address, error)
