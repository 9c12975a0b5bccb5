"""Works through a tutorial as its reader does: writes its files, runs its commands in a folder, compares what they print.

| block | what becomes of it |
| --- | --- |
| `sh` | each line is run, in a process of its own; `rlds2reverb serve` stays until `^C`, or the end of the page |
| `text` | what the block before has printed, line by line; behind `^C`, what the server has since it was ready. A line `...` stands for any lines |
| `python`, `yaml` | written to the file that its first line names |

Environments are not made: the lines of INSTALLS are left out, and tests/packaging/project/test_tutorials.py reads them. The page's ports 8000 and
8080 are free ones. Measured numbers (MEASURED), times and what was sampled (SAMPLED) may differ. A slow machine prints lines of progress
(PROGRESS), which no page shows.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from tests.support.processes import QUIET, Process, free_port, output_files, wait_until
from tests.support.project import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALLS = re.compile(r"(python3\.\d+ -m venv|\. \.venv/bin/activate|(?:uv )?pip install|mkdir|docker compose) ?.*")
MEASURED = re.compile(
    r"(?<![\w.])[\d,]+(\.\d+)?(?= (items/s|episodes/s|MB in|s\b))|(?<=loss )\d+\.\d+|(?<=error )\d+\.\d+|(?<=key )\d+|(?<=bytes=)\d+|[\d,]+(?= encoded)"
    r"|(?<=^bytes )[\d,]+|(?<=^seconds )[\d.]+|[\d,]+(?= bytes$)"
)
PROGRESS = re.compile(r"\S.*  (ETA )?\d+:\d\d:\d\d( +waiting)?$")
SAMPLED = re.compile(r"(?<=\]) .* \(\S+ to \S+\)$")
"""Values of a sample's column, and their range."""
OF_TABLE = re.compile(r"\] (Metadata for table|Table) '?[\w.]+'? (was|and)")
START_SECONDS = 240.0
"""For a server: TensorFlow is imported, on a busy machine."""


class Reader:
    """Somebody who works through a page.

    Args:
      folder: an empty one, in which they work.
      scratch: for what the server says.
      server_python: the Python that has Reverb.
    """

    def __init__(self, folder: Path, scratch: Path, server_python: str = sys.executable) -> None:
        self._folder, self._scratch, self._server_python = folder, scratch, server_python
        self._ports = {"8000": str(free_port()), "8080": str(free_port())}
        self._server: Process | None = None
        self._shown = 0
        self.printed = ""

    def work_through(self, page: Path) -> None:
        """Every block, from the top to the bottom."""
        try:
            for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
                getattr(self, kind)(text)
        finally:
            if self._server is not None:
                self._server.kill()

    def sh(self, text: str) -> None:
        self.printed = ""
        for line in filter(None, (line.partition("  #")[0].strip() for line in text.splitlines())):
            if line == "^C":
                self._interrupt()
            elif not INSTALLS.fullmatch(line):
                self._run(self._here(line))

    def python(self, text: str) -> None:
        name = re.match(r"# (\S+)\n", text)
        assert name is not None, f"the first line does not name the file: {text[:60]}"
        (self._folder / name[1]).write_text(self._here(text), encoding="utf-8")

    yaml = python

    def text(self, text: str) -> None:
        lines = [line for line in self._as_on_the_page(self.printed).splitlines() if not PROGRESS.match(line)]
        printed = _sort_tables(map(_plain, lines))
        parts = [
            _sort_tables(map(_plain, part.splitlines())) for part in re.split(r"^\.\.\.\n", text, flags=re.MULTILINE)
        ]
        at = 0
        for number, part in enumerate(parts):
            places = [n for n in range(at, len(printed) + 1) if printed[n : n + len(part)] == part]
            wanted = [
                n for n in places if (n == 0 or number) and (n + len(part) == len(printed) or number + 1 < len(parts))
            ]
            assert wanted, "\n".join(["the page says", *part, "printed was", *printed[at:]])
            at = wanted[0] + len(part)

    def _here(self, text: str) -> str:
        return re.sub(r"localhost:(8000|8080)", lambda match: f"localhost:{self._ports[match[1]]}", text)

    def _as_on_the_page(self, text: str) -> str:
        for page, here in self._ports.items():
            text = re.sub(rf"\b{here}\b", page, text)
        return text.replace(str(self._folder), "FOLDER")

    def _run(self, line: str) -> None:
        words = shlex.split(line)
        if words[:2] == ["rlds2reverb", "serve"] and "--check" not in words:
            self._serve(words[1:])
            return
        words, target = (words[:-2], words[-1]) if ">" in words else (words, None)
        program = {"rlds2reverb": [self._python_of(words), "-m", "rlds2reverb"], "python": [sys.executable]}[words[0]]
        done = self._done([*program, *(word.replace("../rlds2reverb", str(ROOT)) for word in words[1:])], target)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"

    def _python_of(self, words: list[str]) -> str:
        """What reads or makes a server's config needs the server's packages."""
        return self._server_python if words[1] == "serve" or "--server-config" in words else sys.executable

    def _done(self, command: list[str], target: str | None) -> subprocess.CompletedProcess[str]:
        errors = subprocess.STDOUT if target is None else subprocess.PIPE
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=600,
            check=False,
        )
        if target is None:
            self.printed += done.stdout
        else:
            (self._folder / target).write_text(done.stdout, encoding="utf-8")
        return done

    def _serve(self, words: list[str]) -> None:
        assert self._server is None, "a server runs already: ^C first"
        ports = [f"grpc.port={self._ports['8000']}", f"http.port={self._ports['8080']}"]
        command = [self._server_python, "-m", "rlds2reverb", *words, "--set", ports[0], "--set", ports[1]]
        files = output_files(self._scratch)
        with files[0].open("wb") as output:
            handle = subprocess.Popen(
                command,
                cwd=self._folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._server = server = Process(handle, files[0], files[0])
        wait_until(
            lambda: " ready " in server.output or server.poll() is not None, START_SECONDS, lambda: server.output
        )
        assert server.poll() is None, server.output
        self.printed = server.output
        self._shown = len(self.printed)

    def _interrupt(self) -> None:
        server, self._server = self._server, None
        assert server is not None, "no server runs"
        assert server.end(signal.SIGINT) == 0, server.output
        self.printed = server.output[self._shown :]


def _plain(line: str) -> str:
    """Without numbers that were measured or drawn, and the times and columns of a log."""
    words = " ".join(re.sub(r"\d{4}-\d\d-\d\dT\S+|seconds=\S+", "", line).split())
    return SAMPLED.sub("", MEASURED.sub("N", words))


def _sort_tables(lines: Iterable[str]) -> list[str]:
    """With the lines of each run about tables sorted: Reverb goes through its tables in any order."""
    runs = groupby(lines, lambda line: OF_TABLE.search(line) is not None)
    return [line for is_about_tables, run in runs for line in (sorted(run) if is_about_tables else run)]


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "server"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **QUIET, "PYTHONPATH": path}


def losses(printed: str) -> list[float]:
    """What a learner's program told of its loss."""
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", printed)]
