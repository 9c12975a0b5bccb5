"""A Reverb server in a process of its own, for demos, tests and benchmarks.

The child gets its tables (pickled) on standard input, answers with its port on standard output, and ends when its
standard input is closed: it cannot outlive its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from replay_server.library import start_server
from replay_server.tables import TableConfig
from rlds2reverb.errors import ConfigError, ServerUnreachable
from rlds2reverb.extras import require

START_SECONDS = 120.0  # half a second on an idle machine, 3 to 15 s on a loaded one that has to import TensorFlow


class EmbeddedServer:
    """A server that lives as long as the `with` block.

    Example::

        with EmbeddedServer([TableConfig("replay", signature)]) as server:
            client = rlds2reverb.connect(server.address)

    Args:
      tables: at least one table.
      port: a port of this host, or None for a free one.
      checkpoint_dir: a folder of the server's own; None for no checkpoints.

    Attributes (inside the block):
      port: the port it listens on.
      address: "localhost:PORT".
      pid: of the server's process.
    """

    def __init__(
        self, tables: Sequence[TableConfig], port: int | None = None, checkpoint_dir: Path | None = None
    ) -> None:
        self._request = (tuple(tables), port, None if checkpoint_dir is None else str(checkpoint_dir))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return f"localhost:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id.

        Raises:
          ServerUnreachable: the server is not running.
        """
        if self._process is None:
            raise ServerUnreachable("the embedded server is not running; use it inside its with block")
        return self._process.pid

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> EmbeddedServer:
        """Starts the process and waits for its port.

        Raises:
          ModuleNotFoundError: the extra `server` is not installed.
          ServerUnreachable: the process ended, or did not answer in time; its error output is in the message.
        """
        require(("reverb",), "the replay server", "server", ModuleNotFoundError)
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        with tempfile.TemporaryFile() as errors:  # not a pipe: it is not read while the server runs
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", "from replay_server.embedded import serve; serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
            assert process.stdin is not None  # we asked for a pipe
            payload = pickle.dumps(self._request)
            with contextlib.suppress(BrokenPipeError):  # it has ended already, and its output is closed
                process.stdin.write(len(payload).to_bytes(8, "little") + payload)
                process.stdin.flush()
            port = self._read_port(process)
            if port is None:
                self.stop()
                errors.seek(0)
                text = errors.read().decode(errors="replace").strip()
                raise ServerUnreachable(f"the embedded server did not start: {text[-2000:]}")
        self.port = port
        return self

    def stop(self) -> None:
        """Ends the process as a crash would, without cleaning up; `start` starts an empty one. Does nothing when it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()

    def _read_port(self, process: subprocess.Popen[bytes]) -> int | None:
        """The port that the process has printed; None when it ended, or printed none in time."""
        assert process.stdout is not None  # we asked for a pipe
        end = time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, end - time.monotonic())):
                line = process.stdout.readline()
                if line.startswith(b"port "):
                    return int(line.split()[1])
                if not line:
                    break
        return None


def serve() -> None:
    """The child: tables from standard input, port to standard output, until standard input closes."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    tables, port, checkpoint_dir = pickle.loads(sys.stdin.buffer.read(size))
    with ExitStack() as until_it_listens:
        # Reverb always creates a checkpoint folder, and does not remove it.
        folder = checkpoint_dir or until_it_listens.enter_context(tempfile.TemporaryDirectory())
        port = until_it_listens.enter_context(held_port(port or 0))
        _server = start_server(tables, port, folder)
    sys.stdout.write(f"port {port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    os._exit(0)  # Reverb's own shutdown waits for open streams


def check_port_is_free(port: int, name: str = "port") -> None:
    """Refuses a port that a server listens on. gRPC would share it with one that allows that (SO_REUSEPORT): clients would meet either."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6).close()
    except OSError as error:
        raise ConfigError(f"{name} {port}: taken, or not allowed ({error}); choose another one") from error


@contextmanager
def held_port(port: int, name: str = "port") -> Iterator[int]:
    """A port that is kept, inside the `with` block, for a gRPC server of this process to listen on; 0 for a free one.

    It is bound and does not listen, so it takes no connection away; gRPC, which shares ports, can listen on it beside, and
    nobody else can. So a free port stays free until Reverb has it. Reverb could not say which port it chose by itself.
    `name` is that of the option, for the `ConfigError` where something listens on the port.
    """
    if port:
        check_port_is_free(port, name)
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            holding.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            holding.bind(("", port))
        except OSError as error:
            raise ConfigError(
                f"{name} {port}: taken meanwhile ({error}); choose another, or 0 for a free one"
            ) from error
        yield int(holding.getsockname()[1])
