"""Which sandbox a name means, and the error if it is not available."""

from dataclasses import replace

import pytest

from shoal.errors import Unavailable, UnknownName
from shoal.model.command import Command, InheritedBytes
from shoal.sandboxes.host import SandboxHost, Trial, inspect_host
from shoal.sandboxes.registry import KINDS, confines, find, trials
from shoal.sandboxes.seccomp import Strength, program
from tests.sandboxes.sandbox_runs import SEARCH, Person, host

OK = Trial(code=0, stderr=b"shoal-wall-ok trial\n")
REFUSED = Trial(code=1, stderr=b"bwrap: No permissions to create new namespace\n")


def tried(**results: Trial) -> SandboxHost:
    return inspect_host(SEARCH).with_trials(results)


def test_this_host_has_every_sandbox(who: Person) -> None:
    found = host(who)

    assert [find(name, found).name for name in KINDS] == ["bubblewrap", "landlock", "none"]
    assert [find(name, found).mounts for name in KINDS] == [True, False, False]
    assert all(find(name, found).gaps for name in KINDS)
    assert [find(name, found).confines for name in KINDS] == [confines(name) for name in KINDS]


def test_an_unknown_name_is_reported_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'bubblewrap'"):
        find("bublewrap", tried())


@pytest.mark.parametrize(
    ("name", "found", "words"),
    [
        ("bubblewrap", replace(tried(), bwrap=None), "apt install bubblewrap"),
        ("bubblewrap", replace(tried(), filters=None), "libseccomp2"),
        ("bubblewrap", tried(bubblewrap=REFUSED), "No permissions to create.*sysctl.*--sandbox landlock"),
        ("bubblewrap", tried(bubblewrap=Trial(code=0)), "trial"),
        ("bubblewrap", tried(), "not been tried"),
        ("landlock", tried(abi=Trial(code=0, stdout=b"0\n"), landlock=OK), "has none"),
        (
            "landlock",
            tried(abi=Trial(code=2, stderr=b"can't open file"), landlock=REFUSED),
            "launcher failed.*open file",
        ),
        ("landlock", tried(abi=Trial(code=0, stdout=b"2\n"), landlock=OK), "has version 2, but at least 3 is required"),
        ("landlock", tried(abi=Trial(code=0, stdout=b"7\n"), landlock=REFUSED), "No permissions"),
        ("landlock", replace(tried(), filters=None), "libseccomp2"),
    ],
)
def test_an_unavailable_sandbox_is_refused_with_a_remedy(name: str, found: SandboxHost, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        find(name, found)


def test_what_a_kernel_cannot_scope_is_a_gap() -> None:
    scoped, unscoped = tried(bubblewrap=OK, scope=OK), tried(bubblewrap=OK, scope=REFUSED)
    new, old = (tried(landlock=OK, abi=Trial(code=0, stdout=abi)) for abi in (b"6", b"5"))

    assert len(find("bubblewrap", unscoped).gaps) == len(find("bubblewrap", scoped).gaps) + 1
    assert len(find("landlock", old).gaps) == len(find("landlock", new).gaps) + 1


def test_only_the_trials_of_one_kind_are_run_for_it() -> None:
    found = inspect_host(SEARCH)

    assert set(trials(found)) == {"bubblewrap", "scope", "landlock", "abi"}
    assert set(trials(found, "bubblewrap")) == {"bubblewrap", "scope"}
    assert set(trials(found, "landlock")) == {"landlock", "abi"}
    assert trials(found, "none") == {}
    assert set(trials(replace(found, bwrap=None, filters=None))) == {"abi"}


def test_filters_are_whole_programs_and_not_the_same() -> None:
    programs = [program(strength) for strength in Strength]

    assert all(len(each) % 8 == 0 and each for each in programs)
    assert len(set(programs)) == len(programs)
    assert "InheritedBytes()" in repr(Command(argv=(InheritedBytes(programs[0]),), cwd=inspect_host(SEARCH).python))
