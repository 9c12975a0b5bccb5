"""Tables that do not take the items of an output, or are too small for them, are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb.conventions import filled_spec
from rlds2reverb.errors import CapacityError, ConfigError, SpecMismatch
from rlds2reverb.push.outputs import Output
from rlds2reverb.push.tables import check_size, check_tables
from rlds2reverb.sources.base import spec_of
from rlds2reverb.specs import ArraySpec, Nest, flatten
from rlds2reverb.views.sequence import two_step
from rlds2reverb.wire.messages import RateLimiter, ServerInfo, TableInfo
from tests import strategies

SIGNATURE = two_step().signature(filled_spec(spec_of(strategies.episode(np.random.default_rng(0), 4))))


def a_table(name: str, signature: Nest | None = None, max_size: int = 9) -> TableInfo:
    return TableInfo(name, "uniform", "fifo", max_size, 0, 0, RateLimiter(1.0, -1e9, 1e9, 1, 0, 0), signature, 0, 0, 0)


def info(**signatures: Any) -> ServerInfo:
    return ServerInfo(1, {name: a_table(name, signature) for name, signature in signatures.items()})


def check(tables: tuple[str, ...], found: ServerInfo) -> None:
    check_tables(Output(tables), SIGNATURE, found)


class TestTables:
    def test_that_fit_are_accepted(self) -> None:
        check(("a", "free"), info(a=SIGNATURE, free=None))

    def test_that_do_not_exist_are_named_with_those_that_do(self) -> None:
        with pytest.raises(ConfigError, match='the server has no table "c"; it has a, b'):
            check(("a", "c"), info(a=None, b=None))
        with pytest.raises(ConfigError, match='the server has no table "c"; it has none'):
            check(("c",), info())

    def test_with_another_signature_are_named_with_every_difference(self) -> None:
        other = {**flatten(SIGNATURE), "y": ArraySpec((), np.dtype(np.float32))}
        with pytest.raises(SpecMismatch) as error:
            check(("a", "b"), info(a=SIGNATURE, b=other))
        assert error.value.where == 'table "b"'
        assert error.value.differences == ("y: table has float32[], items have no such column",)


class TestSizes:
    TABLES = ServerInfo(1, {"large": a_table("large", max_size=9), "small": a_table("small", max_size=5)})

    def test_that_suffice_are_accepted(self) -> None:
        check_size(Output(("large", "small")), self.TABLES, 5, "more than 4")
        check_size(Output(("large",)), self.TABLES, 9, "more than 8")

    def test_too_small_are_refused_by_name(self) -> None:
        with pytest.raises(
            CapacityError, match=r'table "small": max_size 5 is .* push \(more than 5 items\), so the oldest'
        ):
            check_size(Output(("large", "small")), self.TABLES, 6, "more than 5")

    def test_of_a_queue_do_not_matter(self) -> None:
        queue = replace(a_table("q"), max_times_sampled=1, rate_limiter=RateLimiter(1.0, 0.0, 9.0, 1, 0, 0))
        check_size(Output(("q",)), ServerInfo(1, {"q": queue}), 100, "at least 100")
