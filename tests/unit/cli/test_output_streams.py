"""Readers that leave, and disks that are full: a stopped command is told by its exit code all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

STOPPED = """
import click, sys
from rlds2reverb import cli, errors
from rlds2reverb.cli import output, progress, push as reports

def push():
    with reports.report_when_stopped(as_json=False, again=False), progress.on_progress(quiet=False) as tell:
        output.talk("begins")
        tell(progress.Progress(1, 1, None, 1, 1, 1.0, "waits for a sampler"))
        error = errors.TransportError("gone") if sys.argv[1] == "fail" else KeyboardInterrupt()
        errors.keep_report(error, "account")
        if sys.argv[1] != "end":
            raise error
    click.echo("account")

reports.print_report = lambda as_json, report: click.echo(report)
cli.cli.resolve_command = lambda context, arguments: ("push", click.Command("push", callback=push), [])
cli.main()
"""


@contextmanager
def no_reader() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@contextmanager
def full_disk() -> Iterator[int]:
    number = os.open("/dev/full", os.O_WRONLY)
    yield number
    os.close(number)


def exit_code(how: str, stdout: int, stderr: int) -> int:
    return subprocess.run([sys.executable, "-c", STOPPED, how], stdout=stdout, stderr=stderr, timeout=60).returncode


@pytest.mark.parametrize(("how", "code"), [("fail", 5), ("stop", 130), ("end", 0)])
def test_a_reader_that_left_changes_no_exit_code(how: str, code: int) -> None:
    with no_reader() as nobody:
        assert exit_code(how, nobody, subprocess.DEVNULL) == code
        assert exit_code(how, subprocess.DEVNULL, nobody) == code


@pytest.mark.parametrize(("how", "code"), [("fail", 5), ("stop", 130), ("end", 6)])
def test_a_full_disk_is_an_error_of_a_finished_command_only(how: str, code: int) -> None:
    with full_disk() as disk:
        assert exit_code(how, disk, subprocess.DEVNULL) == code


def test_a_full_disk_names_the_stream() -> None:
    with full_disk() as disk:
        done = subprocess.run(
            [sys.executable, "-c", STOPPED, "end"],
            stdout=disk,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.stderr.splitlines()[-1].startswith(
        "rlds2reverb: error: stdout: cannot be written: No space left on device;"
    )


def test_talk_that_finds_no_room_changes_nothing() -> None:
    with full_disk() as disk:
        assert exit_code("end", subprocess.DEVNULL, disk) == 0
