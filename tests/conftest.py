"""For all suites: quiet TensorFlow, what is drawn and how often, which environment a test needs, one real Reverb server."""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib.util
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from tests.support import notes
from tests.support.profiles import DEEP, SEED, SIZE, drawn

if TYPE_CHECKING:  # the core has no TensorFlow
    from rlds2reverb import Client
    from tests.support.buckets import Faults, Storage
    from tests.support.forks import Embedded, Forks

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and every process that a test starts, and interrupts, would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HERE = Path(__file__).parent

# No deadline and no "too slow": a busy machine is no failure.
settings.register_profile("any", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
# A change passes or fails by itself, not by its draws: the gate draws the same each time.
settings.register_profile("gate", settings.get_profile("any"), derandomize=True, max_examples=50)
settings.register_profile("deep", settings.get_profile("any"), max_examples=drawn(50, 300))
settings.load_profile("deep" if DEEP else "gate")

FULL = (
    "conformance",
    "faults",
    "packaging/examples",
    "packaging/security",
    "packaging/walkthroughs",
    "packaging/wheels",
    "unit/adapters/gymnasium",
    "unit/server",
    "unit/tf_agents",
)
"""Folders whose tests need the full environment. Elsewhere such a test has the marker itself."""

LONGEST = (
    "unit/wire/sample/test_native_sanitized.py",
    "unit/workers/test_processes.py",
    "unit/look/test_report_in_a_browser.py",
    "unit/server/test_uploads.py",
    "unit/server/test_http.py",
)
"""Files that take a minute or have tests of many seconds. They come first: a worker that begins one last would leave the rest of the machine idle."""

SYSTEMS = ("systems/lerobot", "systems/storage")
"""Folders of tests that run where the system that they are about is installed."""

# Scripts, each for the system whose files it makes; and what tests are written with, some of which needs TensorFlow.
collect_ignore_glob = ["data/make_*.py", "support/*"]
if not DEEP:
    collect_ignore_glob += ["harness/*"]  # tests of the tests' own tools, which no change of the library can break
if importlib.util.find_spec("tensorflow") is None:
    # The core's environment has no TensorFlow: what needs it is not even imported.
    collect_ignore_glob += [f"{folder}/*" for folder in FULL]


def pytest_report_header() -> list[str]:
    return [f"deep: RLDS2REVERB_SEED={SEED}"] if DEEP else []


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads it
def pytest_configure(config: pytest.Config) -> None:
    if DEEP and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = SEED


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """In a process of pytest-xdist, which drops what pytest-timeout tells, a test that hangs tells its stacks past it."""
    if not hasattr(item.config, "workerinput"):
        return None
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    if not hasattr(item.config, "workerinput"):
        return None
    faulthandler.cancel_dump_traceback_later()
    return True


@functools.cache
def _is_in(path: Path, *folders: str) -> bool:
    return any(path.is_relative_to(_HERE / folder) for folder in folders)


@functools.cache
def _may_be_full(path: Path) -> bool:
    return _is_in(path, *FULL, "contract") or "mark.full" in path.read_text(encoding="utf-8")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m full`, modules without such a test are not imported: four of five, by each worker."""
    if config.option.markexpr != "full" or collection_path.suffix != ".py" or _may_be_full(collection_path):
        return None
    return True


@pytest.hookimpl(tryfirst=True)  # before `-m full` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_in(item.path, *FULL):
            item.add_marker("full")
        elif item.get_closest_marker("full") and not _may_be_full(item.path):
            raise pytest.UsageError(f"{item.nodeid}: `-m full` would not find it; write pytest.mark.full in its module")
    items.sort(key=lambda item: not _is_in(item.path, *LONGEST))


def _runs_nowhere(report: pytest.TestReport | pytest.CollectReport, path: Path) -> bool:
    return report.skipped and not _is_in(path, *FULL, *SYSTEMS) and "could not import" in str(report.longrepr)


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    report.longrepr = f"{report.nodeid} needs what the core has not: mark it `full`\n{report.longreprtext}"
    report.outcome = "failed"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test of the core that is skipped for want of a library would run nowhere: it fails."""
    report = yield
    if item.get_closest_marker("full") is None and _runs_nowhere(report, item.path):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """So does a whole module."""
    report = yield
    if _runs_nowhere(report, collector.path):
        _fail(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if hasattr(terminalreporter.config, "workerinput"):  # pytest-xdist's: nobody reads what it writes
        return
    for name in notes.unfinished():
        terminalreporter.line(f"a process ended at: {name}", red=True)
    notes.forget()
    failed = [report.nodeid for outcome in ("failed", "error") for report in terminalreporter.stats.get(outcome, [])]
    if DEEP and failed:
        terminalreporter.section("again, with the same draws")
        for nodeid in dict.fromkeys(failed):
            terminalreporter.line(f"RLDS2REVERB_DEEP={SIZE:g} RLDS2REVERB_SEED={SEED} pytest '{nodeid}'")


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that stands for the user's cache, which no test writes to."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["RLDS2REVERB_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Starts services, servers and programs in a tenth of a second each."""
    from tests.support.forks import Forks

    made = Forks(tmp_path_factory.mktemp("forks") / "log")
    yield made
    made.close()


@pytest.fixture(scope="session")
def server(forks: Forks) -> Iterator[Embedded]:
    """A real server with tables that take anything.

    Tables "one" and "two" hand out every item once, in the order of insertion, so that sampling n items reads back what
    was stored, in order, and empties the table. "keep" samples uniformly and keeps its items.
    """
    from replay_server import TableConfig

    once: dict[str, Any] = {"sampler": "fifo", "remover": "fifo", "max_times_sampled": 1, "max_size": 10_000_000}
    tables = [TableConfig("one", **once), TableConfig("two", **once), TableConfig("keep")]
    with forks.embedded(tables) as running:
        yield running


def _keeps(client: Any, table: str) -> bool:
    """Whether an item that is put into a table stays there."""
    client.insert([0.0], {table: 1.0})
    return all(client.server_info()[table].current_size for _ in range(2))


@pytest.fixture
def client(server: Embedded) -> Iterator[Client]:
    """Our client, connected to `server`; the tables are empty."""
    import reverb

    import rlds2reverb

    other = reverb.Client(server.address)
    for table in ("one", "two", "keep"):
        other.reset(table)
        while not _keeps(other, table):
            pass  # a request that an earlier test cancelled took it: Reverb lets it have one more item
        other.reset(table)
    with rlds2reverb.connect(server.address) as connected:
        yield connected


@pytest.fixture(scope="session")
def storage() -> Iterator[Storage]:
    """An object storage on this machine, of `s3://` and `gs://`; `cloud` leads the names there."""
    from tests.support import buckets

    with buckets.storage() as found:
        yield found


@pytest.fixture
def cloud(storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Faults]:
    """The storage behind a proxy that may disturb it; with its credentials in the environment."""
    from rlds2reverb.formats.objects import forget
    from tests.support import buckets

    with buckets.proxy(storage.url) as faults:
        for name, value in buckets.environment(faults.url, tmp_path).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        forget()
        # A collection in the proxy's thread would wait for h5py's lock, which a reader holds that waits for the proxy.
        gc.disable()
        yield faults
        gc.enable()
        forget()
