"""Attributes and ignore rules that an agent wrote: none of them silently keeps other work off its branch."""

import subprocess
from pathlib import Path

import pytest

from shoal.model.results import WorkerResult
from shoal.model.status import Status
from tests.acting import ran, shown, step
from tests.cli.conftest import shoal_in
from tests.conftest import git

UTF16 = "echo '*.t working-tree-encoding=UTF-16' > .gitattributes"
ODD = ("a b.t", "[x]*?.t", 'q"q.t', "back\\slash.t", "-d.t", "#h.t", "!n.t", "new\nline.t", "\x1b[2J.t")


async def worked(repo: Path, script: str, sandbox: str = "bubblewrap") -> WorkerResult:
    report = await ran(repo, step("work", script), sandbox=sandbox)
    return report.steps[0].worker_results[0]


def blob(repo: Path, result: WorkerResult, path: str) -> bytes:
    name = f"{result.branch}:{path}"
    return subprocess.run(["git", "cat-file", "blob", name], cwd=repo, capture_output=True, check=True).stdout


@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"])
async def test_only_what_is_not_as_claimed_is_kept_as_it_lies(repo: Path, sandbox: str) -> None:
    script = f"{UTF16}; echo plain > a.t; echo fine | iconv -t UTF-16 > b.t; echo w > w; rm d0/f0.txt"

    result = await worked(repo, script, sandbox)

    assert result.status is Status.SUCCEEDED, result
    assert (result.unconverted, result.unkept, result.raw) == (("a.t",), (), None)
    assert (blob(repo, result, "a.t"), blob(repo, result, "b.t")) == (b"plain\n", b"fine\n")
    assert shown(repo, result, "w") == "w"
    assert "d0/f0.txt" not in git(repo, "ls-tree", "-r", "--name-only", str(result.branch)).splitlines()


@pytest.mark.parametrize(
    "attributes",
    [
        "*.t working-tree-encoding",
        "*.t working-tree-encoding=NO-SUCH",
        "*.t working-tree-encoding=UTF-16LE",
        "[attr]odd working-tree-encoding=UTF-32\n*.t odd",
    ],
)
async def test_no_claim_of_any_kind_keeps_the_work_away(repo: Path, attributes: str) -> None:
    result = await worked(
        repo, f"printf '{attributes}\n' > .gitattributes; printf abc > a.t; echo w > w; echo r >> README.md"
    )

    assert result.status is Status.SUCCEEDED, result
    assert result.unconverted == ("a.t",)
    assert blob(repo, result, "a.t") == b"abc"
    assert shown(repo, result, "w") == "w"


async def test_a_file_that_was_there_before_is_kept_too(repo: Path) -> None:
    """What the agent committed itself as well, before it made the claim."""
    script = "echo c > c.t; git add c.t; git commit -qm c; echo '* working-tree-encoding=UTF-16' > .gitattributes; echo r >> README.md"

    result = await worked(repo, script)

    assert result.status is Status.SUCCEEDED, result
    assert blob(repo, result, "README.md").endswith(b"\nr\n")
    assert {"README.md", ".gitattributes"} <= set(result.unconverted)
    assert git(repo, "log", "--format=%s", f"main..{result.branch}").splitlines()[-1] == "c", "with its own history"


async def test_odd_names_are_found_and_a_link_is_not_followed(repo: Path) -> None:
    names = " ".join(f"'{name}'" for name in ODD)
    script = f'{UTF16}; for n in {names}; do echo x > "./$n"; done; mkfifo fifo; ln -s fifo link.t; ln -s /dev/zero z.t'

    result = await worked(repo, script)

    assert result.status is Status.SUCCEEDED, result
    assert len(result.unconverted) == len(ODD), result.unconverted
    assert all(blob(repo, result, name) == b"x\n" for name in ODD)
    assert blob(repo, result, "link.t") == b"fifo"
    assert all(name.isprintable() for name in result.unconverted)


async def test_so_is_what_lies_in_a_nested_repository(repo: Path) -> None:
    script = f"mkdir n; cd n; git init -q; {UTF16}; echo plain > a.t; echo m > m; cd ..; echo w > w"

    result = await worked(repo, script)

    assert (result.unconverted, result.unkept) == (("n/a.t",), ())
    assert (shown(repo, result, "n/a.t"), shown(repo, result, "n/m"), shown(repo, result, "w")) == ("plain", "m", "w")


@pytest.mark.deep
async def test_a_thousand_such_files_are_all_kept_and_some_are_named(repo: Path) -> None:
    result = await worked(repo, f"{UTF16}; for i in $(seq 1100); do echo x > $i.t; done")

    assert (result.status, result.files_changed, len(result.unconverted)) == (Status.SUCCEEDED, 1101, 50), result


def test_the_report_names_them(repo: Path) -> None:
    said = shoal_in(repo)("run", "--task", "go", "--command", f'sh -c "{UTF16}; echo plain > a.t"')

    assert "kept unconverted, not in the encoding that .gitattributes names: a.t" in said.out, said


@pytest.mark.parametrize("name", [".gitignore", "d0/.gitignore", ".gitattributes", "nested/.gitignore"])
async def test_rules_too_large_to_be_read_cost_the_host_nothing(repo: Path, name: str) -> None:
    """Git would read them whole, outside of the agent's own limit of memory; the work is kept without them."""
    script = f"git init -q nested; echo n > nested/n; truncate -s 100G {name}; echo w > w"

    result = await worked(repo, script)

    assert result.status is Status.SUCCEEDED, result
    assert shown(repo, result, "w") == "w"
    assert "too expensive to apply" in result.notes[0]
    assert "nested/" in result.unkept
    assert result.raw is not None
