"""Mixture files: shares as OpenVLA and Octo compute them, sets that are made alike and normalised, and what makes no sense."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import rlds2reverb
from rlds2reverb import Client, Episode, Mixture
from rlds2reverb.cli import cli
from rlds2reverb.episode import Array
from rlds2reverb.errors import ConfigError, InvalidEpisode, Rlds2ReverbError, SourceError, ViewError
from rlds2reverb.formats import open_source
from rlds2reverb.formats.lists import EpisodeList
from rlds2reverb.formats.mix import NamedSource
from rlds2reverb.formats.transform import transform_of
from rlds2reverb.formats.transformed import transformed
from rlds2reverb.inspection.workers import InspectJob, inspect_by_workers
from rlds2reverb.numbers.columns import ColumnStatistics
from rlds2reverb.prepare import mixture as mixture_module
from rlds2reverb.prepare.mixture import MixtureSource
from rlds2reverb.prepare.preparation import view_for
from rlds2reverb.specs import flatten
from rlds2reverb.testing import MemoryTransport
from rlds2reverb.views.trajectory import two_step
from tests.support import open_x_sets
from tests.support.open_x_sets import OPENVLA_NAMES
from tests.support.profiles import examples
from tests.support.push import in_memory
from tests.support.raising import outcome_of
from tests.support.workers_in_threads import InThreads


def rows_of(seed: int, rows: int, scale: float = 1.0, width: int = 3, is_added: bool = False) -> dict[str, Array]:
    rng, at = np.random.default_rng(seed), np.arange(rows)
    action = (scale * rng.normal(1, 2, (rows, width))).astype(np.float32)
    action[-1] *= not is_added
    return {
        "observation": (scale * rng.normal(size=(rows, 2))).astype(np.float32),
        "action": action,
        "reward": np.zeros(rows, np.float32),
        "is_first": at == 0,
        "is_last": at == rows - 1,
        "is_terminal": np.zeros(rows, bool),
    }


def write_set(folder: Path, name: str, lengths: list[int], **more: Any) -> str:
    """A dataset of .npz files; its name."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(lengths):
        np.savez(folder / name / f"{number:03}.npz", **rows_of(sum(map(ord, name)) + number, rows, **more))
    return f"npz:{folder / name}"


def write_mixture(folder: Path, **config: Any) -> Path:
    file = folder / "mixture.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def openvla_weights(weights: list[float], sizes: list[int], balance: bool) -> list[float]:
    """`make_interleaved_dataset` of OpenVLA, one set after the other."""
    products = []
    for weight, size in zip(weights, sizes):
        products.append(weight * size if balance else weight)
    total = 0.0
    for product in products:
        total += product
    return [product / total for product in products]


SETS = st.lists(
    st.tuples(st.lists(st.integers(2, 9), min_size=1, max_size=3), st.floats(0.1, 9)), min_size=1, max_size=4
)


@given(SETS, st.booleans())
@examples(15)
def test_shares_are_those_of_openvla(
    tmp_path_factory: pytest.TempPathFactory, sets: list[tuple[list[int], float]], balance: bool
) -> None:
    folder = tmp_path_factory.mktemp("sets")
    entries = [
        {"source": write_set(folder, f"s{number}", lengths), "name": f"s{number}", "weight": weight}
        for number, (lengths, weight) in enumerate(sets)
    ]
    mixture = Mixture.of({"sets": entries, "balance": balance})
    sizes = [sum(rows - 1 for rows in lengths) for lengths, _ in sets]
    assert mixture.transitions() == {f"s{number}": size for number, size in enumerate(sizes)}
    expected = openvla_weights([weight for _, weight in sets], sizes, balance)
    np.testing.assert_allclose([*mixture.shares().values()], expected, rtol=1e-12)
    assert pickle.loads(pickle.dumps(mixture)).shares() == mixture.shares()


