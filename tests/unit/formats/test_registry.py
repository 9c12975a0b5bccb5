"""The registry of sources: its entries are true, a new format needs no more than its entry, and telling of them is cheap."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlds2reverb import formats
from rlds2reverb.errors import SourceError
from rlds2reverb.extras import Lazily
from rlds2reverb.formats import open_source
from rlds2reverb.formats.registry import SOURCES, Format, Formats
from tests.contract import toy
from tests.project import project


def test_no_two_formats_share_a_scheme() -> None:
    schemes = [one.scheme for one in SOURCES]
    assert len(set(schemes)) == len(schemes)
    assert all(re.fullmatch("[a-z][a-z0-9]*", scheme) for scheme in schemes)


@pytest.mark.parametrize("one", [*SOURCES, toy.FORMAT], ids=lambda one: one.scheme)
class TestEveryEntry:
    def test_is_written_with_its_scheme_or_takes_objects(self, one: Format[Any]) -> None:
        assert one.forms or one.objects
        assert all(form.written.startswith(f"{one.scheme}:") for form in one.forms)
        assert all(form.names for form in one.forms)
        assert bool(one.objects) == bool(one.objects_are)

    def test_names_a_function_that_is_there(self, one: Format[Any]) -> None:
        if one.scheme == "reverb":
            return  # an import inside a function, which mypy reads
        assert isinstance(one.opener, Lazily)
        module, _, name = one.opener.where.partition(":")
        found = find_spec(module)
        assert found is not None
        assert found.origin is not None
        tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
        assert name in [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]

    def test_names_an_extra_of_this_package(self, one: Format[Any]) -> None:
        assert one.extra is None or one.extra in project()["optional-dependencies"]


def test_help_and_refusals_load_neither_numpy_nor_a_format() -> None:
    code = """
import json, sys
from rlds2reverb.formats import SOURCES, open_source
from rlds2reverb.errors import SourceError
SOURCES.rows(), SOURCES.table()
for thing in ("tfsd:x", "", 5, None, {}, b"tfds:x"):
    try:
        open_source(thing)
    except SourceError:
        pass
print(json.dumps(sorted(sys.modules)))
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    loaded = json.loads(finished.stdout)
    of_formats = [name for name in loaded if name.startswith("rlds2reverb.formats.")]
    assert of_formats == [f"rlds2reverb.formats.{name}" for name in ("options", "registry")]
    assert {"numpy", "tensorflow", "tensorflow_datasets"}.isdisjoint(loaded)


@pytest.fixture
def with_toy(monkeypatch: pytest.MonkeyPatch) -> Formats[Any]:
    """The registry with one entry more."""
    more: Formats[Any] = Formats(SOURCES.kind, SOURCES.error, (*SOURCES.known, toy.FORMAT))
    monkeypatch.setattr(formats, "SOURCES", more)
    return more


class TestANewFormat:
    def test_is_opened_by_name_and_as_an_object(self, with_toy: Formats[Any]) -> None:
        for thing in ("toy:2,3", toy.Toy((2, 3))):
            assert [len(episode) for episode in open_source(thing)] == [2, 3]

    def test_is_in_help_and_documentation(self, with_toy: Formats[Any]) -> None:
        assert with_toy.rows()[-1] == ("toy:LENGTHS", "episodes of these lengths")
        assert "| `toy:LENGTHS` | episodes of these lengths |  |  |" in with_toy.table()
        assert "| a `Toy` (Python) | its episodes |  |  |" in with_toy.table()

    @pytest.mark.parametrize(
        ("thing", "said"),
        [
            ("csv:x", ", toy$"),
            ("tou:3", r'; did you mean "toy:3"\?$'),
            ("toy:x", '^"toy:x": expected lengths, such as toy:3,4$'),
            (5, "^int is no source: expected a name .*, toy.*, a Toy, .*or an object with spec"),
        ],
    )
    def test_is_in_messages(self, with_toy: Formats[Any], thing: Any, said: str) -> None:
        with pytest.raises(SourceError, match=said):
            open_source(thing)
