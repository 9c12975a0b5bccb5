"""A replay buffer of TorchRL's, or a table as one, in a process of its own, in the Python of TorchRL: `python -m benchmarks.torchrl_buffers DESCRIPTION`.

DESCRIPTION is JSON: {"buffer": a name in `BUFFERS`, "data": "vectors" or "images", "stored": transitions, "address": of our server}.
Each line of the input is JSON, too: {"options": of the buffer, "batches": N, "writes": whether a batch of steps is written before each sample};
the answer is {"seconds", "processor_seconds", "columns"}, the latter of a batch, by which sides prove that they give the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from benchmarks import data
from rlds2reverb.episode import Array

BATCH = 256
WARM_BATCHES = 8
COLUMNS: dict[str, Callable[[], Any]] = {"vectors": data.half_cheetah, "images": data.pictures}
TABLES = {False: "sampled", True: "loop"}
"""Of our server, by whether it is written to."""


def transitions(columns: list[dict[str, Array]]) -> TensorDict:
    """The steps [N] of episodes, one after the other, as a collector gives them."""

    def join(take: Callable[[dict[str, Array]], Array]) -> torch.Tensor:
        return torch.as_tensor(np.concatenate([take(episode) for episode in columns]))

    terminated = join(lambda episode: episode["is_terminal"][1:])[:, None]
    done = join(lambda episode: episode["is_last"][1:])[:, None]
    following = {
        "observation": join(lambda episode: episode["observation"][1:]),
        "reward": join(lambda episode: episode["reward"][:-1])[:, None],
        "done": done,
        "terminated": terminated,
        "truncated": done & ~terminated,
    }
    own = {name: join(partial(_without_last, name)) for name in ("observation", "action")}
    flags = {name: torch.zeros_like(done) for name in ("done", "terminated", "truncated")}
    return TensorDict({**own, **flags, "next": following}, [len(done)])


def _without_last(name: str, episode: Mapping[str, Any]) -> Any:
    return episode[name][:-1]


def slice_of(steps: TensorDict, start: int, count: int) -> TensorDict:
    """So many consecutive steps, from the beginning again after the last one."""
    return steps[(start + torch.arange(count)) % len(steps)]


@contextmanager
def table(steps: TensorDict, stored: int, address: str, writes: bool) -> Iterator[Any]:
    """Ours; the table is full already."""
    from rlds2reverb import connect
    from rlds2reverb.adapters.torchrl import TableReplayBuffer

    with (
        connect(address) as client,
        TableReplayBuffer(client, TABLES[writes], BATCH, write={"view": "transition"}) as buffer,
    ):
        yield buffer


@contextmanager
def in_process(steps: TensorDict, stored: int, *_: Any, storage: str, **options: Any) -> Iterator[Any]:
    """TorchRL's buffer in the learner's own process."""
    from torchrl.data import TensorDictReplayBuffer, replay_buffers

    with tempfile.TemporaryDirectory() as folder:
        place = {"scratch_dir": folder} if storage == "LazyMemmapStorage" else {}
        buffer = TensorDictReplayBuffer(
            storage=getattr(replay_buffers, storage)(stored, **place), batch_size=BATCH, **options
        )
        _fill(buffer, steps, stored)
        yield buffer


@contextmanager
def ray_actor(steps: TensorDict, stored: int, *_: Any, **options: Any) -> Iterator[Any]:
    """TorchRL's buffer in an actor of Ray."""
    import ray
    from torchrl.data import LazyTensorStorage, RayReplayBuffer, TensorDictReplayBuffer

    runtime = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    if not ray.is_initialized():
        ray.init(**runtime, object_store_memory=1 << 30)
    buffer = RayReplayBuffer(
        replay_buffer_cls=TensorDictReplayBuffer,
        ray_init_config=runtime,
        remote_config={"num_cpus": 1},
        storage=partial(LazyTensorStorage, stored),
        batch_size=BATCH,
        **options,
    )
    try:
        _fill(buffer, steps, stored)
        yield buffer
    finally:
        buffer.close()


