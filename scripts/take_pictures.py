"""Takes the pictures of the docs that show a page or a terminal, of a staged scene: a robot's dataset, and servers in use.

`make pictures` writes docs/report*.png, docs/show.png, docs/top.svg, docs/images/status-*.png and docs/tutorials/*.png. Pages are made and drawn
by the program itself; Chromium is installed where it is missing, which needs root. Staged are the dataset, and the counts, times and paths of
the servers; those of the tutorials are what a reader of them gets.
"""

from __future__ import annotations

import asyncio
import io
import math
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Route, sync_playwright
from replay_server.checkpoints import Space
from replay_server.config import HttpSection, decode, table_configs
from replay_server.history import CheckpointRow, History, HistoryFile, MemorySample, fit_history
from replay_server.http import HttpServer, make_app
from replay_server.monitor import Monitor
from replay_server.recorder import Recorder
from replay_server.service import ReplayService

import rlds2reverb
from rlds2reverb.cli.top.app import TopApp
from rlds2reverb.cli.top.watching import TREND_MOST, Moment, Watch, WatchedServer
from rlds2reverb.episode import Array, Episode
from rlds2reverb.specs import ArraySpec
from rlds2reverb.transport.http import CheckpointPart, NewestCheckpoint, ServerPart, Status, Upload
from rlds2reverb.wire.messages import RateLimiter, ServerInfo, TableInfo

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MOST_BYTES = 150_000
"""Of a picture."""

_HOUR = 3600
_DATASET = "bridge"
_EPISODES = 32
_WIDTH, _HEIGHT = 192, 144
_SHARPER = 3
"""Frames are drawn so many times larger, and then made smaller: smooth edges."""
_TASKS = (
    ("put the carrot in the pot", (232, 119, 34)),
    ("move the green can to the pot", (52, 140, 72)),
    ("put the blue cup in the pot", (58, 98, 190)),
)


def reach(rng: np.random.Generator, steps: int) -> tuple[Array, Array, Array]:
    """A grasp: places of the gripper [steps, 2] and of the object [steps, 2] on the table, and whether the gripper is open [steps]."""
    start, thing = rng.uniform((80, 30), (110, 50)), rng.uniform((22, 92), (84, 118))
    pot = np.array([128.0, 84.0])
    above = np.array([0.0, -34.0])
    stops = np.array([start, thing + above, thing, thing, thing + above, pot + above, pot + above, start])
    shares = np.array([0.0, 0.22, 0.36, 0.42, 0.56, 0.78, 0.84, 1.0])
    at = np.linspace(0, 1, steps)
    leg = np.clip(np.searchsorted(shares, at, side="right") - 1, 0, len(stops) - 2)
    share = (at - shares[leg]) / (shares[leg + 1] - shares[leg])
    smooth = (share**2 * (3 - 2 * share))[:, None]
    gripper = stops[leg] * (1 - smooth) + stops[leg + 1] * smooth + np.cumsum(rng.normal(0, 0.12, (steps, 2)), axis=0)
    is_open = (at < shares[3]) | (at >= shares[6])
    held = np.flatnonzero(~is_open)
    things = np.where(np.arange(steps)[:, None] < held[0], thing, gripper)
    things[held[-1] + 1 :] = pot - (0, 2)
    return gripper, things, is_open


