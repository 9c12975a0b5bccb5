"""A real terminal, tmux's, in which a program runs: keys go in, what stands on the screen comes out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import uuid

import pytest

from tests.support.processes import PATIENCE_SECONDS, QUIET, REPOSITORY, wait_until

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Shell:
    """A terminal in which a Python program runs, below a shell that says afterwards how it ended ("@ended CODE, same modes").

    Args:
      size: columns and lines.
      arguments: of Python.
      environment: beside this process's own.
    """

    def __init__(self, size: tuple[int, int], *arguments: str, **environment: str) -> None:
        self._name = f"rlds2reverb-{uuid.uuid4().hex}"
        assigned = [f"{name}={value}" for name, value in {**QUIET, "COLORTERM": "", **environment}.items()]
        job = shlex.join(["env", "-u", "COLUMNS", "-u", "LINES", *assigned, sys.executable, *arguments])
        script = (
            f'before=$(stty -g); {job}; code=$?; after=$(stty -g); [ "$before" = "$after" ] && same=same || same=other; '
            'printf "@ended %s, %s modes\\n" "$code" "$same"; sleep 1000'
        )
        width, height = map(str, size)
        self._tmux("new-session", "-d", "-x", width, "-y", height, "-c", str(REPOSITORY), "bash", "-mc", script)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._name, "-f", os.devnull, *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
        return subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ).stdout

    @property
    def screen(self) -> str:
        """What stands on it."""
        return self._tmux("capture-pane", "-p")

    @property
    def lines(self) -> list[str]:
        """The same line by line."""
        return self.screen.split("\n")

    @property
    def is_taken(self) -> bool:
        """Whether a program has taken the screen over."""
        return self._tmux("display-message", "-p", "#{alternate_on}").strip() == "1"

    @property
    def pid(self) -> int:
        """Of the job."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        children = subprocess.run(["pgrep", "-P", shell], check=True, stdout=subprocess.PIPE, text=True).stdout
        return int(children.split()[-1])

    def until_shown(self, *texts: str, seconds: float = PATIENCE_SECONDS) -> Shell:
        """Waits until the screen has all of these."""
        wait_until(lambda: all(text in self.screen for text in texts), seconds, lambda: f"{texts} in\n{self.screen}")
        return self

    def until_ended(self, code: int) -> str:
        """Waits for the end, with this code and a terminal as it was; what is on the screen then."""
        self.until_shown(f"@ended {code}, same modes")
        assert not self.is_taken
        return self.screen

    def press(self, *keys: str) -> Shell:
        """Presses keys, by tmux's names."""
        self._tmux("send-keys", *keys)
        return self

    def resize(self, size: tuple[int, int]) -> Shell:
        """Gives the terminal another size."""
        self._tmux("resize-window", "-x", str(size[0]), "-y", str(size[1]))
        return self

    def send(self, number: int) -> Shell:
        """Sends the job a signal."""
        os.kill(self.pid, number)
        return self
