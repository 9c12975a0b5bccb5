"""What a page is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlds2reverb.look.html import NOTHING, Html, element, together
from rlds2reverb.report.charts import Charts
from rlds2reverb.report.collector import Collector
from rlds2reverb.reports.inspected import Inspection
from rlds2reverb.wording import number, shortened, visible


@dataclass(frozen=True)
class Dataset:
    """One dataset of a page.

    Attributes:
      inspection: what is told of it.
      config: of a server with its tables; "" where that cannot be told.
    """

    inspection: Inspection
    config: str = ""

    @property
    def collector(self) -> Collector:
        """What was collected beside the inspection."""
        found = self.inspection.watched
        assert isinstance(found, Collector)  # whoever writes a page has it collected
        return found


@dataclass(frozen=True)
class Room:
    """How much a page may hold.

    Attributes:
      picture_bytes: of all images, as they stand in the page.
      columns: with charts.
      dimensions: with charts, of all columns together.
      leaves: of each spec.
      episodes: of each dataset.
    """

    picture_bytes: int = 1_500_000
    columns: int = 200
    dimensions: int = 600
    leaves: int = 300
    episodes: int = 60

    def less(self) -> Room:
        """About half of it."""
        halves = (self.picture_bytes, self.columns, self.dimensions, self.leaves, self.episodes)
        return Room(*(size // 2 for size in halves))


@dataclass
class Content:
    """A page that is being made.

    Attributes:
      datasets: one, or two that are compared.
      room: what it may hold.
      charts: of the page.
      picture_bytes: of all images so far.
      players: of the page so far.
    """

    datasets: Sequence[Dataset]
    room: Room
    charts: Charts = field(default_factory=Charts)
    picture_bytes: int = 0
    players: int = 0

    def takes_picture(self, uri: str) -> bool:
        """Whether there is room for one more image; then it is counted."""
        if self.picture_bytes + len(uri) > self.room.picture_bytes:
            return False
        self.picture_bytes += len(uri)
        return True

    @property
    def are_two(self) -> bool:
        """Whether two datasets are compared."""
        return len(self.datasets) == 2

    def key(self, place: int) -> Html:
        """The name of a dataset with its colour, where there are two."""
        if not self.are_two:
            return NOTHING
        return element("span", shortened(visible(self.datasets[place].inspection.source), 60), class_=f"key key{place}")

    def heading(self, place: int) -> Html:
        """A heading that names the dataset, where there are two."""
        return element("h3", self.key(place)) if self.are_two else NOTHING


def section(anchor: str, title: str, *children: str | None) -> Html:
    """A part of the page."""
    return element("section", element("h2", title, id=anchor), together(children))


def statistics(numbers: dict[str, float | None] | None) -> str:
    """min, median, mean and max on a line."""
    return ", ".join(f"{name} {number(value)}" for name, value in (numbers or {}).items()) or "none"


def listed(names: Sequence[str], most: int = 20) -> str:
    """The first few names."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(shortened(name, 60) for name in names[:most]) + more
