"""Options behind a source's name: `minari:door/human-v2?episodes=0:100,seed=3`, `key=value` separated by commas.

Options begin at the last "?" that no separator of paths follows, or that an option follows: "?task=observation/text". A sign that would
end a path or a value is written as in an address:

| sign | ends | written |
| --- | --- | --- |
| `?` | a path | `%3F` |
| `@` | a path of `tfds:` | `%40` |
| `;` | a path of `rllib:` | `%3B` |
| `|` | a part of `mix:` | `%7C` |
| `,` | an option's value | `%2C` |
| `%` | nothing; where one of these codes is meant as it stands | `%25` |

There are no further codes: "%20" are three signs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from rlds2reverb.errors import Rlds2ReverbError, SourceError
from rlds2reverb.text import did_you_mean

Parse = Callable[[str], Any]
"""Makes a value of an option's text; raises `ValueError` with what was expected."""

_OPTIONS = re.compile(r"(?P<rest>.*)\?(?P<options>[^/\\?]*|\w+=[^?]*)", re.DOTALL | re.ASCII)
_OPTION_IN_PATH = re.compile(r"\?(\w+)=", re.ASCII)

URL = re.compile(r"([A-Za-z][\w+.-]*)://", re.ASCII)
"""How a place in a bucket begins."""

_SIGNS = "?@;|,%"
_CODE = re.compile("%(" + "|".join(f"{ord(sign):02X}" for sign in _SIGNS) + ")", re.IGNORECASE)
_ENDING = re.compile(f"[?@;|]|%(?={_CODE.pattern[1:]})", re.IGNORECASE)


def is_url(text: str) -> bool:
    """Whether a text names something in a bucket, or what looks like it."""
    return URL.match(text) is not None


def unescape_text(text: str) -> str:
    """Replaces the codes of a path or a value by the signs that they stand for."""
    return _CODE.sub(lambda code: chr(int(code[1], 16)), text)


def escape_text(path: object) -> str:
    """Writes a path as a name has it, so that opening the name finds it."""
    return _ENDING.sub(lambda sign: f"%{ord(sign[0]):02X}", str(path))


def split_options(text: str) -> tuple[str, str]:
    """Splits a name into the text before the options, as it is written, and the options' text, "" where there are none."""
    match = _OPTIONS.fullmatch(text)
    return (match["rest"], match["options"]) if match else (text, "")


_MIX, _PARTS_END = "mix:", "|"

_MIXTURE_FILE = re.compile(r"mix:(?!\w+:)[^|]+\.ya?ml", re.IGNORECASE | re.DOTALL)


def is_mixture_file(name: str) -> bool:
    """Whether the name of a dataset is `mix:FILE.yaml`, perhaps with options.

    >>> is_mixture_file("mix:soup.yaml?seed=3"), is_mixture_file("mix:ilr:sets.yaml"), is_mixture_file("mix:npz:a.npz|npz:b.npz")
    (True, False, False)
    """
    return name.startswith(_MIX) and _MIXTURE_FILE.fullmatch(split_options(name)[0]) is not None


def take_options(name: str, takes: Callable[[str, str], bool]) -> tuple[str, list[str]]:
    """Splits the name of a dataset of any format into the name without the options that `takes` takes, by key and value, and these ("key=value")."""
    head, options = split_options(name)
    # Of a mix they stand behind the last "|"; before it they are of one part.
    if name.startswith(_MIX) and not head.endswith(_PARTS_END) and not is_mixture_file(name):
        return name, []
    every = [(*option.partition("=")[::2], option) for option in options.split(",")]
    taken = [option for key, value, option in every if takes(key, value)]
    if not taken:
        return name, []
    left = ",".join(option for key, value, option in every if not takes(key, value))
    return f"{head}?{left}" if left else head.removesuffix(_PARTS_END), taken


def add_option(name: str, option: str) -> str:
    """The name of a dataset with one more option, "key=value"; as it is where it has an option of this key.

    >>> add_option("npz:a.npz?episodes=:9", "last_step=repeat"), add_option("npz:a.npz?last_step=mark", "last_step=repeat")
    ('npz:a.npz?episodes=:9,last_step=repeat', 'npz:a.npz?last_step=mark')
    """
    head, options = split_options(name)
    keys = [text.partition("=")[0] for text in options.split(",")]
    return name if option.partition("=")[0] in keys else f"{head}?{options and f'{options},'}{option}"


def read_options(
    people: str, options: str, known: Mapping[str, Parse], error: type[Rlds2ReverbError] = SourceError
) -> dict[str, Any]:
    """Reads options; returns name -> value.

    Args:
      people: what messages call the source or the destination.
      options: "key=value,...".
      known: all options, and how their values are read.
      error: the class to raise; `ConfigError` for a destination.

    Raises:
      error: an option is unknown, given twice, or its value makes no sense.
    """

    def as_path() -> str:
        """How to write an existing path that has the options in it; "" if there is none."""
        scheme, _, text = people.partition(":")
        return f'; for the path that is there write "{scheme}:{escape_text(text)}"' if os.path.lexists(text) else ""

    values: dict[str, Any] = {}
    for option in options.split(",") if options else ():
        key, _, value = option.partition("=")
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f'; did you mean "{near[0]}={value}"?' if near else ""
            raise error(f'"{people}": unknown option "{option}"; there are: {", ".join(known)}{hint}{as_path()}')
        if key in values:
            raise error(f'"{people}": option "{key}" is given twice')
        try:
            values[key] = known[key](unescape_text(value))
        except ValueError as refusal:
            raise error(f'"{people}": option "{option}": {refusal}{as_path()}') from refusal
    return values


def read_path_and_options(
    people: str, text: str, known: Mapping[str, Parse], error: type[Rlds2ReverbError]
) -> tuple[str, dict[str, Any]]:
    """Splits the name of a destination into its path, as typed, and its options.

    An option that stands in the path by mistake is refused: it would become a folder of that name.

    Raises:
      error: as `read_options`; or one of the options stands in the path.
    """
    path, options = split_options(text)
    values = read_options(people, options, known, error)
    for option in _OPTION_IN_PATH.finditer(path):
        if option[1] in known:
            raise error(
                f'"{people}": the option "{option[1]}" stands in the path "{path}"; options stand behind one "?", with "," between them. '
                'Write "%3F" for a "?" that is meant as it stands'
            )
    return path, values


def one_of(**known: Any) -> Parse:
    """Reads one of a few words, each of which stands for a value."""

    def parse(text: str) -> Any:
        if text not in known:
            raise ValueError(f"expected {' or '.join(known)}{did_you_mean(text, known)}")
        return known[text]

    return parse


def words(*known: str) -> Parse:
    return one_of(**{word: word for word in known})


def whole_number(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ValueError("expected a whole number of at least 0, of 18 digits at most")
    return int(text)


def at_least_one(text: str) -> int:
    number = whole_number(text)
    if not number:
        raise ValueError("expected a number of at least 1")
    return number


def some_text(text: str) -> str:
    if not text:
        raise ValueError("expected a text")
    return text
