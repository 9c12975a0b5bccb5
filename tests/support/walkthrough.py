"""Works through a page as its reader does: writes its files, runs its commands in a folder, compares what they print.

| block | what becomes of it |
| --- | --- |
| `sh` | bash runs each line, in a process of its own; `rlds2reverb serve` and `nginx` stay until `^C`, or the end of the page |
| `text` | what the block before has printed, line by line; behind `^C`, what the program has since it was ready. A line `...` stands for any lines |
| `python`, `yaml`, `nginx` | written to the file that its first line names |

| in a block of `sh` | |
| --- | --- |
| `# in the terminal NAME`, as the first line | what stays belongs to this terminal, and so does `^C`; without it, to the reader's only one |
| `COMMAND  # ..., exit code 5` | the command must end so, not with 0; a server that must not start does not stay |
| `pkill -9 -f "serve --config a.yaml"` | only programs of this page are looked at |
| `\\` at the end | the line goes on |

Environments are not made: the lines of INSTALLS are left out, and tests/packaging/project/test_tutorials.py reads them; a test may put the
programs of an environment into the folder. The page's ports (four digits) become free ones. Measured numbers (MEASURED), times and what was
sampled (SAMPLED) may differ. A slow machine prints lines of progress (PROGRESS), which no page shows.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.support.processes import QUIET, Process, free_port, output_files, wait_until
from tests.support.project import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
RUNBOOK = ROOT / "docs" / "runbook"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALLS = re.compile(
    r"(python3\.\d+ -m venv|\. \.venv/bin/activate|(?:[\w.-]+/bin/|uv )?pip install|mkdir [\w-]+ && cd|docker compose) ?.*"
)
MEASURED = re.compile(
    r"\d+ (?:s|min) ago|just now|\b[0-9a-f]{12}\b|"
    r"(?<![\w.])[\d,]+(\.\d+)?(?= (items/s|episodes/s|MB in|s\b))|(?<=loss )\d+\.\d+|(?<=error )\d+\.\d+|(?<=key )\d+|(?<=bytes=)\d+|[\d,]+(?= encoded)"
    r"|(?<=^bytes )[\d,]+|(?<=^bytes: )\d+|(?<=^seconds )[\d.]+|[\d,]+(?= bytes( \(|$))|(?<=expected )\d+(?= \()|\b[0-9a-f]{32}\b"
)
PROGRESS = re.compile(r"\S.*  (ETA )?\d+:\d\d:\d\d( +waiting)?$")
SAMPLED = re.compile(r"(?<=\]) .* \(\S+ to \S+\)$")
"""Values of a sample's column, and their range."""
OF_TABLE = re.compile(r"\] (Metadata for table|Table) '?[\w.]+'? (was|and)")
START_SECONDS = 240.0
"""For a server: TensorFlow is imported, on a busy machine."""

_TERMINAL = re.compile(r"# in the terminal (.+)\n")
_PORT = re.compile(r"((?:localhost|127\.0\.0\.1):|port: |port=|listen )(\d{4})\b")
_READY = {"serve": " ready ", "nginx": "start worker process "}
"""What a program that stays prints when it is ready."""


@dataclass
class Program:
    """Which stays, in a terminal; `shown` characters of its output were there when it was ready."""

    command: str
    process: Process
    shown: int


