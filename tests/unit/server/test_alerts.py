"""The alerts of a server that nobody watches: the same as Prometheus', each with its entry in the runbook."""

from __future__ import annotations

import base64
import importlib.util
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from replay_server import alerts
from replay_server.alerts import ALERTS, AlertWatch
from replay_server.checkpoints import CheckpointState, Outcome, Space
from replay_server.choosing import Unloaded
from replay_server.config import decode, table_configs
from replay_server.fitting import Fit, TableFit
from replay_server.history import MOST_TEXT
from replay_server.memory import MemoryLimit
from replay_server.monitor import Monitor, TableCounts
from replay_server.restore import Start
from replay_server.retention import Keep
from replay_server.service import ReplayService
from replay_server.state import ServerState
from replay_server.store import Checkpoint, Manifest
from replay_server.uploads import Uploads, UploadState

from rlds2reverb.formats.buckets import BucketPath
from rlds2reverb.wire.messages import ServerInfo, TableInfo
from tests.support.push.in_memory import table_info

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[3]
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "server/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


def renderer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_runbook", ROOT / "scripts" / "render_runbook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


def test_the_page_of_the_runbook_is_fresh() -> None:
    runbook = renderer()
    assert runbook.TARGET.read_text() == runbook.wanted(), "runbook.html is stale: run `make docs`"


def test_the_service_knows_the_alerts_of_prometheus() -> None:
    known = {alert.name: (alert.severity, alert.for_seconds) for alert in ALERTS}
    assert known == {name: (rule["labels"]["severity"], seconds(rule.get("for", "0s"))) for name, rule in RULES.items()}


@pytest.mark.parametrize("name", RULES)
def test_each_alert_has_its_entry_in_the_runbook_and_on_the_page_of_it(name: str) -> None:
    anchor = RULES[name]["annotations"]["runbook"].partition("#")[2]
    assert anchor == name.lower()
    assert f"\n### {name}\n" in (ROOT / "docs/runbook.md").read_text()
    assert f'<h3 id="{anchor}">{name}</h3>' in renderer().TARGET.read_text()


def test_links_of_the_runbooks_page_lead_somewhere_without_a_network() -> None:
    page = renderer().TARGET.read_text()
    anchors = set(re.findall(r' id="([^"]+)"', page))
    links = set(re.findall(r'(?:href|src)="([^"]+)"', page))
    pictures = {link for link in links if link.startswith("data:image/")}
    links -= pictures
    assert {link for link in links if link.startswith("#")} <= {f"#{anchor}" for anchor in anchors}
    assert {link for link in links if not link.startswith("#")} == {"./", "data:,", "page/style.css"}
    named = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "docs/runbook.md").read_text())
    assert named
    wanted = {base64.b64encode((ROOT / "docs" / name).read_bytes()).decode() for name in named}
    assert {picture.removeprefix("data:image/png;base64,") for picture in pictures} == wanted