@pytest.fixture
def two(tmp_path: Path) -> dict[str, Any]:
    """A set of few long episodes, and one of many short ones with larger numbers."""
    long = write_set(tmp_path, "long", [21, 25, 18], is_added=True)
    short = write_set(tmp_path, "short", [4] * 12, scale=10.0, is_added=True)
    return {"sets": [{"source": long, "name": "long"}, {"source": short, "name": "short", "weight": 2}], "seed": 3}


@pytest.mark.parametrize("balance", [False, True])
def test_samples_are_drawn_by_the_shares_and_a_seed(two: dict[str, Any], balance: bool, tmp_path: Path) -> None:
    file, count = write_mixture(tmp_path, **two, balance=balance, shuffle=64), 1500
    shares = [*Mixture.read(file).shares().values()]

    def draw(**options: Any) -> tuple[Array, Array]:
        with rlds2reverb.mix(file, 100, samples=count, **options) as batches:
            infos = [info for _, info in batches]
        return tuple(np.concatenate([getattr(info, name) for info in infos]) for name in ("source", "key"))

    (sources, keys), again, other = draw(), draw(), draw(seed=4)
    deviation = 5 * np.sqrt(shares[0] * shares[1] / count)
    assert abs((sources == 0).mean() - shares[0]) < deviation
    np.testing.assert_array_equal(keys, again[1])
    assert (sources != other[0]).any()
    every = {
        name: [int(key) for _, info in rlds2reverb.local(part) for key in info.key]
        for name, part in Mixture.read(file).sources().items()
    }
    for number, own in enumerate(every.values()):
        drawn = Counter(keys[sources == number].tolist())
        assert drawn.keys() == set(own)
        assert max(drawn.values()) - min(drawn.values()) <= 2  # in epochs: each item about as often as any other


@pytest.mark.parametrize("balance", [False, True])
def test_episodes_are_drawn_so_that_transitions_have_the_shares(two: dict[str, Any], balance: bool) -> None:
    mixture = Mixture.of({**two, "balance": balance, "length": 800})
    shares, transitions = mixture.shares(), Counter[str]()
    for episode in mixture.source():
        transitions[episode.metadata["dataset_name"].decode()] += len(episode) - 1
    total = sum(transitions.values())
    for name, share in shares.items():
        assert abs(transitions[name] / total - share) < 0.06
    once = [episode.id for episode in Mixture.of({**two, "balance": balance}).source()]
    assert len(once) == len(set(once)) == 15
    assert once == [episode.id for episode in Mixture.of({**two, "balance": balance}).source()]


def quantile_normal(values: Array, of: Array) -> Array:
    low, high = (np.quantile(of.astype(np.float64), share, axis=0) for share in (0.01, 0.99))
    return np.clip(2 * (values - low) / (high - low + 1e-8) - 1, -1, 1)


@pytest.mark.parametrize("by", ["set", "merged"])
def test_columns_are_normalised_by_the_statistics_of_each_set_or_of_all(two: dict[str, Any], by: str) -> None:
    normalize = {"by": by, "mode": "quantiles", "clip": True, "columns": ["action", "observation"]}
    mixture = Mixture.of({**two, "normalize": normalize})
    recorded = {own["name"]: list(open_source(own["source"])) for own in two["sets"]}
    columns = ("action", "observation")
    real = {
        name: {
            path: np.concatenate([episode.columns[path][: -1 if path == "action" else None] for episode in episodes])
            for path in columns
        }
        for name, episodes in recorded.items()
    }
    whole = {path: np.concatenate([own[path] for own in real.values()]) for path in columns}
    for name, part in mixture.sources().items():
        for episode, before in zip(part, recorded[name], strict=True):
            assert episode.id.startswith(f"{before.id}|set=")
            for path in columns:
                of = real[name][path] if by == "set" else whole[path]
                stop = len(before) - (path == "action")
                normal = quantile_normal(before.columns[path][:stop], of)
                np.testing.assert_allclose(episode.columns[path][:stop], normal, atol=2e-5 if by == "set" else 2e-3)
                assert episode.columns[path].dtype == np.float32
            assert not episode.columns["action"][-1].any()  # a row that was added stays one
        back = mixture.normalizers()[name]["action"].denormalize(
            mixture.normalizers()[name]["action"].normalize(real[name]["action"])
        )
        inner = (
            np.abs(quantile_normal(real[name]["action"], real[name]["action"] if by == "set" else whole["action"])) < 1
        )
        np.testing.assert_allclose(back[inner], real[name]["action"][inner], rtol=1e-3, atol=1e-3)
    batches = list(rlds2reverb.local(mixture.source(), "transition"))
    assert np.abs(np.concatenate([data["action"] for data, _ in batches])).max() <= 1


