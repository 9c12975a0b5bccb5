"""What is said of a server beside its tables: does it answer, since when not and why, its memory, its checkpoints."""

from __future__ import annotations

from rlds2reverb.cli.top.service import Service
from rlds2reverb.cli.top.state import PATIENCE_SECONDS, Known
from rlds2reverb.cli.top.texts import clock, duration, size, visible
from rlds2reverb.wording import counted

RECENT_SECONDS = 600.0
"""How long a restart is told."""


def answering(known: Known, now: float) -> str:
    """Does it answer, and if not, since when; with what is under way.

    Args:
      now: Unix time.
    """
    if known.answers and known.waited(now):
        said = f"no answer yet to a question of {duration(known.waited(now))} ago"
    elif known.answers:
        said = "answers"
    elif not known.problem:
        return "asked, no answer yet"
    else:
        since = known.silent_since
        never = " (it never did)" if known.answered_at is None else ""
        said = f"no answer since {clock(since, now)}, for {duration(now - since)}{never}"
    at = known.restarted_at
    return f"{said}, restarted at {clock(at, now)}" if at is not None and now - at < RECENT_SECONDS else said


def resources(known: Known, now: float) -> str:
    """Phase, memory and the newest checkpoint; or why they are not known."""
    if not known.url:
        return "memory, checkpoints: not known (no --http)"
    if known.service is None:
        return "memory, checkpoints: not known" if known.service_problem else "memory, checkpoints: asked"
    told, age = _of_service(known.service), now - known.service_at
    return f"{duration(age)} ago: {told}" if known.service_problem or age >= PATIENCE_SECONDS else told


def _of_service(service: Service) -> str:
    """What it told, with the times as they were then: nobody knows whether it has lived on."""
    now = service.now  # by the server's clock
    memory = size(service.memory_bytes) if service.memory_bytes else "not known"
    phase = [] if service.phase == "ready" else [service.phase]
    return ", ".join([*phase, f"up {duration(now - service.started_at)}", f"memory {memory}", checkpoint(service, now)])


def checkpoint(service: Service, now: float) -> str:
    """The newest checkpoint, or the one that is being written.

    Args:
      now: by the server's clock.
    """
    if service.writing_since is not None:
        return f"writing a checkpoint for {duration(now - service.writing_since)}"
    last = service.checkpoint
    if last is None:
        return "no checkpoint yet"
    return f"checkpoint {last.generation} ({size(last.bytes)}) {duration(now - last.created)} ago"


def troubles(known: Known) -> list[str]:
    """All that is wrong with it, each in a sentence."""
    service = known.service
    failed = ""
    if service is not None and service.checkpoint_problem:
        failed = f"checkpoints ({counted(service.failures, 'failure')}): {service.checkpoint_problem}"
    return [visible(text) for text in (known.problem, known.service_problem, failed) if text]
