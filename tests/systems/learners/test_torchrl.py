"""TensorDicts beside TorchRL's own buffers, its losses and its trainers' hooks on a real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torchrl.data import Bounded, Categorical, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer, Unbounded
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import DQNLoss, SACLoss
from torchrl.trainers import ReplayBufferTrainer

import rlds2reverb
from rlds2reverb.adapters import torchrl
from rlds2reverb.adapters.torchrl import Layout, TableReplayBuffer, composite_of, tensordict_of, tensordicts
from rlds2reverb.episode import Episode
from rlds2reverb.errors import ConfigError
from rlds2reverb.learner.batch import Batch, BatchInfo
from rlds2reverb.specs import ArraySpec
from rlds2reverb.testing import MemoryServer, MemoryTransport, table_info
from tests.systems.learners.conftest import StartServer
from tests.systems.learners.servers import numbers, signature_of

TRANSITION, SLICES = "transition", "slices:length=4,per_episode=20"


@pytest.fixture(scope="module")
def weighted(start_server: StartServer) -> str:
    """A server with small prioritized tables: "transitions" and "slices" of `numbers`."""
    by_priority = {"sampler": "prioritized", "priority_exponent": 1.0}
    views = {"transitions": TRANSITION, "slices": SLICES}
    tables = [{"name": name, "signature": signature_of(numbers(1), view)} for name, view in views.items()]
    address = start_server(*({**table, **by_priority} for table in tables)).address
    with rlds2reverb.connect(address) as client:
        for name, view in views.items():
            assert client.push(numbers(8), name, view=view).items_confirmed in (8, 6)
    return address


def episodes() -> list[Episode]:
    return list(rlds2reverb.open_source("bundled:cartpole"))


def ted(rows: list[Episode]) -> TensorDict:
    """The data as TorchRL's collectors hand it over, [N]."""
    parts = []
    for number, episode in enumerate(rows):
        steps = {name: torch.tensor(np.array(column)) for name, column in episode.columns.items()}
        last, terminal = steps["is_last"][1:, None], steps["is_terminal"][1:, None]
        nothing = torch.zeros_like(last)
        following = {"observation": steps["observation"][1:], "reward": steps["reward"][:-1, None]}
        flags = {"done": last, "terminated": last & terminal, "truncated": last & ~terminal}
        now = {"observation": steps["observation"][:-1], "action": steps["action"][:-1]}
        collector = {"traj_ids": torch.full((len(last),), number)}
        columns = {**now, **dict.fromkeys(flags, nothing), "next": {**following, **flags}, "collector": collector}
        parts.append(TensorDict(columns, batch_size=[len(last)]))
    return torch.cat(parts)


def theirs(sampler: Any = None, batch_size: int = 28) -> TensorDict:
    """A sample of TorchRL's own buffer with the same data."""
    data = ted(episodes())
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(len(data)), batch_size=batch_size, **({"sampler": sampler} if sampler else {})
    )
    buffer.extend(data)
    return buffer.sample()


def layout_of(data: TensorDict) -> dict[str, tuple[Any, ...]]:
    """Key -> shape and dtype."""
    leaves = data.items(include_nested=True, leaves_only=True)
    return {"/".join(key) if isinstance(key, tuple) else key: (*leaf.shape, leaf.dtype) for key, leaf in leaves}


def test_transitions_look_like_those_of_torchrls_own_buffer(client: rlds2reverb.Client) -> None:
    wanted, made = layout_of(theirs()), []
    assert wanted.pop("collector/traj_ids")  # items do not say whose they are
    for table in ("transitions", "two_step_cartpole"):
        with TableReplayBuffer(client, table, 28) as buffer:
            made.append(layout_of(buffer.sample()))
    assert made[1].pop("discount") == (28, torch.float32)  # a column that TED has no place for
    assert made == [wanted, wanted]


def test_slices_look_like_those_of_torchrls_own_sampler(client: rlds2reverb.Client) -> None:
    wanted = layout_of(theirs(SliceSampler(slice_len=7)))
    with TableReplayBuffer(client, "slices", 4) as buffer:  # of 8 rows: 7 transitions
        made = buffer.sample()
    found = layout_of(made)
    assert found.pop("discount")
    assert found == wanted
    assert made["collector", "traj_ids"].tolist() == [number for number in range(4) for _ in range(7)]
    ends = made["next", "truncated"].reshape(4, 7)
    assert ends.all(0).tolist() == [False] * 6 + [True]
    assert not ends[:, :-1].any()
    assert torch.equal(made["next", "done"], made["next", "truncated"])


