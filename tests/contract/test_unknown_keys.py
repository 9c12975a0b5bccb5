"""Every configuration that is read refuses a key that it does not know, says which there are, and what a near one was meant to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay_server.config import load, table_configs

from rlds2reverb.errors import Rlds2ReverbError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.mix import MixedSource
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.views import read_view
from tests.support.formats import ilr as ilr_data

Reader = Callable[[Path], object]


def _read_server(path: Path) -> object:
    return table_configs(load(path, environment={}))


def _table(**more: Any) -> dict[str, Any]:
    return {"tables": [{"name": "replay", **more}]}


_ENTRY = {"env_cfg": {"benchmark_name": "magical", "task_name": "Toy-v0"}, "env_data": {"data_root": "."}}
_LIMITERS: list[dict[str, Any]] = [
    {"kind": "min_size", "min_size": 1},
    {"kind": "sample_to_insert_ratio", "samples_per_insert": 1.0, "error_buffer": 4.0},
    {"kind": "queue", "size": 2},
    {"kind": "stack", "size": 2},
    {"kind": "prefill", "items": 1, "then": {"kind": "min_size"}},
]

_MIXTURE = {
    "sets": [{"source": "bundled:cartpole", "transform": {"drop": ["discount"]}}],
    "transform": {"rename": {"action": "act"}},
    "normalize": {"columns": "act", "mode": "mean_std"},
    "view": {"view": "slices", "length": 2},
}

PLACES: list[tuple[str, Reader, Any, tuple[Any, ...], str]] = [
    ("transform", transform_of, {"select": ["action"]}, (), "selct"),
    ("transform section", transform_of, {"transform": {"select": ["action"]}}, ("transform",), "renam"),
    ("view", read_view, {"view": "two_step"}, (), "extra"),
    *(
        (f"server {section}", _read_server, {**_table(), section: {}}, (section,), near)
        for section, near in {"grpc": "prot", "http": "hots", "checkpoints": "every_second", "log": "levl"}.items()
    ),
    ("server", _read_server, _table(), (), "chekpoints"),
    ("server table", _read_server, _table(), ("tables", 0), "max_sise"),
    *(
        (f"limiter {limiter['kind']}", _read_server, _table(rate_limiter=limiter), ("tables", 0, "rate_limiter"), near)
        for limiter, near in zip(_LIMITERS, ("min_siz", "errorbuffer", "siz", "sise", "item"), strict=True)
    ),
    (
        "limiter after a prefill",
        _read_server,
        _table(rate_limiter={"kind": "prefill", "items": 1, "then": {"kind": "min_size"}}),
        ("tables", 0, "rate_limiter", "then"),
        "min_sise",
    ),
    ("sampler", _read_server, _table(sampler={"kind": "prioritized"}), ("tables", 0, "sampler"), "exponents"),
    (
        "signature",
        _read_server,
        _table(signature={"from_dataset": "bundled:cartpole"}),
        ("tables", 0, "signature"),
        "veiw",
    ),
    *(
        (
            f"checkpoints {key}",
            _read_server,
            {**_table(), "checkpoints": {key: {"last": 3}}},
            ("checkpoints", key),
            near,
        )
        for key, near in {"keep": "hourl", "upload_keep": "dayly"}.items()
    ),
    *(
        (f"mixture {' '.join(map(str, place))}", lambda path: open_source(f"mix:{path}"), _MIXTURE, place, near)
        for place, near in (
            ((), "balanc"),
            (("sets", 0), "wieght"),
            (("sets", 0, "transform"), "selct"),
            (("transform",), "renam"),
            (("normalize",), "mod"),
            (("view",), "extra"),
        )
    ),
    ("ilr", lambda path: open_source(f"ilr:{path}"), {"dataset_configs": [{}], **_ENTRY}, (), "dataset_config"),
    *(
        (f"ilr {' '.join(map(str, place))}", lambda path: open_source(f"ilr:{path}"), whole, place, near)
        for whole, place, near in (
            ([{**_ENTRY, "type": "demos"}], (0,), "env_config"),
            ([_ENTRY], (0, "env_cfg"), "taskname"),
            ([_ENTRY], (0, "env_data"), "data_rot"),
            ({"dataset_configs": [{}], **_ENTRY}, ("env_cfg",), "benchmark"),
            ({"dataset_configs": [{}], **_ENTRY}, ("env_data",), "wds_n_traj"),
        )
    ),
]


def _with_key(whole: Any, place: tuple[Any, ...], key: str, value: Any) -> Any:
    if place:
        first, *rest = place
        changed = {first: _with_key(whole[first], tuple(rest), key, value)}
        return {**whole, **changed} if isinstance(whole, Mapping) else [changed[first], *whole[1:]]
    return {**whole, key: value}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of il-representations, for configurations beside it to name."""
    root = tmp_path_factory.mktemp("configs")
    data = root / "data" / "processed" / "demos" / "magical" / "Toy-v0"
    data.mkdir(parents=True)
    ilr_data.shard(data / "demos.tar", [ilr_data.trajectory(np.random.default_rng(0), 3)])
    return root


