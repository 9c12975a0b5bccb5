"""Letters of 5 x 7 pixels, for the few words in a picture: ASCII; any other character is a box.

Each letter is seven digits of base 32, one per line of pixels from the top; the highest bit is the leftmost pixel.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

HEIGHT, WIDTH = 7, 6
"""Pixels of a letter; the last column is empty."""

_DIGITS = """
0000000 4444404 aa00000 aavavaa 4fke5u4 op248j3 cik8lid 4400000 2488842 8422248 04lel40 044v440 0000c48 000v000 00000cc 01248g0
ehjlphe 4c4444e eh1248v v2421he 26aiv22 vgu11he 68guhhe v124888 ehhehhe ehhf12c 0cc0cc0 0cc0c48 248g842 00v0v00 8421248 eh12404
eh1dlle ehhhvhh uhhuhhu ehggghe sihhhis vgguggv vgguggg ehgnhhf hhhvhhh e44444e 72222ic hikokih ggggggv hrllhhh hhpljhh ehhhhhe
uhhuggg ehhhlid uhhukih fgge11u v444444 hhhhhhe hhhhha4 hhhllla hha4ahh hhha444 v1248gv e88888e 0g84210 e22222e 4ah0000 000000v
8420000 00e1fhf ggmphhu 00egghe 11djhhf 00ehvge 698s888 0fhhf1e ggmphhh 40c444e 20622ic ggikoki c44444e 00qllhh 00mphhh 00ehhhe
00uhugg 00djf11 00mpggg 00ege1u 88s8896 00hhhjd 00hhha4 00hhlla 00ha4ah 00hhf1e 00v248v 2448442 4444444 8442448 008l200
"""
_LETTERS = tuple(_DIGITS.split())
_FIRST = ord(" ")
_BOX = "vhhhhhv"


def letters(text: str) -> npt.NDArray[np.bool_]:
    """[HEIGHT, WIDTH * len(text)]: where a text has ink."""
    if not text:
        return np.zeros((HEIGHT, 0), bool)
    return np.concatenate([_letter(one) for one in text], axis=1)


@lru_cache(maxsize=256)
def _letter(one: str) -> npt.NDArray[np.bool_]:
    place = ord(one) - _FIRST
    lines = _LETTERS[place] if 0 <= place < len(_LETTERS) else _BOX
    rows = [[int(line, 32) >> bit & 1 for bit in (4, 3, 2, 1, 0)] + [0] for line in lines]
    return np.array(rows, bool)
