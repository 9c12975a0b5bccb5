"""What is looked at before anything is sent: the tables of all servers, and their room together."""

from __future__ import annotations

import json

import pytest

from rlds2reverb.errors import CapacityError, ConfigError, SpecMismatch
from tests.support.push.in_memory import FLOAT, Server, episodes, table_info
from tests.support.push.many_servers import planned, push, servers


def test_tables_of_all_servers_are_compared_before_anything_is_sent() -> None:
    group = servers(2)
    group["c:8000"] = Server({"replay": table_info(signature={"x": FLOAT})})
    with pytest.raises(SpecMismatch, match=r'^c:8000: table "replay": signature'):
        push(group, episodes(4))
    group["c:8000"] = Server({"other": table_info("other")})
    with pytest.raises(ConfigError, match=r'^c:8000: the server has no table "replay"; it has other'):
        push(group, episodes(4))
    assert not any(server.requests for server in group.values())


def test_tables_that_the_push_does_not_fill_need_not_agree() -> None:
    group = {
        "a:1": Server({"replay": table_info(), "other": table_info("other", sampler="fifo")}),
        "b:1": Server({"replay": table_info(), "other": table_info("other")}),
    }
    assert push(group, episodes(4)).episodes_pushed == 4


def test_the_room_is_that_of_all_together() -> None:
    group = {address: Server({"replay": table_info(max_size=6)}) for address in ("a:1", "b:1")}
    with pytest.raises(CapacityError, match="max_size 12 is smaller than the push") as caught:
        push(group, episodes(13, rows=2))
    assert caught.value.report is not None
    assert caught.value.report.episodes_unread == 13
    assert planned(group, episodes(13, rows=2), away=["b:1"]).missing == ("b:1",)  # nobody knows its room


def test_a_view_of_streams_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="items depend on the episodes before, which are on other servers"):
        planned(servers(2), episodes(2), view="across_episodes")


def test_it_tells_of_all_and_of_each() -> None:
    plan = planned(servers(3), episodes(5), away=["b:8000"])
    told = json.loads(json.dumps(plan.as_dict()))
    assert told["missing"] == ["b:8000"]
    assert list(told["servers"]) == ["a:8000", "c:8000"]
    assert told["episodes"] == 5
    assert told["tables"]["replay"]["max_size"] == 2 * told["servers"]["a:8000"]["replay"]["max_size"]
    assert plan.server_tables["a:8000"][0].most_items is None
