"""`python -m benchmarks NAME` or `all`: results to stdout, one JSON line each; talk to stderr."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import Neighbours, Result, Size, emit, measured, not_compiled, note
from benchmarks.datasets import KEPT

NAMES = (
    "push_tf_agents",
    "push_limit",
    "push_writers",
    "env_writers",
    "views",
    "episodes",
    "images",
    "encoded",
    "conversion",
    "convert",
    "record",
    "lerobot_video",
    "sampling",
    "learner",
    "prioritized",
    "torchrl",
    "rllib",
    "memory",
    "client_memory",
    "installed",
    "startup",
    "reading",
    "buckets",
    "formats",
    "page",
    "robot",
    "chunk_length",
    "scale",
    "scale_curves",
    "service",
    "journal",
)

ALONE = ("scale_largest",)
"""Not among `all`: they need more of a machine than others have."""

CHOICES = (*NAMES, *ALONE, "all")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; the exit code."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    neighbours, results = Neighbours(), []
    if missing := not_compiled():
        note(
            f"not compiled here: {', '.join(missing)}. Our rates are those of plain Python; `pip install --editable .` compiles"
        )
    for result in _all(options) if "all" in options.names else _those(options):
        emit(result)
        results.append(result)
        if options.json is not None:
            options.json.write_text("".join(f"{json.dumps(row)}\n" for row in results))
    note(_summary(results))
    note(f"other programs used {neighbours.share():.0%} of the machine meanwhile; a noisy run proves little")
    collapsed = _collapsed(results)
    if collapsed:
        note(f"collapsed: {', '.join(collapsed)}")
    return int(options.short and bool(collapsed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=CHOICES, metavar="NAME", help=", ".join(CHOICES))
    parser.add_argument("--short", action="store_true", help="small runs, and exit code 1 when a figure has collapsed")
    parser.add_argument("--items", type=int, help="things of our side; each benchmark says which")
    parser.add_argument("--reference-items", type=int, help="things of the side compared with")
    parser.add_argument("--repeats", type=int, help="measured runs of each side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a file as well")
    return parser


def _those(options: argparse.Namespace) -> Iterator[Result]:
    wanted = {name: getattr(options, name) for name in ("items", "reference_items", "repeats")}
    for name in options.names:
        module = importlib.import_module(f"benchmarks.{name}")
        size: Size = module.SHORT if options.short else module.FULL
        yield from module.run(replace(size, **{name: value for name, value in wanted.items() if value is not None}))


def _all(options: argparse.Namespace) -> Iterator[Result]:
    """Every benchmark in a process of its own, so that its figures are those of its own command."""
    passed: list[Any] = ["--short"] if options.short else []
    for name in ("items", "reference_items", "repeats"):
        if getattr(options, name) is not None:
            passed += [f"--{name.replace('_', '-')}", getattr(options, name)]
    # As after an ordinary installation: compiling TensorFlow anew takes longer than many a short benchmark.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(KEPT / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in NAMES:
        note(f"{name} ...")
        began = time.monotonic()
        command = [sys.executable, "-m", "benchmarks", name, *map(str, passed)]
        results = _child(name, command, environment)
        if collapsed := _collapsed(results):
            # What is slow is slow twice; a neighbour on the machine seldom comes twice.
            note(f"{name}: measured again, for these collapsed: {', '.join(collapsed)}")
            results = _child(name, command, environment)
        yield from results
        note(f"{name}: {time.monotonic() - began:.0f} s")


def _child(name: str, command: Sequence[str], environment: Mapping[str, str]) -> list[Result]:
    """The results of one benchmark in a process of its own."""
    neighbours = Neighbours()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None  # we asked for a pipe
        lines = [json.loads(line) for line in process.stdout]
    # A collapse ends the child with 1 too, but only after its results.
    if process.returncode and not _collapsed(lines):
        raise SystemExit(f"benchmark {name} failed with exit code {process.returncode}")
    share = round(neighbours.share(), 2)
    return [{**line, "machine": {**line["machine"], "others_share": share}} for line in lines]


def _collapsed(results: Sequence[Result]) -> list[str]:
    return [result["benchmark"] for result in results if result["collapsed"]]


def _summary(results: Sequence[Result]) -> str:
    lines = []
    for result in results:
        verdict = {True: "met", False: "MISSED", None: ""}[result["met"]]
        verdict = "COLLAPSED" if result["collapsed"] else verdict
        goal = "" if result["goal"] is None else f"{result['goal_is']} {result['goal']:g}"
        lines.append(f"{result['benchmark']:34} {measured(result):>12,.4g}  {goal:16} {verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
