"""The core needs nothing that only some systems have: it is imported, and used, without what Windows lacks."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.support.imports import CODE
from tests.support.project import ROOT
from tests.unit.test_rlds2reverb_imports import OPTIONAL

NO_MODULES = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "resource", "spwd", "syslog", "termios", "tty"}
"""Modules of the standard library that Windows lacks. Source: the availability notes of Python's documentation."""

NO_NAMES = {
    "os": (
        *("chown", "fchmod", "fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups", "getloadavg"),
        *("getpgid", "getpgrp", "getpriority", "getuid", "initgroups", "killpg", "lchown", "lockf", "mkfifo", "mknod"),
        *("nice", "openpty", "pathconf", "posix_fadvise", "posix_fallocate", "posix_spawn", "pread", "preadv"),
        *("pwrite", "pwritev", "readv", "register_at_fork", "sched_getaffinity", "sched_yield", "sendfile", "setgid"),
        *("setpgid", "setpriority", "setsid", "setuid", "statvfs", "sync", "sysconf", "tcgetpgrp", "ttyname", "uname"),
        *("wait", "wait3", "wait4", "writev", "O_ACCMODE", "O_ASYNC", "O_CLOEXEC", "O_DIRECT", "O_DIRECTORY"),
        *("O_DSYNC", "O_NOATIME", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "O_RSYNC", "O_SYNC", "O_TMPFILE"),
    ),
    "signal": (
        *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGTSTP", "SIGUSR1"),
        *("SIGUSR2", "SIGWINCH", "alarm", "getitimer", "pause", "pthread_kill", "pthread_sigmask", "setitimer"),
        *("siginterrupt", "sigpending", "sigtimedwait", "sigwait", "sigwaitinfo"),
    ),
    "socket": ("AF_UNIX", "SO_REUSEPORT", "socketpair"),
    "select": ("epoll", "poll"),
    "time": ("clock_gettime", "clock_settime", "pthread_getcpuclockid", "tzset"),
}
"""Names that Windows lacks in modules that it has."""

OTHERS_FIRST = (
    "click",
    "cramjam",
    "google.protobuf.message_factory",
    "google_crc32c",
    "grpc",
    "ml_dtypes",
    "msgspec",
    "rich.progress",
    "yaml",
)
"""What is not ours may look at the system; it is loaded before anything is taken away."""

PACKAGE = "rlds2reverb"
CORE = [f"{PACKAGE}.{name}" for name in CODE.without(*OPTIONAL) if name not in ("", "__main__")]


def on_windows(*lines: str, first: str = "") -> str:
    """Runs lines of Python, but for the first, without what Windows lacks; what they print."""
    program = "\n".join(
        (
            f"import {', '.join((*OTHERS_FIRST, *NO_NAMES))}, asyncio, concurrent.futures, multiprocessing, sys",
            first,
            f"for name in {sorted(NO_MODULES - {'posix'})}: sys.modules[name] = None",
            f"for module, names in {NO_NAMES}.items():",
            "    for name in names: vars(sys.modules[module]).pop(name, None)",
            *lines,
        )
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_core_is_imported_where_these_are_missing() -> None:
    on_windows("import importlib", f"for name in {CORE}: importlib.import_module(name)")


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_a_dataset_is_read_where_these_are_missing(command: str) -> None:
    said = on_windows(
        "from rlds2reverb.cli import main", f"sys.argv = ['rlds2reverb', '{command}', 'bundled:cartpole']", "main()"
    )
    assert "no problems" in said


def test_what_is_taken_away_is_missed() -> None:
    with pytest.raises(AssertionError, match="fork"):
        on_windows("import os", "os.fork()")
    with pytest.raises(AssertionError, match="fcntl"):
        on_windows("import fcntl")


def test_episodes_are_pushed_where_these_are_missing() -> None:
    said = on_windows(
        "from rlds2reverb.cli import main",
        "from tests.support.push.in_memory import Server, episodes, push",
        "server = Server()",
        "push(server, episodes(3))",
        "print(len(server.items['replay']))",
        "sys.argv = ['rlds2reverb', '--help']",
        "main()",
        first="import tests.support.push.in_memory, tests.support.strategies",
    )
    assert said.startswith("9\n")
    assert "inspect" in said


@pytest.mark.parametrize("module", CORE)
def test_no_module_uses_a_name_that_windows_lacks(module: str) -> None:
    tree = CODE.modules[module.removeprefix(f"{PACKAGE}.")]
    used = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    taken = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert (used | taken) & {f"{module}.{name}" for module, names in NO_NAMES.items() for name in names} == set()
