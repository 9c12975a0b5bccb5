"""The command `python -m replay_server`, which is `rlds2reverb serve` too."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from replay_server import config as configs
from replay_server import logs
from replay_server.admission import names_of, read_token
from replay_server.config import ServerConfig
from replay_server.errors import CheckpointError
from replay_server.restore import Outlook, outlook
from replay_server.retention import keep_of, plain_keep
from replay_server.start_from import OlderStart, parse_start
from replay_server.store import CHECKPOINTS, list_numbered
from replay_server.tables import TableConfig
from replay_server.uploads import check_place
from rlds2reverb.errors import ConfigError, Rlds2ReverbError
from rlds2reverb.extras import needing, require
from rlds2reverb.formats.options import is_url
from rlds2reverb.specs import spec_texts, view_in

if TYPE_CHECKING:
    from replay_server.differences import RunningServer

EXIT_CONFIG = 2
EXIT_START = 3


def run(path: Path, overrides: Sequence[str], check: bool, start_from: str | None = None) -> None:
    """Serves until a signal and ends the process; with `check` prints what would run, and returns.

    Args:
      start_from: the checkpoint to start from, see `start_from.parse_start`; None for the newest one.

    Ends the process with `EXIT_CONFIG` or `EXIT_START` when it cannot serve.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    logging.getLogger("absl").setLevel(logging.ERROR)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        older = None if start_from is None else parse_start(start_from)
        config = configs.load(path, overrides)
        tables = configs.table_configs(config)
        configs.check(tables)
        read_token(config.http.token, config.http.token_file)
        for name in ("upload", "start_from"):
            if is_url(place := getattr(config.checkpoints, name) or ""):
                needed = ("obstore", "huggingface_hub") if place.startswith("hf:") else ("obstore",)
                require(needed, f"checkpoints.{name}: {place}", "cloud", ConfigError)
    except Rlds2ReverbError as error:
        for line in str(error).splitlines():
            _talk(f"error: {line if line.startswith(str(path)) else f'{path}: {line}'}")
        sys.exit(EXIT_CONFIG)
    elsewhere = other_folder(path, config)
    if check:
        restored = outlook(config.checkpoints, tables, older)
        uploaded, notes = (
            check_place(config.checkpoints, restored.takes_place) if config.checkpoints.upload else ({}, ())
        )
        from replay_server.differences import running_server  # with gRPC, which a start does not need here

        running = running_server(config.grpc.port, config.http, tables)
        click.echo(describe(config, tables, restored, uploaded, running))
        changed = "" if running is None else running.sentence
        for note in filter(None, (elsewhere, changed, *restored.notes, *notes)):
            _talk(note)
        if restored.refusal:
            for line in restored.refusal.splitlines():
                _talk(f"error: {line}")
            sys.exit(EXIT_START)
        return
    logs.configure(config.log.format, config.log.level)
    if elsewhere:
        logs.logger("service").warning("another checkpoint folder", meaning=elsewhere)
    sys.stderr.flush()
    os._exit(_serve(config, tables, older))  # Reverb's own shutdown waits for open streams


def _serve(config: ServerConfig, tables: Sequence[TableConfig], older: OlderStart | None = None) -> int:
    log = logs.logger("service")
    try:
        with needing("serve", "server", ConfigError):
            from replay_server.service import serve
        require(
            ("reverb", "tensorflow"), "serve", "server", ConfigError
        )  # imported late, when nothing stands against the start
        return serve(config, tables, older)
    except (ConfigError, CheckpointError) as error:
        log.critical("cannot start", error=str(error))
    except Exception:
        log.exception("cannot start: this is a bug")
    return EXIT_START