def frame(gripper: Array, thing: Array, is_open: bool, colour: tuple[int, int, int]) -> Array:
    """What a camera beside the table sees: a wall, a table, a pot, an object, and an arm of two links."""
    size = _SHARPER
    picture = Image.new("RGB", (_WIDTH * size, _HEIGHT * size), (206, 212, 214))
    draw = ImageDraw.Draw(picture)

    def line(points: list[tuple[float, float]], width: float, fill: tuple[int, int, int]) -> None:
        draw.line([(x * size, y * size) for x, y in points], fill, int(width * size), joint="curve")

    def oval(x: float, y: float, wide: float, high: float, fill: tuple[int, int, int]) -> None:
        draw.ellipse([(x - wide) * size, (y - high) * size, (x + wide) * size, (y + high) * size], fill)

    def box(x: float, y: float, right: float, low: float, fill: tuple[int, int, int]) -> None:
        draw.rectangle([x * size, y * size, right * size, low * size], fill)

    box(0, 0, _WIDTH, 52, (196, 205, 209))
    box(14, 8, 60, 40, (232, 240, 245))  # a window
    box(36, 8, 38, 40, (170, 178, 182))
    draw.polygon([(x * size, y * size) for x, y in ((0, 60), (_WIDTH, 52), (_WIDTH, 144), (0, 144))], (176, 134, 92))
    for plank in range(5):
        low = 66 + plank * 17
        line([(0, low + 3), (_WIDTH, low - 5)], 0.7, (158, 117, 78))
    oval(thing[0] + 2, max(thing[1] + 6, 92), 8, 2.5, (140, 103, 68))  # its shadow
    x, y = thing
    in_pot = x > 118 and y > 78
    if not in_pot:
        draw.rounded_rectangle([(x - 5) * size, (y - 7) * size, (x + 5) * size, (y + 6) * size], 3 * size, colour)
    oval(128, 104, 24, 6, (132, 96, 62))
    box(108, 84, 148, 102, (70, 74, 80))
    oval(128, 102, 20, 5, (70, 74, 80))
    oval(128, 84, 20, 5, (44, 47, 52))
    if in_pot:
        draw.pieslice([(x - 6) * size, (y - 5) * size, (x + 6) * size, (y + 7) * size], 180, 360, colour)
    base, links = np.array([176.0, 46.0]), (88.0, 86.0)
    wrist = gripper - (0, 13)
    apart = wrist - base
    distance = min(float(np.hypot(*apart)), sum(links) - 1)
    bend = math.acos((links[0] ** 2 + distance**2 - links[1] ** 2) / (2 * links[0] * distance))
    angle = math.atan2(apart[1], apart[0]) + bend
    elbow = base + links[0] * np.array([math.cos(angle), math.sin(angle)])
    box(166, 40, 190, 64, (52, 56, 62))
    for one, other, width in ((base, elbow, 12.0), (elbow, wrist, 9.0)):
        line([tuple(one), tuple(other)], width, (236, 238, 240))
    for joint, wide in ((base, 9), (elbow, 7), (wrist, 5)):
        oval(joint[0], joint[1], wide, wide, (52, 56, 62))
        oval(joint[0], joint[1], wide * 0.5, wide * 0.5, (238, 138, 20))
    half = 7 if is_open else 4.5
    line([(wrist[0] - half, wrist[1] + 4), (wrist[0] + half, wrist[1] + 4)], 3, (52, 56, 62))
    for side in (-half, half):
        line([(wrist[0] + side, wrist[1] + 3), (wrist[0] + side, wrist[1] + 14)], 2.4, (52, 56, 62))
    return np.asarray(picture.resize((_WIDTH, _HEIGHT), Image.Resampling.LANCZOS), np.uint8)


def episodes() -> list[Episode]:
    """What the robot did: most of it succeeds."""
    made = []
    for number in range(_EPISODES):
        rng = np.random.default_rng(number)
        steps = int(rng.integers(30, 58))
        task, colour = _TASKS[number % len(_TASKS)]
        gripper, thing, is_open = reach(rng, steps)
        has_failed = number % 9 == 5  # it lost the object on its way
        if has_failed:
            lost = int(steps * 0.66)
            thing[lost:] = (thing[lost, 0], 112)
        images = np.stack([frame(*row, colour) for row in zip(gripper, thing, is_open.tolist())])
        place = np.column_stack([gripper / 160, 0.02 + 0.1 * np.sin(np.linspace(0, 3, steps))])
        turned = np.cumsum(rng.normal(0, 0.01, (steps, 3)), axis=0)
        state = np.column_stack([place, turned, is_open]).astype(np.float32)
        moved = np.diff(state[:, :6], axis=0, append=state[-1:, :6])
        is_last = np.arange(steps) == steps - 1
        columns = {
            "observation/image_0": images,
            "observation/state": state,
            "action": np.column_stack([moved, is_open]).astype(np.float32),
            "reward": (is_last & (not has_failed)).astype(np.float32) - np.float32(1 / 64),
            "discount": np.where(is_last, 0, 1).astype(np.float32),
            "is_first": np.arange(steps) == 0,
            "is_last": is_last,
            "is_terminal": is_last,
            "language_instruction": np.array([task.encode()] * steps, object),
        }
        name = {"episode_id": f"2026-10-{12 + number // 8:02d}/traj{number % 8:02d}"}
        made.append(Episode(columns, name, f"traj{number}"))
    return made