def test_statistics_may_come_from_files(two: dict[str, Any], tmp_path: Path) -> None:
    counted = Mixture.of({**two, "normalize": "set"})
    for name, statistics in counted.dataset_statistics().items():
        statistics.write(tmp_path / f"{name}.json")
    entries = [{**own, "statistics": f"{own['name']}.json"} for own in two["sets"]]
    read = Mixture.read(write_mixture(tmp_path, sets=entries, seed=3, normalize="set"))
    assert [episode.id for episode in read.source()] == [episode.id for episode in counted.source()]
    counted.write_statistics(tmp_path / "dataset_statistics.json")
    written = json.loads((tmp_path / "dataset_statistics.json").read_text())
    assert {name: own["num_transitions"] for name, own in written.items()} == {"long": 61, "short": 36}
    normalize = {"mode": "quantiles", "columns": "action"}
    by_openvla = Mixture.of({**two, "normalize": normalize, "statistics": "dataset_statistics.json"}, folder=tmp_path)
    itself = Mixture.of({**two, "normalize": normalize})
    for name, normalizer in by_openvla.normalizers().items():
        np.testing.assert_allclose(normalizer["action"].center, itself.normalizers()[name]["action"].center, rtol=1e-6)
    merged = Mixture.of({**two, "normalize": {"by": "merged", "mode": "quantiles", "columns": "action"}})
    merged.write_statistics(tmp_path / "merged.json")
    read = Mixture.of({**two, "normalize": {**normalize, "by": "merged"}, "statistics": "merged.json"}, folder=tmp_path)
    assert [episode.id for episode in read.source()] == [episode.id for episode in merged.source()]


def test_sets_are_made_alike_and_named_by_what_was_done(tmp_path: Path) -> None:
    first = write_set(tmp_path, "first", [6, 7])
    (tmp_path / "other").mkdir()
    for number in range(3):
        columns = rows_of(50 + number, 8)
        np.savez(tmp_path / "other" / f"{number}.npz", **columns)
    (tmp_path / "other.yaml").write_text("transform: {action: concat(/action)}")
    second = {"source": f"npz:{tmp_path}/other", "name": "other", "transform": "other.yaml", "where": "length>=5"}
    file = write_mixture(tmp_path, sets=[first, second], view={"view": "chunk", "horizon": 3})
    server = in_memory.Server()
    with Client(MemoryTransport(server)) as client:
        plan = client.plan(f"mix:{file}", "replay")
        assert plan.view == "chunk:history=1,horizon=3"
        report = client.push(f"mix:{file}", "replay")
        assert report.episodes_pushed == 5
        assert client.push(f"mix:{file}", "replay").episodes_pushed == 5
    assert len(server.items["replay"]) == 5 + 6 + 3 * 7
    names = {episode.id for episode in open_source(f"mix:{file}")}
    alone = {episode.id for episode in open_source(first)}
    assert alone < names  # what is left alone keeps its keys
    assert len([name for name in names if "|set=" in name]) == 3
    assert [int(key) for _, info in rlds2reverb.local(f"mix:{file}") for key in info.key] == [*server.items["replay"]]
    with_split = open_source(f"mix:{file}?split=train,val_share=0.4")
    assert 0 < len(list(with_split)) < 5


