"""Whether a ledger knows a dataset under other names, so that a push would store all of it once more.

An episode has another name when a byte of its content differs (`episode`): after a conversion, when videos are encoded again, when a
feature is added. Item keys differ with it. A table cannot be asked for keys, so of a push without a ledger nothing can be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlds2reverb.episode import Notice, note
from rlds2reverb.push.keys import EpisodeNames, dataset_of, names_in_ledger
from rlds2reverb.push.ledger import KnownSources, known_sources
from rlds2reverb.push.plan import PushPlan
from rlds2reverb.text import counted

OTHER_NAMES = "other_names"
_LOOKED_AT = 3  # episodes


def other_names(plan: PushPlan) -> tuple[Notice, ...]:
    """A note if the push's ledger has this dataset, or one of as many episodes, and none of a few episodes that are looked at.

    They are read, and not decoded where the format can name an episode without that; nothing is read if the ledger has nothing of this push.

    Raises:
      LedgerError: the ledger cannot be read.
      SourceError: as reading does.
    """
    ledger = plan.options.ledger
    if ledger is None:
        return ()
    names: list[str] = []  # read once, though every output asks

    def look() -> Sequence[str]:
        if not names:
            names.extend(_some_names(plan))
        return names

    for push in names_in_ledger(plan):
        sources = known_sources(Path(ledger), push, look)
        if sources is not None and sources.is_known and not any(sources.is_known):
            like = _dataset_like(plan, sources)
            if like is not None:
                return (note(OTHER_NAMES, _text(plan, sources, like), plan.episodes or 1),)
    return ()


def _dataset_like(plan: PushPlan, pushed: KnownSources) -> str | None:
    """What the ledger has: this dataset, or one of as many episodes; None if neither."""
    own, count = dataset_of(plan.source), plan.episodes
    if own in pushed.sources:
        return f"{own} has been pushed by this ledger"
    if count is not None:
        for source, episodes in pushed.sources.items():
            if episodes == count:
                return f"{source}, which has as many episodes, has been pushed by this ledger"
        if pushed.episodes == count:
            return "this ledger has as many episodes"
    return None


def _text(plan: PushPlan, pushed: KnownSources, like: str) -> str:
    count = "all episodes" if plan.episodes is None else f"all {counted(plan.episodes, 'episode')}"
    items = ", ".join(f"{table.items_in_words} in {table.name}" for table in plan.tables)
    looked_at = "the episode" if len(pushed.is_known) == 1 else f"the {len(pushed.is_known)} episodes"
    return (
        f"{like}, with other names: {looked_at} looked at {'is' if len(pushed.is_known) == 1 else 'are'} not in it. Data that were converted, "
        f"encoded again or given other columns are other episodes, so {count} will be stored once more: {items}. "
        "identity (--identity) names episodes by what has stayed; a push without it stores both"
    )


def _some_names(plan: PushPlan) -> list[str]:
    """The names of a few episodes: from all over the source if it reads single ones, else of the first."""
    source, count = plan.source, plan.episodes
    if count is not None and source.has_random_access:
        parts = [source.slice(number, number + 1) for number in sorted({0, count // 2, count - 1}) if number >= 0]
    else:
        parts = [source.slice(0, _LOOKED_AT)]
    return [episode.id for part in parts for episode in EpisodeNames(lambda _: True, plan).read(part)]
