"""Real servers: several as one, and what a source gives without any."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("reverb")

from replay_server import TableConfig

import rlds2reverb
from rlds2reverb.cli import main
from rlds2reverb.learner.batch import columns_of, paths_of
from rlds2reverb.prepare.conventions import filled_spec
from rlds2reverb.views import view_of
from rlds2reverb.views.trajectory import table_signature
from tests.support.forks import Forks
from tests.support.learner.reading import next_of, source_of

SOURCE = "bundled:cartpole@train[:6]"
VIEWS = {"pairs": "two_step", "whole": "episode", "stacks": "frame_stack:frames=3", "returns": "n_step:n=2"}


def signature_of(view: str) -> Any:
    return table_signature(view_of(view).signature(filled_spec(rlds2reverb.open_source(SOURCE).spec())))


@pytest.mark.parametrize("name", VIEWS)
def test_a_source_gives_what_a_table_of_it_gives(forks: Forks, name: str) -> None:
    view = VIEWS[name]
    config = TableConfig("queue", signature_of(view), sampler="fifo", max_times_sampled=1)
    mine = list(rlds2reverb.local(SOURCE, view, 7, table="queue"))
    with forks.embedded([config]) as server, rlds2reverb.connect(server.address) as client:
        report = client.push(SOURCE, "queue", view)
        with client.sample("queue", 7, samples=report.items_confirmed) as sampler:
            theirs, structure = list(sampler), sampler.structure
    assert [batch.size for batch in mine] == [batch.size for batch in theirs]
    for batch, other in zip(mine, theirs):
        assert type(batch.data) is type(other.data)
        np.testing.assert_array_equal(batch.info.key, other.info.key)
        np.testing.assert_array_equal(batch.info.priority, other.info.priority)
        paths = paths_of(batch.data, structure)
        for a, b in zip(columns_of(batch.data, paths), columns_of(other.data, paths), strict=True):
            assert type(a) is type(b)
            for left, right in zip(a, b, strict=True):
                assert left.dtype == right.dtype
                np.testing.assert_array_equal(left, right)


@pytest.fixture
def two(forks: Forks, tmp_path: Path) -> Iterator[list[Any]]:
    """Two servers with one uniform table each."""
    tables = [TableConfig("replay", signature_of("two_step"))]
    with forks.embedded(tables) as one, forks.embedded(tables) as other:
        yield [one, other]


def test_two_servers_are_sampled_and_changed_as_one(two: list[Any]) -> None:
    sizes = []
    for number, server in enumerate(two):
        with rlds2reverb.connect(server.address) as client:
            source = rlds2reverb.open_source(SOURCE).shard(number, 3)
            sizes.append(client.push(source, "replay").items_confirmed)
    total = sum(sizes)
    with rlds2reverb.connect([server.address for server in two]) as group:
        assert group.tables()["replay"].current_size == total
        with group.sample("replay", 64, samples=6400) as sampler:
            batches = list(sampler)
        shares = np.bincount(np.concatenate([source_of(batch) for batch in batches]), minlength=2) / 6400
        assert abs(shares[0] - sizes[0] / total) < 0.035  # five standard deviations at most
        for batch in batches:
            np.testing.assert_allclose(batch.info.probability, 1 / total)
        keys, servers = batches[-1].info.key, source_of(batches[-1])
        group.update_priorities("replay", keys, 7.0)
        with group.sample("replay", 64) as sampler:
            again = next_of(sampler)
        changed = {int(key) for key in keys}
        assert {p for key, p in zip(again.info.key.tolist(), again.info.priority) if key in changed} <= {7.0}
        group.delete("replay", keys)
        assert group.tables()["replay"].current_size == total - len(changed)
        assert len(set(servers.tolist())) == 2
        group.reset("replay")
        assert group.tables()["replay"].current_size == 0


def test_one_push_fills_all_and_priorities_weigh_in_exactly(forks: Forks) -> None:
    """Every sample's probability is that of its server times that on it: exact values, from the priorities that were set."""
    tables = [TableConfig("replay", signature_of("two_step"), sampler="prioritized", priority_exponent=1.0)]
    with forks.embedded(tables) as one, forks.embedded(tables) as other:
        with rlds2reverb.connect([f"one={one.address}", f"other={other.address}"]) as group:
            report = group.push(SOURCE, "replay")
            counts = [part.items_confirmed for part in report.servers.values()]
            total = sum(counts)
            assert group.push(SOURCE, "replay").items_new == 0
            assert [info.tables["replay"].current_size for info in group.servers().values()] == counts
            assert all(counts)
            with group.sample("replay", 64, samples=64, prefetch=1) as sampler:
                batch = next_of(sampler)
            changed = dict(zip(batch.info.key.tolist(), source_of(batch).tolist()))
            group.update_priorities("replay", np.array([*changed], np.uint64), 9.0)
            sums = [float(count) for count in counts]
            for number in changed.values():
                sums[number] += 8.0
            with group.sample("replay", 256, samples=512, prefetch=1, weights="unscaled", beta=0.5) as sampler:
                batches = list(sampler)
        for batch in batches:
            servers = source_of(batch)
            assert batch.info.weight is not None
            for key, number, probability, weight in zip(
                batch.info.key.tolist(), servers.tolist(), batch.info.probability, batch.info.weight, strict=True
            ):
                priority = 9.0 if key in changed else 1.0
                expected = counts[number] / total * priority / sums[number]
                assert probability == pytest.approx(expected, rel=1e-6)
                assert weight == pytest.approx((1 / (total * expected)) ** 0.5, rel=1e-5)