def test_last_actions_and_transforms_of_all_sets(tmp_path: Path) -> None:
    first, second = write_set(tmp_path, "first", [6, 7]), write_set(tmp_path, "second", [8])
    joined = {"action": "concat(/action, /reward)"}
    sets = [{"source": first, "transform": joined}, {"source": second, "last_step": "as_recorded", "transform": joined}]
    config = {"sets": sets, "last_step": "repeat", "transform": {"rename": {"action": "action/all"}}}
    mixture = Mixture.of(config, folder=tmp_path)
    assert [*mixture.transitions().values()] == [6 + 7, 7]
    episodes = list(mixture.source())
    assert {episode.columns["action/all"].shape for episode in episodes} == {(7, 4), (8, 4)}
    assert sorted("|last_step=repeat|set=" in episode.id for episode in episodes) == [False, True, True]


def test_workers_read_the_same_and_find_nothing_out_once_more(
    two: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"mix:{write_mixture(tmp_path, **two, normalize='set', where='length>=4')}"
    job = InspectJob(NamedSource(name), {"replay": two_step()})
    assert (
        inspect_by_workers(job, lambda job: InThreads(job, 2), 2).as_dict()
        == rlds2reverb.inspect(name, "two_step").as_dict()
    )
    ready = job.prepare()
    expected = [episode.id for episode in ready.source]
    sent = pickle.loads(pickle.dumps(job))
    parts = pickle.loads(pickle.dumps(ready.source.mixture)) if isinstance(ready.source, MixtureSource) else None
    monkeypatch.setattr(rlds2reverb.hooks, "statistics_of", lambda _: pytest.fail("counted once more"))
    assert [episode.id for episode in sent.prepare().source] == expected
    assert parts is not None and [episode.id for episode in parts.source()] == expected


REFUSED: list[tuple[dict[str, Any], type[Rlds2ReverbError], str]] = [
    ({"sets": []}, ConfigError, r"sets: expected a list of one set or more.*got \[\]"),
    ({"sets": ["{a}"], "balnce": True}, ConfigError, 'unknown key "balnce".*did you mean "balance"'),
    (
        {"sets": [{"source": "{a}", "wieght": 1}]},
        ConfigError,
        r'sets\[0\]: unknown key "wieght".*did you mean "weight"',
    ),
    ({"sets": [{"weight": 1}]}, ConfigError, r"sets\[0\]: source: expected the name of a dataset.*None"),
    *(
        (
            {"sets": ["{b}", {"source": "{a}", "weight": weight}]},
            ConfigError,
            r"sets\[1\] \(npz:.*\): weight .*: expected a number above 0",
        )
        for weight in (0, -1.5, float("nan"), float("inf"), True, "2", 1e308, 10**400, 1e-300)
    ),
    ({"sets": ["{a}", {"source": "{a}", "weight": 2}]}, ConfigError, r'sets\[1\]: "npz:.*" is there twice'),
    ({"sets": ["{a}", {"source": "{a}", "name": "b"}]}, ConfigError, r'sets\[1\]: "b" is there twice \(npz:'),
    (
        {"sets": ["{a}", {"source": "{b}", "name": "x", "where": "length>99"}]},
        SourceError,
        'set "x": .*nothing is left of 1 episode.*length>99',
    ),
    (
        {"sets": ["{a}", {"source": "{single}", "name": "x"}]},
        SourceError,
        'set "x".*expected at least one transition, found 2 episodes without any',
    ),
    ({"sets": ["{a}", {"source": "npz:/nowhere", "name": "x"}]}, SourceError, 'set "x": npz:/nowhere: no such file'),
    (
        {"sets": ["{a}", {"source": "{wide}", "name": "x"}]},
        SourceError,
        r"x: action: expected float32\[3\], found float32\[4\]",
    ),
    ({"sets": ["{a}"], "balance": 1}, ConfigError, "balance: expected true or false, got 1"),
    (
        {"sets": ["{a}"], "last_step": "next"},
        ConfigError,
        r"sets\[0\]: last_step: expected as_recorded or repeat, got 'next'",
    ),
    ({"sets": ["{a}"], "seed": -1}, ConfigError, "seed: expected a whole number"),
    ({"sets": ["{a}"], "length": 0}, ConfigError, "length: expected a number of episodes"),
    ({"sets": ["{a}"], "view": "chnk"}, ViewError, 'mixture: view "chnk".*did you mean "chunk"'),
    ({"sets": ["{a}"], "normalize": "merge"}, ConfigError, "normalize.by: 'merge': expected one of set, merged"),
    ({"sets": ["{a}"], "normalize": {"mode": "min"}}, ConfigError, "normalize.mode: 'min': expected one of"),
    (
        {"sets": ["{a}"], "normalize": {"colums": []}},
        ConfigError,
        'normalize: unknown key "colums".*did you mean "columns"',
    ),
    ({"sets": ["{a}"], "normalize": {"columns": ["actoin"]}}, SourceError, 'no column "actoin"; did you mean "action"'),
    (
        {"sets": ["{a}"], "normalize": {"masks": {"action": [True]}}},
        SourceError,
        r'set "npz:.*mask of "action": expected 3 bools',
    ),
    ({"sets": ["{a}"], "statistics": "a.json"}, ConfigError, "mixture: statistics go with normalize"),
    (
        {"sets": [{"source": "{a}", "statistics": "no.json", "name": "x"}]},
        ConfigError,
        'mixture: set "x": statistics go with normalize',
    ),
    (
        {
            "sets": [{"source": "{a}", "statistics": "a.json", "name": "x"}],
            "statistics": "b.json",
            "normalize": "merged",
        },
        ConfigError,
        'set "x": statistics: those of the mixture are the merged ones already',
    ),
    (
        {"sets": ["{a}"], "normalize": {"columns": 5}},
        ConfigError,
        "normalize.columns: expected the path of a column.*5",
    ),
    ({"sets": ["{a}"], "normalize": {"columns": []}}, ConfigError, r"normalize.columns: expected .*got \[\]"),
    ({"sets": ["{a}"], "normalize": {"mode": {}}}, ConfigError, r"normalize.mode: expected .*got {}"),
    ({"sets": ["{a}"], "normalize": {"epsilon": True}}, ConfigError, "normalize.epsilon: expected a number.*True"),
    ({"sets": ["{a}"], "normalize": {"clip": 10**400}}, ConfigError, "normalize.clip: expected true, false"),
    (
        {"sets": ["{a}"], "where": 5},
        ConfigError,
        r"sets\[0\] \(npz:.*\): where: expected a text, or a list of texts, got 5",
    ),
    (
        {"sets": ["{a}"], "exclude": {"a": 1}},
        ConfigError,
        r"exclude: expected a text, or a list of texts, got {'a': 1}",
    ),
    ({"sets": ["{a}"], "shuffle": -5}, ConfigError, "mixture: shuffle: expected a number of items of at least 0.*-5"),
    ({"sets": [{"source": "{a}", "transform": "renme=a:b"}]}, ConfigError, r"sets\[0\] \(npz:.*no option"),
    ({"sets": [{"source": "{a}", "where": None}]}, ConfigError, "where has no value"),
    ({"sets": [{"source": "{a}", "map": "nowhere:f"}]}, ConfigError, r"sets\[0\] .*cannot be imported"),
]


@pytest.mark.parametrize(("config", "error", "words"), REFUSED)
def test_what_makes_no_sense_is_refused(
    config: dict[str, Any], error: type[Rlds2ReverbError], words: str, tmp_path: Path
) -> None:
    names = {
        "{a}": write_set(tmp_path, "a", [5, 6]),
        "{b}": write_set(tmp_path, "b", [5]),
        "{single}": write_set(tmp_path, "single", [1, 1]),
        "{wide}": write_set(tmp_path, "wide", [5], width=4),
    }

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(inside) for key, inside in value.items()}
        return (
            [fill(inside) for inside in value]
            if isinstance(value, list)
            else names.get(value, value)
            if isinstance(value, str)
            else value
        )

    server = in_memory.Server()
    with pytest.raises(error, match=words), Client(MemoryTransport(server)) as client:
        client.push(Mixture.of(fill(config)).source(), "replay")
    assert not server.items.get("replay")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(
        [10**400, -(10**400), "", "a", "@a", "~nobody-there/a", "a\0b", "success", "set", "merged", "all"]
    )
    | st.integers(-9, 9)
    | st.floats()
    | st.text(max_size=5),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "mode", "columns", "source", "action"]) | st.integers(), inside, max_size=3
        )
    ),
    max_leaves=6,
)
KEYS = [*mixture_module._OF_A_MIXTURE, *mixture_module._OF_A_SET]


