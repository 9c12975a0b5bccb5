"""What is told of tables: a server's, one by itself, and those of a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import rlds2reverb
from rlds2reverb.client import Client
from rlds2reverb.episode import Notice
from rlds2reverb.look.notebook import notices, plan_html, server_html, table_html, table_plan_html
from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from rlds2reverb.wire.messages import ServerInfo
from tests.support.look.pages import Page
from tests.unit.look.test_notebook_showing import MOST

SIGNATURE = {f"column{number}": ArraySpec((2,), np.dtype(np.float32)) for number in range(10_000)}


def planned(**options: Any) -> Any:
    needed = rlds2reverb.inspect("bundled:cartpole").outputs["replay"].signature
    with Client(MemoryTransport(MemoryServer(table_info("replay", max_size=4000, signature=needed)))) as client:
        return client.plan("bundled:cartpole", table="replay", **options)


def test_every_table_of_a_server_has_a_row_and_a_signature() -> None:
    tables = {
        "b": table_info("b", max_size=10),
        "a": table_info("a", max_size=20, signature={"x": ArraySpec((), np.dtype(bool))}),
    }
    page = Page(server_html(ServerInfo(1, tables)))
    assert [row[:2] for row in page.cells[:3]] == [
        ["table", "items"],
        ["a", "0 of 20, 0 episodes"],
        ["b", "0 of 10, 0 episodes"],
    ]
    assert page.row("x") == "bool[]"
    assert "table b has no signature: it takes anything" in page.text
    assert "inserts may go on" in page.row("a")


def test_a_server_without_tables_says_so() -> None:
    assert Page(server_html(ServerInfo(1, {}))).text.startswith("Reverb server 0 tables")


def test_ten_thousand_tables_of_ten_thousand_columns_are_counted() -> None:
    one = table_info("a", max_size=10, signature=SIGNATURE)
    html = server_html(ServerInfo(1, {f"t{number:05}": replace(one, name=f"t{number:05}") for number in range(10_000)}))
    assert len(html) < MOST
    assert "and 9,960 more tables" in Page(html).text
    assert "and 9,960 more columns" in Page(table_html(one)).text


def test_two_columns_of_one_name_are_said_and_the_rest_is_shown() -> None:
    leaf = ArraySpec((), np.dtype(bool))
    page = Page(table_html(table_info("a", max_size=10, signature={"x": {"y": leaf}, "x/y": leaf})))
    assert "cannot be shown: SpecError" in page.text
    assert page.row("items").startswith("0 of 10")


def test_a_plan_tells_the_room_of_its_tables() -> None:
    plan = planned()
    page = Page(plan_html(plan))
    assert page.text.startswith("Plan of a push bundled:cartpole")
    assert page.row("source") == "bundled:cartpole  (25 episodes)"
    assert page.row("replay") == "view two_step; makes 2,931 items; 0 of at most 4,000 items, so 4,000 more fit"
    assert page.text.endswith("Nothing has been sent.")
    assert "so 4,000 more fit" in Page(table_plan_html(plan.tables[0])).text


def test_a_plan_tells_its_transform() -> None:
    page = Page(plan_html(planned(transform="rename=observation:observation")))
    assert page.row("rename") == "observation -> observation"


def test_a_plan_for_several_servers_names_them() -> None:
    plan = planned()
    (info,) = plan.infos.values()
    several = replace(plan, names={"a:1": "a", "b:1": "b"}, infos={"a:1": info}, server_tables={"a:1": plan.tables})
    page = Page(several._repr_html_())
    assert page.row("a:1") == "replay 0 of 4,000"
    assert page.row("b:1") == "missing; its episodes are left out"


def test_many_remarks_are_counted() -> None:
    page = Page(notices([Notice("code", "text")] * 1_000_000))
    assert page.text.startswith("advice code: text")
    assert page.text.endswith("and 999,980 more")
