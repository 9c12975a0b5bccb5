"""Imports go downwards only, optional dependencies stay in their modules, and the core never loads TensorFlow."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import rlds2reverb
from tests.imports import Package, circle, top

PACKAGE = "rlds2reverb"
ROOT = Path(rlds2reverb.__file__).parent

FOUNDATION = {
    "display",
    "identity",
    "errors",
    "episodes",
    "extras",
    "files",
    "image_headers",
    "image_spec",
    "json_files",
    "metadata",
    "notices",
    "specs",
    "wording",
}
BELOW_PUSH = FOUNDATION | {"conventions", "cuts", "sources", "transforms", "transport", "validation", "views", "wire"}

MAY_IMPORT: dict[str, set[str]] = {
    # Low to high; a name stands for the module or the package with all in it. A package may import within itself.
    "display": set(),
    "identity": set(),
    "errors": set(),
    "episodes": {"display", "identity"},
    "image_spec": set(),
    "image_headers": set(),
    "specs": {"errors", "image_spec"},
    "metadata": {"episodes", "specs"},
    "datasets": set(),
    "extras": set(),
    "source_options": {"errors"},
    "formats": {"errors", "extras", "source_options"},
    "files": {"errors"},
    "protobuf": set(),
    "notices": set(),
    "wording": set(),
    "json_files": {"errors", "wording"},
    "strict_yaml": {"errors"},
    "conventions": FOUNDATION,
    "cuts": FOUNDATION,
    "tfds_files": FOUNDATION | {"protobuf", "source_options"},
    "images": FOUNDATION | {"tfds_files"},
    "transforms": FOUNDATION | {"conventions", "formats"},
    "readers": FOUNDATION | {"tfds_files"},
    # Views, validation and sources are blind to one another.
    "views": FOUNDATION | {"cuts", "strict_yaml"},
    "step_stream": FOUNDATION | {"views"},
    "validation": FOUNDATION | {"conventions"},
    "sources": FOUNDATION
    | {"datasets", "formats", "readers", "source_options", "strict_yaml", "tfds_files", "transforms"},
    # The wire sees what a cut is, not how views make it.
    "wire": FOUNDATION | {"cuts", "protobuf"},
    "destinations": FOUNDATION
    | {"conventions", "formats", "images", "readers", "source_options", "sources", "tfds_files", "validation", "wire"},
    "transport": FOUNDATION | {"wire"},
    "push": BELOW_PUSH,
    "scale": FOUNDATION
    | {"conventions", "destinations", "formats", "push", "sources", "transport", "validation", "wire"},
    "conversion": FOUNDATION | {"destinations", "push", "scale", "sources", "validation"},
    "learner": (BELOW_PUSH - {"transforms"}) | {"images", "push", "scale.pushing", "scale.sources"},
    "client": BELOW_PUSH | {"images", "learner", "push", "scale"},
    "connecting": FOUNDATION | {"client", "learner", "transport"},
    "stored": FOUNDATION
    | {"connecting", "protobuf", "readers", "source_options", "sources", "tfds_files", "transport", "views", "wire"},
    "adapters": FOUNDATION | {"client", "connecting", "learner", "push.tables", "transport", "views", "wire"},
    "tf_agents": FOUNDATION
    | {
        "client",
        "connecting",
        "cuts",
        "push.sender",
        "push.tables",
        "push.writer",
        "sources",
        "step_stream",
        "views",
        "wire",
    },
    "reports": FOUNDATION
    | {
        "conventions",
        "push.cutting",
        "push.outputs",
        "push.report",
        "push.tally",
        "scale",
        "sources",
        "transforms",
        "validation",
        "views",
    },
    "showing": FOUNDATION | {"conventions", "destinations", "formats", "images", "sources", "transforms", "validation"},
    "notebook": FOUNDATION
    | {
        "destinations.png",
        "formats",
        "images",
        "learner.leaves",
        "reports.brief",
        "reports.inspected",
        "validation.problems",
        "wire.limiter",
    },
    "report": FOUNDATION
    | {
        "conventions",
        "cuts",
        "destinations.whole_files",
        "images",
        "push.cutting",
        "reports",
        "validation",
    },
    "cli": BELOW_PUSH
    | {
        "client",
        "connecting",
        "conversion",
        "datasets",
        "destinations",
        "formats",
        "learner",
        "push",
        "readers",
        "report",
        "reports",
        "scale",
        "showing",
        "tfds_files",
    },
    "__main__": {"cli"},
}

OPTIONAL = {
    "array_record",
    "av",
    "h5py",
    "imagecodecs",
    "jax",
    "msgpack",
    "pyarrow",
    "ray",
    "replay_server",
    "reverb",
    "rlds",
    "simplejpeg",
    "tensordict",
    "tensorflow",
    "tensorflow_datasets",
    "tf_agents",
    "torch",
}
"""Top-level packages that the core does without."""

NEEDS_OPTIONAL = {
    "adapters.jax",
    "adapters.tensordicts",
    "adapters.torch",
    "adapters.torchrl",
    "adapters.rllib",
    "adapters.tf_agents",
    "adapters.tf_data",
    "readers.d4rl.layout",
    "readers.d4rl.telling",
    "destinations.lerobot.arrow",
    "destinations.lerobot.destination",
    "destinations.lerobot.encoding",
    "destinations.lerobot.fields",
    "destinations.lerobot.finishing",
    "destinations.lerobot.rows",
    "destinations.lerobot.sink",
    "readers.hdf5",
    "readers.hdf5_attributes",
    "readers.hdf5_chunks",
    "readers.hdf5_files",
    "readers.hdf5_texts",
    "readers.robomimic.demos",
    "readers.robomimic.plan",
    "readers.robomimic.recordings",
    "readers.robomimic.survey",
    "readers.lerobot.dataset",
    "readers.lerobot.episodes",
    "readers.lerobot.reader",
    "readers.lerobot.recordings",
    "readers.lerobot.tables",
    "readers.lerobot.values",
    "sources.lerobot",
    "destinations.ted.h5",
    "readers.ted.h5",
    "readers.minari.in_hdf5",
    "destinations.minari.sink",
    "readers.rllib.arrow",
    "readers.rllib.cells",
    "readers.rllib.table_records",
    "readers.rllib.tables",
    "scale.on_ray",
    "sources.loading",
    "sources.rlds",
    "showing.videos",
    "sources.tfds_by_tensorflow",
    "tf_agents",
    "tf_agents.conversion",
    "tf_agents.data",
    "tf_agents.decoding",
    "tf_agents.observers",
    "tf_agents.plan",
    "tf_agents.policy_info",
    "tf_agents.push",
    "tf_agents.specs",
}

CORE_DEPENDENCIES = {
    "click",
    "cramjam",
    "google",
    "google_crc32c",
    "grpc",
    "ml_dtypes",
    "numpy",
    "rich",
    "xxhash",
    "yaml",
}

GRPC_USERS = {
    "transport.certificates",
    "transport.connections",
    "transport.grpc_stream",
    "transport.grpc_transport",
    "transport.question",
}
"""Modules that import gRPC."""

LOCAL_IMPORTS = {
    ("readers.rllib.episode_states", "msgpack"): "read by an extra",
    ("cli.demo", "replay_server"): "the demo's server comes with an extra",
    ("destinations.tfds.files", "array_record"): "written by an extra",
    ("destinations.tfds.files", "pyarrow"): "written by an extra",
    ("destinations.png", "imagecodecs"): "encoded by an extra",
    ("readers.lerobot.pictures", "imagecodecs"): "asked whether it is there",
    ("readers.lerobot.pictures", "simplejpeg"): "asked whether it is there",
    ("report.pictures", "simplejpeg"): "smaller files with an extra; PNG without it",
    ("readers.lerobot.videos", "av"): "decoded by an extra",
    ("readers.ilr.archives", "pyarrow"): "zstd as a stream, by an extra",
    ("showing.saving", "av"): "asked whether it is there",
    ("showing.saving", "imagecodecs"): "asked whether it is there",
    ("showing.uris", "imagecodecs"): "asked whether it is there",
    ("showing.uris", "simplejpeg"): "encoded by an extra",
    ("tfds_files.array_records", "array_record"): "read by an extra",
    ("tfds_files.images", "imagecodecs"): "decoded by an extra",
    ("tfds_files.images", "simplejpeg"): "decoded by an extra",
    ("tfds_files.parquet", "pyarrow"): "read by an extra",
    ("readers.arrow_bounds", "pyarrow"): "read by an extra",
    ("readers.arrow_files", "pyarrow"): "read by an extra",
    ("readers.minari.in_arrow", "pyarrow"): "read by an extra",
    ("cli.inspect", "replay_server"): "what a server's config looks like comes with an extra",
    ("cli.serve", "replay_server"): "the server comes with an extra",
    ("cli.demo", "reverb"): "the demo's sampler comes with the same extra",
}
"""Imports inside functions: optional dependencies only."""

DYNAMIC_IMPORTS = {
    "": "names are imported when they are first used",
    "display": "what makes the HTML, and only when a notebook asks for some",
    "formats": "each format's module, and only when it is asked for",
    "cli": "each command's module, and only when it runs",
}
"""Modules that import by name at run time."""


CODE = Package(PACKAGE, ROOT)


def may_import(importer: str, target: str) -> bool:
    if top(importer) == top(target):
        return True
    allowed = MAY_IMPORT[top(importer)]
    return top(target) in allowed or target in allowed


def test_every_module_has_its_top() -> None:
    assert {top(name) for name in CODE.modules if name} == set(MAY_IMPORT)


def test_the_table_of_layers_allows_downward_imports_only() -> None:
    order = list(MAY_IMPORT)
    for name, allowed in MAY_IMPORT.items():
        assert all(order.index(top(target)) < order.index(name) for target in allowed), name


@pytest.mark.parametrize("importer", list(MAY_IMPORT))
def test_imports_go_to_the_layers_that_the_table_allows(importer: str) -> None:
    ours = [found for found in CODE.imports if top(found.importer) == importer and found.ours is not None]
    assert [
        f"{found.importer} imports {found.ours}" for found in ours if not may_import(found.importer, str(found.ours))
    ] == []


def test_the_table_allows_nothing_that_no_module_needs() -> None:
    used = {(top(found.importer), top(found.ours)) for found in CODE.imports if found.ours}
    for importer in MAY_IMPORT.keys() - {"client", "cli"}:  # these two may see all that is below them
        stale = {name for name in MAY_IMPORT[importer] - FOUNDATION if (importer, top(name)) not in used}
        assert stale == set(), importer


def reached_from(*names: str) -> set[str]:
    """Modules that these import, and those that these import, and so on."""
    found, new = set(names), set(names)
    while new:
        new = {target for name in new for target in CODE.graph[name]} - found
        found |= new
    return found


def test_inspection_counts_what_a_push_makes_without_the_wire_and_without_a_ledger() -> None:
    reached = reached_from("reports.inspection")
    assert "push.cutting" in reached
    assert {name for name in reached if top(name) in ("wire", "transport") or name == "push.ledger"} == set()


def test_no_module_imports_itself_through_others() -> None:
    assert circle(CODE.graph) == []


def test_importing_the_package_imports_none_of_its_modules() -> None:
    assert [found.target for found in CODE.imports if found.importer == "" and found.ours is not None] == []


def test_optional_dependencies_stay_in_their_modules() -> None:
    outside = {
        (found.importer, top(found.target))
        for found in CODE.imports
        if top(found.target) in OPTIONAL and found.importer not in NEEDS_OPTIONAL
    }
    assert outside == set(LOCAL_IMPORTS)


def test_grpc_stays_in_its_modules() -> None:
    assert {found.importer for found in CODE.imports if top(found.target) == "grpc"} == GRPC_USERS


def test_what_stands_on_a_transport_names_none_but_its_protocol() -> None:
    concrete = {"transport.grpc_transport", "transport.memory"}
    users = {found.importer for found in CODE.imports if found.ours in concrete}
    assert {name for name in users if top(name) != "transport"} == {"connecting"}


def test_imports_inside_functions_are_the_listed_ones() -> None:
    assert {(found.importer, top(found.target)) for found in CODE.imports if found.is_local} == set(LOCAL_IMPORTS)
    assert {name for _, name in LOCAL_IMPORTS} <= OPTIONAL


def test_imports_by_name_are_the_listed_ones() -> None:
    assert {found.importer for found in CODE.imports if top(found.target) == "importlib"} == set(DYNAMIC_IMPORTS)
    calls = [node for tree in CODE.modules.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [call.lineno for call in calls if ast.unparse(call.func) == "__import__"]


def test_the_core_needs_only_its_declared_dependencies() -> None:
    known = CORE_DEPENDENCIES | set(sys.stdlib_module_names) | {PACKAGE, "__future__"}
    others = {(found.importer, top(found.target)) for found in CODE.imports if top(found.target) not in known}
    assert {name for _, name in others} <= OPTIONAL


def loaded_by(*names: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after these imports."""
    code = f"import json, sys; import {', '.join(names)}; print(json.dumps(sorted(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout))


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_by(PACKAGE)
    assert not loaded & {*OPTIONAL, "numpy", "grpc", "google.protobuf", "sqlite3", "click", "rich"}
    assert {name for name in loaded if name.startswith(f"{PACKAGE}.")} == set()


def test_the_client_and_the_wire_do_not_load_tensorflow() -> None:
    loaded = loaded_by(PACKAGE, f"{PACKAGE}.client", f"{PACKAGE}.push.sender")
    assert f"{PACKAGE}.push.pipeline" in loaded
    assert {top(name) for name in loaded} & OPTIONAL == set()


def test_no_module_of_the_core_loads_tensorflow() -> None:
    without = [name for name in CODE.modules if name and name != "__main__" and not reached_from(name) & NEEDS_OPTIONAL]
    core = [f"{PACKAGE}.{name}" for name in without]
    loaded = loaded_by(*core)
    assert set(core) <= loaded
    assert {top(name) for name in loaded} & OPTIONAL == set()
