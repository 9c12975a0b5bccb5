"""Messages are values: they cannot be changed, and compare by what they say."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from rlds2reverb.wire.messages import Chunk, InsertRequest, Item, ItemColumn, RateLimiter, ServerInfo, Slice, TableInfo

SLICE = Slice(chunk_key=1, offset=2, length=3, column=4)
ITEM = Item(5, "replay", 1.5, (ItemColumn((SLICE,)),))
CHUNK = Chunk(1, 2, 0, 3, (np.zeros(3),))
LIMITER = RateLimiter(1.0, 0.0, 5.0, 1, 0, 0)
TABLE = TableInfo("replay", "uniform", "fifo", 10, 0, 0, LIMITER, None, 0, 0, 0)
ALL = [SLICE, ITEM, ITEM.columns[0], CHUNK, InsertRequest((CHUNK,), (ITEM,), (1,)), LIMITER, TABLE, ServerInfo(1, {})]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_a_message_cannot_be_changed(message: Any) -> None:
    for field in dataclasses.fields(message):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, field.name, None)


def test_items_compare_by_value() -> None:
    assert dataclasses.replace(ITEM, columns=(ItemColumn((Slice(1, 2, 3, 4),)),)) == ITEM
    assert dataclasses.replace(ITEM, columns=(ItemColumn((SLICE,), squeeze=True),)) != ITEM
    assert len({ITEM, dataclasses.replace(ITEM)}) == 1


def test_a_column_keeps_its_first_axis_unless_told() -> None:
    assert not ItemColumn((SLICE,)).squeeze
