"""The workflow of .github runs what .ci/run does, on every Python that the package is made for, with no more rights than it needs."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.project import ROOT, project

SCRIPT = ROOT / ".ci" / "run"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
JOBS: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]


def _expand(command: str) -> Iterator[tuple[str, ...]]:
    """A command of make as words; a target that has other targets for all it does stands for these."""
    words = shlex.split(command)
    recipe = re.search(
        rf"^{words[1]}: ([^#\n]*)##.*\n(?!\t)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    for target in recipe[1].split() if recipe else [words[1]]:
        yield (words[0], target, *words[2:])


def _of_the_script() -> set[tuple[str, ...]]:
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    return {words for line in lines if line.startswith("make ") for words in _expand(line)}


def _of_the_workflow(job: dict[str, Any]) -> Iterator[str]:
    """Each line that a job runs, for each choice of its matrix."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    rows = matrix.pop("include", [{}])
    for step, row, values in itertools.product(job["steps"], rows, itertools.product(*matrix.values())):
        line = step.get("run", "")
        for name, value in {**row, **dict(zip(matrix, values, strict=True))}.items():
            line = line.replace(f"${{{{ matrix.{name} }}}}", value)
        yield line


@pytest.mark.skipif(not SCRIPT.exists(), reason="an sdist has no .ci")
def test_the_workflow_runs_what_a_change_must_pass() -> None:
    lines = {line for job in JOBS.values() for line in _of_the_workflow(job) if line.startswith("make ")}
    choice = re.compile(r" CORE_PYTHON=\S+")
    assert {words for line in lines for words in _expand(choice.sub("", line))} == _of_the_script()


def test_the_cores_tests_run_on_every_python() -> None:
    pythons = [name.rpartition(" ")[2] for name in project()["classifiers"] if re.search(r"Python :: 3\.\d", name)]
    assert [line for line in _of_the_workflow(JOBS["core"]) if line.startswith("make ")] == [
        f"make test-core CORE_PYTHON=python{python}" for python in pythons
    ]


@pytest.mark.parametrize("file", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda file: file.name)
def test_a_workflow_can_write_nothing_and_its_actions_stay_what_they_are(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert [
        name for name, job in workflow["jobs"].items() if "permissions" in job or "timeout-minutes" not in job
    ] == []
    actions = re.findall(r"uses: (.*)", text)
    assert actions
    assert [
        action for action in actions if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)
    ] == []
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert {step["with"]["persist-credentials"] for step in checkouts} == {False}
    assert "secrets." not in text
    assert workflow.keys() >= {"concurrency", "name"}