@given(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2),
    st.dictionaries(st.sampled_from(mixture_module._OF_A_SET), VALUES, max_size=2),
    st.dictionaries(
        st.sampled_from(["by", "mode", "columns", "masks", "clip", "epsilon"]), VALUES, min_size=1, max_size=2
    ),
)
@examples(300)
def test_any_value_of_any_key_makes_a_mixture_or_is_refused_by_name(
    config: dict[str, Any], entry: dict[str, Any], normalize: dict[str, Any]
) -> None:
    for tried in (
        {"sets": ["bundled:cartpole"], **config},
        {"sets": [{"source": "bundled:cartpole", **entry}]},
        {"sets": ["bundled:cartpole"], "normalize": normalize},
    ):
        mixture = outcome_of(Rlds2ReverbError, partial(Mixture.of, tried, "a.yaml"))
        if isinstance(mixture, Mixture):
            assert all(0 < entry.weight < np.inf for entry in mixture.sets)
            assert mixture.normalization is None or mixture.normalization.columns != ()
        else:
            assert isinstance(mixture, (ConfigError, ViewError))
            assert "a.yaml" in str(mixture)


@given(st.lists(st.floats(1e-100, 1e100), min_size=1, max_size=4))
@examples(20)
def test_shares_of_any_weights_are_positive_and_add_up(weights: list[float]) -> None:
    sets = [
        {"source": f"bundled:cartpole@train[:{number + 2}]", "weight": weight} for number, weight in enumerate(weights)
    ]
    mixture = Mixture.of({"sets": sets, "balance": True})
    assert all(share > 0 for share in mixture.shares().values())
    assert abs(sum(mixture.shares().values()) - 1) < 1e-9


