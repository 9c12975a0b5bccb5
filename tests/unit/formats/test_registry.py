"""The registry of sources: its entries are true, a new format needs no more than its entry, and telling of them is cheap."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from rlds2reverb import formats
from rlds2reverb.errors import SourceError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.registry import SOURCES, Format, Side, SourceFormats, own_formats
from tests.support.contract import toy
from tests.support.project import project


def test_no_two_formats_share_a_scheme() -> None:
    schemes = [source.scheme for source in SOURCES]
    assert len(set(schemes)) == len(schemes)
    assert all(re.fullmatch("[a-z][a-z0-9]*", scheme) for scheme in schemes)


@pytest.mark.parametrize("known", [*own_formats(), toy.FORMAT], ids=lambda known: known.scheme)
class TestEveryEntry:
    def test_is_written_with_its_scheme_or_takes_objects(self, known: Format) -> None:
        assert known.reading or known.writing
        sides: list[Side[Any] | None] = [known.reading, known.writing]
        for side in filter(None, sides):
            assert all(form.written.startswith(f"{known.scheme}:") for form in side.forms)
            assert all(form.names for form in side.forms)
        if known.reading is not None:
            assert known.reading.forms or known.reading.objects
            assert bool(known.reading.objects) == bool(known.reading.objects_are)

    def test_names_an_extra_of_this_package(self, known: Format) -> None:
        assert known.extra is None or known.extra in project()["optional-dependencies"]


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
    light = ("ilr", "lerobot", "minari", "options", "plugins", "registry", "ted", "tfds")
    assert of_formats == [f"rlds2reverb.formats.{name}" for name in light]
    assert {"numpy", "tensorflow", "tensorflow_datasets"}.isdisjoint(loaded)


@pytest.fixture
def with_toy(monkeypatch: pytest.MonkeyPatch) -> SourceFormats:
    """The registry with one entry more."""
    more = SourceFormats(own=lambda: (*own_formats(), toy.FORMAT))
    monkeypatch.setattr(formats, "SOURCES", more)
    return more


class TestANewFormat:
    def test_is_opened_by_name_and_as_an_object(self, with_toy: SourceFormats) -> None:
        for thing in ("toy:2,3", toy.Toy((2, 3))):
            assert [len(episode) for episode in open_source(thing)] == [2, 3]

    def test_is_in_help_and_documentation(self, with_toy: SourceFormats) -> None:
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
    def test_is_in_messages(self, with_toy: SourceFormats, thing: Any, said: str) -> None:
        with pytest.raises(SourceError, match=said):
            open_source(thing)