def program(*arguments: str | Path) -> None:
    """Runs the program itself."""
    subprocess.run([sys.executable, "-m", "rlds2reverb", *arguments], check=True, stdout=subprocess.DEVNULL)


def save(picture: bytes, file: Path, colours: int = 0) -> None:
    """A picture; in so few colours where it has no photographs that it is small."""
    taken = Image.open(io.BytesIO(picture)).convert("RGB")
    fewer = taken.quantize(colours, dither=Image.Dither.NONE) if colours else taken
    fewer.save(file, optimize=True)
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"{file} has {file.stat().st_size:,} bytes, expected at most {MOST_BYTES:,}; draw less of it")


def take_dataset(browser: Browser, docs: Path) -> Iterator[str]:
    """docs/report.png, docs/report-charts.png and docs/show.png; yields what stands on the pages."""
    with tempfile.TemporaryDirectory() as folder:
        source, page = f"tfds:{folder}/{_DATASET}/1.0.0", Path(folder, "report.html")
        rlds2reverb.convert(episodes(), f"tfds:{folder}/{_DATASET}")
        program("show", source, "2", "--save", Path(folder, "show.png"))
        save(Path(folder, "show.png").read_bytes(), docs / "show.png")
        program("inspect", source, "--html", page)
        view = browser.new_page(viewport={"width": 1100, "height": 800})
        view.goto(page.as_uri())
        for chart in view.locator(".chart:visible").all():
            chart.evaluate("(node) => node.scrollIntoView({behavior: 'instant'})")
            chart.locator("canvas").wait_for()
        card = view.locator("details.episode").first
        card.locator("input[type=range]").fill("17")
        card.locator("input[type=range]").blur()
        save(card.screenshot(), docs / "report.png")
        yield card.inner_text()
        tops = [view.locator(f"#{anchor}").bounding_box() for anchor in ("episodes", "behaviour")]
        scrolled = float(view.evaluate("scrollY"))
        first, end = (round(box["y"] + scrolled) for box in tops if box is not None)
        clip = {"x": 0.0, "y": first, "width": 1100.0, "height": end - first - 24}
        save(view.screenshot(full_page=True, clip=clip), docs / "report-charts.png", 64)
        yield view.locator("#episodes").locator("xpath=..").inner_text()
        view.close()


def take_tutorials(browser: Browser, docs: Path) -> Iterator[str]:
    """docs/tutorials/*.png: what a reader sees who works through them; yields what stands on the pages."""
    (docs / "tutorials").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program("show", "bundled:cartpole", "0", "--save", folder / "episode.html")
        view = browser.new_page(viewport={"width": 1000, "height": 760})
        view.goto((folder / "episode.html").as_uri())
        view.locator("svg").first.wait_for()
        save(view.screenshot(), docs / "tutorials" / "episode.png", 64)
        yield view.locator("body").inner_text()
        view.close()
        make = [sys.executable, str(ROOT / "examples" / "make_open_x.py"), "bridge", made, "--episodes", "2"]
        subprocess.run(make, check=True, capture_output=True)
        program("show", f"tfds:{folder}/bridge/0.1.0", "0", "--save", folder / "robot.png")
        save((folder / "robot.png").read_bytes(), docs / "tutorials" / "robot.png", 128)
        yield from take_service(browser, docs, folder)