@pytest.mark.parametrize("is_of_all", [False, True])
@pytest.mark.parametrize("further", [{}, {"rename": {"observation": "observation/state"}}])
def test_rewards_are_shifted_as_in_a_push_with_the_same_transform(
    is_of_all: bool, further: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "set").mkdir()
    for number, rows in enumerate((2, 5, 9)):
        columns = {**rows_of(number, rows), "reward": np.arange(rows, dtype=np.float32)}
        np.savez(tmp_path / "set" / f"{number}.npz", **columns)
    source, transform = f"npz:{tmp_path}/set", {"reward_last": "shift", **further}
    config: dict[str, Any] = {"sets": [{"source": source, "name": "s"}]}
    (config if is_of_all else config["sets"][0])["transform"] = transform
    for last_step in ("as_recorded", "repeat"):
        mixture = Mixture.of({**config, "last_step": last_step})
        plain = rlds2reverb.local(source, "transition", transform=transform, last_step=last_step)
        shifted = rlds2reverb.local(mixture.source(), "transition")
        for (expected, _), (data, _) in zip(plain, shifted, strict=True):
            np.testing.assert_array_equal(data["next"]["reward"], expected["next"]["reward"])
        unshifted = Mixture.of({"sets": [{"source": source, "name": "s"}], "last_step": last_step})
        names, other_names = ({episode.id for episode in mixed.source()} for mixed in (mixture, unshifted))
        assert not names & other_names  # of other items
        for light, whole in zip(mixture.source().without(["action"]), mixture.source(), strict=True):
            np.testing.assert_array_equal(light.columns["reward"], whole.columns["reward"])
    np.savez(tmp_path / "set" / "lost.npz", **{**rows_of(7, 4), "reward": np.full(4, 2.5, np.float32)})
    batches = rlds2reverb.local(Mixture.of(config).source(), "transition", on_invalid="skip")
    assert sum(len(info.key) for _, info in batches) == 1 + 4 + 8
    with pytest.raises(InvalidEpisode, match=r"reward_last=shift: step 0 has reward 2\.5"):
        list(rlds2reverb.local(Mixture.of(config).source(), "transition"))


