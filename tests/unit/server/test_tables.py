"""Tables from `TableConfig`: what is asked for is what a running server has, by Reverb's word and by our client's."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from replay_server import TableConfig
from replay_server.library import library, reverb_table, table_info
from replay_server.tables import SELECTORS, MinSize, Prefill, Queue, SampleToInsertRatio, Stack

import rlds2reverb
from rlds2reverb.errors import ConfigError
from rlds2reverb.specs import ArraySpec, Nest, flatten, map_leaves
from rlds2reverb.views.trajectory import SequenceView, WholeEpisode, two_step
from rlds2reverb.wire.codec import decode_signature
from rlds2reverb.wire.messages import TableInfo
from tests.support import strategies
from tests.support.forks import Forks
from tests.support.processes import END_SECONDS
from tests.support.rlds_data import tensor_spec

pytestmark = [pytest.mark.server, pytest.mark.timeout(240)]

STEP = {
    "observation": {
        "camera": {"left": ArraySpec((4, 4, 3), np.dtype(np.uint8))},
        "text": ArraySpec((), np.dtype(object)),
    },
    "action": ArraySpec((6,), np.dtype(np.float32)),
    "reward": ArraySpec((), np.dtype(np.float64)),
    "discount": ArraySpec((), np.dtype(np.float32)),
}
SIGNATURES: dict[str, Nest] = {
    "two_step": two_step().signature(STEP),
    "long": SequenceView(length=8).signature(STEP),
    "episode": WholeEpisode().signature(STEP),
    "every dtype": {f"c{n}": ArraySpec((n, None), dtype) for n, dtype in enumerate(strategies.DTYPES)},
    "one leaf": ArraySpec((), np.dtype(np.int64)),
    "a tuple": (ArraySpec((2,), np.dtype(bool)), [ArraySpec((0,), np.dtype(np.int8))]),
}

CONFIGS = [
    *(TableConfig(f"samples {name}", sampler=name) for name in SELECTORS),
    *(TableConfig(f"removes {name}", remover=name) for name in SELECTORS),
    *(TableConfig(f"signature {name}", signature) for name, signature in SIGNATURES.items()),
    TableConfig("exponent", sampler="prioritized", priority_exponent=0.25, remover="prioritized"),
    TableConfig("small", max_size=7, max_times_sampled=3, rate_limiter=MinSize(min_size=2)),
    TableConfig("ratio", rate_limiter=SampleToInsertRatio(samples_per_insert=4.0, min_size=10, error_buffer=20.0)),
    TableConfig.queue("queue", 5, SIGNATURES["two_step"]),
    TableConfig.stack("stack", 6),
]
BOUNDED = TableConfig("bounded", {"b": ArraySpec((2,), np.dtype(np.float32), "b", np.float32(-1), np.float32(1))})


@pytest.fixture(scope="module")
def tables(forks: Forks) -> Iterator[dict[str, TableInfo]]:
    """What a server with all these tables says of them."""
    with forks.embedded([*CONFIGS, BOUNDED]) as server, rlds2reverb.connect(server.address) as client:
        yield client.server_info().tables


def selector_text(name: str, exponent: float) -> str:
    return f"prioritized({exponent:g})" if name == "prioritized" else name


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_a_running_table_has_what_was_asked_for(tables: dict[str, TableInfo], config: TableConfig) -> None:
    table = tables[config.name]
    assert table.sampler == selector_text(config.sampler, config.priority_exponent)
    assert table.remover == selector_text(config.remover, config.priority_exponent)
    assert (table.max_size, table.max_times_sampled) == (config.max_size, config.max_times_sampled)
    assert table.signature == config.signature
    limiter, bounds = table.rate_limiter, config.rate_limiter.bounds()
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (
        bounds.samples_per_insert,
        bounds.min_size_to_sample,
    )
    assert (limiter.min_diff, limiter.max_diff) == (bounds.min_diff, bounds.max_diff)
    assert (table.current_size, limiter.inserts, limiter.samples) == (0, 0, 0)


def test_a_ratio_may_drift_by_the_error_buffer_around_the_first_sample(tables: dict[str, TableInfo]) -> None:
    limiter = tables["ratio"].rate_limiter
    assert (limiter.samples_per_insert, limiter.min_size_to_sample) == (4.0, 10)
    assert (limiter.min_diff, limiter.max_diff) == (4.0 * 10 - 20, 4.0 * 10 + 20)


def test_a_queue_hands_out_each_item_once_in_order_and_blocks_when_full(tables: dict[str, TableInfo]) -> None:
    queue = tables["queue"]
    assert (queue.sampler, queue.remover) == ("fifo", "fifo")
    assert (queue.max_size, queue.max_times_sampled) == (5, 1)
    assert (queue.rate_limiter.min_diff, queue.rate_limiter.max_diff) == (0.0, 5.0)
    assert queue.signature == SIGNATURES["two_step"]


def test_a_bounded_leaf_keeps_its_name_and_bounds(tables: dict[str, TableInfo]) -> None:
    signature: Any = tables["bounded"].signature
    leaf = signature["b"]
    assert (leaf.name, leaf.shape, leaf.dtype) == ("b", (2,), np.float32)
    np.testing.assert_array_equal(np.broadcast_to(leaf.minimum, 2), [-1, -1])
    np.testing.assert_array_equal(np.broadcast_to(leaf.maximum, 2), [1, 1])


def test_names_of_leaves_reach_the_server(tables: dict[str, TableInfo]) -> None:
    leaves = flatten(tables["signature two_step"].signature)
    assert (leaves["step_type"].name, leaves["next_step_type"].name) == ("step_type", "step_type")


# Without a server: the table that Reverb's own Python makes.

LIMITERS = st.one_of(
    st.builds(MinSize, min_size=st.integers(1, 1000)),
    st.builds(
        lambda ratio, factor, size: SampleToInsertRatio(
            samples_per_insert=ratio, error_buffer=factor * max(1.0, ratio), min_size=size
        ),
        st.floats(0.01, 100),
        st.floats(1.01, 1000),
        st.integers(1, 1000),
    ),
    st.builds(lambda items: Prefill(items=items, then=MinSize()), st.integers(1, 1000)),
)
COLUMNS = strategies.column_specs().map(
    lambda columns: {
        path.replace("/", "_"): ArraySpec((None, *shape), dtype) for path, (dtype, shape) in columns.items()
    }
)
ANY_TABLE = st.builds(
    TableConfig,
    st.text("abc/ \u00e9", min_size=1, max_size=9),
    st.none() | COLUMNS,
    st.integers(1000, 2**31 - 1),
    st.sampled_from(SELECTORS),
    st.sampled_from(SELECTORS),
    st.floats(0, 4),
    st.just(0) | st.integers(100, 2**31 - 1),
    LIMITERS,
)


def made_by_reverb(config: TableConfig) -> Any:
    """`reverb.Table`, by its documentation."""
    import reverb

    selectors = {
        "uniform": reverb.selectors.Uniform,
        "fifo": reverb.selectors.Fifo,
        "lifo": reverb.selectors.Lifo,
        "max_heap": reverb.selectors.MaxHeap,
        "min_heap": reverb.selectors.MinHeap,
        "prioritized": lambda: reverb.selectors.Prioritized(config.priority_exponent),
    }
    limiter = config.rate_limiter
    if isinstance(limiter, SampleToInsertRatio):
        made = reverb.rate_limiters.SampleToInsertRatio(
            limiter.samples_per_insert, limiter.min_size, limiter.error_buffer
        )
    elif isinstance(limiter, Queue | Stack):
        made = getattr(reverb.rate_limiters, type(limiter).__name__)(limiter.size)
    else:
        made = reverb.rate_limiters.MinSize(limiter.items if isinstance(limiter, Prefill) else limiter.min_size)
    return reverb.Table(
        config.name,
        selectors[config.sampler](),
        selectors[config.remover](),
        config.max_size,
        made,
        config.max_times_sampled,
        signature=None if config.signature is None else map_leaves(tensor_spec, config.signature),
    ).internal_table


def check_made(config: TableConfig) -> None:
    ours, theirs = table_info(reverb_table(config)), table_info(made_by_reverb(config))
    signatures = [decode_signature(info.signature) for info in (ours, theirs) if info.HasField("signature")]
    assert len(signatures) == (0 if config.signature is None else 2)
    assert len(signatures) == 0 or flatten(signatures[0]) == flatten(signatures[1])
    for info in (ours, theirs):
        info.ClearField("signature")
        info.ClearField("table_worker_time")  # goes on
    assert ours == theirs


@given(ANY_TABLE)
def test_any_table_is_the_one_that_reverbs_python_makes(config: TableConfig) -> None:
    check_made(config)


@pytest.mark.parametrize("config", [*CONFIGS, BOUNDED], ids=lambda config: config.name)
def test_each_kind_of_table_is_the_one_that_reverbs_python_makes(config: TableConfig) -> None:
    check_made(config)


def test_a_server_needs_nothing_of_tensorflows_python() -> None:
    code = """if True:
        import sys
        from replay_server import TableConfig
        from replay_server.library import library, reverb_table
        reverb_table(TableConfig("any"))
        assert "tensorflow" not in sys.modules and "reverb" not in sys.modules
        import reverb
        assert reverb.selectors.Fifo is library().FifoSelector
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=END_SECONDS, check=False)
    assert run.returncode == 0, run.stderr


