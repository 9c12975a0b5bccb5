"""The one YAML reader: what everybody means, a refusal for the rest, and nothing that takes long."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from rlds2reverb import strict_yaml
from rlds2reverb.errors import ConfigError
from rlds2reverb.strict_yaml import MOST_BYTES, MOST_DEPTH, MOST_NODES, parse, read
from tests.support.raising import error_of

pytestmark = pytest.mark.timeout(60)

KEYS = st.text() | st.integers() | st.booleans() | st.none()
SCALARS = KEYS | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


def grown(template: str, first: str) -> str:
    """Ten lines, each with the one before nine times."""
    names = "abcdefghij"
    lines = [f"{name}: &{name} {template.format(', '.join(9 * [f'*{before}']))}" for before, name in pairwise(names)]
    return "\n".join([f"a: &a {first}", *lines])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-3:0", "-3:0"),
        ("1:30.5", "1:30.5"),
        ("010", "010"),
        ("2026-01-01", "2026-01-01"),
        ("2026-99-99", "2026-99-99"),
        ("=", "="),
        ("1_000_000", 1_000_000),
        ("+7", 7),
        ("-0x1f", -31),
        ("0b101", 5),
        ("1.5e+3", 1500.0),
        ("-.inf", -math.inf),
        ("!!float 3", 3.0),
        ("!!str 3", "3"),
        ("yes", True),
        ("~", None),
        ("", None),
        ("{a: &x {k: 1}, b: {<<: *x, l: 2}}", {"a": {"k": 1}, "b": {"k": 1, "l": 2}}),
        ("[&x {k: 1}, &y {<<: *x, k: 2}, {<<: *y}]", [{"k": 1}, {"k": 2}, {"k": 2}]),
        ("{a: {<<: [{k: 1}, {k: 2, l: 2}]}}", {"a": {"k": 1, "l": 2}}),
        ("{1: a, '1': b}", {1: "a", "1": "b"}),
    ],
)
def test_what_a_text_means(text: str, value: Any) -> None:
    found = parse(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "a: 1\nb: 2\na: 3": r'key "a" stands twice \(line 3, column 1\)',
        "{a: {b: 1, b: 2}}": 'key "b" stands twice',
        "{1: a, 0x1: b}": 'key "1" stands twice',
        "{<<: {a: 1}, <<: {b: 1}}": 'key "<<" stands twice',
        "{[a]: 1}": "a list or a mapping as a key",
        "&a [*a]": "an alias stands within itself",
        "&a {<<: *a}": "an alias stands within itself",
        "*a": "undefined alias",
        "!!int 3:0": "expected a whole number",
        "!!float 3:0": "expected a number",
        "!!bool maybe": "expected true or false",
        "!!timestamp 2026-01-01": "could not determine a constructor",
        "!!binary aGk=": "could not determine a constructor",
        "!!python/object:os.system x": "could not determine a constructor",
        "a: 1\n---\nb: 2": "expected a single document",
        '"\\UFFFFFFFF"': "names no character",
        "\0": "unacceptable character",
        "9" * 5000: "more than 400 digits of one number",
        "1." + "0" * 5000: "more than 400 digits of one number",
        "[" * 50_000: f"more than {MOST_DEPTH} lists and mappings within one another",
        "{" * 50_000: f"more than {MOST_DEPTH} lists and mappings within one another",
        "- " * 50_000: f"more than {MOST_DEPTH} lists and mappings within one another",
        grown("[{}]", "[" + ", ".join(9 * ["x"]) + "]"): f"more than {MOST_NODES:,} values",
        grown("{{<<: [{}], k: 1}}", "{x: 1}"): f"more than {MOST_NODES:,} values",
        "x\n" * MOST_BYTES: f"longer than {MOST_BYTES:,} bytes",
        "- x\n" * MOST_NODES: f"more than {MOST_NODES:,} values",
    }.items(),
    ids=lambda value: value[:40],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: not YAML: .*{message}") as caught:
        parse(text, "here: ")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_a_message_does_not_quote_the_text() -> None:
    for text in ("token: [s3cret", "token: !!int s3cret", "token: 's3cret", "token: s3cret: x", "{token: @s3cret}"):
        with pytest.raises(ConfigError) as caught:
            parse(text)
        assert "s3cret" not in str(caught.value)


@given(st.text() | st.text("[]{}:,-&*!|>'\"#%@ \n\tab1<~?.", max_size=60))
@example("&a {<<: *b}")
@example("!!int 0x_")
@example("? [a]\n: b")
def test_any_text_is_a_value_or_a_config_error(text: str) -> None:
    error = error_of(ConfigError, lambda: parse(text))
    assert error is None or str(error).startswith("not YAML: ")


@given(VALUES)
def test_what_pyyaml_writes_is_read_as_it_was(value: Any) -> None:
    assert parse(yaml.safe_dump(value)) == value


def test_a_file_is_named_in_every_error(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for path in (file, tmp_path):
        with pytest.raises(ConfigError, match=rf"^{path}: cannot be read .*; do this$"):
            read(path, "; do this")
    file.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match=rf"^{file}: cannot be read .*utf-8"):
        read(file)
    file.write_text("a: [")
    with pytest.raises(ConfigError, match=rf"^{file}: not YAML: "):
        read(file)
    file.write_text("a: 1")
    assert read(file) == {"a": 1}


def test_no_more_of_a_file_is_read_than_needed() -> None:
    with pytest.raises(ConfigError, match=f"longer than {strict_yaml.MOST_BYTES:,} bytes"):
        read(Path("/dev/zero"))
