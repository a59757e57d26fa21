"""Malicious names, references and documents: refused before anything starts, or taken literally."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import ShoalError
from tests.acting import fingerprint, ran, step
from tests.cli.conftest import shoal_in
from tests.cli.warm import Said
from tests.conftest import git

AGENT = "agents: {x: {adapter: command, command: ['true']}}\n"
STEPS = "steps: [{name: a, agent: x, prompt: go}]\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
TEMPLATES = "{{ ''.__class__.__mro__ }} {0.__globals__} {% raw %} %(x)s %s $(id) `id` ${HOME} $HOME ~ \\n \\0 'q' \"q\""


def refused(repo: Path, *words: str) -> Said:
    """Run `shoal run` with *words*, which must exit with 2, quickly, and with nothing created or changed."""
    before, began = fingerprint(repo), time.monotonic()

    said = shoal_in(repo)("run", *words)

    assert said.code == 2, said
    assert said.out == ""
    assert "Traceback" not in said.err
    assert time.monotonic() - began < 30
    assert fingerprint(repo) == before
    assert git(repo, "for-each-ref", "refs/heads/agent", "refs/shoal") == ""
    assert len(said.err) < 100_000
    return said


@pytest.mark.parametrize(
    "text",
    [BOMB + STEPS, "a: " + "[" * 20_000, "a: " + "{a: " * 20_000, f"{AGENT}steps: &s [*s]\n", "&a [*a]"],
    ids=["bomb", "lists", "mappings", "cycle", "root cycle"],
)
def test_a_document_that_would_never_end_is_refused(repo: Path, text: str) -> None:
    """B9.67."""
    (repo.parent / "evil.yaml").write_text(text)

    refused(repo, str(repo.parent / "evil.yaml"))


def test_a_document_of_a_gigabyte_is_refused_unread(repo: Path) -> None:
    """B9.67."""
    (repo.parent / "evil.yaml").touch()
    os.truncate(repo.parent / "evil.yaml", 2**30)

    assert "larger than 1024 KiB" in refused(repo, str(repo.parent / "evil.yaml")).err


@pytest.mark.parametrize(
    "value",
    [
        '!!python/object/apply:os.system ["touch {canary}"]',
        '!!python/object/new:subprocess.Popen [["touch", "{canary}"]]',
        "!!python/name:os.system",
        "!!binary aGk=",
        "!include {canary}",
    ],
)
def test_no_tag_makes_an_object(repo: Path, value: str) -> None:
    """B9.68."""
    canary = repo.parent / "canary"
    tagged = value.replace("{canary}", str(canary))
    (repo.parent / "evil.yaml").write_text(f"{AGENT}steps: [{{name: a, agent: x, prompt: {tagged}}}]\n")

    said = refused(repo, str(repo.parent / "evil.yaml"))

    assert not canary.exists()
    assert "evil.yaml:2:" in said.err


@pytest.mark.parametrize(
    "text",
    [
        f"{AGENT}{STEPS}agents: {{}}\n",
        f"{AGENT}steps: [{{name: a, name: b, agent: x, prompt: go}}]\n",
        f"{AGENT}steps: [{{<<: {{name: a}}, agent: x, prompt: go}}]\n",
        f"{AGENT}steps: [{{name: a, agent: x, prompt: go, concurrency: 12:30}}]\n",
        f"runtime: {{cleanup_on_complete: no}}\n{AGENT}{STEPS}",
    ],
)
def test_what_yaml_could_read_in_two_ways_is_refused(repo: Path, text: str) -> None:
    """B9.68: doubled keys, merge keys, numbers to the base of sixty, `no`."""
    (repo.parent / "evil.yaml").write_text(text)

    refused(repo, str(repo.parent / "evil.yaml"))


def test_no_bad_name_reaches_a_path_or_a_ref(repo: Path) -> None:
    """B9.69, all at once: each is told, none is used."""
    names = [
        *("../../x", "/abs", ".", "..", "", "n" * 300, "a\nb", "a\0b", "$(id)", ";rm", "\u202e", "x.lock", "-D", "A"),
        *("a b", "a/b", "a\\b", "\x1b[2J", "HEAD", "@", "a..b", "ü", *(f"N{number}" for number in range(60))),
    ]
    steps = [{"name": name, "agent": "x", "prompt": "go"} for name in [*names, "twin", "TWIN"]]
    document = {"agents": {"x": {"adapter": "command", "command": ["true"]}}, "steps": steps}
    (repo.parent / "evil.yaml").write_text(json.dumps(document))

    said = refused(repo, str(repo.parent / "evil.yaml"))

    assert said.err.count("is not a valid step name") == len(names) + 1, "TWIN is one, too"
    assert "\x1b" not in said.err
    assert "\u202e" not in said.err
    assert sorted(path.name for path in repo.parent.iterdir()) == ["evil.yaml", "repo"]


REFERENCES = [
    *("-D", "--upload-pack=touch {canary}", "--output={canary}", "@{-1}", "a..b", "a...b", "HEAD:README.md"),
    *(":/base", ":0:README.md", "-", "", " ", "\u3000", "HEAD^{tree}", "tree-tag", "0" * 40, "f" * 40, "no-such"),
    *("HEAD;touch {canary}", "$(touch {canary})", "a\nb", "HEAD^!", "refs/heads/*"),
]


async def test_a_base_is_a_commit_or_nothing(repo: Path) -> None:
    """B9.70, B9.72."""
    canary = repo.parent / "canary"
    git(repo, "tag", "-a", "-m", "a tree", "tree-tag", "HEAD^{tree}")
    git(repo, "commit", "-q", "--allow-empty", "-m", "second")
    before = fingerprint(repo)

    for reference in REFERENCES:
        with pytest.raises(ShoalError) as raised:
            await ran(repo, step("work", "true"), base=reference.replace("{canary}", str(canary)))
        assert raised.value.exit_code == 2, (reference, raised.value)

    assert not canary.exists()
    assert fingerprint(repo) == before
    assert git(repo, "for-each-ref", "refs/heads/agent", "refs/shoal") == ""


@pytest.mark.parametrize("reference", ["--upload-pack=touch {canary}", "-D"])
def test_a_base_is_no_option(repo: Path, reference: str) -> None:
    """B9.70, through the command."""
    canary = repo.parent / "canary"
    (repo / "shoal.yaml").write_text(f"{AGENT}{STEPS}")

    refused(repo, "shoal.yaml", f"--base={reference.replace('{canary}', str(canary))}")

    assert not canary.exists()


async def test_a_base_is_resolved_once_to_a_commit(repo: Path) -> None:
    """B9.72: whatever names it, and whatever becomes of the name."""
    first = git(repo, "rev-parse", "HEAD")
    git(repo, "tag", "-a", "-m", "a commit", "v1")
    git(repo, "commit", "-q", "--allow-empty", "-m", "second")

    for reference in ("v1", "HEAD~1", "refs/tags/v1", first[:12], "v1^{}"):
        report = await ran(repo, step("work", "true"), base=reference)

        assert report.base == first


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
async def test_a_prompt_reaches_the_agent_to_the_letter(repo: Path, strategy: str) -> None:
    """B9.71: by stdin and by file; nothing in it is a template, a variable or a command."""
    made = step("work", "cat; echo; cat $SHOAL_PROMPT_FILE; echo; echo done > done")
    made = replace(made, task=replace(made.task, prompt=TEMPLATES))

    report = await ran(repo, made, strategy=strategy)

    result = report.steps[0].worker_results[0]
    assert result.output == f"{TEMPLATES}\n" * 2


def test_a_prompt_of_a_document_reaches_the_agent_to_the_letter(repo: Path) -> None:
    """B9.71, through the command; only double braces are ours, and those that name nothing are refused."""
    words = "{0.__globals__} %(x)s %s $(id) `id` ${HOME} $HOME ~ \\n 'q' {# x #} \"q\" {% raw %}{{ x }}{% endraw %}"
    agent = {"adapter": "command", "command": ["sh", "-c", "cat; echo done > done"]}
    steps = [{"name": "a", "agent": "x", "prompt": words}]
    (repo / "shoal.yaml").write_text(json.dumps({"agents": {"x": agent}, "steps": steps}))

    said = shoal_in(repo)("run", "shoal.yaml", "--json")

    literal = words.replace("{% raw %}", "").replace("{% endraw %}", "")
    assert said.code == 0, said
    assert json.loads(said.out)["steps"][0]["worker_results"][0]["output"] == f"{literal}\n"


@pytest.mark.parametrize("words", ["{{ ''.__class__.__mro__ }}", "{{ self }}", "{{ cycler.__init__ }}"])
def test_a_template_of_a_document_that_reaches_for_more_than_data_is_refused(repo: Path, words: str) -> None:
    """B9.71: nothing runs, and nothing is made."""
    agent = {"adapter": "command", "command": ["sh", "-c", "cat"]}
    steps = [{"name": "a", "agent": "x", "prompt": words}]
    (repo / "shoal.yaml").write_text(json.dumps({"agents": {"x": agent}, "steps": steps}))

    refused(repo, "shoal.yaml")
