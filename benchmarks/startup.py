"""From the start of a process to what a user waits for: help, an inspected dataset, a server, the first item in it.

Compiled bytecode is kept (in a folder of the benchmark's own), as it is after an ordinary installation.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from replay_server import TableConfig
from replay_server.template import TableDraft, config_text

from benchmarks import data, writers
from benchmarks.common import Goal, Result, Size, Stopwatch, figure, note, timed
from benchmarks.replay_process import ReplayProcess
from benchmarks.servers import BenchServer, rss_bytes

FULL = Size(items=15, reference_items=15, repeats=1)
SHORT = Size(items=5, reference_items=5, repeats=1)

GOAL = Goal(0.3, at_most=True)
GOAL_INSPECT = Goal(2.0, at_most=True)
GOAL_FIRST_ITEM = Goal(1.0, at_most=True)
GOAL_SERVE = Goal(3.0, at_most=True)

_SCRIPT = str(Path(sys.executable).with_name("rlds2reverb"))
_DATASET = "bundled:half_cheetah"

_HELP = "import sys; sys.argv = ['rlds2reverb', '--help']\nfrom rlds2reverb.cli import main\ntry: main()\nexcept SystemExit: pass\n"
_INSPECT = _HELP.replace("'--help'", f"'inspect', '{_DATASET}'")
_IMPORT = "import sys, rlds2reverb\n"
_ASK = "sys.exit(3 if 'tensorflow' in sys.modules else 0)"

_LOOK_SECONDS = 0.005
_ITEM_WITHIN_SECONDS = 60.0

Environment = Mapping[str, str]


def run(size: Size) -> Iterator[Result]:
    """Medians of `Size.items` runs. Every round also runs what a figure is compared with, one after the other."""
    with _environment() as environment:
        commands = {
            "help": [_SCRIPT, "--help"],
            "import": [sys.executable, "-c", "import rlds2reverb"],
            "bare": [sys.executable, "-c", "pass"],
            "inspect": [_SCRIPT, "inspect", _DATASET],
            "numpy": [sys.executable, "-c", "import numpy"],
        }
        medians = _medians(
            size.items, {name: partial(_seconds, words, environment) for name, words in commands.items()}
        )
        bare = {"bare_python_s": round(medians["bare"], 4), "runs": size.items}
        for name, code in (("help", _HELP), ("import", _IMPORT)):
            result = figure(f"startup/{name}", medians[name], "s", GOAL, **bare)
            yield _without_tensorflow(result, code, environment)
        ratio = medians["inspect"] / medians["numpy"]
        seconds = {f"{name}_s": round(medians[name], 4) for name in ("inspect", "numpy")}
        result = figure("startup/inspect", ratio, "x of import numpy", GOAL_INSPECT, **seconds, runs=size.items)
        yield _without_tensorflow(result, _INSPECT, environment)
        yield _serve(size, environment)
        yield _first_item(size, environment)


def _serve(size: Size, environment: Environment) -> Result:
    """Seconds from the start of an empty server's process to ready."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.yaml"
        wanted = TableDraft("two_step", 1000, data.signature(data.half_cheetah()))
        path.write_text(config_text("half-cheetah", [], {writers.TABLE: wanted}))
        memory = []

        def once() -> float:
            with ReplayProcess(path, environment) as server:
                memory.append(rss_bytes(server.pid))
                return server.start_seconds

        median = _medians(size.items, {"serve": once})["serve"]
    megabytes = round(statistics.median(memory) / 1e6, 1)
    return figure("startup/serve", median, "s", GOAL_SERVE, server_mb=megabytes, runs=size.items)


def _first_item(size: Size, environment: Environment) -> Result:
    """Seconds from the start of a push's process until its table has an item, as the server tells another process."""
    with BenchServer([TableConfig(writers.TABLE, data.signature(data.half_cheetah()))]) as server:
        command = [_SCRIPT, "push", _DATASET, "--server", server.address, "--table", writers.TABLE, "--json"]

        def once() -> float:
            server.empty(writers.TABLE)
            return _until_an_item(server, command, environment)

        median = _medians(size.items, {"first item": once})["first item"]
    return figure("startup/first_item", median, "s", GOAL_FIRST_ITEM, look_s=_LOOK_SECONDS, runs=size.items)


def _until_an_item(server: BenchServer, command: list[str], environment: Environment) -> float:
    """Looks every few milliseconds. The push goes on to its end after the clock has stopped."""
    end = time.monotonic() + _ITEM_WITHIN_SECONDS
    watch = Stopwatch()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as push:
        while not server.size(writers.TABLE):
            if push.poll() not in (None, 0) or time.monotonic() > end:
                push.kill()
                raise RuntimeError(f"no item came: {' '.join(command)}")
            time.sleep(_LOOK_SECONDS)
        watch.stop()
    return watch.seconds


@contextmanager
def _environment() -> Iterator[Environment]:
    """Environment variables with which bytecode is kept."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        yield environment


def _medians(rounds: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Median of each measure over the rounds. The first round compiles, and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name, measure in measures.items():
            taken = measure()
            if number:
                seconds[name].append(taken)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    note("  " + ", ".join(f"{name} {value:.3f} s" for name, value in medians.items()))
    return medians


def _seconds(command: list[str], environment: Environment) -> float:
    with timed() as watch:
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return watch.seconds


def _without_tensorflow(result: Result, code: str, environment: Environment) -> Result:
    """The result; a program that has loaded TensorFlow at its end makes it a failed one."""
    command = [sys.executable, "-c", code + _ASK]
    ended = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    if ended.returncode not in (0, 3):
        raise RuntimeError(f"the program failed with exit code {ended.returncode}: {code}")
    is_clean = ended.returncode == 0
    return {
        **result,
        "without_tensorflow": is_clean,
        "met": result["met"] and is_clean,
        "collapsed": result["collapsed"] or not is_clean,
    }
