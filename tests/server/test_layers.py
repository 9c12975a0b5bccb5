"""The server's imports go downwards only, what is heavy stays in the modules that say so, and nothing is a circle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import replay_server

from tests.imports import Package, circle, top

CODE = Package("replay_server", Path(replay_server.__file__).parent)

CLIENT = "rlds2reverb"

# Low to high. A module may import what stands in its entry, all of it above in this table.
READS = {"errors", "reading"}
CHECKPOINT = {"errors", "reading", "record_files"}
TABLES = {"limiters", "selectors", "tables"}
KEEPING = {"errors", "fitting", "generation", "generations", "logs", "record_files", "working_folder"}

MAY_IMPORT: dict[str, set[str]] = {
    # Words and tools, of which none knows another.
    "errors": set(),
    "freed_memory": set(),
    "memory": set(),
    "logs": set(),
    "ports": set(),
    "sharing": set(),
    "admission": set(),
    "peers": set(),
    "records": set(),
    "signatures": set(),
    "dataset_signatures": set(),
    "selectors": set(),
    "monitor": set(),
    # What a table is, and the config.
    "limiters": {"selectors"},
    "tables": {"limiters", "selectors"},
    "feasibility": {"limiters", "tables"},
    "config": {"admission", "dataset_signatures", "signatures"} | TABLES,
    "template": {"limiters", "signatures", "tables"},
    "embedded": {"ports", "tables"},
    # Files: of anything, of a checkpoint, of a generation, of all generations.
    "reading": {"errors"},
    "record_files": {"records"} | READS,
    "kernel_lock": READS,
    "owner": READS,
    "folder_lock": {"errors", "kernel_lock", "logs", "owner"},
    "holder": {"folder_lock", "kernel_lock", "owner", "reading"},
    "generation": CHECKPOINT,
    "generations": {"generation"} | CHECKPOINT,
    "working_folder": {"errors", "record_files"},
    "space": {"errors", "generation", "reading"},
    "history": {"errors"},
    "choosing": {"generation", "history"} | CHECKPOINT,
    "fitting": {"errors", "record_files", "records"} | TABLES,
    "history_file": {"errors", "generations", "history", "logs", "reading", "record_files"},
    # What a running server does with them.
    "telling": {"logs"},
    "checkpoints": {"freed_memory", "reading", "space", "telling"} | KEEPING,
    "clients": {"checkpoints", "choosing"} | KEEPING,
    "restore": {"choosing", "clients", "config", "history_file", "tables", "telling"}
    | KEEPING - {"record_files", "working_folder"},
    "outlook": {"choosing", "config", "errors", "fitting", "generation", "history_file", "holder", "tables"}
    | {"record_files", "working_folder"},
    "recorder": {"checkpoints", "history", "history_file", "logs", "memory"},
    "prefills": {"limiters", "logs", "monitor", "tables", "telling"},
    # What is known of it, who tells that, and who makes it all.
    "state": {
        "checkpoints",
        "choosing",
        "config",
        "fitting",
        "folder_lock",
        "generations",
        "monitor",
        "recorder",
        "restore",
        "tables",
    },
    "alerts": {"generations", "history", "memory", "monitor", "state"},
    "metrics": {"generation", "state"},
    "status": {"choosing", "memory", "monitor", "state"},
    "connections": {"logs"},
    "http": {
        "admission",
        "alerts",
        "config",
        "connections",
        "errors",
        "generation",
        "metrics",
        "peers",
        "state",
        "status",
    },
    "service": {"checkpoints", "clients", "config", "errors", "folder_lock", "generations", "http", "logs", "monitor"}
    | {"choosing", "alerts", "history_file", "recorder"}
    | {"ports", "prefills", "restore", "sharing", "state", "tables", "telling"},
    "command": {"admission", "config", "errors", "feasibility", "generation", "logs", "outlook", "service", "tables"},
    "__main__": set(),
}

OF_THE_CLIENT = {"errors", "extras", "specs", "strict_yaml", "transport", "views", "wire", "wording"}
"""Layers of rlds2reverb that the server builds on."""

ONLY_IN = {
    # Libraries that not every module may use; most of them take seconds to import, or are no dependency of the client.
    "reverb": {"embedded", "limiters", "selectors", "service", "tables"},
    "tensorflow": {"records", "tables"},
    "flask": {"http"},
    "waitress": {"connections"},
    "prometheus_client": {"http", "metrics"},
    "structlog": {"logs"},
    "google": {"fitting"},
    "xxhash": {"generation", "history", "record_files"},
    "click": {"command"},
    "yaml": {"command", "template"},
    "numpy": {"signatures"},
    "msgspec": {
        "config",
        "dataset_signatures",
        "generation",
        "generations",
        "history",
        "limiters",
        "owner",
        "peers",
        "record_files",
        "recorder",
        "service",
        "template",
    },
}

LATE = {"reverb", "tensorflow"}
"""Imported inside functions only: a check of a config, and a server that is refused, need none of them."""

LOCAL_IMPORTS = {
    ("command", "replay_server.service"): "a check of a config starts no HTTP",
    ("dataset_signatures", "rlds2reverb.conventions"): "only for signatures of datasets",
    ("dataset_signatures", "rlds2reverb.sources"): "only for signatures of datasets",
    ("dataset_signatures", "rlds2reverb.sources.transformed"): "only for signatures of datasets",
    ("dataset_signatures", "rlds2reverb.transforms.reading"): "only for signatures of datasets",
    ("dataset_signatures", "rlds2reverb.views.extras"): "only for signatures of datasets",
    ("dataset_signatures", "rlds2reverb.views.registry"): "only for signatures of datasets",
    ("dataset_signatures", "rlds2reverb.views.sequence"): "only for signatures of datasets",
    ("dataset_signatures", "rlds2reverb.views.trajectory"): "only for signatures of datasets",
    ("dataset_signatures", "rlds2reverb.sources.base"): "only for signatures of datasets",
}
"""Imports inside functions beside the late ones."""

ENTRY_POINTS = {("__main__", "rlds2reverb.cli.serve"): "`python -m replay_server` is `rlds2reverb serve`"}


def test_every_module_stands_in_the_table() -> None:
    assert set(CODE.modules) - {""} == set(MAY_IMPORT)


def test_the_table_allows_downward_imports_only() -> None:
    order = list(MAY_IMPORT)
    upward = {
        (name, one) for name, allowed in MAY_IMPORT.items() for one in allowed if one not in order[: order.index(name)]
    }
    assert upward == set()


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_module_imports_what_the_table_allows_and_the_table_allows_nothing_else(name: str) -> None:
    assert CODE.graph[name] == MAY_IMPORT[name]


def test_no_module_imports_itself_through_others() -> None:
    assert circle(CODE.graph) == []


def test_a_circle_would_be_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_import_is_hidden_from_the_program() -> None:
    assert CODE.type_checking() == set()


def test_the_client_is_used_in_its_lower_layers_only() -> None:
    found = {(one.importer, one.target) for one in CODE.imports if top(one.target) == CLIENT}
    late = LOCAL_IMPORTS.keys() | ENTRY_POINTS.keys()
    used = {target.removeprefix(f"{CLIENT}.").split(".")[0] for _, target in found - late} - {CLIENT}
    assert used == OF_THE_CLIENT


def test_libraries_stay_in_their_modules() -> None:
    known = {"replay_server", CLIENT, "__future__"} | set(sys.stdlib_module_names)
    used: dict[str, set[str]] = {}
    for one in CODE.imports:
        if top(one.target) not in known:
            used.setdefault(top(one.target), set()).add(one.importer)
    assert used == ONLY_IN


def test_imports_inside_functions_are_the_late_and_the_listed_ones() -> None:
    late = {one for one in CODE.imports if top(one.target) in LATE}
    assert {one.importer for one in late if not one.is_local} == set()
    others = {(one.importer, one.target) for one in CODE.imports if one.is_local and top(one.target) not in LATE}
    assert others == set(LOCAL_IMPORTS)


def test_a_server_that_has_not_started_has_loaded_neither_reverb_nor_tensorflow() -> None:
    names = ", ".join(f"replay_server.{name}" for name in MAY_IMPORT if name != "__main__")
    code = f"import json, sys; import {names}; print(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    assert {top(name) for name in json.loads(finished.stdout)} & LATE == set()
