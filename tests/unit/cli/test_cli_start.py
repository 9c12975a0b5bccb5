"""What a command loads before it does anything: its start is mostly that. Told by names; benchmarks/startup.py has the seconds."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from rlds2reverb.cli import without_collecting

HEAVY = {
    "array_record",
    "asyncio",
    "google.protobuf",
    "grpc",
    "http.client",
    "imagecodecs",
    "pyarrow",
    "rich",
    "simplejpeg",
    "tensorflow",
    "tensorflow_datasets",
    "yaml",
}
"""What takes tens of milliseconds or more, beside numpy and click."""

OF_GRPC = {"asyncio", "google.protobuf", "grpc", "http.client"}
"""What asking a server takes: gRPC, which loads asyncio; protobuf; urllib, for the rules of proxies."""


def heavy_modules_of(*arguments: str) -> set[str]:
    """Those that a command has loaded when it ends."""
    program = (
        "import sys\nfrom rlds2reverb.cli import main\n"
        "try: main()\n"
        f"finally: print(*sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return set(ended.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        ("inspect", set()),
        ("validate", set()),
        ("show", set()),
        ("index", set()),
        ("push", OF_GRPC),
        ("status", OF_GRPC),
        ("top", OF_GRPC),
        ("checkpoint", set()),
        ("serve", set()),
        ("help", set()),
    ],
)
def test_a_command_loads_what_it_needs(command: str, loaded: set[str]) -> None:
    assert heavy_modules_of(command, "--help") == loaded


@pytest.mark.parametrize("command", ["inspect", "validate"])
def test_reading_a_dataset_of_numbers_takes_protobuf_only(command: str) -> None:
    assert heavy_modules_of(command, "bundled:cartpole") == {"google.protobuf"}


def test_the_list_of_commands_loads_nothing() -> None:
    assert heavy_modules_of("--help") == set()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_is_collected_again_after_loading_even_when_that_fails(was_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(KeyError), without_collecting():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is was_enabled
    finally:
        (gc.enable if before else gc.disable)()