@pytest.mark.parametrize("table", ["transitions", "two_step_cartpole", "sequences", "slices"])
@pytest.mark.parametrize("layout", ["flat", "slices"])
def test_values_are_those_of_the_data(client: rlds2reverb.Client, table: str, layout: str) -> None:
    """Whatever the view: found again by observation and action, which is unique in this data."""
    data = ted(episodes())
    rows = {(row["observation"].numpy().tobytes(), int(row["action"])): row for row in data.unbind(0)}
    with TableReplayBuffer(client, table, 64, layout=Layout(layout, mark_ends=False)) as buffer:
        made = buffer.sample()
    if made.ndim == 2:
        assert made.shape == (64, 7)
        made = made[made["collector", "mask"]]
    assert len(made) >= 64
    for row in made.unbind(0):
        wanted = rows[row["observation"].numpy().tobytes(), int(row["action"])]
        for key in ("done", "terminated", "truncated", "next"):
            assert (row[key] == wanted[key]).all(), key


def test_padding_is_masked_or_left_out(client: rlds2reverb.Client) -> None:
    with client.sample("sequences", 64, samples=64) as sampler:
        (batch,) = sampler
    whole, flat = tensordict_of(batch, Layout("slices")), tensordict_of(batch)
    mask = whole["collector", "mask"]
    assert whole.shape == (64, 7)
    assert len(flat) == mask.sum()
    for key in ("observation", ("next", "observation"), ("next", "truncated"), "index", ("collector", "traj_ids")):
        assert torch.equal(whole[key][mask], flat[key])


def batch_of(data: Any, count: int, **more: Any) -> Batch:
    ones = np.ones(count)
    info = BatchInfo(np.arange(count, dtype=np.uint64), ones, ones, ones, ones)
    return Batch(data, info._replace(**more))


def transition_data(count: int) -> dict[str, Any]:
    plain, flag = np.arange(count, dtype=np.float32), np.zeros((count, 1), bool)
    flags = dict.fromkeys(("done", "terminated", "truncated"), flag)
    return {"observation": plain, "action": plain, "next": {"observation": plain, "reward": plain[:, None], **flags}}


def test_weights_text_and_the_trajectory_find_their_places() -> None:
    text = np.array([b"up", b"down"], object)
    extras = {"extras": {"episode": np.array([7, 9], np.int32), "text": text}, "policy_info": ()}
    data = {**transition_data(2), **extras}
    made = tensordict_of(batch_of(data, 2, weight=np.array([0.5, 1], np.float32)), Layout(trajectory="extras/episode"))
    assert made["priority_weight"].tolist() == [0.5, 1]
    assert made["collector", "traj_ids"].tolist() == [7, 9]
    assert list(made["extras"].keys()) == ["text"]
    assert made["extras", "text"] == [b"up", b"down"]
    assert "policy_info" not in made


