"""What a plain scalar means: the core schema of YAML 1.2, so that `no`, `12:30` and `1_000` are text."""

import re

from shoal.pipeline.tree import Plain

MAX_DIGITS = 300  # Python itself refuses integers of more than 4,300 digits, with an error that has no position

_WORDS: dict[str, Plain] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def resolve(written: str) -> Plain:
    """Return what a plain scalar stands for; what is too long to be a number is text."""
    if written in _WORDS:
        return _WORDS[written]
    if len(written) > MAX_DIGITS:
        return written
    if _INTEGER.fullmatch(written):
        return int(written)
    if _BASED.fullmatch(written):
        return int(written, 0)
    if _FLOAT.fullmatch(written):
        return float(written)
    return written
