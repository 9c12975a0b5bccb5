"""Episodes deleted from a real server stay out: across restarts, kills, ledgers and workers."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import rlds2reverb
from rlds2reverb.wire.messages import JOURNAL
from tests.support.faults.proxy import UP, Proxy
from tests.support.forks import Forks
from tests.support.processes import started, wait_until
from tests.support.server_running import Server, ready

pytestmark = [pytest.mark.server, pytest.mark.timeout(300)]

CONFIG = {"tables": [{"name": "t"}, {"name": "u"}]}
SOURCE, EPISODES = "bundled:cartpole", 25


def run(running: Server, *arguments: str, code: int = 0) -> Any:
    """The JSON of a command for the server."""
    with started(running.folder, "-m", "rlds2reverb", *arguments, "--server", running.address, "--json") as process:
        ended, output, errors = process.result()
    assert ended == code, errors
    return json.loads(output)


def push(running: Server, *options: str, code: int = 0) -> Any:
    return run(running, "push", SOURCE, "--table", "t", *options, code=code)


def sizes(running: Server) -> dict[str, int]:
    return dict(ready(running.url)["tables"])


def test_it_stays_out_across_restarts_ledgers_and_workers(forks: Forks, tmp_path: Path) -> None:
    ledger = ("--ledger", str(tmp_path / "push.db"))
    with Server(forks, tmp_path, CONFIG).until_ready() as running:
        whole = push(running, *ledger)["items_confirmed"]
        expected = run(running, "delete", f"{SOURCE}@train[3:5]", "--table", "t", "--dry-run")
        deleted = run(running, "delete", f"{SOURCE}@train[3:5]", "--table", "t", "--note", "crashed")
        assert (expected["items"], expected["dry_run"]) == (deleted["items"], True)
        left = whole - deleted["items"]["t"]
        assert (deleted["episodes"], sizes(running)["t"]) == (2, left)
        for options in (ledger, (), ("--workers", "2")):
            push(running, *options)
            assert sizes(running)["t"] == left
        assert push(running, "--workers", "2")["episodes_deleted"] == 2
        running.process.kill()  # the delete itself has had a checkpoint written
    with Server(forks, tmp_path, CONFIG).until_ready() as running:
        for options in (ledger, ()):
            report = push(running, *options)
            assert (report["episodes_deleted"], report["episodes_pushed"], report["items_new"]) == (2, EPISODES - 2, 0)
        assert sizes(running) == {"t": left, "u": 0}
        kinds = [entry["kind"] for entry in run(running, "journal")["entries"]]
        assert kinds == ["push", "delete", "push", "push"]
        entry = run(running, "journal")["entries"][1]
        assert (entry["note"], entry["source"], entry["items"]) == (
            "crashed",
            f"{SOURCE}@train[3:5]",
            deleted["items"]["t"],
        )
        assert run(running, "delete", "--restore", "--push", entry["id"])["names"] == deleted["names"]
        assert push(running, *ledger)["items_new"] == whole - left
        assert sizes(running)["t"] == whole


def test_a_delete_that_is_killed_is_named_and_finished_by_another(forks: Forks, tmp_path: Path) -> None:
    with Server(forks, tmp_path, CONFIG).until_ready() as running:
        whole = push(running)["items_confirmed"]
        for count in (300, 1_500, 4_000):
            with Proxy(running.grpc) as proxy:
                proxy.hold_after(UP, count)
                arguments = ("delete", "--dataset", SOURCE, "--server", proxy.address)
                with started(tmp_path, "-m", "rlds2reverb", *arguments):
                    proxy.fired.wait(60)
        entries = [entry for entry in run(running, "journal")["entries"] if entry["kind"] == "delete"]
        assert {entry["state"] for entry in entries} <= {"cut off", "done"}
        assert sizes(running)["t"] in (0, whole)
        assert run(running, "delete", "--dataset", SOURCE)["episodes"] == EPISODES
        assert push(running)["episodes_deleted"] == EPISODES
        assert sizes(running)["t"] == 0


def test_deletes_and_pushes_at_once_end_without_the_episodes(forks: Forks, tmp_path: Path) -> None:
    with Server(forks, tmp_path, CONFIG).until_ready() as running:
        push(running)
        with rlds2reverb.connect(running.address) as client:
            names = client.delete_episodes(dataset=SOURCE, dry_run=True).names

            def delete(own: tuple[str, ...]) -> None:
                with rlds2reverb.connect(running.address) as own_client:
                    own_client.delete_episodes(episodes=own)

            threads = [threading.Thread(target=delete, args=(names[at::3],)) for at in range(2)]
            threads.append(threading.Thread(target=lambda: client.push(SOURCE, "u")))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for table in ("t", "u"):
                client.push(SOURCE, table)
                client.delete_episodes(table=table, episodes=[*names[0::3], *names[1::3]])
                assert client.push(SOURCE, table).episodes_deleted == len(names[0::3]) + len(names[1::3])
            left = sum(page for page in client.delete_episodes(episodes=names[2::3], dry_run=True).items.values())
        assert sum(sizes(running).values()) == left


def test_a_hundred_thousand_items_go_in_one_call(forks: Forks, tmp_path: Path) -> None:
    with Server(forks, tmp_path, CONFIG).until_ready() as running:
        with rlds2reverb.connect(running.address) as client:
            client.push("bundled:half_cheetah", "t", "sequence:length=2")
            before = client.tables()["t"].current_size
            report = client.delete_episodes(dataset="bundled:half_cheetah")
            assert report.items["t"] == before
        wait_until(lambda: sizes(running)["t"] == 0, 30)
        assert JOURNAL not in sizes(running)
