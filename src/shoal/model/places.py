"""The places `{{ … }}` of a text, found as a template is read: a `}}` in quotes or brackets ends none."""

import re
from dataclasses import dataclass
from functools import lru_cache

from shoal.model.shell_text import FILL, MASK

_MARK = re.compile(r"\{\{|\{%[-+]?\s*raw\s*[-+]?%\}|\{%")
_END_RAW = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}")
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[-+]?\}\}|[()\[\]{}]|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """A place: as it is written, where it is in the text without marks, and where it is in the file's own."""

    text: str
    start: int
    end: int
    origin: int


@dataclass(frozen=True, slots=True)
class PlacedText:
    """A text without `{% raw %}` marks, and its places; *statement* is where the first other `{% … %}` is."""

    text: str
    places: tuple[Place, ...] = ()
    statement: int | None = None

    @property
    def masked(self) -> str:
        """Return the text with `MASK` and `FILL` for each place, so that it is as long as before."""
        parts, at = [], 0
        for place in self.places:
            parts += [_without_masks(self.text[at : place.start]), MASK + FILL * (place.end - place.start - 1)]
            at = place.end
        return "".join((*parts, _without_masks(self.text[at:])))


@lru_cache(maxsize=64)
def find_places(text: str) -> PlacedText:
    """Find the places of *text*."""
    clean, at, places = "", 0, list[Place]()
    while mark := _MARK.search(text, at):
        clean += text[at : mark.start()]
        if mark[0] == "{{" and (end := _end(text, mark.end())) is not None:
            place = text[mark.start() : end]
            places.append(Place(place, len(clean), len(clean) + len(place), mark.start()))
            clean, at = clean + place, end
        elif mark[0] not in ("{{", "{%") and (closing := _END_RAW.search(text, mark.end())):
            clean, at = clean + text[mark.end() : closing.start()], closing.end()
        else:  # a statement, or something that the template's own parser refuses
            return PlacedText(clean + text[mark.start() :], tuple(places), mark.start())
    return PlacedText(clean + text[at:], tuple(places))


def _end(text: str, at: int) -> int | None:
    """Find the end of the place whose expression starts at *at*."""
    depth = 0
    while token := _TOKEN.match(text, at):
        if token[0].endswith("}}") and len(token[0]) <= 3 and token[0][0] in "}-+":
            if not depth:
                return token.end()
            depth, at = depth - 1, token.start() + token[0].index("}") + 1
            continue
        depth += (token[0] in "([{") - (token[0] in ")]}")
        at = token.end()
    return None


def _without_masks(text: str) -> str:
    return text.replace(MASK, "x").replace(FILL, "x")
