"""Tasks that worker processes run, on this machine or on a Ray cluster. A push, a conversion and an inspection say what a task is."""

from __future__ import annotations

from rlds2reverb.errors import ConfigError


def check_workers(workers: object, ray: object) -> None:
    """Raises ConfigError for fewer than one worker, or a Ray address that is empty or no text."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"workers (--workers) {workers}: expected at least 1, a whole number")
    if ray is not None and (not isinstance(ray, str) or not ray):
        raise ConfigError(f'ray (--ray) {ray!r}: expected HOST:PORT, ray://HOST:PORT or "auto"')
