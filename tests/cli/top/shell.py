"""A terminal with a shell of one job: what a program does to a terminal, seen from both sides of it.

`Shell` is this side: it has the terminal's other end, sends keys, and reads what a screen would show. The other side is this file
run as a program: it starts the job in the foreground, as a shell does, and says in lines of its own ("@stopped", ...) what became of
it, and whether the terminal's modes are those from before.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from types import TracebackType

from tests.processes import PATIENCE_SECONDS, QUIET, REPOSITORY, wait_until

_FRAME = re.compile(r"\x1b\[H(.*?)\x1b\[J", re.DOTALL)
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TAKE, GIVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""What a program that takes a screen over writes first, and last."""


class Shell:
    """A terminal in which a Python program runs.

    Args:
      size: columns and lines.
      arguments: of Python.
      environment: beside this process's own.
    """

    def __init__(self, size: tuple[int, int], *arguments: str, **environment: str) -> None:
        self._end, other = pty.openpty()
        self.resize(size)
        self._read = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.top.shell", sys.executable, *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=REPOSITORY,
            start_new_session=True,
            env={**os.environ, **QUIET, "TERM": "xterm-256color", **environment},
        )
        os.close(other)

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in {self._process.pid, *self._said_pids()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        os.close(self._end)

    @property
    def read(self) -> str:
        """All that was written to the terminal so far."""
        while select.select([self._end], [], [], 0)[0]:
            try:
                data = os.read(self._end, 1 << 16)
            except OSError:  # Linux: the other side has ended
                break
            if not data:
                break
            self._read += data.decode("utf-8", "replace")
        return self._read

    @property
    def lines(self) -> list[str]:
        """The newest whole view, line by line; nothing before the first."""
        frames = _FRAME.findall(self.read)
        return _CONTROLS.sub("", frames[-1]).replace("\r", "").split("\n") if frames else []

    @property
    def screen(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines)

    @property
    def pid(self) -> int:
        """Of the job."""
        self.until("@started ")
        return self._said_pids()[-1]

    def _said_pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"@started (\d+)\r", self._read)]

    def until(self, text: str, times: int = 1) -> Shell:
        """Waits until this has been written to the terminal so many times."""
        wait_until(lambda: self.read.count(text) >= times, reason=lambda: f"{text!r} in {self._read[-3000:]!r}")
        return self

    def until_shown(self, *texts: str, seconds: float = PATIENCE_SECONDS) -> Shell:
        """Waits until the newest view has all of these."""
        wait_until(
            lambda: all(text in self.screen for text in texts),
            seconds,
            lambda: f"{texts} in\n{self.screen}\n{self._read[-2000:]!r}",
        )
        return self

    def type(self, keys: str) -> Shell:
        """Presses keys."""
        os.write(self._end, keys.encode())
        return self

    def resize(self, size: tuple[int, int]) -> Shell:
        """Gives the terminal another size."""
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        return self

    def hang_up(self) -> None:
        """Closes this end."""
        os.close(self._end)
        self._end = os.open(os.devnull, os.O_RDWR)

    def send(self, number: int) -> Shell:
        """Sends the job a signal."""
        os.kill(self.pid, number)
        return self

    def is_over(self, pid: int) -> bool:
        """Whether the job has ended, or waits to be asked how."""
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    def after_the_view(self) -> str:
        """What was written since the last view was given back."""
        return self.read.rpartition(GIVE)[2]


def _say(text: str) -> None:
    os.write(1, f"@{text}\n".encode())


def _run(command: list[str]) -> int:
    """A child in the foreground, in a process group of its own."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        for number in (signal.SIGTTOU, signal.SIGHUP):  # the tests may run below nohup
            signal.signal(number, signal.SIG_DFL)
        os.execv(command[0], command)
    return pid


def main() -> None:
    """The shell: runs its arguments, and tells of them until they have ended."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    before = termios.tcgetattr(0)
    child = _run(sys.argv[1:])
    _say(f"started {child}")
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpid())
        modes = "same modes" if termios.tcgetattr(0) == before else "other modes"
        if not os.WIFSTOPPED(status):
            _say(f"ended {os.waitstatus_to_exitcode(status)}, {modes}")
            return
        _say(f"stopped, {modes}")
        while os.read(0, 1) != b"\n":
            pass  # a line brings it back; what comes after it is the job's
        os.tcsetpgrp(0, child)
        os.kill(child, signal.SIGCONT)


if __name__ == "__main__":
    main()
