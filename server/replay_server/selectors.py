"""Selectors by name: how a table chooses the item to sample, or the one to remove."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

Selector = Literal["uniform", "fifo", "lifo", "max_heap", "min_heap", "prioritized"]
SELECTORS: tuple[Selector, ...] = get_args(Selector)

Entries = list[tuple[float, int]]
"""(priority, key) of items, in the order of their insertion."""


def reverb_selector(name: str, priority_exponent: float) -> Any:
    """One of `reverb.selectors`.

    Raises:
      ValueError: there is none of this name, or Reverb refuses the exponent.
    """
    from reverb import selectors

    makers = {
        "uniform": selectors.Uniform,
        "fifo": selectors.Fifo,
        "lifo": selectors.Lifo,
        "max_heap": selectors.MaxHeap,
        "min_heap": selectors.MinHeap,
        "prioritized": lambda: selectors.Prioritized(priority_exponent),
    }
    if name not in makers:
        raise ValueError(f'selector "{name}", expected one of {", ".join(SELECTORS)}')
    return makers[name]()


def removal_order(remover: str, entries: Entries) -> Entries:
    """The items in the order in which a remover would take them out; by chance for one that draws."""
    return _ORDERS[remover](entries)


def _shuffled(entries: Entries) -> Entries:
    return random.sample(entries, len(entries))


_ORDERS: Mapping[str, Callable[[Entries], Entries]] = {
    "fifo": lambda entries: entries,
    "lifo": lambda entries: entries[::-1],
    "min_heap": sorted,
    "max_heap": lambda entries: sorted(entries, reverse=True),
    "uniform": _shuffled,
    "prioritized": _shuffled,
}
