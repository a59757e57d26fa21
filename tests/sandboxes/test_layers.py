"""Overlays that are mounted in the sandbox's own namespace, because the host may not mount them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import Unavailable
from shoal.model.command import Command
from shoal.model.policy import Bind, Layers, Network, Policy
from shoal.sandboxes.bubblewrap import Bubblewrap
from tests.sandboxes.sandbox_runs import SEARCH, TOKEN, Person, Ran, ran

ODD = "plain", "a,b:c\\d \"q\" 'e'\nf"


def laid(who: Person, name: str) -> Layers:
    """Make two lower layers and the folders for an upper one."""
    top = f"{name}/layers"
    who.made(f"{top}/low/kept", "low")
    who.made(f"{top}/low/edited", "low")
    who.made(f"{top}/low/gone", "low")
    who.made(f"{top}/lower/deep/file", "lower")
    upper, work, target = (who.made(f"{top}/{part}") for part in ("upper", "work", "view"))
    return Layers(lower=(who.folder / top / "low", who.folder / top / "lower"), upper=upper, work=work, target=target)


def run(who: Person, sandbox: Bubblewrap, policy: Policy, script: str) -> Ran:
    assert policy.layers
    command = Command(argv=("sh", "-c", script), cwd=policy.layers.target, env={"PATH": SEARCH})
    return ran(sandbox.wrap(command, replace(policy, token=TOKEN)), who)


@pytest.mark.parametrize("name", ODD, ids=["plain", "odd"])
def test_changes_go_to_the_upper_layer_and_can_be_viewed_again(who: Person, bubblewrap: Bubblewrap, name: str) -> None:
    layers = laid(who, name)
    assert layers.upper
    pointer = who.made("frame/git", "gitdir: ours\n")
    policy = Policy(layers=layers, covers=(Bind(pointer, layers.target / ".git"),), network=Network.HOST)

    worked = run(who, bubblewrap, policy, "echo new > edited; rm gone; echo x > made; rm -r deep; mkdir deep; cat .git")
    sealed = Layers(lower=(layers.upper, *layers.lower), upper=None, work=None, target=layers.target)
    viewed = run(who, bubblewrap, Policy(layers=sealed), "touch no; ls; cat edited; ls deep")

    assert (worked.code, worked.out, worked.said) == (0, "gitdir: ours\n", "")
    assert viewed.out.split() == ["deep", "edited", "kept", "made", "new"]
    assert "Read-only file system" in viewed.said
    assert (layers.lower[0] / "edited").read_text() == "low"
    assert os.listdir(layers.target) == []


def test_layers_that_cannot_be_mounted_break_the_wall(who: Person, bubblewrap: Bubblewrap) -> None:
    layers = replace(laid(who, "missing"), lower=(Path("/nowhere"), Path("/nothing")))

    done = run(who, bubblewrap, Policy(layers=layers), "echo reached")

    assert (done.code, done.out) == (125, "")
    assert f"shoal-wall-broken {TOKEN} layers\n" in done.err


def test_layers_shown_read_only_can_have_parts_that_are_not(who: Person, bubblewrap: Bubblewrap) -> None:
    layers = laid(who, "parts")
    assert layers.upper
    policy = Policy(layers=layers, read=(layers.target,), write=(layers.target / "deep",))

    done = run(who, bubblewrap, policy, "echo x > deep/made; echo x > kept; echo x > new; mv deep away; rm -r deep; ls")

    assert done.out.split() == ["deep", "edited", "gone", "kept"]
    assert sorted(path.name for path in layers.upper.rglob("*") if path.is_file()) == []
    assert (layers.upper / "deep").is_dir()


def test_layers_need_unshare(who: Person, bubblewrap: Bubblewrap) -> None:
    with pytest.raises(Unavailable, match="unshare"):
        run(who, replace(bubblewrap, unshare=None), Policy(layers=laid(who, "none")), "true")
