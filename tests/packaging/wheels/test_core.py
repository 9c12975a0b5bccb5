"""The core alone, on each Python: it starts, reads, writes and pushes; and what needs an extra says which."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import rlds2reverb
from rlds2reverb.extras import ON_ANY_PYTHON, PYTHONS
from rlds2reverb.formats.registry import DESTINATIONS, SOURCES
from tests.packaging.project.test_project import CODE, DISTRIBUTIONS, PEERS, SERVER, needed_by
from tests.packaging.wheels.installing import ALL_PYTHONS, Environment
from tests.support.forks import Embedded
from tests.support.project import project, requirements_of

PROGRAM = Path(__file__).with_name("importing.py")

MOST_MEGABYTES = 150
"""As in benchmarks/installed.py: numpy alone is a third of it."""


def hint(environment: Environment, *extras: str) -> str:
    """How an error ends that wants extras, on the Python of an environment."""
    running = python_of(environment)
    if running in PYTHONS or ON_ANY_PYTHON.issuperset(extras):
        (record,) = environment.packages.glob("rlds2reverb-*.dist-info/direct_url.json")
        wheel = url2pathname(urlsplit(json.loads(record.read_text())["url"]).path)
        return f'install with: pip install "{wheel}[{",".join(extras)}]"'
    on_what = " on Linux x86-64" if {"server", "tf-agents"} & {*extras} else ""
    return f"this part runs on Python 3.10 and 3.11{on_what} only, and this is Python {running[0]}.{running[1]}"


def python_of(environment: Environment) -> tuple[int, int]:
    major, minor = environment.packages.parent.name.removeprefix("python").split(".")
    return int(major), int(minor)


def test_it_needs_what_it_declares_and_what_that_needs(core: Environment) -> None:
    installed = core.installed()
    assert installed.pop("rlds2reverb") == rlds2reverb.__version__
    assert installed.keys() >= requirements_of(None)
    optional = {name for extra in project()["optional-dependencies"] for name in requirements_of(extra)}
    assert installed.keys() & (optional - requirements_of(None)) == set()


def test_it_is_small(core: Environment) -> None:
    sizes = core.megabytes()
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:5]
    told = ", ".join(f"{name} {size:.0f}" for name, size in largest)
    sys.stdout.write(f"\ncore on Python {python_of(core)}: {sum(sizes.values()):.0f} MB ({told})\n")
    assert sum(sizes.values()) < MOST_MEGABYTES


def test_it_starts(core: Environment) -> None:
    assert core("rlds2reverb", "--version").split()[-1] == rlds2reverb.__version__
    assert core("python", "-m", "rlds2reverb", "--version").split()[-1] == rlds2reverb.__version__
    told = core("rlds2reverb", "--help")
    for command in ("push", "inspect", "convert", "sample"):
        assert f"\n  {command} " in told
        assert "Usage: rlds2reverb" in core("rlds2reverb", command, "--help")


def test_every_module_is_there_and_imports_but_for_what_extras_bring(core: Environment) -> None:
    found = json.loads(core("python", str(PROGRAM)))
    for package, name in ((CODE, "rlds2reverb"), (SERVER, "replay_server")):
        failing = {
            missing.removeprefix(name).removeprefix(".") for missing in found if missing.partition(".")[0] == name
        }
        assert failing == {
            module_name
            for module_name in package.modules
            if module_name != "__main__" and needed_by(module_name, package)
        }
    assert {error for error, _, _ in found.values()} == {"ModuleNotFoundError"}
    optional = {name for extra in project()["optional-dependencies"] for name in requirements_of(extra)}
    for module, (_, name, text) in found.items():
        brought = optional | PEERS if module.endswith(".by_library") else optional
        assert DISTRIBUTIONS.get(name, name) in brought, (module, text)


PUBLIC = {
    "rlds2reverb.adapters.jax": "jax",
    "rlds2reverb.adapters.rllib": "rllib",
    "rlds2reverb.adapters.tf_agents": "tf-agents",
    "rlds2reverb.adapters.tf_data": "tfds",
    "rlds2reverb.adapters.torch": "torch",
    "rlds2reverb.adapters.lerobot": "lerobot",
    "rlds2reverb.adapters.torchrl": "torchrl",
}
"""What people import, and the extra that they are told of."""


def test_what_people_import_says_which_extra_brings_it(core: Environment) -> None:
    found = json.loads(core("python", str(PROGRAM)))
    for module, extra in PUBLIC.items():
        assert found[module][2].endswith(f"; {hint(core, extra)}"), module
    code = "import rlds2reverb; rlds2reverb.push_rlds_to_reverb"
    assert hint(core, "tf-agents") in core.tried("python", "-c", code).stderr
    code = "import replay_server as server; server.EmbeddedServer([server.TableConfig('replay')]).start()"
    assert hint(core, "server") in core.tried("python", "-c", code).stderr


def test_commands_and_formats_say_which_extra_brings_them(core: Environment) -> None:
    cases = [
        (("demo",), "server"),
        (("serve", "--config", "x.yaml"), "server"),
        (("inspect", "bundled:cartpole", "--workers", "2", "--ray", "auto"), "ray"),
    ]
    cases += [
        (("inspect", f"{file_format.scheme}:x"), file_format.extra)
        for file_format, side in SOURCES.own_sides().items()
        if file_format.extra and side.forms
    ]
    cases += [
        (("convert", "bundled:cartpole", f"{destination.scheme}:x"), destination.extra)
        for destination in DESTINATIONS
        if destination.extra
    ]
    cases += [(("convert", "bundled:cartpole", "tfds:x?file_format=parquet"), "parquet")]
    assert len(cases) > 8
    for arguments, extra in cases:
        done = core.tried("rlds2reverb", *arguments)
        assert done.returncode in (2, 3), (arguments, done.stderr)
        (line,) = done.stderr.splitlines()
        assert line.startswith("rlds2reverb: error: "), line
        assert line.endswith(hint(core, extra)), line


def test_a_shipped_dataset_is_inspected_checked_and_converted(core: Environment, tmp_path: Path) -> None:
    told = json.loads(core("rlds2reverb", "inspect", "bundled:half_cheetah", "--json"))
    assert told["steps"] > told["episodes"] > 0
    core("rlds2reverb", "validate", "bundled:cartpole")
    core("rlds2reverb", "convert", "bundled:cartpole", f"tfds:{tmp_path}/copy", "--verify")
    again = json.loads(core("rlds2reverb", "inspect", f"tfds:{tmp_path}/copy/1.0.0", "--json"))
    first = json.loads(core("rlds2reverb", "inspect", "bundled:cartpole", "--json"))
    assert (again["episodes"], again["steps"]) == (first["episodes"], first["steps"])


def test_a_push_fills_a_real_server_of_the_full_environment(core: Environment, server: Embedded) -> None:
    episodes = json.loads(core("rlds2reverb", "inspect", "bundled:cartpole", "--json"))["episodes"]
    place = ("--server", server.address, "--table", "one")
    push = ("rlds2reverb", "push", "bundled:cartpole", *place, "--view", "episode", "--again", "--json")
    report = json.loads(core(*push))
    assert report["items_confirmed"] == episodes
    sampled = core("rlds2reverb", "sample", *place, "-n", str(episodes), "--json")
    assert [json.loads(line)["times_sampled"] for line in sampled.splitlines()] == episodes * [1]


def test_a_program_pushes_and_samples_without_the_command_line(core: Environment, server: Embedded) -> None:
    code = f"""
import sys, rlds2reverb
with rlds2reverb.connect({server.address!r}) as client:
    report = client.push("bundled:cartpole", table="two", view="episode")
    batches = list(client.sample("two", 1, samples=report.items_confirmed))
    print(report.items_confirmed, sum(len(info.key) for _, info in batches))
assert not {{"tensorflow", "reverb"}} & sys.modules.keys()
"""
    pushed, sampled = core("python", "-c", code).split()
    assert pushed == sampled != "0"


def test_all_pythons_of_the_metadata_are_tried() -> None:
    told = [classifier.rpartition(" ")[2] for classifier in project()["classifiers"] if "Python :: 3." in classifier]
    assert tuple(told) == ALL_PYTHONS
    assert project()["requires-python"] == f">={ALL_PYTHONS[0]}"