def take_service(browser: Browser, docs: Path, folder: Path) -> Iterator[str]:
    """docs/tutorials/status.png: the status page of a server of its own; yields what stands there. It names the tutorial's port."""
    text = (DOCS / "tutorials" / "running_the_service.md").read_text(encoding="utf-8")
    config = re.search(r"^```yaml\n(# server.yaml\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert config is not None
    (folder / "server.yaml").write_text(config[1], encoding="utf-8")
    with socket.socket() as grpc, socket.socket() as http:
        for one in (grpc, http):
            one.bind(("127.0.0.1", 0))
        ports = {"grpc": grpc.getsockname()[1], "http": http.getsockname()[1]}
    command = [sys.executable, "-m", "rlds2reverb", "serve", "--config", "server.yaml"]
    command += [part for name, port in ports.items() for part in ("--set", f"{name}.port={port}")]

    def page(route: Route) -> None:
        answer = route.fetch(url=f"http://127.0.0.1:{ports['http']}{route.request.url.removeprefix(_ADDRESS)}")
        text = answer.text().replace(f":{ports['grpc']}", ":8000")
        route.fulfill(response=answer, body=text)

    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as server:
        try:
            with rlds2reverb.connect(f"localhost:{ports['grpc']}", wait_seconds=300) as client:
                client.push("bundled:cartpole", "replay")
            view = browser.new_page(viewport={"width": 1100, "height": 660})
            view.route(f"{_ADDRESS}/**", page)
            view.goto(_ADDRESS)
            view.locator("article polyline").first.wait_for(state="attached")
            view.wait_for_timeout(15_000)  # curves of a few moments
            save(view.screenshot(), docs / "tutorials" / "status.png", 48)
            yield view.locator("body").inner_text()
            view.unroute_all(behavior="wait")
            view.close()
        finally:
            server.terminate()


_IMAGE, _STATE, _ACTION = (
    ArraySpec((None, *shape), np.dtype(kind))
    for shape, kind in (((144, 192, 3), "uint8"), ((7,), "float32"), ((7,), "float32"))
)
_UNBOUNDED = sys.float_info.max


def tables() -> list[TableInfo]:
    """What the server of the scene holds: a robot's recordings, and what it does now."""
    signature = {
        "observation": {"image_0": _IMAGE, "state": _STATE},
        "action": _ACTION,
        "reward": ArraySpec((None,), np.dtype(np.float32)),
    }
    about: dict[str, Any] = {"remover": "fifo", "max_times_sampled": 0, "signature": signature, "deleted_episodes": 0}
    offline = RateLimiter(1.0, -_UNBOUNDED, _UNBOUNDED, 1000, 1_612_480, 41_905_152)
    online = RateLimiter(4.0, 4000.0 - 2000, 4000.0 + 2000, 1000, 412_880, 1_647_168)
    return [
        TableInfo(
            name="bridge_offline",
            sampler="uniform",
            max_size=2_000_000,
            current_size=1_612_480,
            rate_limiter=offline,
            episodes=36_120,
            unique_samples=1_590_022,
            **about,
        ),
        TableInfo(
            name="robot_online",
            sampler="prioritized(0.6)",
            max_size=100_000,
            current_size=100_000,
            rate_limiter=online,
            episodes=2210,
            unique_samples=99_310,
            **about,
        ),
    ]


_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_ADDRESS = "http://replay-a:8080"
_FOLDER = "/var/lib/replay/checkpoints"
_NEWEST = 196
"""Number of the newest checkpoint."""
_SPACE = Space(1_134_006_272, 1_874_418_432)
_FULL = (
    f"{_FOLDER}: {_SPACE.free_bytes} bytes are free, {_SPACE.needed_bytes} are needed, as many as checkpoint {_NEWEST} takes; nothing was "
    "written. Make the disk larger; the next checkpoint is then tried as usual"
)
_MEMORY, _LIMIT = 3_420_000_000, 8_000_000_000


def days(now: int) -> History:
    """Five days with a night without a server, a disk that was full for half a day, and is full now."""
    history = History()
    began, night, full = now - 120 * _HOUR, now - 80 * _HOUR, now - 40 * _HOUR
    moments = range(began, now + 1, _HOUR // 2)
    failing = now - 13 * 60
    for number, when in enumerate(moments, 1):
        if night <= when < night + 9 * _HOUR:
            continue
        share = number / len(moments)
        size = int(400e6 + 1.5e9 * share)
        good = CheckpointRow(when, when, 1, 3 + 9 * share, size, number, "schedule")
        bad = CheckpointRow(when, when, 1, 0.4, 0, 0, "schedule", _FULL)
        history = history.running(began if when < night else night + 9 * _HOUR, when)
        is_full = full <= when < full + 11 * _HOUR
        history = history.with_checkpoint(bad if is_full else good)
        history = history.with_sample(
            MemorySample(when, int(0.9e9 + 2.52e9 * share), int(1_712_480 * (0.24 + 0.76 * share)))
        )
        history = fit_history(history, when)
    bad = CheckpointRow(failing, failing, 1, 0.4, 0, 0, "schedule", _FULL)
    return history.with_checkpoint(bad).running(night + 9 * _HOUR, now - 5)


class _Remembering(Recorder):
    """Remembers the staged days."""

    def history(self) -> History:
        """As of now."""
        return days(int(time.time()))


class _Scene:
    """A status page of a server that is there but for Reverb: its counts are staged, and where it runs."""

    def __init__(self, folder: Path) -> None:
        config = decode(
            {
                "tables": [{"name": table.name} for table in tables()],
                "checkpoints": {"folder": str(folder), "every_seconds": 1800},
            },
            "the scene",
        )
        state = ReplayService(config, table_configs(config)).state
        state.recorder = _Remembering(HistoryFile(state.store), lambda: None, time.time())
        state.monitor = Monitor(lambda: ServerInfo(7, {table.name: table for table in tables()}))
        state.monitor.start()
        state.phase = "ready"
        state.checkpoints.space = lambda: _SPACE  # type: ignore[method-assign]
        self._monitor = state.monitor
        self._http = HttpServer(make_app(state, lambda: None), HttpSection(port=0))  # type: ignore[arg-type,return-value]
        self.url = self._http.url

    def __enter__(self) -> _Scene:
        self._http.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.stop()
        self._monitor.stop()

    def page(self, route: Route) -> None:
        """The server's own answer to any other request, which it gets by another name."""
        route.fulfill(response=route.fetch(url=self.url + route.request.url.removeprefix(_ADDRESS)))

    def status(self, route: Route) -> None:
        """The server's own answer, as if it ran for days on a machine of its own."""
        document = route.fetch(url=f"{self.url}/status.json").json()
        now = document["server"]["now"]
        at = np.linspace(now - 600, now, 120)
        rng = np.random.default_rng(0)
        wave = np.sin(at / 40) + 0.4 * rng.normal(size=len(at))
        own = {
            "started_at": now - 71 * _HOUR,
            "grpc_port": 8000,
            "memory_bytes": _MEMORY,
            "memory_limit_bytes": _LIMIT,
            "memory_limit_of": "container",
        }
        memory = {"time": at.tolist(), "bytes": (_MEMORY - 4e4 * (now - at) + 2e6 * wave).tolist()}
        document["server"] |= {**own, "memory": memory}
        pushed = np.where(at < now - 250, 1900 + 120 * wave, 0)
        rates = {"bridge_offline": (pushed, 2750 + 140 * wave), "robot_online": (24 + 2 * wave, 96 + 8 * wave)}
        for table in document["tables"]:
            inserts, samples = rates[table["name"]]
            table["last_insert_at"] = float(at[np.flatnonzero(inserts)[-1]])
            table["rates"] = {
                "time": at.tolist(),
                "inserts": inserts.round(2).tolist(),
                "samples": samples.round(2).tolist(),
            }
        last = {
            "generation": _NEWEST,
            "bytes": _SPACE.needed_bytes,
            "seconds": 11.4,
            "items": {info.name: info.current_size for info in tables()},
            "created": now - 43 * 60,
            "reason": "schedule",
        }
        place = {
            "folder": _FOLDER,
            "generations": 3,
            "last": last,
            "failures": 1,
            "last_error": _FULL,
        }
        document["checkpoints"] |= place
        shown = ("ReplayCheckpointFailed", "ReplayCheckpointDiskFull")
        document["alerts"] = [
            {**alert, "firing": True, "seconds": 13 * 60} for alert in document["alerts"] if alert["alert"] in shown
        ]
        route.fulfill(json=document)


def take_status(browser: Browser, docs: Path) -> Iterator[str]:
    """docs/images/status-*.png; yields what stands on the page."""
    (docs / "images").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _Scene(Path(folder)) as scene:
        for width in (400, 1280):
            for scheme in _SCHEMES:
                view = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
                view.route(f"{_ADDRESS}/**", scene.page)
                view.route("**/status.json", scene.status)
                view.goto(_ADDRESS)
                for drawn in (
                    "#timeline rect.failed",
                    "#days polyline.memory",
                    "#minutes polyline",
                    "#firing li",
                    "article polyline",
                ):
                    view.locator(drawn).first.wait_for(state="attached")
                save(view.screenshot(full_page=True), docs / "images" / f"status-{width}-{scheme}.png", 48)
                yield view.locator("body").inner_text()
                view.unroute_all(behavior="wait")
                view.close()


def top() -> str:
    """The view of two servers as an SVG that asks nobody for fonts."""
    now = time.mktime((2026, 5, 4, 14, 32, 8, 0, 0, -1))
    offline, online = tables()
    pretrained = replace(
        offline,
        name="droid_offline",
        current_size=488_210,
        max_size=500_000,
        rate_limiter=replace(offline.rate_limiter, inserts=488_210, samples=0),
    )
    queue = replace(
        online,
        name="eval_queue",
        current_size=64,
        max_size=64,
        rate_limiter=RateLimiter(1.0, 0.0, 64.0, 1, 91_264, 91_200),
    )

    def known(name: str, status: Status, *rates: tuple[TableInfo, int, int]) -> WatchedServer:
        """A server with so many inserts and samples per second of each table."""
        moments = [
            Moment(
                seconds,
                1,
                {
                    table.name: (
                        table.rate_limiter.inserts - int((4 - seconds) * inserts),
                        table.rate_limiter.samples - int((4 - seconds) * samples),
                    )
                    for table, inserts, samples in rates
                },
            )
            for seconds in (0.0, 4.0)
        ]
        waves = [1 + 0.5 * math.sin(number) for number in range(TREND_MOST + 1)]
        past = [
            Moment(
                2.0 * at,
                1,
                {
                    table.name: (int(2 * inserts * sum(waves[:at])), int(2 * samples * sum(waves[:at])))
                    for table, inserts, samples in rates
                },
            )
            for at in range(len(waves))
        ]
        held = {table.name: table for table, _, _ in rates}
        return WatchedServer(
            name,
            now - 600,
            "http://localhost:8080",
            held,
            tuple(moments),
            tuple(past),
            answered_at=now,
            status=status,
            status_at=now,
        )

    def status(
        memory_bytes: int, last: NewestCheckpoint | None, writing_since: float | None, upload: Upload | None = None
    ) -> Status:
        server = ServerPart("ready", "", now, now - 71 * _HOUR, memory_bytes)
        return Status(server, CheckpointPart(last, writing_since, 0, "", "", upload), [])

    sending = Upload("gs://robots/replay-a", 3, _NEWEST, 125.0, 0, "", 1)
    first = status(_MEMORY, NewestCheckpoint(_NEWEST, now - 125, _SPACE.needed_bytes), None, sending)
    second = status(2_180_000_000, None, now - 4)
    servers = [
        known("replay-a", first, (offline, 0, 2751), (online, 24, 96)),
        known("replay-b", second, (pretrained, 1904, 0), (queue, 16, 16)),
    ]
    svg = asyncio.run(_drawn(servers, now))
    without_fonts = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"[ \t]+\n", "\n", without_fonts)


async def _drawn(servers: list[WatchedServer], now: float) -> str:
    class Staged(Watch):
        def servers(self) -> tuple[WatchedServer, ...]:
            return tuple(servers)

    app = TopApp(Staged((), 1.0, 1.0), now=lambda: now)
    async with app.run_test(size=(132, 12)) as pilot:
        await pilot.pause()
        return app.export_screenshot(title="rlds2reverb top")


def take(docs: Path) -> list[str]:
    """Takes all of them, into a folder like docs/; returns what stands on the pages."""
    (docs / "top.svg").write_text(top(), encoding="utf-8")
    found = subprocess.run([ROOT / "scripts" / "install-chromium"], check=True, capture_output=True, text=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found.stdout.strip(), args=["--no-sandbox"])
        texts = [*take_status(browser, docs), *take_dataset(browser, docs), *take_tutorials(browser, docs)]
        browser.close()
    return texts


if __name__ == "__main__":
    take(DOCS)
