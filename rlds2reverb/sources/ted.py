"""TorchRL's buffers as a source: `ted:PATH[?OPTIONS]`."""

from __future__ import annotations

from typing import Any

from rlds2reverb.errors import SourceError
from rlds2reverb.readers.alignment import LAST_STEPS, REPEAT
from rlds2reverb.readers.recordings import Recordings
from rlds2reverb.readers.ted.ensemble import EnsembleRecordings
from rlds2reverb.readers.ted.keys import CHECK, KEEP, LAST, TedOptions
from rlds2reverb.readers.ted.locate import open_buffer, places
from rlds2reverb.readers.ted.recordings import TedRecordings
from rlds2reverb.source_options import Parse, one_of, whole_number, words
from rlds2reverb.sources.base import Source
from rlds2reverb.sources.opening import asked


def open_ted(text: str) -> Source:
    """Opens what stands behind "ted:".

    Raises:
      SourceError: no such file or folder, it is damaged or none of TorchRL's, or an option makes no sense.
    """
    wanted = asked("ted", text, _OPTIONS)
    people, options = wanted.name, _made(wanted.options)
    found = places(wanted.path)
    if options.buffer is not None:
        if options.buffer >= len(found):
            raise SourceError(f"{people}: buffer {options.buffer}: there are {len(found):,}, from 0")
        found = [found[options.buffer]]
    buffers = [TedRecordings(people, open_buffer(people, place, options), options) for place in found]
    recordings: Recordings = buffers[0]
    if len(buffers) > 1:
        recordings = EnsembleRecordings(people, buffers)
    return wanted.source_of(recordings)


def _key(text: str) -> str:
    if not text or text.startswith(".") or text.endswith(".") or ".." in text:
        raise ValueError('expected a key, nested ones with ".": collector.traj_ids')
    return text.replace(".", "/")


def _keys(text: str) -> tuple[str, ...]:
    return tuple(map(_key, text.split("+")))


_NAMED = {
    "observation": "observation",
    "next_observation": "next/observation",
    "action": "action",
    "reward": "next/reward",
    "done": "next/done",
    "terminated": "next/terminated",
    "truncated": "next/truncated",
}
"""Option -> TED's key that the named one is taken for."""

_OPTIONS: dict[str, Parse] = {
    "trajectories": _key,
    "next": words(LAST, CHECK, KEEP),
    "cursor": whole_number,
    "incomplete": one_of(keep=False, drop=True),
    "buffer": whole_number,
    "done_means": one_of(terminal=True, timeout=False),
    "items": one_of(steps=False, trajectories=True),
    "last_step": words(*LAST_STEPS),
    **dict.fromkeys(_NAMED, _keys),
}


def _made(wanted: dict[str, Any]) -> TedOptions:
    return TedOptions(
        trajectories=wanted.get("trajectories", ""),
        next=wanted.get("next", LAST),
        cursor=wanted.get("cursor"),
        drop_incomplete=wanted.get("incomplete", False),
        buffer=wanted.get("buffer"),
        done_is_terminal=wanted.get("done_means"),
        holds_trajectories=wanted.get("items"),
        last_step=wanted.get("last_step", REPEAT),
        names={_NAMED[option]: wanted[option] for option in _NAMED if option in wanted},
    )
