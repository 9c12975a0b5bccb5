"""Tables that do not take the items of an output, or are too small for them, are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlds2reverb.errors import CapacityError, ConfigError, SpecMismatch
from rlds2reverb.formats.source import spec_of
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.prepare.preparation import Output
from rlds2reverb.push.tables import check_size, check_tables
from rlds2reverb.specs import ArraySpec, Nest, flatten, with_view
from rlds2reverb.views import view_of
from rlds2reverb.views.trajectory import table_signature, two_step
from rlds2reverb.wire.messages import RateLimiter, ServerInfo, TableInfo
from tests.support import strategies

STEPS = filled_spec(spec_of(strategies.episode(np.random.default_rng(0), 4)))
SIGNATURE = two_step().signature(STEPS)


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


class TestViews:
    """Tables whose signature says which view it is for."""

    TWO_STEP, FREE = table_signature(SIGNATURE, "two_step"), table_signature(SIGNATURE)

    def push(self, view: str, table: TableInfo, **options: Any) -> None:
        output = Output(("a",), view_of(view))
        check_tables(output, output.view.signature(STEPS), ServerInfo(1, {"a": table}), **options)

    def test_of_the_same_view_or_of_any_are_accepted(self) -> None:
        for view in ("two_step", "sequence:length=2", "two_step:priority=3"):
            self.push(view, a_table("a", self.TWO_STEP))
        for view in ("two_step", "sequence:length=4", "episode"):
            self.push(view, a_table("a", self.FREE))
            self.push(view, a_table("a"))

    @pytest.mark.parametrize(
        "view", ["sequence:length=4", "sequence:length=2,stride=2", "episode", "two_step:extras=all"]
    )
    def test_of_another_view_are_refused_unless_that_is_allowed(self, view: str) -> None:
        full = replace(a_table("a", self.TWO_STEP), current_size=1)
        with pytest.raises(SpecMismatch) as error:
            self.push(view, full)
        assert error.value.differences[0] == f"view: items are of {view_of(view).label}, table is for two_step"
        assert "--allow-other-views" in error.value.way_out
        assert "empty" not in error.value.way_out
        self.push(view, full, allow_other_views=True)

    def test_that_are_empty_can_be_made_anew(self) -> None:
        with pytest.raises(SpecMismatch, match=r"the table is empty: .*write view: episode into .*--allow-other-views"):
            self.push("episode", a_table("a", self.TWO_STEP))

    def test_whose_leaves_differ_are_refused_all_the_same(self) -> None:
        other = self.TWO_STEP._replace(reward=ArraySpec((None,), np.dtype(np.float64)))
        with pytest.raises(SpecMismatch, match=r"reward: items have float32\[4\], table has float64\[\?\]"):
            self.push("sequence:length=4", a_table("a", other), allow_other_views=True)
        with pytest.raises(SpecMismatch) as error:
            self.push("transition", a_table("a", self.TWO_STEP))
        assert "allow_other_views" not in error.value.way_out

    def test_of_views_with_equal_leaves_are_told_apart(self) -> None:
        three = with_view(view_of("n_step:n=3").signature(STEPS), view_of("n_step:n=3").label)
        with pytest.raises(SpecMismatch) as error:
            self.push("n_step:n=5", a_table("a", three))
        assert len(error.value.differences) == 1
        self.push("n_step:n=3", a_table("a", three))


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