class Reader:
    """Somebody who works through a page.

    Args:
      folder: in which they work: empty, or with what the page takes for granted.
      scratch: for what programs say.
      server_python: the Python that has Reverb.
      environment: variables that every command gets.
      names: text of the page -> what stands for it here, such as who works on this machine.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        server_python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._folder, self._scratch = folder, scratch
        self._environment, self._names = {**_environment(), **(environment or {})}, dict(names or {})
        self._ports: dict[str, str] = {}
        self._programs: dict[str, Program] = {}  # terminal -> what runs in it
        self.printed = ""
        self._make_commands(server_python)

    def _make_commands(self, server_python: str) -> None:
        """`rlds2reverb` and `python`, in a folder of their own. What runs a server or makes its config needs the server's packages."""
        commands = self._scratch / "bin"
        commands.mkdir(exist_ok=True)
        write_program(
            commands / "rlds2reverb",
            f'case " $1 $* " in " serve "*|*" --server-config "*) python={shlex.quote(server_python)};; *) python={shlex.quote(sys.executable)};; esac',
            'exec "$python" -m rlds2reverb "$@"',
        )
        write_program(commands / "python", f'exec {shlex.quote(sys.executable)} "$@"')
        self._environment["PATH"] = os.pathsep.join([str(commands), os.environ["PATH"], "/usr/sbin"])

    def work_through(self, page: Path) -> None:
        """Every block, from the top to the bottom."""
        try:
            for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
                getattr(self, kind)(text)
        finally:
            self.close()

    def close(self) -> None:
        """Kills what still runs."""
        for program in self._programs.values():
            program.process.kill()

    def sh(self, text: str) -> None:
        self.printed = ""
        named = _TERMINAL.match(text)
        terminal = "" if named is None else named[1]
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            command, _, comment = re.sub(r"^# .*", "", line).partition("  #")
            code = re.search(r"\bexit code (\d+)", comment)
            if command.strip() == "^C":
                self._interrupt(terminal)
            elif command.strip() and not INSTALLS.fullmatch(command.strip()):
                self._run(self._here(command.strip()), terminal, 0 if code is None else int(code[1]))

    def python(self, text: str) -> None:
        name = re.match(r"# (\S+)\n", text)
        assert name is not None, f"the first line does not name the file: {text[:60]}"
        target = self._folder / name[1]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self._here(text), encoding="utf-8")

    yaml = nginx = python

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
        for page, here in self._names.items():
            text = text.replace(page, here)
        return _PORT.sub(lambda match: match[1] + self._port(match[2]), text.replace("../rlds2reverb/", f"{ROOT}/"))

    def _port(self, of_page: str) -> str:
        return self._ports.setdefault(of_page, str(free_port()))

    def _as_on_the_page(self, text: str) -> str:
        for page, here in self._ports.items():
            text = re.sub(rf"\b{here}\b", page, text)
        for page, here in self._names.items():
            text = text.replace(here, page)
        return text.replace(str(self._folder), "FOLDER").replace("python -m rlds2reverb", "rlds2reverb")

    def _run(self, line: str, terminal: str, exit_code: int) -> None:
        words = shlex.split(line)
        is_nginx = words[0] == "nginx"
        if is_nginx and os.getuid() == 0:  # the folders of tests are closed to nginx's own user
            line = line.replace("daemon off;", "user root; daemon off;")
        if words[0] == "pkill":
            self._kill(words)
        elif is_nginx or (words[0].endswith("rlds2reverb") and words[1] == "serve" and "--check" not in words):
            line = line if is_nginx else f"{line} {self._default_ports(line, words)}"
            if exit_code:
                self._finish(line, exit_code)
            else:
                self._stay(line, terminal, _READY["nginx" if is_nginx else "serve"])
        else:
            self._finish(line, exit_code)

    def _default_ports(self, line: str, words: list[str]) -> str:
        """For a server whose ports neither its file nor the command names."""
        file = self._folder / words[words.index("--config") + 1]
        said = line + re.sub(
            r"(grpc|http):\s*\{?\s*", r"\1.", file.read_text(encoding="utf-8") if file.exists() else ""
        )
        ports = {"grpc.port": "8000", "http.port": "8080"}
        return " ".join(f"--set {name}={self._port(port)}" for name, port in ports.items() if name not in said)

    def _finish(self, line: str, exit_code: int) -> None:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == exit_code, f"{line}: exit code {done.returncode}: {done.stdout}"
        self.printed += done.stdout

    def _stay(self, line: str, terminal: str, ready: str) -> None:
        assert terminal not in self._programs, f"{line}: in the terminal {terminal!r} a program runs already: ^C first"
        files = output_files(self._scratch)
        with files[0].open("ab") as output:
            handle = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        process = Process(handle, files[0], files[0])
        self._programs[terminal] = program = Program(line, process, 0)
        wait_until(lambda: ready in process.output or process.poll() is not None, START_SECONDS, lambda: process.output)
        assert process.poll() is None, process.output
        self.printed = process.output
        program.shown = len(self.printed)

    def _interrupt(self, terminal: str) -> None:
        program = self._programs.pop(terminal, None)
        assert program is not None, f"nothing runs in the terminal {terminal!r}"
        assert program.process.end(signal.SIGINT) == 0, program.process.output
        self.printed = program.process.output[program.shown :]

    def _kill(self, words: list[str]) -> None:
        """pkill -SIGNAL -f TEXT, of this page's programs alone."""
        number, text = signal.Signals(int(words[1].lstrip("-"))), words[-1]
        terminals = [terminal for terminal, program in self._programs.items() if text in program.command]
        assert terminals, f"no program of this page has {text!r} in its command"
        for terminal in terminals:
            self._programs.pop(terminal).process.end(number)


def write_program(path: Path, *lines: str) -> None:
    """A program of these lines of bash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/usr/bin/env bash", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)


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