@pytest.mark.parametrize(
    ("data", "layout", "words"),
    [
        ({}, {"layout": "round"}, "layout 'round': expected one of flat, slices"),
        ({}, {"trajectory": "extras/episode"}, "found no such column"),
        ({}, {"trajectory": "observation"}, "found float32"),
        ({"text": np.array([[b"", b""]] * 2, object)}, {}, r"text \[2\] per transition"),
    ],
)
def test_what_has_no_place_is_refused_in_words(data: Any, layout: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tensordict_of(batch_of({**transition_data(2), **data}, 2), Layout(**layout))


def test_a_batch_without_a_transition_is_an_error() -> None:
    kinds = np.full((2, 2), 2, np.int32)
    rows = {name: np.ones((2, 2)) for name in ("observation", "action", "reward", "discount")}
    with pytest.raises(ConfigError, match="2 items without a transition"):
        tensordict_of(batch_of({"step_type": kinds, **rows}, 2))


# A buffer for trainers.


def priorities_of(client: rlds2reverb.Client, table: str) -> dict[int, float]:
    """Key -> priority, of all items that are drawn in so many draws."""
    with client.sample(table, 2000, samples=2000) as sampler:
        (batch,) = sampler
    return dict(zip(batch.info.key.view(np.int64).tolist(), batch.info.priority.tolist()))


def test_priorities_of_a_loss_reach_the_server(weighted: str) -> None:
    with rlds2reverb.connect(weighted) as client, TableReplayBuffer(client, "transitions", 64) as buffer:
        data = buffer.sample()
        data["td_error"] = data["observation"].float()[:, None] + 1
        buffer.update_tensordict_priority(data)
        wanted = dict(zip(data["index"].tolist(), (data["observation"] + 1).tolist()))
        assert priorities_of(client, "transitions").items() >= wanted.items()
        buffer.update_priority(data["index"], 2.0)
        assert {priorities_of(client, "transitions")[key] for key in wanted} == {2.0}
        assert len(buffer) == 8


@pytest.mark.parametrize("layout", ["flat", "slices"])
def test_an_item_of_several_transitions_gets_the_largest(weighted: str, layout: str) -> None:
    with rlds2reverb.connect(weighted) as client:
        with TableReplayBuffer(client, "slices", 64, layout=Layout(layout)) as buffer:
            data = buffer.sample()
            data["td_error"] = 8 - data["observation"].float()[..., None]
            buffer.update_tensordict_priority(data)
            first = data["observation"].reshape(64, 3)[:, 0]
            wanted = dict(zip(data["index"].reshape(64, 3)[:, 0].tolist(), (8 - first).tolist()))
            assert len(wanted) > 3
            assert priorities_of(client, "slices").items() >= wanted.items()


def test_padding_has_no_say_in_priorities(client: rlds2reverb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    with TableReplayBuffer(client, "sequences", 64, layout=Layout("slices")) as buffer:
        data = buffer.sample()
        mask = data["collector", "mask"]
        data["td_error"] = torch.where(mask, 1.0, 9.0)[..., None]
        monkeypatch.setattr(buffer, "_has_priorities", True)
        monkeypatch.setattr(client, "update_priorities", lambda _, keys, values: sent.append((keys, values)))
        buffer.update_tensordict_priority(data)
    ((keys, values),) = sent
    assert set(keys.view(np.int64).tolist()) == set(data["index"][..., 0][mask].tolist())
    assert set(values.tolist()) == {1.0}


def test_priorities_that_make_no_sense_are_refused(weighted: str) -> None:
    with rlds2reverb.connect(weighted) as client, TableReplayBuffer(client, "transitions", 4) as buffer:
        data = buffer.sample()
        with pytest.raises(ConfigError, match='needs "index" and "td_error"'):
            buffer.update_tensordict_priority(data)
        for wrong in (float("nan"), float("inf")):
            data["td_error"] = torch.tensor([1.0, wrong, 1.0, 1.0])
            with pytest.raises(ConfigError, match="expected finite numbers"):
                buffer.update_tensordict_priority(data)
        with pytest.raises(ConfigError, match="2 for 4 keys"):
            buffer.update_priority(data["index"], torch.ones(2))


def test_a_table_that_is_not_there_is_told_with_those_that_are() -> None:
    with rlds2reverb.Client(MemoryTransport(MemoryServer(table_info("replay")))) as client:
        buffer = TableReplayBuffer(client, "reply")
        asking: list[Callable[[], object]] = [
            buffer.__len__,
            buffer.sample,
            lambda: buffer.update_tensordict_priority(TensorDict()),
        ]
        for asked in asking:
            with pytest.raises(ConfigError, match='no table "reply"; it has replay'):
                asked()


def test_the_largest_of_an_item_may_be_below_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether such priorities are let through is not for this class to say."""
    sent: list[Any] = []
    monkeypatch.setattr(torchrl, "check_priorities", lambda keys, values: (keys, values))
    client: Any = SimpleNamespace(
        update_priorities=lambda _, keys, values: sent.append((keys.tolist(), values.tolist()))
    )
    TableReplayBuffer(client, "heap").update_priority(torch.tensor([7, 8, 7]), torch.tensor([-3.0, -1.0, -2.0]))
    assert sent == [([7, 8], [-2.0, -1.0])]


def test_without_priorities_in_the_table_an_update_does_nothing(client: rlds2reverb.Client) -> None:
    with TableReplayBuffer(client, "transitions", 4) as buffer:
        buffer.update_tensordict_priority(buffer.sample())  # no td_error, and nobody asks


def test_a_trainers_hooks_take_it_for_a_replay_buffer(weighted: str) -> None:
    with rlds2reverb.connect(weighted) as client, TableReplayBuffer(client, "transitions", 4) as buffer:
        for iterate in (False, True):
            hook = ReplayBufferTrainer(buffer, iterate=iterate)
            data = hook.sample(None)
            data["td_error"] = torch.full((4, 1), 3.0)
            hook.update_priority(data)
            hook.load_state_dict(hook.state_dict())
        hook = ReplayBufferTrainer(buffer, batch_size=6)
        assert len(hook.sample(None)) == 6
        with pytest.raises(ConfigError, match="data and priorities are the server's"):
            buffer.load_state_dict({"storage": 1})


def test_it_ends_with_its_samples_and_tells_of_each(client: rlds2reverb.Client) -> None:
    with TableReplayBuffer(client, "transitions", 4, samples=10) as buffer:
        data, info = buffer.sample(return_info=True)
        assert torch.equal(info["index"], data["index"])
        assert info["table_size"].tolist() == [len(buffer)] * 4
        assert [len(trajectory) for trajectory in buffer] == [4, 2]
        with pytest.raises(ConfigError, match="no sample is left"):
            buffer.sample()
    with client.sample("transitions", 4, samples=8) as sampler:
        assert [len(tensordict) for tensordict in tensordicts(sampler)] == [4, 4]


# Specs.


@pytest.mark.parametrize("table", ["transitions", "two_step_cartpole", "sequences", "slices"])
@pytest.mark.parametrize("layout", ["flat", "slices"])
def test_the_spec_of_a_table_is_that_of_its_samples(client: rlds2reverb.Client, table: str, layout: str) -> None:
    with TableReplayBuffer(client, table, 16, layout=Layout(layout)) as buffer:
        spec, data = buffer.spec, buffer.sample()
    rows = data.exclude("collector", "index").reshape(-1)
    assert set(spec.keys(True, True)) == set(rows.keys(True, True))
    assert all(spec.is_in(row) for row in rows.unbind(0))
    assert data.names == ([None, "time"] if data.ndim == 2 else [None])


def test_bounds_of_a_signature_become_those_of_the_spec() -> None:
    numbers = {
        name: ArraySpec((), np.dtype(kind))
        for name, kind in {"reward": "f4", "is_last": "?", "is_terminal": "?"}.items()
    }
    step = {
        **numbers,
        "observation": ArraySpec((3,), np.dtype("f4"), minimum=-1.0, maximum=np.array([1.0, 2.0, 3.0])),
        "action": ArraySpec((), np.dtype("i8"), minimum=0, maximum=4),
    }
    rows = {name: replace(spec, shape=(None, *spec.shape)) for name, spec in step.items()}
    spec = composite_of(rows)
    assert spec["action"] == Categorical(5, shape=(), dtype=torch.int64)
    assert spec["observation"] == Bounded(-torch.ones(3), torch.tensor([1.0, 2, 3]), shape=(3,), dtype=torch.float32)
    assert spec["next", "reward"] == Unbounded(shape=(1,), dtype=torch.float32)
    assert spec.rand().keys(True, True)


# Losses.


def step(loss: Any, data: TensorDict, *keys: str) -> list[float]:
    """One step of training: the gradients are there, and finite."""
    out = loss(data)
    sum(out[key] for key in keys).backward()
    gradients = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    torch.optim.SGD(loss.parameters(), 0.01).step()
    return [float(out[key].detach()) for key in keys]


@pytest.mark.parametrize("table", ["prioritized", "slices", "two_step_cartpole"])
def test_a_step_of_dqn(client: rlds2reverb.Client, table: str) -> None:
    """The same loss as on the same data in TorchRL's own hands; then the priorities go back."""
    network = QValueActor(MLP(in_features=4, out_features=2, num_cells=[16]), action_space="categorical")
    loss = DQNLoss(network, action_space="categorical")
    with TableReplayBuffer(client, table, 32) as buffer:
        data = buffer.sample()
        step(loss, data, "loss")
        assert data["td_error"].shape[0] == len(data)
        buffer.update_tensordict_priority(data)
        if table == "prioritized":
            wanted = dict(zip(data["index"].tolist(), data["td_error"].reshape(-1).tolist()))
            found = priorities_of(client, table)
            assert found.keys() & wanted.keys()
            for key in found.keys() & wanted.keys():
                assert found[key] == pytest.approx(wanted[key])
            buffer.update_priority(data["index"], 1.0)


def test_weights_are_used_by_a_loss(client: rlds2reverb.Client) -> None:
    network = QValueActor(MLP(in_features=4, out_features=2, num_cells=[16]), action_space="categorical")
    loss = DQNLoss(network, action_space="categorical")
    with client.sample("transitions", 8, samples=8) as sampler:
        (batch,) = sampler
    weights = np.eye(8, dtype=np.float32)[0]  # only the first one counts
    weighed = tensordict_of(batch._replace(info=batch.info._replace(weight=weights)))
    with torch.no_grad():
        first, all_of_them = float(loss(tensordict_of(batch)[:1])["loss"]), float(loss(weighed)["loss"])
    assert all_of_them in (pytest.approx(first), pytest.approx(first / 8))  # the sum by the weights' or by their number


def test_a_step_of_sac(client: rlds2reverb.Client) -> None:
    body = TensorDictModule(
        torch.nn.Sequential(MLP(in_features=17, out_features=12, num_cells=[16]), NormalParamExtractor()),
        in_keys=["observation"],
        out_keys=["loc", "scale"],
    )
    actor = ProbabilisticActor(
        TensorDictSequential(body), in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True
    )
    value = ValueOperator(MLP(in_features=23, out_features=1, num_cells=[16]), in_keys=["observation", "action"])
    loss = SACLoss(actor, value, action_spec=None, target_entropy=-6.0)
    with TableReplayBuffer(client, "two_step", 32) as buffer:
        step(loss, buffer.sample(), "loss_actor", "loss_qvalue", "loss_alpha")
