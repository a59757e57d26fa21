"""A value in a command stays a value, however a shell is told to read its script."""

import subprocess

import pytest

from shoal.model.shell import fill_argv

HOSTILE = "x; echo INJECTED"
SAYS = "echo {{ it }}"
SCRIPTS = (
    "sh -c",
    "sh -ec",
    "bash -ce",
    "bash -c -e",
    "bash -o pipefail -c",
    "bash -euo pipefail -c",
    "bash -co pipefail",
    "bash -O extglob -c",
    "bash +e -c",
    "bash --norc --rcfile nothing -c",
    "sh -c -",
    "sh -c --",
    "env A=b timeout 9 bash -o pipefail -c",
)


@pytest.mark.parametrize("words", SCRIPTS)
def test_no_value_becomes_a_part_of_the_script(words: str) -> None:
    argv = fill_argv((*words.split(), SAYS, "name", "{{ it }}"), lambda text: text.replace("{{ it }}", HOSTILE))

    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == f"{HOSTILE}\n"


@pytest.mark.parametrize("words", ["bash -eu", "sh -", "bash --", "echo", "bash -o pipefail"])
def test_words_that_no_shell_reads_as_a_script_are_filled_in_where_they_stand(words: str) -> None:
    argv = (*words.split(), "file", "-c", "{{ it }}")

    assert fill_argv(argv, lambda text: text.replace("{{ it }}", HOSTILE)) == (*argv[:-1], HOSTILE)