class RpcBuffer:
    """TorchRL's `RemoteTensorDictReplayBuffer` in a process that is reached by torch.distributed.rpc."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def extend(self, steps: TensorDict) -> None:
        """Writes steps."""
        self._reference.rpc_sync(timeout=0).extend(steps)

    def sample(self) -> Any:
        """A batch."""
        return self._reference.rpc_sync(timeout=0).sample()


@contextmanager
def rpc_process(steps: TensorDict, stored: int, *_: Any, **options: Any) -> Iterator[Any]:
    """TorchRL's buffer in a process of its own, by RPC."""
    from torch.distributed import rpc

    from benchmarks import torchrl_buffers  # under its own name, not "__main__", so that the other process finds it

    reference = rpc.remote("buffer", torchrl_buffers.make_remote_buffer, (stored, options), timeout=0)
    buffer = RpcBuffer(reference)
    _fill(buffer, steps, stored)
    yield buffer


def make_remote_buffer(stored: int, options: Mapping[str, Any]) -> Any:
    """Runs in the buffer's process."""
    from torchrl.data import LazyTensorStorage, RemoteTensorDictReplayBuffer

    return RemoteTensorDictReplayBuffer(storage=LazyTensorStorage(stored), batch_size=BATCH, **options)


@contextmanager
def rpc_world() -> Iterator[None]:
    """Makes this process the learner, and another for the buffer."""
    from torch import multiprocessing
    from torch.distributed import rpc

    from benchmarks import torchrl_buffers

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    other = multiprocessing.get_context("spawn").Process(target=torchrl_buffers.serve_rpc, args=(port,), daemon=True)
    other.start()
    join_rpc("learner", 0, port)
    try:
        yield
    finally:
        rpc.shutdown()
        other.join()


def serve_rpc(port: int) -> None:
    """The buffer's process, until the learner shuts down."""
    from torch.distributed import rpc

    join_rpc("buffer", 1, port)
    rpc.shutdown()


def join_rpc(name: str, rank: int, port: int) -> None:
    """Enters the world of two."""
    from torch.distributed import rpc

    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=4)
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def _fill(buffer: Any, steps: TensorDict, stored: int) -> None:
    for start in range(0, stored, BATCH):  # one transport of RayReplayBuffer takes as many steps as the first time only
        buffer.extend(slice_of(steps, start, BATCH))


BUFFERS: dict[str, Callable[..., Any]] = {
    "table": table,
    "LazyTensorStorage": partial(in_process, storage="LazyTensorStorage"),
    "LazyMemmapStorage": partial(in_process, storage="LazyMemmapStorage"),
    "RayReplayBuffer": ray_actor,
    "RemoteTensorDictReplayBuffer": rpc_process,
}


def measure(buffer: Any, steps: TensorDict, batches: int, writes: bool) -> dict[str, Any]:
    """Takes batches; with `writes`, hands over as many steps before each, and waits in the end until they are stored."""
    written = [slice_of(steps, BATCH * number, BATCH) for number in range(batches)] if writes else []
    for _ in range(WARM_BATCHES):
        batch = buffer.sample()
    began = time.perf_counter(), time.process_time()
    for number in range(batches):
        if writes:
            buffer.extend(written[number])
        batch = buffer.sample()
    if writes and hasattr(buffer, "flush"):
        buffer.flush()
    return {
        "seconds": time.perf_counter() - began[0],
        "processor_seconds": time.process_time() - began[1],
        "columns": columns_of(batch),
    }


def columns_of(batch: TensorDict) -> dict[str, str]:
    """Key -> dtype and shape, of what the steps have."""
    leaves = batch.exclude("index", "priority_weight", "_weight").items(include_nested=True, leaves_only=True)
    return {
        key if isinstance(key, str) else "/".join(key): f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        for key, leaf in leaves
    }


def main(description: Mapping[str, Any]) -> None:
    """Serves lines. A buffer stays open until a line has other options."""
    steps = transitions(COLUMNS[description["data"]]())
    make, answers = BUFFERS[description["buffer"]], os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    with ExitStack() as whole, ExitStack() as opened:
        if make is rpc_process:
            whole.enter_context(rpc_world())
        key, buffer = "", None
        for line in sys.stdin:
            request = json.loads(line)
            chosen = json.dumps([request["options"], request["writes"]])
            if chosen != key:
                opened.close()
                arguments = (steps, description["stored"], description["address"], request["writes"])
                buffer, key = opened.enter_context(make(*arguments, **request["options"])), chosen
            print(json.dumps(measure(buffer, steps, request["batches"], request["writes"])), file=answers, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(json.loads(sys.argv[1]))
