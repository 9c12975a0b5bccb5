"""How a dataset is read: the options behind its name, and what is to be said of what they did."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from rlds2reverb.readers.alignment import MARK, REPEAT
from rlds2reverb.readers.lerobot.features import DONE, VIDEO, Feature
from rlds2reverb.remarks import Remark, note
from rlds2reverb.wording import shortened

DECODE, SKIP = "decode", "skip"
COLUMN, METADATA = "column", "metadata"
TERMINAL, TIMEOUT, NOTHING = "terminal", "timeout", "nothing"

TOLERANCE_SECONDS = 1e-4
"""lerobot's `tolerance_s`."""


@dataclass(frozen=True)
class Reading:
    """The options.

    Attributes:
      last_step: "repeat" or "mark".
      done_means: what `next.done` on the last row says: "terminal", "timeout", or "nothing", and then it stays a column.
      task: where the task's text goes: "column", "metadata" or "skip"; None for metadata where no episode has several.
      videos: "decode" or "skip".
      tolerance: seconds between a row and its frame.
      reserved: whether LeRobot's numbers of rows, episodes and tasks become columns, too.
    """

    last_step: str = REPEAT
    done_means: str = TERMINAL
    task: str | None = None
    videos: str = DECODE
    tolerance: float = TOLERANCE_SECONDS
    reserved: bool = False

    @property
    def label(self) -> str:
        """What of it is not the default and changes what an episode holds."""
        values = asdict(self), asdict(Reading())
        return "".join(
            f"|{key}={value}" for key, value in values[0].items() if value != values[1][key] and key != "tolerance"
        )


_LAST_STEPS = {
    REPEAT: "no observation stands behind an episode's last action: the last one is repeated there (last_step=mark makes the last row the last step)",
    MARK: "no observation stands behind an episode's last action: the last row is the last step, so learners do not see its action and its reward",
}
_DONE = {
    TERMINAL: "next.done on an episode's last row is taken for a terminal end, which LeRobot does not tell from one that was cut (done_means=timeout or nothing)",
    TIMEOUT: "next.done on an episode's last row is taken for one that was cut",
}
ODD = {
    "frame_index": "episodes whose frame_index or index does not count their rows one by one; the rows were taken in the file's order",
    "done_inside": "episodes with next.done before their last row, which RLDS cannot say; done_means=nothing keeps it as a column",
}
"""Code -> what was found in an episode."""


def remarks_of(
    features: Mapping[str, Feature],
    reading: Reading,
    are_steps: bool,
    episodes: int,
    odd: Mapping[str, Collection[int]],
) -> tuple[Remark, ...]:
    """What is to be said of a dataset.

    Args:
      features: by name.
      reading: how it is read.
      are_steps: whether rows are steps as they are.
      episodes: how many there are.
      odd: of `ODD`, the numbers of the episodes in which it was found so far.
    """
    return tuple(_remarks(features, reading, are_steps, episodes, odd))


def left_out(names: Sequence[str]) -> tuple[Remark, ...]:
    """Of columns of meta/ that are no metadata."""
    if not names:
        return ()
    text = f"metadata that is not one number or text for every episode, of one kind: {shortened(', '.join(names))}; left out"
    return (Remark("left_out", text, len(names)),)


def _remarks(
    features: Mapping[str, Feature],
    reading: Reading,
    are_steps: bool,
    episodes: int,
    odd: Mapping[str, Collection[int]],
) -> Iterator[Remark]:
    if are_steps:
        yield note("last_step", "the dataset has is_first and is_last: its rows are steps as they are", episodes)
    else:
        yield note("last_step", _LAST_STEPS[reading.last_step], episodes)
    if DONE in features and reading.done_means in _DONE:
        yield note("done_means", _DONE[reading.done_means], episodes)
    for feature in features.values():
        if feature.kind == VIDEO and reading.videos == SKIP:
            yield note("videos_skipped", "its video is left out (videos=skip)", episodes, feature.path)
        elif feature.kind == VIDEO and feature.is_depth:
            text = "a depth map's codes, 0 to 4095, as the video has them; meta/info.json tells how they become metres"
            yield note("depth_codes", text, episodes, feature.path)
    for code, found in odd.items():
        yield Remark(code, ODD[code], len(found))