def test_a_server_that_is_stopped_is_named_or_left_out(two: list[Any]) -> None:
    addresses = [server.address for server in two]
    for server in two:
        with rlds2reverb.connect(server.address) as client:
            client.push(SOURCE, "replay")
    strict = rlds2reverb.connect(addresses, timeout_seconds=2.0)
    lenient = rlds2reverb.connect(addresses, timeout_seconds=2.0, allow_missing=True)
    with strict, lenient:
        options: dict[str, Any] = {"prefetch": 1, "reconnect_seconds": 0.5}
        with strict.sample("replay", 32, **options) as one, lenient.sample("replay", 32, **options) as other:
            next_of(one), next_of(other)
            two[1].stop()
            with pytest.raises(rlds2reverb.Rlds2ReverbError, match=addresses[1].split(":")[-1]):
                for _ in range(50):
                    next_of(one)
            batches = [next_of(other) for _ in range(20)]
        assert set(source_of(batches[-1])) == {0}
        assert lenient.missing == (addresses[1],)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The program in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rlds2reverb", *arguments])
        with pytest.raises(SystemExit) as stop:
            sys.exit(main())
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    return run


def test_the_command_line_takes_several(two: list[Any], run: Callable[..., tuple[int, str, str]]) -> None:
    addresses = [server.address for server in two]
    both = ("--server", ",".join(f"{name}={address}" for name, address in zip(("one", "other"), addresses)))
    code, out, _ = run("push", SOURCE, *both, "--table", "replay", "--json")
    report = json.loads(out)
    assert (code, list(report["servers"])) == (0, addresses)
    code, out, _ = run("status", *both, "--json")
    status = json.loads(out)["replay"]
    assert status["size"] == report["items_confirmed"] == sum(server["size"] for server in status["servers"].values())
    code, out, _ = run("sample", *both, "--table", "replay", "--json")
    assert json.loads(out)["source"] in (0, 1)
    stored = "|".join(f"reverb:{address}/replay" for address in addresses)
    code, out, _ = run("inspect", f"mix:{stored}", "--json")
    assert (code, json.loads(out)["episodes"]) == (0, 6)

    two[1].stop()
    code, out, err = run("push", SOURCE, *both, "--table", "replay")
    assert (code, out) == (5, "")
    assert addresses[1] in err
    code, out, err = run("push", SOURCE, *both, "--table", "replay", "--allow-missing")
    left_out = report["servers"][addresses[1]]["episodes_read"]
    assert code == 0
    assert f"left out   {left_out} episode" in out
    code, out, err = run("push", SOURCE, "--server", addresses[0], "--table", "replay", "--allow-missing")
    assert (code, "--allow-missing is for several servers" in err) == (2, True)
