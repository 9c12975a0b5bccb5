"""Text, files and mappings say the same; whatever is none of them is refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlds2reverb.errors import ConfigError
from rlds2reverb.formats.transform import OPTIONS, Transform, transform_of
from tests.unit.formats.test_transform import EVERYTHING

TEXT = (
    "select=observation/*,action,drop=observation/depth,action=concat(world_vector,rotation_delta,/gripper),"
    "resize=observation/image:64x48,encode=observation/image:jpeg,rename=observation/image:observation/rgb,reward_last=shift,"
    "make=observation/grip:clip(action/grip,0,1),drop_first_rows=1,drop_last_rows=2"
)

NAMES = st.text("abc_*.-: é0", min_size=1, max_size=4).filter(lambda name: name.strip() == name)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
SIZES = st.builds("{}x{}{}".format, st.integers(1, 99), st.integers(1, 99), st.sampled_from(["", ":area", ":lanczos3"]))
EXPRESSIONS = st.recursive(
    st.sampled_from(["x/y", "z[0]", "z[:3]", "zeros(2)"]),
    lambda inner: st.one_of(
        st.builds("concat({}, {})".format, inner, inner),
        st.builds("clip({}, {}, 9)".format, inner, st.integers(-3, 3)),
        st.builds("choose({}, {}, seed={})".format, inner, inner, st.integers(0, 9)),
    ),
    max_leaves=4,
)
TRANSFORMS = st.builds(
    Transform,
    select=st.lists(PATHS, max_size=3, unique=True),
    drop=st.lists(PATHS, max_size=3, unique=True),
    action=st.lists(PATHS, max_size=3, unique=True).map(lambda parts: f"concat({','.join(parts)})" if parts else ""),
    resize=st.dictionaries(PATHS, SIZES, max_size=3),
    encode=st.dictionaries(PATHS, st.sampled_from(["png", "jpeg", "jpeg:quality=3:subsampling=444"]), max_size=3),
    rename=st.dictionaries(PATHS, PATHS, max_size=3),
    reward_last=st.sampled_from(["as_recorded", "shift"]),
    make=st.dictionaries(st.sampled_from(["a", "b/c", "d"]), EXPRESSIONS),
    drop_first_rows=st.integers(0, 3),
    drop_last_rows=st.integers(0, 3),
)


def refusal_of(given_form: Any) -> str:
    """Why it is none; "" when it is a transform."""
    try:
        transform_of(given_form)
    except ConfigError as error:
        return str(error)
    return ""


def as_text(transform: Transform) -> str:
    """On one line, as it would be typed."""
    pairs = (
        f"{name}={old}:{new}"
        for name in ("resize", "encode", "rename", "make")
        for old, new in getattr(transform, name).items()
    )
    lists = (f"{name}={','.join(paths)}" for name in ("select", "drop") if (paths := getattr(transform, name)))
    action = [f"action={transform.action}"] if transform.action else []
    rows = [f"{name}={getattr(transform, name)}" for name in ("drop_first_rows", "drop_last_rows")]
    return ",".join((*lists, *pairs, *action, *rows, f"reward_last={transform.reward_last}"))


def test_every_form_says_the_same(tmp_path: Path) -> None:
    plain = EVERYTHING.as_dict()
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(plain))
    (tmp_path / "section.yaml").write_text(yaml.safe_dump({"transform": plain}))
    forms: tuple[Any, ...] = (
        EVERYTHING,
        TEXT,
        plain,
        {"transform": plain},
        tmp_path / "own.yaml",
        str(tmp_path / "section.yaml"),
    )
    assert [transform_of(form) for form in forms] == [EVERYTHING] * len(forms)


@given(TRANSFORMS)
def test_what_is_written_as_yaml_is_read_back(transform: Transform) -> None:
    assert transform_of(yaml.safe_load(yaml.safe_dump(transform.as_dict()))) == transform


@given(TRANSFORMS)
def test_what_is_written_as_text_is_read_back_where_names_have_no_colon(transform: Transform) -> None:
    if not any(":" in name for pair in transform.rename.items() for name in pair):
        assert transform_of(as_text(transform)) == transform


@given(TRANSFORMS)
def test_several_add_up(transform: Transform) -> None:
    alone = [{name: value} for name, value in transform.as_dict().items()]
    assert transform_of(alone) == transform_of(tuple(reversed(alone))) == transform


@given(st.text("selctdropnamizew=,():/x2 *", max_size=40))
def test_any_text_is_a_transform_or_refused_in_one_line(text: str) -> None:
    assert "\n" not in refusal_of(text)


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(
    st.sampled_from((*OPTIONS, "transform", "x")), inner, max_size=3) | st.lists(inner, max_size=2)))  # fmt: skip
def test_any_value_in_a_mapping_is_taken_or_refused(value: Any) -> None:
    for config in ({"select": value}, {"transform": value}):
        assert refusal_of(config) == "" or "transform: " in refusal_of(config)


@pytest.mark.parametrize(
    ("given_text", "message"),
    [
        ("selct=action", 'no option "selct"; there are select, drop, .*; did you mean "select"?'),
        ("select=a,b=c", 'no option "b"'),
        ("selct=" + "a" * 300, 'no option "selct"'),
        ("selct=a\0", 'no option "selct"'),
        ("a\0b", "cannot be read .*null"),
        ("select=", "select: '': expected a path"),
        ("resize=observation/image", 'resize: "observation/image": expected PATH:HEIGHTxWIDTH'),
        ("resize=a:2x2,a:3x3", 'resize: "a" stands twice'),
        ("rename=a", 'rename: "a": expected OLD:NEW'),
        ("rename=a:b:c", 'names with ":" go into a YAML file'),
        ("rename=a:b,a:c", 'rename: "a" stands twice'),
        ("action=concat(a,b", "expected brackets in pairs"),
        ("action=concat(a),concat(b)", r"action: expected one value, got concat\(a\), concat\(b\)"),
        ("action=a,select=b", "action: 'a': expected concat"),
        ("reward_last=shift,shift", "reward_last: expected one value"),
        ("nothing_there.yaml", r"^nothing_there.yaml: cannot be read \(No such file or directory\); expected a YAML file, or text with"),
    ],
)  # fmt: skip
def test_text_that_makes_no_sense_is_refused(given_text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        transform_of(given_text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping with select, drop, .*, got None"),
        ("- select", r"got \['select'\]"),
        ("drp: [a]", 'no option "drp"; .*did you mean "drop"'),
        ("transform: {drop: a}\nview: two_step", 'no option "transform"'),
        ("transform:", "got None"),
        ("drop:", "drop has no value; leave it out"),
        ("resize: {a: 2x}", 'transform: resize: "a": .2x.: expected'),
        ("drop: [a\n", "not YAML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "transform.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        transform_of(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_looks_like_options_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("size=64.yaml", "select=a"):
        Path(name).write_text("drop: b")
    assert transform_of("size=64.yaml") == transform_of("./select=a") == Transform(drop="b")
    assert transform_of("select=a") == Transform(select="a")


@pytest.mark.parametrize("other", [None, 5, 2.5, {1}, b"drop=a", [None]])
def test_what_is_none_of_these_is_refused(other: Any) -> None:
    with pytest.raises(ConfigError, match="expected text such as resize=observation/image:256x256, a YAML file"):
        transform_of(other)


def test_two_actions_are_one_too_many() -> None:
    with pytest.raises(ConfigError, match=r"action: expected one, got concat\(a\) and concat\(b\)"):
        transform_of(["action=concat(a)", {"action": "concat(b)"}])
    with pytest.raises(ConfigError, match='drop: "a" stands twice'):
        transform_of(["drop=a", "drop=a"])