def test_a_mixture_within_itself_is_refused(tmp_path: Path) -> None:
    for name, inside in (("a", "b"), ("b", "a"), ("outer", "a")):
        (tmp_path / f"{name}.yaml").write_text(f'sets: ["bundled:cartpole", "mix:{tmp_path}/{inside}.yaml?seed=3"]')
    for name in ("a", "outer"):
        with pytest.raises(SourceError, match=r"contains itself: .*[ab].yaml > .*[ab].yaml > .*[ab].yaml"):
            open_source(f"mix:{tmp_path}/{name}.yaml")
        code, output = run("inspect", f"mix:{tmp_path}/{name}.yaml")
        assert code == 1
        assert "contains itself" in output
    (tmp_path / "a.yaml").write_text('sets: ["bundled:cartpole"]')
    (tmp_path / "b.yaml").write_text(f'sets: ["mix:{tmp_path}/a.yaml", "mix:{tmp_path}/a.yaml?seed=1"]')
    assert open_source(f"mix:{tmp_path}/b.yaml").episode_count  # the same file twice, beside itself


def test_statistics_of_another_width_are_refused(two: dict[str, Any], tmp_path: Path) -> None:
    rlds2reverb.statistics(write_set(tmp_path, "wide", [5], width=4)).write(tmp_path / "wide.json")
    sets = [{**two["sets"][0], "statistics": "wide.json"}]
    with pytest.raises(
        SourceError, match=r'set "long": statistics of another signature: column "action" has rows of \[3\]'
    ):
        list(Mixture.of({"sets": sets, "normalize": "set"}, folder=tmp_path).source())


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [*arguments])
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_commands_take_a_file_with_its_view(two: dict[str, Any], tmp_path: Path) -> None:
    file = write_mixture(tmp_path, **two, view="n_step:n=2", balance=True)
    code, output = run("inspect", f"mix:{file}", "--quiet")
    assert code == 0
    assert "items of view n_step:n=2" in output
    assert "note shares: long 45.86% (weight 1, 61 transitions); short 54.14% (weight 2, 36 transitions)" in " ".join(
        output.split()
    )
    assert "--view n_step:n=2" in output
    shown = run("show", f"mix:{file}", "0")[1]
    assert 'dataset_name  "' in shown
    assert "items of view two_step" in run("inspect", f"mix:{file}", "--quiet", "--view", "two_step")[1]
    assert '"lenght=3"' in run("inspect", f"mix:{file}?lenght=3")[1]
    assert json.loads(run("inspect", f"mix:{file}?length=7", "--quiet", "--json")[1])["episodes"] == 7
    assert f'did you mean "mix:{file}"' in run("inspect", str(file))[1]
    assert "expected a YAML file" in run("inspect", f"mix:{tmp_path}/no.yaml")[1]


