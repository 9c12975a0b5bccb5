"""How much the tests draw and repeat: less in `make test`, everything in `make test-deep`."""

from __future__ import annotations

import os
import secrets

from hypothesis import HealthCheck, settings

SIZE = float(os.environ.get("RLDS2REVERB_DEEP") or 0)
"""Of a deep run: 1 for all of it, 0.2 for a fifth of what is drawn; 0 where the run is none."""

DEEP = SIZE > 0

SEED = int(os.environ.setdefault("RLDS2REVERB_SEED", str(secrets.randbits(32))))
"""What deep tests draw from, one for all processes of a run; other runs draw the same for ever."""


def drawn(few: int, deep: int) -> int:
    """How many cases a test draws: `few`, or in a deep run `deep` of them times its size, but no fewer."""
    return max(few, round(deep * SIZE))


def scaled(count: int) -> int:
    """Examples or repetitions of a test on real servers: `count` of them, or a fifth (at least 3) unless deep."""
    return count if DEEP else min(count, max(3, count // 5))


def examples(few: int, deep: int = 300) -> settings:
    """Of a property whose examples are long, as they write files: `few` of them, or `deep` in a deep run."""
    return settings(max_examples=drawn(few, deep))


def on_one_server(count: int) -> settings:
    """Of a test whose examples share the server of a fixture: each takes out again what it put in, so that the next finds it empty."""
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    return settings(max_examples=scaled(count if DEEP else count // 2), suppress_health_check=checks)
