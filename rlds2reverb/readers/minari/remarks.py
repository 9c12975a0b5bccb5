"""What is found while a dataset is read, as remarks: of how many episodes each is true."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rlds2reverb.readers.features import left_out_remarks
from rlds2reverb.readers.minari.episodes import BOTH_ENDS, CAST, LEFT_OUT, NO_END, SPACE
from rlds2reverb.remarks import Remark
from rlds2reverb.wording import counted

_TEXTS = {
    BOTH_ENDS: "{episodes} both terminated and truncated; read as terminated",
    NO_END: "{episodes} neither terminated nor truncated; read as truncated",
    CAST: "{episodes} with another dtype than the others, or with whole numbers for rewards; cast, no value changed",
    LEFT_OUT: "{episodes} with this group or info, which not every episode has as rows of numbers or texts; left out",
    SPACE: "values are stored in another dtype or shape than the space says; read as they are stored",
}
EPISODE_COUNT = "episode_count"


class Tally:
    """Which episodes each remark is about.

    Args:
      told: how many episodes the metadata tell; None when they do not.
      numbers: those of the files' episodes, ascending.
    """

    def __init__(self, told: int | None, numbers: Sequence[int]) -> None:
        self._told, self._found = told, len(numbers)
        self._gap = next((at for at, number in enumerate(numbers) if at != number), None)
        self._episodes: dict[tuple[str, str], set[int]] = {}

    def note(self, number: int, notes: Iterable[tuple[str, str]]) -> None:
        """Takes in what was found of an episode: (code, path)."""
        for key in notes:
            self._episodes.setdefault(key, set()).add(number)

    def remarks(self, features: Collection[str]) -> tuple[Remark, ...]:
        """What there is to say by now; `features` are those of the metadata that not every episode has."""
        return (*self._of_count(), *left_out_remarks(features), *self._of_episodes())

    def _of_count(self) -> Iterable[Remark]:
        if self._gap is not None:
            text = f"there is no episode {self._gap:,}, and there are some behind it, which Minari itself does not find; they are read"
            yield Remark(EPISODE_COUNT, text)
        if self._told is not None and self._told != self._found:
            read = min(self._told, self._found)
            text = (
                f"the metadata tell {counted(self._told, 'episode')}, the files have {self._found:,}; {read:,} are read"
            )
            yield Remark(EPISODE_COUNT, text, abs(self._told - self._found))

    def _of_episodes(self) -> Iterable[Remark]:
        for (code, path), numbers in sorted(dict(self._episodes).items()):
            text = _TEXTS[code].format(episodes=counted(len(numbers), "episode"))
            yield Remark(code, text, len(numbers), path)
