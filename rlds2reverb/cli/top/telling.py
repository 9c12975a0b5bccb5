"""What is said of a server beside its tables: does it answer, since when not and why, its memory, its checkpoints."""

from __future__ import annotations

from rlds2reverb.cli.top.state import PATIENCE_SECONDS, Known
from rlds2reverb.cli.top.texts import clock, duration, one_line, size, visible
from rlds2reverb.transport.http import Status
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
    if known.status is None:
        return "memory, checkpoints: not known" if known.status_problem else "memory, checkpoints: asked"
    told, age = _resources_in(known.status), now - known.status_at
    return f"{duration(age)} ago: {told}" if known.status_problem or age >= PATIENCE_SECONDS else told


def _resources_in(status: Status) -> str:
    """Times are as they were when it came, by the server's clock: nobody knows whether the server has lived on."""
    server, checkpoints = status.server, status.checkpoints
    last, now = checkpoints.last, server.now
    if checkpoints.writing_since is not None:
        checkpoint = f"writing a checkpoint for {duration(now - checkpoints.writing_since)}"
    elif last is None:
        checkpoint = "no checkpoint yet"
    else:
        checkpoint = f"checkpoint {last.generation} ({size(last.bytes)}) {duration(now - last.created)} ago"
    memory = size(server.memory_bytes) if server.memory_bytes else "not known"
    phase = [] if server.state == "ready" else [one_line(server.state)]
    return ", ".join([*phase, f"up {duration(now - server.started_at)}", f"memory {memory}", checkpoint])


def checkpoint_problem(status: Status) -> str:
    """What is wrong with the newest attempt or the folder, or ""."""
    return one_line(status.checkpoints.problem or status.checkpoints.last_error)


def troubles(known: Known) -> list[str]:
    """All that is wrong with it, each in a sentence."""
    failed = ""
    if known.status is not None and (problem := checkpoint_problem(known.status)):
        failed = f"checkpoints ({counted(known.status.checkpoints.failures, 'failure')}): {problem}"
    return [visible(text) for text in (known.problem, known.status_problem, failed) if text]