def test_a_library_that_does_not_load_by_itself_is_loaded_by_reverb(monkeypatch: pytest.MonkeyPatch) -> None:
    import reverb

    monkeypatch.setattr("replay_server.library.sys", types.SimpleNamespace(modules={}))
    monkeypatch.setattr("replay_server.library._folder", Mock(side_effect=OSError("no such file")))
    assert library.__wrapped__().FifoSelector is reverb.selectors.Fifo


@pytest.mark.parametrize("field", ["sampler", "remover"])
@given(name=st.text(max_size=12))
def test_a_selector_that_does_not_exist_is_a_config_error(field: str, name: str) -> None:
    assume(name not in SELECTORS)
    config = replace(TableConfig("odd"), **cast("dict[str, Any]", {field: name}))
    with pytest.raises(ConfigError) as caught:
        reverb_table(config)
    assert f'table "odd": selector "{name}", expected one of uniform, fifo, lifo' in str(caught.value)


def test_a_ratio_that_reverb_refuses_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r'table "r": .*error_buffer'):
        reverb_table(TableConfig("r", rate_limiter=SampleToInsertRatio(samples_per_insert=2.0, error_buffer=1.0)))


def test_configs_travel_to_the_server_by_pickle() -> None:
    import pickle

    for config in [*CONFIGS, BOUNDED]:
        copy = pickle.loads(pickle.dumps(config))
        assert copy == config
        if config.signature is not None:
            assert flatten(copy.signature).keys() == flatten(map_leaves(lambda leaf: leaf, config.signature)).keys()
