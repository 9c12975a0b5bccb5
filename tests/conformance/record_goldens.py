"""Records what Reverb's own writers and TF-Agents' observers send: `python -m tests.conformance.record_goldens [NAME...]`.

A forwarding proxy stands between Reverb's client and a real server and keeps the bytes of every InsertStreamRequest and of the
ServerInfoResponse. The files hold length-delimited messages (4 bytes, little-endian, then the message).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from rlds2reverb.specs import ArraySpec, named_tuple_type
from tests.support import rlds_data

GOLDENS = Path(__file__).parent / "goldens"
STEPS = 7
"""Rows of the recorded episode."""

_SERVICE = "/deepmind.reverb.ReverbService/"


class Proxy(grpc.GenericRpcHandler):
    """Forwards every call to a real server and keeps what is of interest."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self.inserts: list[bytes] = []
        self.info = b""
        self._server = grpc.server(ThreadPoolExecutor(16), handlers=[self])
        self.port = self._server.add_insecure_port("localhost:0")
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        if method.endswith(("Stream", "InitializeConnection")):
            return grpc.stream_stream_rpc_method_handler(lambda requests, _: self._stream(method, requests))
        return grpc.unary_unary_rpc_method_handler(lambda request, _: self._call(method, request))

    def _call(self, method: str, request: bytes) -> bytes:
        response: bytes = self._channel.unary_unary(method)(request)
        if method.endswith("ServerInfo"):
            self.info = response
        return response

    def _stream(self, method: str, requests: Iterator[bytes]) -> Iterator[bytes]:
        def kept() -> Iterator[bytes]:
            for request in requests:
                if method.endswith("InsertStream"):
                    self.inserts.append(request)
                yield request

        yield from self._channel.stream_stream(method)(kept())


def episode() -> dict[str, Any]:
    """The columns that are written: [7] rows of every kind of leaf."""
    rng = np.random.default_rng(20)
    return {
        "step": np.arange(STEPS, dtype=np.int32),
        "image": rng.integers(0, 4, (STEPS, 6, 5), np.uint8),
        "wide": rng.normal(size=(STEPS, 3)).astype(np.float32),
        "flag": np.arange(STEPS) % 2 == 0,
        "text": np.array([b"step %d" % number for number in range(STEPS)], object),
    }


def signature() -> Any:
    """A namedtuple with a bounded leaf and a nested dict, for the recorded ServerInfo."""
    float32 = np.dtype(np.float32)
    bounded = ArraySpec((None,), float32, "discount", np.zeros(1, np.float32), np.ones(1, np.float32))
    nested = {"b": ArraySpec((None, 2), np.dtype(np.int64), "b"), "a": (ArraySpec((3,), np.dtype(object), "a"),)}
    return named_tuple_type("Pair", ("first", "second"))(bounded, nested)


def write_pairs(client: Any, table: str) -> None:
    """2-step items by TrajectoryWriter, one `append` and `create_item` per step."""
    columns = episode()
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for step in range(STEPS):
            writer.append({name: column[step] for name, column in columns.items()})
            if step:
                pair = {name: writer.history[name][-2:] for name in columns}
                writer.create_item(table, priority=step, trajectory=pair)
        writer.end_episode()


def write_structured(client: Any, table: str) -> None:
    """A column's pairs and another's latest step, squeezed, by StructuredWriter."""
    import reverb

    columns = {name: episode()[name] for name in ("step", "wide")}
    pattern = reverb.structured_writer.pattern_from_transform(
        {"step": None, "wide": None}, lambda history: {"wide": history["wide"][-2:], "step": history["step"][-1]}
    )
    config = reverb.structured_writer.create_config(pattern, table)
    writer = client.structured_writer([config])
    for step in range(STEPS):
        writer.append({name: column[step] for name, column in columns.items()})
    writer.end_episode()
    writer.flush()


LENGTHS = (4, 1, 3)
"""Rows of the episodes that the observers write."""


def rlds_episodes() -> list[Any]:
    """RLDS episodes: terminal, single step, truncated."""
    rng = np.random.default_rng(21)
    specs = {"observation": ("float32", (3,)), "action": ("object", ())}
    return [rlds_data.episode(rng, rows, terminal=rows != 3, **specs) for rows in LENGTHS]


def write_windows(client: Any, table: str) -> None:
    """Padded and tiled windows of 3 rows for two tables, by TF-Agents' `ReverbAddTrajectoryObserver`."""
    from tf_agents.replay_buffers import reverb_utils

    tables = [table, f"{table}_too"]
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        client, tables, 3, priority=0.5, pad_end_of_episodes=True, tile_end_of_episodes=True
    )
    _observe(observer)


def write_episodes(client: Any, table: str) -> None:
    """Whole episodes, by TF-Agents' `ReverbAddEpisodeObserver`."""
    from tf_agents.replay_buffers import reverb_utils

    _observe(reverb_utils.ReverbAddEpisodeObserver(client, table, max(LENGTHS), priority=2))


def _observe(observer: Any) -> None:
    """What TF-Agents' `push_rlds_to_reverb` does after its check of the signature."""
    from tf_agents.replay_buffers import rlds_to_reverb

    for entry in rlds_to_reverb.convert_rlds_to_trajectories(rlds_data.dataset(rlds_episodes())):
        observer(entry)
    observer.flush()
    observer.close()


def save(name: str, messages: list[bytes]) -> None:
    """Writes one file of messages."""
    (GOLDENS / name).write_bytes(b"".join(len(message).to_bytes(4, "little") + message for message in messages))


def load(name: str) -> list[bytes]:
    """Reads one file of messages."""
    data, messages = (GOLDENS / name).read_bytes(), []
    while data:
        size = int.from_bytes(data[:4], "little")
        messages.append(data[4 : 4 + size])
        data = data[4 + size :]
    return messages


WRITERS = {
    "pairs": write_pairs,
    "structured": write_structured,
    "windows": write_windows,
    "episodes": write_episodes,
}


def main(names: Sequence[str] = ()) -> None:
    """Records the named files, or every file."""
    import reverb
    from replay_server import EmbeddedServer, TableConfig

    tables = [TableConfig(name) for name in (*WRITERS, "windows_too")]
    with EmbeddedServer([*tables, TableConfig("signed", signature(), max_size=77)]) as server:
        for name, write in WRITERS.items():
            if name in (names or WRITERS):
                proxy = Proxy(server.address)
                write(reverb.Client(f"localhost:{proxy.port}"), name)
                save(f"{name}.bin", proxy.inserts)
                proxy.close()
        if "server_info" in (names or ["server_info"]):
            proxy = Proxy(server.address)
            reverb.Client(f"localhost:{proxy.port}").server_info()
            save("server_info.bin", [proxy.info])
            proxy.close()


if __name__ == "__main__":
    main(sys.argv[1:])
