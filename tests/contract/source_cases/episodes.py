"""Lists of episodes."""

from __future__ import annotations

from typing import Any

from rlds2reverb.episode import Episode
from rlds2reverb.formats import open_source
from tests.contract.source_cases import data


def listed(with_ids: bool) -> Any:
    return open_source(
        [Episode(column, {"number": at}, f"name {at}" if with_ids else "") for at, column in enumerate(data.columns())]
    )


SOURCES = {
    "with ids": lambda: listed(with_ids=True),
    "without ids": lambda: listed(with_ids=False),
    "empty": lambda: open_source([]),
}
PUSHED = ["without ids"]
