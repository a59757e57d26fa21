"""Whatever the text, only `BadInput` comes out of the reader."""

import contextlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.pipeline.load import parse
from shoal.pipeline.plan import plan
from shoal.pipeline.script import script

GOOD = """\
runtime: {max_concurrent_workers: 2, isolation_strategy: auto, cleanup_on_complete: true}
agents:
  x: &x {adapter: command, command: ["sh", "-c", 'a "b"'], network: none, timeout: 1h30m, env: {A: 1, B: {from: C}}}
  y:
    adapter: scripted
    script:
      - write:
          path: a
          content: |-
            b
      - {run: ls, ignore_failure: true}
      - {sleep: 0.5}
      - {exit: 3}
  z: *x
personas: {p: {agent: x, system_prompt: "Be\\u00e9."}}
pipelines:
  - name: one
    steps:
      - name: implement
        persona: p
        prompt: >
          hi
        concurrency: 3
        on_failure: best_effort
  - {name: two, steps: [{id: b, agent: y, exec: {source: "x"}}]}
"""
TOKENS = [
    *"[]{}:,-?*&!|>'\"%@`#~<\n\t\0\r \ufeff\u2028\ud800\x85",
    "\n  ",
    "- ",
    ": ",
    "---\n",
    "...\n",
    "!!int ",
    "<<: ",
]
WORDS = [
    "*x",
    "&x ",
    "null",
    "no",
    "0x",
    "1e999",
    ".nan",
    "-1",
    "9" * 30,
    "steps",
    "name",
    "agent",
    '"\\U',
    "%YAML 1.1\n",
]
BOUNDED = settings(max_examples=250, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def read(text: str) -> None:
    with contextlib.suppress(BadInput):
        plan(parse(text, "f.yaml"), "one", environ={"C": "c"})
    with contextlib.suppress(BadInput):
        script(text, "s.yaml")


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A good document with some pieces cut out, put in or doubled."""
    text = GOOD
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        piece = draw(st.sampled_from([*TOKENS, *WORDS, text[start:end] * 2, ""]))
        text = text[:start] + piece + text[end:]
    return text


def test_the_good_document_is_good() -> None:
    assert plan(parse(GOOD, "f.yaml"), "one", environ={"C": "c"}).steps[0].workers == 2


@BOUNDED
@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    read(text)


@BOUNDED
@given(st.lists(st.sampled_from([*TOKENS, *WORDS]), max_size=40).map("".join))
def test_any_row_of_yaml_signs_is_read_or_refused(text: str) -> None:
    read(text)


@BOUNDED
@given(mutated())
def test_a_good_document_that_was_damaged_is_read_or_refused(text: str) -> None:
    read(text)
