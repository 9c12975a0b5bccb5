"""What `python -m replay_server` and `rlds2reverb serve` do."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import yaml

from replay_server import config as configs
from replay_server import feasibility, logs
from replay_server.config import ServerConfig
from replay_server.generations import read_generation
from replay_server.limiters import Prefill
from replay_server.records import CheckpointError
from replay_server.tables import TableConfig
from rlds2reverb.errors import ConfigError, Rlds2ReverbError
from rlds2reverb.specs import flatten

EXIT_CONFIG = 2
EXIT_START = 3


def run(path: Path, overrides: Sequence[str], check: bool) -> None:
    """Serves until a signal and ends the process; with `check` says what would run, and returns.

    Ends the process with `EXIT_CONFIG` or `EXIT_START` when it cannot.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    logging.getLogger("absl").setLevel(logging.ERROR)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        config = configs.load(path, overrides)
        tables = configs.table_configs(config)
        feasibility.check(tables)
    except Rlds2ReverbError as error:
        sys.exit(_refuse(str(error), EXIT_CONFIG))
    if check:
        click.echo(describe(config, tables))
        return
    logs.configure(config.log.format, config.log.level)
    sys.stderr.flush()
    os._exit(_serve(config, tables))  # Reverb's own shutdown waits for open streams


def _serve(config: ServerConfig, tables: Sequence[TableConfig]) -> int:
    from replay_server.service import ReplayService

    log = logs.logger("service")
    try:
        return ReplayService(config, tables).run()
    except (ConfigError, CheckpointError) as error:
        log.critical("cannot start", error=str(error))
    except Exception:
        log.exception("cannot start: this is a bug")
    return EXIT_START


def _refuse(text: str, code: int) -> int:
    for line in text.splitlines():
        click.echo(f"replay_server: error: {line}", err=True)
    return code


def describe(config: ServerConfig, tables: Sequence[TableConfig]) -> str:
    """What would run, as YAML: every table with its bounds and leaves, the ports, and the checkpoint it would start from."""
    document = {
        "grpc": f"every interface, port {config.grpc.port}",
        "http": f"{config.http.host}:{config.http.port}",
        "checkpoints": {
            "folder": str(Path(config.checkpoints.folder).absolute()),
            "every_seconds": config.checkpoints.every_seconds,
            "keep": config.checkpoints.keep,
            "starts_from": _starts_from(config),
        },
        "tables": {table.name: _describe_table(table) for table in tables},
    }
    return yaml.safe_dump(document, sort_keys=False, width=120).rstrip()


def _describe_table(table: TableConfig) -> dict[str, object]:
    limiter, exponent = table.rate_limiter, f" (exponent {table.priority_exponent:g})"
    kind = (
        type(limiter.then).__name__ + f" after a prefill of {limiter.items} items"
        if isinstance(limiter, Prefill)
        else ""
    )
    bounds = table.filled().rate_limiter.bounds()
    return {
        "sampler": table.sampler + (exponent if table.sampler == "prioritized" else ""),
        "remover": table.remover + (exponent if table.remover == "prioritized" else ""),
        "max_size": table.max_size,
        "max_times_sampled": table.max_times_sampled or "no limit",
        "rate_limiter": kind or type(limiter).__name__,
        "samples_wait_for_items": bounds.min_size_to_sample,
        "samples_per_insert": bounds.samples_per_insert if abs(bounds.max_diff) < 1e300 else "any",
        "signature": "none: anything is taken"
        if table.signature is None
        else {path: str(leaf) for path, leaf in flatten(table.signature).items()},
    }


def _starts_from(config: ServerConfig) -> str:
    folder = Path(config.checkpoints.folder) / "generations"
    names = sorted((p for p in folder.iterdir() if p.name.isdecimal()), reverse=True) if folder.is_dir() else []
    for path in names:
        try:
            generation = read_generation(path)
        except CheckpointError as error:
            click.echo(f"replay_server: {error}; it would be set aside", err=True)
            continue
        return (
            f"generation {generation.number}, {sum(generation.manifest.items.values())} items, {generation.bytes} bytes"
        )
    return config.checkpoints.start_from or "nothing: empty tables"
