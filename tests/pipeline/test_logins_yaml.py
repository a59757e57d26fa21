"""Logins as a file names them: for their own client, at the addresses of its model."""

import pytest

from shoal.model.gateway import with_logins
from shoal.model.plan import Plan
from shoal.pipeline.load import parse
from shoal.pipeline.plan import plan
from shoal.pipeline.problems import BadDocument
from shoal.store.plans import decode_plan, encode_plan

STEPS = "\nsteps: [{name: a, agent: claude, prompt: go}]\n"


def make(text: str) -> Plan:
    return plan(parse(text + STEPS, "shoal.yaml"), environ={})


def test_logins_take_the_addresses_of_their_model_and_are_recorded() -> None:
    urls = "{url: 'http://127.0.0.1:1', token_url: 'http://127.0.0.1:2/token'}"
    found = make(f"gateway: {{logins: [claude, codex], upstreams: {{anthropic: {urls}}}}}")

    held = {upstream.login: upstream for upstream in found.upstreams if upstream.login}
    assert (held["claude"].name, held["claude"].url, held["claude"].token_url) == (
        "anthropic",
        "http://127.0.0.1:1",
        "http://127.0.0.1:2/token",
    )
    assert (held["codex"].name, held["codex"].url, held["codex"].token_url) == ("openai", "", "")
    assert decode_plan(encode_plan(found), {}).upstreams == found.upstreams


def test_a_login_that_is_named_twice_is_there_once() -> None:
    once = with_logins((), ["claude"])

    assert with_logins(once, ["claude", "claude"]) == once


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gateway: {logins: [gemini]}", "`logins` cannot be"),
        ("gateway: {logins: claude}", "list"),
        ("gateway: {logins: [claude], upstreams: {anthropic: {key: abc}}}", "has a key already"),
        ("gateway: {upstreams: {anthropic: {token_url: 'file:///etc/passwd'}}}", "cannot be"),
    ],
)
def test_what_cannot_be_is_refused_at_its_place(text: str, message: str) -> None:
    with pytest.raises(BadDocument, match=message) as error:
        make(text)

    assert "shoal.yaml:1:" in str(error.value)
