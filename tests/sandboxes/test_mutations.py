"""Every flag of bubblewrap, removed or weakened: a named probe inside fails, or no sandbox starts.

The list is whole by construction: a flag in the real argv that no mutation names fails a test of its own.
"""

import json
import os
import select
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.command import Command
from shoal.model.policy import Network
from shoal.sandboxes.bubblewrap import Bubblewrap
from tests.sandboxes.mutations import FOR_ROOT, MUTATIONS, lowered, mutated
from tests.sandboxes.probes import answers
from tests.sandboxes.sandbox_runs import FIRST, SEARCH, SECONDS, Person, started
from tests.sandboxes.stage import Part, Stage, is_program, layers_of, policy_of, spelled, stage_of, things_of_the_host

pytestmark = pytest.mark.parametrize("who", FIRST, indirect=True, scope="module")


@pytest.fixture(scope="module")
def stages(who: Person, bubblewrap: Bubblewrap) -> Iterator[dict[str, Stage]]:
    """Sandboxes like those of sessions: without network, with the host's network, over layers, and for the seal."""
    with ExitStack() as stack:
        asked = stack.enter_context(things_of_the_host())
        policy = policy_of(who)
        yield {
            "shut": stage_of(who, bubblewrap, policy, asked),
            "open": stage_of(who, bubblewrap, replace(policy, network=Network.HOST), asked),
            "layered": stage_of(who, bubblewrap, replace(policy, layers=layers_of(who)), asked),
            "sealing": stage_of(who, bubblewrap, replace(policy, capabilities=("CAP_DAC_READ_SEARCH",)), asked),
        }


def survivor(stage: Stage, parts: list[Part], patience: float) -> str:
    """Kill the outer bubblewrap, and see whether anybody inside still answers after *patience*."""
    words = ("sh", "-c", "echo up; read -r word; echo $word")
    inside = stage.sandbox.wrap(replace(stage.command, argv=words), stage.policy).argv
    argv = (*(word for part in parts[:-1] for word in part), *inside[inside.index("--") :])
    with started(Command(argv=argv, cwd=Path("/"), env={"PATH": SEARCH}), stage.who) as (child, info):
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == b"up\n"
        pidfd = os.pidfd_open(json.loads(os.read(info, 9999))["child-pid"])
        child.kill()
        is_over = select.select([pidfd], [], [], patience)[0]
        os.close(pidfd)
        if is_over:
            return "nobody"
        child.stdin.write(b"somebody\n")
        child.stdin.flush()
        return child.stdout.read().decode().strip()


def test_every_flag_of_the_real_argv_has_a_mutation(stages: dict[str, Stage]) -> None:
    flags = {stage.role(part) for stage in stages.values() for part in stage.parts() if not is_program(part)}

    assert flags == {mutation.flag for name, mutation in MUTATIONS.items() if is_about(stages["shut"], name)}


def test_every_probe_stands_for_a_flag_and_answers_as_it_should(stages: dict[str, Stage]) -> None:
    for name, stage in stages.items():
        assert answers(stage.outcome(stage.parts())) == stage.expected, name
    assert survivor(stages["shut"], spelled(stages["shut"].parts()), SECONDS) == "nobody"

    asked = {mutation.probe for mutation in MUTATIONS.values() if mutation.probe}
    assert set(stages["shut"].expected) - asked - (set() if os.geteuid() == 0 else {"devices", "closed"}) == set()


def is_about(stage: Stage, name: str) -> bool:
    """Say whether a mutation is about the sandbox of this person."""
    return stage.who.uid == 0 or name not in FOR_ROOT


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_weaker_wall_is_found(stages: dict[str, Stage], name: str) -> None:
    mutation = MUTATIONS[name]
    stage = stages[mutation.stage]
    if not is_about(stage, name):
        assert mutation.flag not in map(stage.role, stage.parts())
        return

    for parts in mutated(stage, mutation):
        if mutation.probe == "survivor":
            assert survivor(stage, spelled(parts), 1.0) == "somebody"
            continue
        done = stage.outcome(parts)
        found = answers(done)
        if found:
            assert mutation.probe, f"nothing was refused: {done}"
            assert found[mutation.probe] != stage.expected[mutation.probe]
        else:
            assert mutation.refusal, done
            assert done.code != 0
            assert mutation.refusal in done.err


def test_user_namespaces_are_off_beneath_the_filter_too(stages: dict[str, Stage]) -> None:
    stage = stages["shut"]
    found = answers(stage.outcome(lowered(stage, MUTATIONS["user namespaces inside"])))

    assert found["nested"] == "refused"