def test_markup_in_a_runbook_is_text_and_far_links_are_named() -> None:
    render = renderer().render
    page = render(
        "# A & b\n\n<script>alert(1)</script> [here](#a--b) and [there](scale.md#x), [cli.md](cli.md) ![of it](report.png)\n"
    )
    assert '<h1 id="a--b">A &amp; b</h1>' in page
    assert "<script>" not in page
    assert '<a href="#a--b">here</a> and there (docs/scale.md), docs/cli.md <img src="data:image/png;base64,' in page


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("ReplayCheckpointTooOld", [alerts.OLD_SECONDS]),
        ("ReplayUploadBehind", [alerts.BEHIND_SECONDS]),
        ("ReplayTableNearlyFull", [alerts.FULL_SHARE]),
        ("ReplayLimiterBlocked", [alerts.WAIT_SHARE]),
        ("ReplayMemoryNearLimit", [alerts.MEMORY_SHARE, alerts.BYTES_PER_ITEM]),
    ],
)
def test_bounds_are_those_of_prometheus(name: str, bounds: list[float]) -> None:
    numbers = {float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", RULES[name]["expr"])}
    assert set(bounds) <= numbers


class Clock:
    """Stands until it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    """A service that never starts, of which nothing is wrong, and who watches it."""

    def __init__(self, folder: Path) -> None:
        config = decode({"tables": [{"name": "t"}], "checkpoints": {"folder": str(folder)}}, "config")
        self.state: ServerState = ReplayService(config, table_configs(config)).state
        self.clock = Clock()
        self.state.phase = "ready"
        self.watch = AlertWatch(self.state, self.clock)

    def holds(self, *tables: TableInfo) -> None:
        info = ServerInfo(7, {table.name: table for table in tables})
        self.state.monitor = Monitor(lambda: info)
        self.state.monitor.look()

    def told(self, after: float = 0.0) -> dict[str, dict[str, Any]]:
        """What is wrong, once it was so for long."""
        self.watch.look()
        self.clock.now += after
        return {alert["alert"]: alert for alert in self.watch.document()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.holds(replace(table_info("t"), max_size=1000, current_size=10))
    return made


def test_of_a_healthy_server_nothing_is_told(world: World) -> None:
    assert world.told(after=10_000) == {}


def test_what_has_begun_is_told_and_fires_when_its_time_has_come(world: World) -> None:
    world.state.phase = "restoring"
    assert world.told(after=119)["ReplayNotReady"]["firing"] is False
    fires = world.told(after=1)["ReplayNotReady"]
    assert (fires["firing"], fires["seconds"], fires["severity"]) == (True, 120.0, "critical")
    assert fires["found"] == [{"table": "", "words": "the server is restoring"}]
    world.state.phase = "ready"
    assert world.told() == {}
    world.state.phase = "restoring"
    assert world.told()["ReplayNotReady"]["seconds"] == 0.0


def test_no_checkpoint_for_long(world: World) -> None:
    world.state.started_at = time.time() - 3700
    assert world.told(after=300)["ReplayCheckpointTooOld"]["found"][0]["words"] == "no good checkpoint for 61 minutes"


def test_data_that_rests_needs_no_newer_checkpoint(world: World, tmp_path: Path) -> None:
    world.state.started_at = time.time() - 9000
    newest = Checkpoint(12, tmp_path / "000012", Manifest(time.time() - 8000, 1.0, {}))
    newest.folder.mkdir()
    world.state.checkpoints.state = CheckpointState(last=newest)
    world.state.checkpoints.holds_all_at = time.time() - 3000  # it has changed since
    assert "ReplayCheckpointTooOld" not in world.told(after=300)
    world.state.checkpoints.holds_all_at = time.time() - 3700
    assert world.told(after=300)["ReplayCheckpointTooOld"]["found"][0]["words"] == "no good checkpoint for 61 minutes"


def test_a_checkpoint_that_is_gone_is_none(world: World, tmp_path: Path) -> None:
    world.state.started_at = time.time() - 3700
    newest = Checkpoint(12, tmp_path / "000012", Manifest(time.time(), 1.0, {}))
    world.state.checkpoints.state = CheckpointState(last=newest)
    words = world.told(after=300)["ReplayCheckpointTooOld"]["found"][0]["words"]
    assert words == "no good checkpoint for 61 minutes; checkpoint 12 is gone from the folder"
    newest.folder.mkdir()
    assert world.told() == {}


def test_a_failed_checkpoint_fires_at_once_and_for_an_hour(world: World) -> None:
    for when, error in ((3700, "long ago"), (50, "the disk is full")):
        world.state.recorder.note(Outcome(time.time() - when, 1.0, "schedule", error=error))
    told = world.told()["ReplayCheckpointFailed"]
    assert told["firing"]
    assert told["found"][0]["words"] == "1 checkpoint failed, the newest: the disk is full"


def test_a_long_reason_of_a_failed_checkpoint_ends_with_its_cause(world: World) -> None:
    error = f"/data/{'long/' * 80}checkpoints: cannot be written (No space left on device)"
    world.state.recorder.note(Outcome(time.time() - 50, 1.0, "schedule", error=error))
    (found,) = world.told()["ReplayCheckpointFailed"]["found"]
    kept = found["words"].partition(", the newest: ")[2]
    assert len(kept) == MOST_TEXT
    assert kept.startswith("/data/long/")
    assert kept.endswith("checkpoints: cannot be written (No space left on device)")
    state = world.state.checkpoints.state
    for last_error, told in ((error, error), ("another one, of an older checkpoint", kept)):
        world.state.checkpoints.state = replace(state, last_error=last_error)
        (found,) = world.told()["ReplayCheckpointFailed"]["found"]
        assert found["words"] == f"1 checkpoint failed, the newest: {told}"


def test_a_disk_without_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.state.checkpoints, "space", lambda: Space(1000, 2000))
    words = world.told(after=60)["ReplayCheckpointDiskFull"]["found"][0]["words"]
    assert words == "1,000 bytes are free, the next checkpoint needs about 2,000"
    monkeypatch.setattr(world.state.checkpoints, "space", lambda: None)
    assert world.told() == {}


def test_a_bucket_that_lacks_the_checkpoints_of_an_hour(world: World) -> None:
    uploads = Uploads(world.state.store, BucketPath("s3://bucket/replay"), Keep(last=3))
    world.state.uploads = uploads
    uploads.state = UploadState(waiting=((3, time.time() - 3500),))
    assert world.told(after=300) == {}
    uploads.state = UploadState(waiting=((3, time.time() - 3700), (4, time.time())), last_error="no answer")
    words = world.told(after=300)["ReplayUploadBehind"]["found"][0]["words"]
    assert words == "s3://bucket/replay: nothing new for 61 minutes: no answer"


def test_of_many_full_tables_some_are_named(world: World) -> None:
    names = [f"t{n:04d}" for n in range(1000)]
    world.holds(*(replace(table_info(name), max_size=100, current_size=96) for name in names))
    told = world.told(after=300)["ReplayTableNearlyFull"]
    assert (told["count"], len(told["found"])) == (1000, 5)
    assert told["found"][0] == {"table": "t0000", "words": "96 of 100 items"}


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (TableCounts(5, 5, 5, 0.0, 290.0), "no sample went through for minutes, and somebody waits"),
        (TableCounts(5, 5, 5, 290.0, 0.0), "no insert went through for minutes, and somebody waits"),
        (TableCounts(5, 6, 5, 0.0, 290.0), ""),
        (TableCounts(5, 5, 5, 0.0, 30.0), ""),
    ],
)
def test_a_limiter_that_lets_nothing_through(
    world: World, monkeypatch: pytest.MonkeyPatch, new: TableCounts, words: str
) -> None:
    now = time.time()
    moments = [(now - 290, {"t": TableCounts(5, 5, 5)}), (now, {"t": new})]
    monkeypatch.setattr(world.state.monitor, "history", lambda: moments)
    told = world.told(after=600)
    assert [alert["found"][0]["words"] for alert in told.values()] == ([words] if words else [])


def test_memory_with_what_a_checkpoint_takes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "resident_bytes", lambda: 800)
    monkeypatch.setattr(alerts, "memory_limit", lambda: MemoryLimit(16_000, "container"))
    assert world.told(after=120)["ReplayMemoryNearLimit"]["found"][0]["words"].startswith("92% of the memory limit")
    monkeypatch.setattr(alerts, "memory_limit", lambda: MemoryLimit(0, "machine"))  # nobody tells
    assert world.told() == {}


def test_the_worst_is_told_first(world: World) -> None:
    world.state.checkpoints.state = CheckpointState()
    world.state.started_at = time.time() - 3700
    world.state.recorder.note(Outcome(time.time(), 1.0, "schedule", error="no"))
    world.state.phase = "restoring"
    assert list(world.told(after=400)) == ["ReplayNotReady", "ReplayCheckpointFailed", "ReplayCheckpointTooOld"]


def test_what_a_start_passed_over_or_left_out_of_another_experiment(world: World, tmp_path: Path) -> None:
    lost = TableFit("t", 2, lost=3, changes=("trimmed",), detail="max_size is 2 now")
    passed = Unloaded(tmp_path / "000003", "000003/DONE: cannot be read (No such file or directory)", is_readable=True)
    world.state.start = Start(None, Fit((), (lost,)), None, (passed,))
    found = {finding["table"]: finding["words"] for finding in world.told()["ReplayItemsSetAside"]["found"]}
    assert found == {
        "t": "3 items not restored: max_size is 2 now; in None",
        "": f"1 newer checkpoint not loaded, the newest: {passed.reason}",
    }
