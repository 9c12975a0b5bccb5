"""Makes tests/data/versions/RELEASE: what this release writes and later ones must read; and what a reading of it gives.

Files of a release that is out are never made again. Run, in the full set and then beside PyTorch:

    python tests/data/make_versions.py
    python tests/data/make_versions.py torch
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "server")]

import rlds2reverb
from tests.support.releases import BUNDLED, EXPECTED, FOLDER, plain

TARGET = FOLDER / rlds2reverb.__version__


class Stopped(BaseException):
    """In place of a kill."""


def write_ledger() -> None:
    from rlds2reverb.push.ledger import SqliteLedger
    from tests.support import stored_formats

    path = TARGET / "ledger.db"
    with SqliteLedger(path, "push 1", "1f", "a:8000") as ledger:
        ledger.note_source("npz:demos", 3)
        ledger.record([(stored_formats.name_of(0), 3)])
    with SqliteLedger(path, "push 1", "2f", "a:8000") as ledger:
        ledger.record([(stored_formats.name_of(1), 4)])


def write_server() -> None:
    """A server that was filled, and started again with a smaller table; then it was killed."""
    from replay_server.folder_lock import FolderOwner

    from rlds2reverb.servers import journal
    from tests.support import stored_formats
    from tests.support.server_running import Server, ready

    socket.gethostname = lambda: "lab-3"
    os.environ["LOGNAME"] = "ada"
    journal._process_space = lambda: ""  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for max_size, signal_number in ((100, signal.SIGTERM), (5, signal.SIGTERM)):
            with Server(None, folder, {"tables": [{"name": "replay", "max_size": max_size}]}) as server:
                ready(server.url)
                if max_size == 100:
                    with rlds2reverb.connect(server.address) as client:
                        client.push(stored_formats.episodes(), table="replay", note="first recording")
                        client.delete_episodes(episodes=[stored_formats.episodes()[1].id], note="gripper open")
                server.process.send(signal_number)
                server.process.wait()
        shutil.copytree(
            folder / "checkpoints", TARGET / "server", ignore=shutil.ignore_patterns("reverb", "taken", "LOCK")
        )
    owner = FolderOwner("lab-3", 7, "2026-11-30 00:00:00Z", "boot", 12, "token", "2026-11-30 00:00:05Z", 10**9 + 1)
    (TARGET / "server" / "OWNER.json").write_bytes(owner.encoded())


def write_place_owner() -> None:
    from replay_server.uploads import OWNER, PlaceOwner, _encode_owner

    (TARGET / "bucket").mkdir()
    owner = PlaceOwner("folder", "token", "process 7 on host lab-3", 12, program=rlds2reverb.__version__)
    (TARGET / "bucket" / OWNER).write_bytes(_encode_owner(owner))


def write_statistics() -> None:
    from rlds2reverb.inspection.values import statistics

    statistics(rlds2reverb.open_source(BUNDLED)).write(TARGET / "statistics.json")


def write_states() -> None:
    from tests.support import stored_formats

    (TARGET / "states").mkdir(exist_ok=True)
    for name, batches in {"local": stored_formats.local(), "mix": stored_formats.mix()}.items():
        for _ in range(3):
            next(batches)
        (TARGET / "states" / f"{name}.json").write_text(json.dumps(batches.state()))


def write_progress() -> None:
    from rlds2reverb.conversion import convert as engine
    from tests.support import gated, stored_formats

    engine.SYNC_SECONDS = 0.0

    def stop(_: Path) -> None:
        raise Stopped

    (TARGET / "conversion").mkdir()
    try:
        engine.convert(gated.Gated(TARGET, stored_formats.COUNT, 2, at_gate=stop), f"tfds:{TARGET / 'conversion/own'}")
    except Stopped:
        print(sorted(path.name for path in (TARGET / "conversion").rglob("*")))


def write_torch() -> None:
    from tests.support import torch_states

    for name, state in torch_states.states().items():
        (TARGET / "states" / f"{name}.json").write_text(json.dumps(state))
    expected = {name: read(TARGET) for name, read in torch_states.READERS.items()}
    note_expected(expected)


def note_expected(values: dict[str, Any]) -> None:
    path = TARGET / EXPECTED
    before = json.loads(path.read_bytes()) if path.exists() else {}
    path.write_text(json.dumps({**before, **plain(values)}, indent=1, sort_keys=True) + "\n")


def main() -> None:
    if sys.argv[1:] == ["torch"]:
        write_torch()
        return
    from tests.support.stored_formats import FORMATS, STATES, UNMARKED

    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    for write in (write_ledger, write_server, write_place_owner, write_statistics, write_states, write_progress):
        write()
    readers = {**{name: form.read for name, form in FORMATS.items()}, **STATES, **UNMARKED}
    with tempfile.TemporaryDirectory() as folder:  # reading continues a conversion, and opens a ledger
        copy = shutil.copytree(TARGET, Path(folder) / "copy")
        note_expected({name: read(copy) for name, read in readers.items()})


if __name__ == "__main__":
    main()
