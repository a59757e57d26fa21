"""A branch that contains a secret is reported and held; its bytes are never changed."""

import json
from pathlib import Path

import pytest

from shoal.model.masking import Mask
from shoal.model.results import WorkerResult
from tests.acting import ran, shown, step
from tests.cli.conftest import shoal_in

SECRET = "s3cr3t-value-0123456789"
COMMIT = "git add -A; git commit -qm"


async def left(repo: Path, script: str, secret: str = SECRET) -> WorkerResult:
    report = await ran(repo, step("work", script, env={"TOKEN": secret}, secrets=frozenset({"TOKEN"})))
    return report.steps[0].worker_results[0]


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ('echo "key=$TOKEN" > conf; echo x > y', "conf (TOKEN)"),
        ('mkdir d; printf "x%s" "$TOKEN" | base64 -w0 > d/blob', "d/blob (TOKEN)"),
        (f'echo "$TOKEN" > a; {COMMIT} one; rm a; echo x > b; {COMMIT} two', "a (TOKEN)"),
        (f'echo x > a; {COMMIT} "with $TOKEN"', "commit "),
        ('echo x > "$TOKEN"', "tree "),
    ],
)
async def test_it_is_named_wherever_it_is(repo: Path, script: str, place: str) -> None:
    result = await left(repo, script)

    assert len(result.secrets) == 1, result
    assert result.secrets[0].startswith(place)
    assert result.secrets[0].endswith("(TOKEN)")
    assert SECRET not in repr(result)


async def test_the_bytes_stay_and_a_short_value_is_not_looked_for(repo: Path) -> None:
    leaked = await left(repo, 'echo "$TOKEN" > conf')
    short = await left(repo, 'echo "$TOKEN" > conf', "postgres")

    assert shown(repo, leaked, "conf") == SECRET
    assert short.secrets == ()


async def test_what_the_user_had_committed_before_is_not_the_agents_doing(repo: Path) -> None:
    first = await left(repo, 'echo "$TOKEN" > conf')
    task = {"env": {"TOKEN": SECRET}, "secrets": frozenset({"TOKEN"})}

    report = await ran(repo, step("next", "echo x > other", **task), base=first.branch)  # type: ignore[arg-type]

    assert report.steps[0].worker_results[0].secrets == ()


async def test_a_merge_holds_it_until_it_is_let_through_by_its_own_name(repo: Path) -> None:
    shoal = shoal_in(repo)
    result = await left(repo, 'echo "$TOKEN" > conf; echo x > .envrc')

    def merged(*words: str) -> dict[str, str]:
        (one,) = json.loads(shoal("merge", *words, "--json").out)["results"]
        return {"status": one["status"], "message": one["message"]}

    held = merged()
    assert held["status"] == "held"
    assert "conf (TOKEN)" in held["message"]
    assert merged("--allow-executable-config")["status"] == "held"
    assert "conf (TOKEN)" in shoal("diff", result.session).err
    assert merged("--allow-executable-config", "--allow-secrets")["status"] == "merged"


def test_names_are_found_in_bytes() -> None:
    mask = Mask.of({"A": "aaaabbbbcccc", "B": "bbbb"})

    assert mask.names_in(b"x aaaabbbbcccc y bbbb") == ("A",)
    assert not Mask.of({"B": "bbbb"}).has_long