def other_folder(path: Path, config: ServerConfig) -> str:
    """A warning where the checkpoint folder has no checkpoint, and the folder of the same name below the working directory has; else "".

    A config that says what to start from has no such folder in mind.
    """
    if config.checkpoints.start_from is not None:
        return ""
    folder, place = Path(config.checkpoints.folder).absolute(), path.absolute().parent
    if not folder.is_relative_to(place):
        return ""
    other = Path.cwd() / folder.relative_to(place)
    try:
        if list_numbered(folder / CHECKPOINTS) or not list_numbered(other / CHECKPOINTS):
            return ""
    except CheckpointError:
        return ""  # the start itself reports what is wrong with its folder
    return (
        f"{folder} holds no checkpoint, and {other} does: a relative checkpoints.folder is taken from the config's folder, not from "
        f"where the server is started. If that one is meant, move it, or set checkpoints.folder to it"
    )


def _talk(text: str) -> None:
    """Prints a line on stderr that begins with the command as typed: `rlds2reverb` or `python -m replay_server`."""
    context = click.get_current_context(silent=True)
    name = "replay_server" if context is None else context.find_root().info_name
    click.echo(f"{name}: {text}", err=True)


def describe(
    config: ServerConfig,
    tables: Sequence[TableConfig],
    found: Outlook,
    uploaded: Mapping[str, object],
    running: RunningServer | None = None,
) -> str:
    """What would run, as YAML: every table with its bounds and leaves, the ports, the checkpoint it would start from, those in the bucket.

    Of the server that runs on these ports now, what it does otherwise.
    """
    names = {table.name for table in tables}
    other_tables = {name: words for name, words in found.tables.items() if name not in names}
    document = {
        "grpc": f"every interface, {_port(config.grpc.port)}",
        "http": {
            "address": f"{config.http.host}, {_port(config.http.port)}",
            "names": sorted(names_of(config.http.host, config.http.allowed_hosts)),
            "token": "none" if config.http.token is config.http.token_file is None else "wanted of every POST",
        },
        "checkpoints": {
            "folder": str(Path(config.checkpoints.folder).absolute()),
            "every_seconds": config.checkpoints.every_seconds,
            "keep": plain_keep(keep_of(config.checkpoints.keep)),
            **({"keep_takes": found.need} if found.need else {}),
            **({"kept_checkpoints": found.kept} if found.kept else {}),
            "last_checkpoint": found.last or "none",
            "starts_from": found.starts_from,
            **({"used_by": found.used_by} if found.used_by else {}),
            **({"other_tables": other_tables} if other_tables else {}),
            **uploaded,
        },
        **({} if running is None else {"running": _describe_running(running)}),
        "tables": {table.name: _describe_table(table, found.tables.get(table.name)) for table in tables},
    }
    return yaml.safe_dump(document, sort_keys=False, width=120).rstrip()


def _port(port: int) -> str:
    return f"port {port}" if port else "a free port"


def _describe_running(running: RunningServer) -> dict[str, object]:
    return {
        "address": running.address,
        "restart": running.restart or "takes as long as the last start, which this server does not say",
        "needs_a_restart": {name: [*lines] for name, lines in running.tables.items()} or "nothing",
    }


def _describe_table(table: TableConfig, at_start: str | None) -> dict[str, object]:
    bounds = table.filled().rate_limiter.bounds()
    return {
        **({} if at_start is None else {"at_start": at_start}),
        "sampler": _describe_selector(table, table.sampler),
        "remover": _describe_selector(table, table.remover),
        "max_size": table.max_size,
        "max_times_sampled": table.max_times_sampled or "no limit",
        "rate_limiter": table.rate_limiter.words(),
        "samples_wait_for_items": bounds.min_size_to_sample,
        "samples_per_insert": bounds.samples_per_insert if bounds.has_ratio else "any",
        "signature": "none: anything is taken" if table.signature is None else spec_texts(table.signature),
        "view": view_in(table.signature) or "any",
    }


def _describe_selector(table: TableConfig, name: str) -> str:
    return f"{name} (exponent {table.priority_exponent:g})" if name == "prioritized" else name
