"""Claims of files: two agents hear of each other before the work is done, and nobody is ever held up."""

import asyncio
import json
import subprocess
import time
from pathlib import Path

import pytest

from shoal.model.claims import MOST_CLAIMED, ClaimMade, ClaimReleased, ClaimState, clean_pattern, is_overlapping
from shoal.model.events import Event, Recorded
from shoal.model.talk import TalkGrant
from shoal.store.fold import Fold
from shoal.talk.claim_book import ClaimBook
from tests.cli.conftest import SHOAL, environment
from tests.talk.hubs import open_scene


@pytest.mark.parametrize(
    ("one", "other", "meets"),
    [
        ("src/a.py", "src/a.py", True),
        ("src/a.py", "src/b.py", False),
        ("src", "src/parser/lexer.py", True),
        ("src/**", "src/parser/lexer.py", True),
        ("src/**/test_*.py", "src/a/b/*_x.py", True),
        ("src/*.py", "src/a.pyi", False),
        ("**/README.md", "docs", True),
        ("docs/*.md", "docs/talk.m?", True),
        ("docs/a*b", "docs/ac", False),
        ("a/*/c", "a/b/d", False),
        ("a*b*c*", "*x", True),
        ("a", "ab", False),
    ],
)
def test_patterns_meet_if_a_file_can_match_both(one: str, other: str, meets: bool) -> None:
    assert is_overlapping(one, other) is meets
    assert is_overlapping(other, one) is meets


def test_comparing_hostile_patterns_ends() -> None:
    long = "/".join(["a*b*" * 4] * 8) + "/x"
    # with an exponential number of steps, this would not end
    assert not any(is_overlapping(long, f"{long[:-1]}{number}") for number in range(20))


@pytest.mark.parametrize(
    "written", ["**", "*", "/", ".", "**/*", "*/**", "?*", "..", "a/../b", "a\x1b", "x" * 300, "", "a*b*c*d*e*f*g*h*i*"]
)
def test_a_claim_on_everything_or_on_nothing_of_ours_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"everything|no path|may have"):
        clean_pattern(written)


async def test_both_agents_hear_of_an_overlap_before_the_work_is_done(tmp_path: Path) -> None:
    async with asyncio.timeout(60), open_scene(tmp_path, "ann", "ben", "eve") as scene:
        ann, ben = scene.client("ann"), scene.client("ben")
        first = await ann.call("claim", files=["src/parser/**"], why="rewrite the \x1bparser")
        second = await ben.call("claim", files=["./src/parser/lexer.py", "docs/"], why="fix a bug")
        other = await scene.client("eve").call("claim", files=["tests"])
        inbox = await ann.call("inbox")
        listed = await scene.client("eve").call("claims")
        released = await ann.call("release")
        again = await ben.call("claim", files=["src/parser/lexer.py"])
        wrong = await scene.client("eve").call("claim", files=["**"])

    assert first.endswith("nobody else claims any of it")
    assert "ann claims src/parser/**, which overlaps src/parser/lexer.py (it says: rewrite the \\x1bparser)" in second
    assert other.endswith("nobody else claims any of it")
    assert "I claim src/parser/lexer.py, which overlaps your claim src/parser/**." in inbox
    assert "I will: fix a bug" in inbox
    assert listed.splitlines()[0].startswith("ann: src/parser/**")
    assert released == "released src/parser/**"
    assert again.endswith("nobody else claims any of it")
    assert wrong.startswith("refused: a claim on everything says nothing")
    assert [event.others for event in scene.of(ClaimMade)] == [(), ("ann",), (), ()]
    assert len(scene.of(ClaimReleased)) == 1


async def test_claims_end_with_their_session_and_their_number_is_bounded(tmp_path: Path) -> None:
    grant = TalkGrant(notes=True)
    async with asyncio.timeout(60), open_scene(tmp_path, "ann", "ben", grant=grant) as scene:
        many = await scene.client("ann").call("claim", files=[f"f{number}" for number in range(MOST_CLAIMED)])
        more = await scene.client("ann").call("claim", files=["one-more"])
        nothing = await scene.client("ben").call("release")
        held = len(scene.hub.claims.list_held())
        scene.hub.claims.remove("ann-1")
        after = await scene.client("ben").call("claims")

    assert many.startswith("claimed f0")
    assert more.startswith(f"refused: you may claim {MOST_CLAIMED} patterns")
    assert held == MOST_CLAIMED
    assert nothing.startswith("refused: you claim nothing")
    assert after == "nobody claims anything"


async def test_a_claim_ends_with_its_time() -> None:
    book = ClaimBook()
    await book.add([ClaimState(agent="a", session="s", pattern="src", until=time.time() - 1)])

    assert book.list_held() == []


def test_the_state_of_a_run_has_the_claims_that_hold() -> None:
    events: list[Event] = [
        ClaimMade(run="r", session="s1", agent="ann", patterns=("a", "b"), seconds=60),
        ClaimMade(run="r", session="s2", agent="ben", patterns=("c",), seconds=60, why="x"),
        ClaimReleased(run="r", session="s1", patterns=("a",)),
        ClaimReleased(run="r", session="s2"),
    ]
    fold = Fold()
    for number, event in enumerate(events):
        fold.take(Recorded(number, 1000.0, event))

    claims = fold.state().runs["r"].claims
    assert [(claim.agent, claim.pattern, claim.until) for claim in claims] == [("ann", "b", 1060.0)]


def test_agents_in_sandboxes_claim_files_and_the_status_shows_it(repo: Path) -> None:
    look = f"shoal-talk claim files=src why=mine; {SHOAL} --version > /dev/null 2>&1; cat > x; sleep 600"
    document = {
        "agents": {"w": {"adapter": "command", "command": ["sh", "-c", look]}},
        "steps": [{"name": "one", "agent": "w", "prompt": "go", "talk": {"message": True}}],
    }
    (repo / "shoal.yaml").write_text(json.dumps(document))

    def shoal(*words: str) -> str:
        done = subprocess.run([str(SHOAL), *words], cwd=repo, env=environment(), capture_output=True, text=True)
        return done.stdout + done.stderr

    shoal("run", "--detach")
    with subprocess.Popen(
        [str(SHOAL), "attach", "--events"], cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        assert any(json.loads(line)["event"] == "ClaimMade" for line in following.stdout)
        following.terminate()
    during = shoal("status")
    shoal("stop")
    after = json.loads(shoal("status", "--json"))

    assert "one claims src: mine" in during
    assert after["claims"] == []
