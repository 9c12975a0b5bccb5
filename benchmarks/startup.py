"""Wall time of `rlds2reverb --help` and of `import rlds2reverb`, and whether they import TensorFlow.

Compiled bytecode is kept (in a folder of the benchmark's own), as it is after an ordinary installation.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.common import Goal, Result, Size, figure, note, timed

FULL = Size(items=15, reference_items=15, repeats=1)
SHORT = Size(items=5, reference_items=5, repeats=1)

GOAL = Goal(0.3, at_most=True)

_HELP = "import sys; sys.argv = ['rlds2reverb', '--help']\nfrom rlds2reverb.cli import main\ntry: main()\nexcept SystemExit: pass\n"
_IMPORT = "import sys, rlds2reverb\n"
_ASK = "sys.exit(3 if 'tensorflow' in sys.modules else 0)"


def run(size: Size) -> Iterator[Result]:
    """Medians of `Size.items` runs, in seconds; every round also runs an empty program, for comparison."""
    script = Path(sys.executable).with_name("rlds2reverb")
    commands = {
        "help": [str(script), "--help"],
        "import": [sys.executable, "-c", "import rlds2reverb"],
        "bare": [sys.executable, "-c", "pass"],
    }
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        clean = {name: _without_tensorflow(code, environment) for name, code in (("help", _HELP), ("import", _IMPORT))}
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(size.items + 1):  # the first round compiles, and does not count
            for name, command in commands.items():
                taken = _seconds(command, environment)
                if number:
                    seconds[name].append(taken)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    note("  " + ", ".join(f"{name} {value:.3f} s" for name, value in medians.items()))
    for name, without_tensorflow in clean.items():
        result = figure(
            f"startup/{name}",
            medians[name],
            "s",
            GOAL,
            bare_python_s=round(medians["bare"], 4),
            without_tensorflow=without_tensorflow,
            runs=size.items,
        )
        yield {
            **result,
            "met": result["met"] and without_tensorflow,
            "collapsed": result["collapsed"] or not without_tensorflow,
        }


def _seconds(command: list[str], environment: Mapping[str, str]) -> float:
    with timed() as watch:
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return watch.seconds


def _without_tensorflow(code: str, environment: Mapping[str, str]) -> bool:
    command = [sys.executable, "-c", code + _ASK]
    ended = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    if ended.returncode not in (0, 3):
        raise RuntimeError(f"the program failed with exit code {ended.returncode}: {code}")
    return ended.returncode == 0