def test_the_view_of_a_source_is_that_of_its_file(two: dict[str, Any], tmp_path: Path) -> None:
    file = write_mixture(tmp_path, **two, view="n_step:n=2")
    mixture = Mixture.read(file)
    for source in (f"mix:{file}", f"mix:{file}?split=val", mixture, mixture.source()):
        assert view_for(source, None) == mixture.view
        assert view_for(source, "chunk") == "chunk"
    assert view_for("bundled:cartpole", None) == "two_step"
    assert isinstance(mixture.dataset_statistics()["long"]["action"], ColumnStatistics)


MAGIC_SOUP = {
    "fractal20220817_data": 0.54087122203,
    "kuka": 0.8341046294,
    "bridge_orig": 1.0,
    "taco_play": 2.0,
    "jaco_play": 1.0,
    "berkeley_cable_routing": 1.0,
    "roboturk": 2.0,
    "viola": 2.0,
    "berkeley_autolab_ur5": 2.0,
    "toto": 1.0,
    "language_table": 0.1,
    "stanford_hydra": 2.0,
    "austin_buds": 1.0,
    "nyu_franka_play": 3.0,
    "furniture_bench": 0.1,
    "ucsd_kitchen": 2.0,
    "austin_sailor": 1.0,
    "austin_sirius": 1.0,
    "dlr_edan_shared_control": 1.0,
    "iamlab_cmu_pickup_insert": 1.0,
    "utaustin_mutex": 1.0,
    "berkeley_fanuc_manipulation": 2.0,
    "cmu_stretch": 1.0,
}
"""oxe_magic_soup of OpenVLA's mixtures.py, by the names of the shipped transforms."""


def test_the_shipped_magic_soup_mixes_sets_of_the_recorded_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {OPENVLA_NAMES.get(name, name): name for name in MAGIC_SOUP}
    recorded = {name: [with_success(open_x_sets.episode(name, rows, rows)) for rows in (5, 8)] for name in MAGIC_SOUP}

    def open_recorded(name: str) -> EpisodeList:
        own = "bridge_orig" if name == "tfds:bridge_dataset" else short[name.removeprefix("tfds:")]
        return EpisodeList(recorded[own], name)

    monkeypatch.setattr(mixture_module, "open_source", open_recorded)
    mixture = Mixture.read("mix:open_x/magic_soup.yaml")
    assert {short[own.name]: own.weight for own in mixture.sets} == MAGIC_SOUP
    transitions = [5 + 8 if name != "bridge_orig" else 3 + 6 for name in MAGIC_SOUP]
    assert [*mixture.transitions().values()] == transitions
    expected = openvla_weights([*MAGIC_SOUP.values()], transitions, balance=True)
    np.testing.assert_allclose([*mixture.shares().values()], expected)
    signature = rlds2reverb.local(mixture.source()).signature
    assert {path: str(leaf) for path, leaf in flatten(signature).items()} == {
        "observation/image_primary": "uint8[224, 224, 3]",
        "action": "float32[1, 7]",
        "action_is_pad": "bool[1]",
    }
    with rlds2reverb.mix(mixture, 64, samples=640) as batches:
        actions = np.concatenate([data["action"] for data, _ in batches])
    assert np.abs(actions[..., :6]).max() <= 1
    for name, part in mixture.sources().items():
        plain = transformed(EpisodeList(recorded[short[name]]), transform_of(f"open_x/{name}"))
        for normal, episode in zip(part, plain, strict=True):  # the mask leaves grippers alone
            grippers = episode.columns["action"][:, 6]
            np.testing.assert_array_equal(normal.columns["action"][: len(episode), 6], grippers)


def with_success(episode: Episode) -> Episode:
    return Episode(episode.columns, {**episode.metadata, "success": True}, episode.id)
