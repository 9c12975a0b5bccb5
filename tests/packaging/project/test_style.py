"""Excepts name what they catch, and no file tells of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import modules

CHECKOUT = modules.CHECKOUT
TESTS = CHECKOUT / "tests"

BROAD_EXCEPTS = {
    "rlds2reverb/adapters/common.py": "an error of the reading thread is raised in the caller's",
    "rlds2reverb/adapters/jax.py": "an error of the thread that puts batches ahead is raised in the caller's",
    "rlds2reverb/adapters/rllib_writing.py": "an error of the sending thread is raised in the EnvRunner's next call",
    "rlds2reverb/cli/top/app.py": "an error of the view is raised when the terminal is given back",
    "rlds2reverb/cli/top/watching.py": "an error of a requesting thread is raised in the one that shows what is known",
    "rlds2reverb/conversion/by_library.py": "whatever a library raises of a file is raised in the process that asked it",
    "rlds2reverb/conversion/workers.py": "an error of a worker is raised in the process that started it",
    "rlds2reverb/workers/driver.py": "whether an error can be made again, only trying shows; its text arrives anyway",
    "rlds2reverb/workers/processes.py": "a failing connection to a worker is the loss of that worker, and says why",
    "rlds2reverb/fleet/tasks.py": "an error of a worker is raised in the process that started it",
    "rlds2reverb/workers/ray.py": "an error of a worker is raised in the process that started it",
    "rlds2reverb/workers/worker.py": "an error of a worker is raised in the process that started it",
    "rlds2reverb/formats/mapped.py": "an episode that a function of a user fails for is a bad one, and says why",
    "rlds2reverb/formats/objects/hub.py": "an error of the thread that asks the hub is raised in the one that waits for the answer",
    "rlds2reverb/formats/registry.py": "a format of somebody else's that cannot tell whether a path is its own proposes nothing",
    "rlds2reverb/formats/source.py": "an error of the reading thread is raised in the caller's",
    "rlds2reverb/inspection/workers.py": "an error of a worker is raised in the process that started it",
    "rlds2reverb/learner/server_queue.py": "an error of a background call is raised in the one that waits for the answer",
    "rlds2reverb/learner/writer.py": "an error of the sending thread is raised in the caller's",
    "rlds2reverb/look/notebook.py": "a notebook shows why something cannot be shown, in its place, and continues",
    "rlds2reverb/push/journal.py": "what goes wrong with a journal is a notice of the push, which goes on",
    "rlds2reverb/push/pages.py": "what goes wrong with the list of episodes is a notice of the push, which goes on",
    "rlds2reverb/transport/grpc.py": "an error of the thread that begins a call is raised in the caller's",
    "rlds2reverb/transport/stream.py": "an error of the receiving thread is raised in the caller's",
    "server/replay_server/clients.py": "the thread must continue, and logs the traceback",
    "server/replay_server/command.py": "the process ends there, with the traceback in its log",
    "server/replay_server/recorder.py": "a history that fails must not end a server, and logs the traceback",
    "server/replay_server/uploads.py": "a bug of the sending thread is logged and counted, and the server serves on",
}
"""Files that catch everything and do not raise in the same place, with the reason."""

# Put together here, so that this file does not have them.
FORBIDDEN = [
    "TO" + "DO",
    "FIX" + "ME",
    "/wo" + "rk/",
    "/ro" + "ot/",
    "pypi" + ".org",
    "python" + "hosted.org",
    "--index" + "-url",
    "--extra-index" + "-url",
]


@cache
def sources() -> dict[str, str]:
    """Text of every module of our packages, by path."""
    return {path: text for package in modules.PACKAGES for path, text in modules.modules(package).items()}


@cache
def except_handlers() -> dict[str, list[ast.ExceptHandler]]:
    """Of every module, by path; each module is walked once."""
    return {
        path: [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
        for package in modules.PACKAGES
        for path, tree in modules.trees(package).items()
    }


@pytest.mark.parametrize("path", sources())
def test_every_except_names_what_it_catches(path: str) -> None:
    assert [handler.lineno for handler in except_handlers()[path] if handler.type is None] == []


def swallows_everything(handler: ast.ExceptHandler) -> bool:
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
    return handler.type is not None and ast.unparse(handler.type) in ("Exception", "BaseException") and not raises


def test_what_catches_everything_raises_it_again() -> None:
    handlers = [(path, handler) for path, found in except_handlers().items() for handler in found]
    found = dict.fromkeys(path for path, handler in handlers if swallows_everything(handler))
    assert sorted(found) == sorted(BROAD_EXCEPTS)


_TRY = re.compile(r"^\s*try:", re.MULTILINE)


def asserts_beside_a_try(text: str) -> list[int]:
    """Lines of claims in the except or else of a try: which of them ran is not seen."""
    if not _TRY.search(text):
        return []
    tries = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Try)]
    beside = [part for node in tries for part in (*node.handlers, *node.orelse)]
    return [node.lineno for part in beside for node in ast.walk(part) if isinstance(node, ast.Assert)]


def test_no_test_claims_anything_in_an_except() -> None:
    lines = {path: asserts_beside_a_try(path.read_text(encoding="utf-8")) for path in TESTS.rglob("*.py")}
    assert {path: found for path, found in lines.items() if found} == {}, "tests.support.raising has what to use"


def test_a_claim_in_an_except_would_be_found() -> None:
    job = "try:\n    job()\nexcept ValueError as error:\n    assert error\n"
    assert asserts_beside_a_try(job) == [4]
    assert asserts_beside_a_try(f"{job}else:\n    assert job") == [4, 6]


def tracked_files() -> list[Path]:
    """Files under version control; none outside a checkout."""
    if not (CHECKOUT / ".git").exists():
        return []
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, timeout=60, check=False)
    return [CHECKOUT / name for name in listed.stdout.decode().split("\0") if name and (CHECKOUT / name).is_file()]


def forbidden_words(file: Path) -> Iterator[str]:
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return  # no text
    for number, line in enumerate(text.splitlines(), 1):
        yield from (f"{file.relative_to(CHECKOUT)}:{number}: {word}" for word in FORBIDDEN if word in line)


def test_no_file_has_a_forbidden_word() -> None:
    files = tracked_files()
    if not files:
        pytest.skip("not a git checkout")
    assert [found for file in files for found in forbidden_words(file)] == []


def test_a_forbidden_word_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CHECKOUT", tmp_path)
    (tmp_path / "text").write_text(f"fine\nsee {FORBIDDEN[2]}here\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe" + FORBIDDEN[0].encode())
    assert list(forbidden_words(tmp_path / "text")) == [f"text:2: {FORBIDDEN[2]}"]
    assert list(forbidden_words(tmp_path / "binary")) == []


def test_a_unit_test_lies_where_its_module_does() -> None:
    """`rlds2reverb/push/plan.py` has tests/unit/push/test_plan.py, or more than one file that begins with `test_plan_`."""
    unit = TESTS / "unit"
    names: dict[Path, set[str]] = {}
    for root, rooms in (("rlds2reverb", unit), ("server/replay_server", unit / "server")):
        for module in (CHECKOUT / root).rglob("*.py"):
            folder = rooms / module.parent.relative_to(CHECKOUT / root)
            names.setdefault(folder, {rooms.name, "rlds2reverb"} if folder == rooms else {folder.name}).add(module.stem)
    strays = [
        str(path.relative_to(TESTS))
        for path in unit.rglob("test_*.py")
        if "tf_agents" not in path.parts  # all that needs TensorFlow, of any module
        and not any(f"{path.stem}_".startswith(f"test_{name}_") for name in names.get(path.parent, ()))
    ]
    assert strays == []
