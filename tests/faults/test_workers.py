"""A push by workers into a real server, one of which is killed, or all interrupted: nothing is missing, nothing is there twice."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlds2reverb import Client
from tests.support.faults import tools
from tests.support.forks import Embedded
from tests.support.gated import Gated, episode

pytestmark = [pytest.mark.faults, pytest.mark.server, pytest.mark.timeout(180)]

COUNT = 60
ITEMS = tools.items_of([episode(number) for number in range(COUNT)])


def assert_stored_once(server: Embedded) -> None:
    taken = tools.take_keys_and_items(server.address, "one")
    assert len({key for key, _ in taken}) == len(taken)
    assert sorted(content for _, content in taken) == sorted(ITEMS)


def test_they_store_every_item_once_under_the_keys_of_one_pusher(
    server: Embedded, client: Client, tmp_path: Path
) -> None:
    report = client.push(Gated(tmp_path, COUNT), "one", workers=2)
    assert (report.items_confirmed, report.items_new) == (len(ITEMS), len(ITEMS))
    again = client.push(Gated(tmp_path, COUNT), "one")
    assert (again.items_confirmed, again.items_new) == (len(ITEMS), 0)
    assert_stored_once(server)


def test_a_worker_that_is_killed_loses_nothing_and_doubles_nothing(
    server: Embedded, client: Client, tmp_path: Path
) -> None:
    source = Gated(tmp_path, COUNT, gate=20)
    with ThreadPoolExecutor(1) as background:
        pushing = background.submit(lambda: client.push(source, "one", workers=2))
        os.kill(source.wait_for_worker(), signal.SIGKILL)
        source.open()
        report = pushing.result()
    assert (report.parts_again, report.items_confirmed, report.items_new) == (1, len(ITEMS), len(ITEMS))
    assert_stored_once(server)