@pytest.mark.parametrize(
    ("reader", "whole", "place", "near"), [row[1:] for row in PLACES], ids=[row[0] for row in PLACES]
)
def test_an_unknown_key_is_refused(folder: Path, reader: Reader, whole: Any, place: tuple[Any, ...], near: str) -> None:
    path = folder / "config.yaml"

    def read(config: Any) -> object:
        path.write_text(yaml.safe_dump(config))
        return reader(path)

    read(whole)
    with pytest.raises(Rlds2ReverbError, match="did you mean"):
        read(_with_key(whole, place, near, 1))

    @settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.text("abcdefghij_", min_size=3, max_size=12), st.sampled_from([None, 1, "x", [], {}]))
    def refuse(key: str, value: Any) -> None:
        with pytest.raises(Rlds2ReverbError) as caught:
            read(_with_key(whole, place, f"zz_{key}", value))
        assert f"zz_{key}" in str(caught.value)
        assert "\n" not in str(caught.value)

    refuse()


def test_keys_that_choose_no_shards_are_told(folder: Path) -> None:
    """They are il-representations' own: settings of environments, and the places of demonstrations in other layouts."""
    entry = {
        "env_cfg": {**_ENTRY["env_cfg"], "magical_remove_null_actions": True},
        "env_data": {"data_root": ".", "magical_demo_dirs": {"Toy-v0": "elsewhere"}},
    }
    path = folder / "told.yaml"
    path.write_text(yaml.safe_dump([entry]))
    (told,) = (notice for notice in open_source(f"ilr:{path}").notices if notice.code == "without_effect")
    assert "env_cfg.magical_remove_null_actions, env_data.magical_demo_dirs" in told.text
    assert told.is_note


def test_task_is_the_name_of_a_task_as_in_the_documentation_of_il_representations(folder: Path) -> None:
    spins = folder / "data" / "processed" / "random" / "magical" / "Spin-v0"
    spins.mkdir(parents=True)
    ilr_data.shard(spins / "demos.tar", [ilr_data.trajectory(np.random.default_rng(1), 5)])
    path = folder / "example.yaml"

    def open_example(*configs: Mapping[str, Any], **env_cfg: str) -> MixedSource:
        path.write_text(
            yaml.safe_dump(
                {"dataset_configs": list(configs), "env_cfg": {"benchmark_name": "magical", **env_cfg}, "env_data": {}}
            )
        )
        source = open_source(f"ilr:{path}")
        assert isinstance(source, MixedSource)
        return source

    for source in (
        open_example({"type": "random", "env_cfg": {"task": "Spin-v0"}}, task_name="Toy-v0"),
        open_example({"type": "random"}, task="Spin-v0"),
    ):
        assert [len(episode) for episode in source] == [6]
        assert ["env_cfg.task is read as task_name" in notice.text for notice in source.notices].count(True) == 1
    assert [len(episode) for episode in open_example({}, task="Toy-v0")] == [4]
    with pytest.raises(Rlds2ReverbError, match="task and task_name are one setting; write task_name alone"):
        open_example({"env_cfg": {"task": "Toy-v0", "task_name": "Spin-v0"}})
