"""What is known of the ends of episodes, as plain values for JSON and back."""

from __future__ import annotations

from typing import Any

from rlds2reverb.validation.endings import Endings, Shared, Single


def state_of(endings: Endings) -> dict[str, Any]:
    """Plain values; digests as hexadecimal text."""
    single = [[last.hex(), one.title, one.before.hex()] for last, one in endings.single.items()]
    shared = [
        [last.hex(), one.title, [row.hex() for row in one.befores], one.episodes, one.votes_for, one.votes_against]
        for last, one in endings.shared.items()
    ]
    return {"episodes": endings.episodes, "single": single, "shared": shared}


def endings_of(state: dict[str, Any]) -> Endings:
    """The way back."""
    from_hex = bytes.fromhex
    single = {from_hex(last): Single(title, from_hex(before)) for last, title, before in state["single"]}
    shared = {
        from_hex(last): Shared(title, tuple(map(from_hex, befores)), *votes)
        for last, title, befores, *votes in state["shared"]
    }
    return Endings(state["episodes"], single, shared)
