"""A server starts from what each release has left, with its journal and its deletes."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

import rlds2reverb
from tests.support.forks import Forks
from tests.support.releases import FOLDER
from tests.support.server_running import Server, ready
from tests.support.stored_formats import episodes

pytestmark = [pytest.mark.server, pytest.mark.full, pytest.mark.timeout(180)]


@pytest.mark.parametrize("release", sorted(path.name for path in FOLDER.iterdir()))
def test_a_server_continues_what_a_release_has_left(release: str, forks: Forks, tmp_path: Path) -> None:
    shutil.copytree(FOLDER / release / "server", tmp_path / "checkpoints", ignore=shutil.ignore_patterns("OWNER.json"))
    with Server(forks, tmp_path, {"tables": [{"name": "replay", "max_size": 100}]}) as server:
        assert ready(server.url)["tables"] == {"replay": 5}
        with rlds2reverb.connect(server.address) as client:
            before = client.journal()
            assert [entry.kind for entry in before] == ["push", "delete"]
            report = client.push(episodes(), table="replay")
            # Of 9 items one episode was deleted, and a smaller table has left one item out.
            assert (report.items_new, ready(server.url)["tables"]) == (1, {"replay": 6})
            assert len(client.journal()) == len(before) + 1
        server.process.send(signal.SIGTERM)
        assert server.process.wait() == 0
