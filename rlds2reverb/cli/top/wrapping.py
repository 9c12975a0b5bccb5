"""Texts broken into lines by the cells that they take, which wide characters take two of."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most so many cells, broken at spaces, and within words that are longer than a line.

    >>> wrapped("no answer since 12:00", 10), wrapped("abcdefgh", 3), wrapped("", 5)
    (['no answer', 'since', '12:00'], ['abc', 'def', 'gh'], [''])
    """
    lines = [""]
    for word in text.split():
        for piece in _pieces(word, max(2, width)):
            joined = f"{lines[-1]} {piece}" if lines[-1] else piece
            if cell_len(joined) <= width or not lines[-1]:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


def _pieces(word: str, width: int) -> list[str]:
    pieces = []
    while cell_len(word) > width:
        head = set_cell_size(word, width)
        head = head if word.startswith(head) else head[:-1]  # a wide character that did not fit became a space
        pieces.append(head)
        word = word[len(head) :]
    return [*pieces, word]
