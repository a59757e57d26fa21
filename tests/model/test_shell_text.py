"""A value stays a value wherever a placeholder in a shell command is accepted, as real shells confirm."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.model.shell import Render, fill_argv, find_placeholders, parameterise

SHELLS = ("sh", "bash", "dash")
NULS = "printf '\\0'\n"
ACCEPTED = (
    "printf %s {{ x }}",
    'printf %s "{{ x }}"',
    "printf %s '{{ x }}'",
    "printf %s '{{ x }}'\"\"''",
    "# don't worry\nprintf %s \"{{ x }}\" # it's {{ x }} `\"",
    "printf %s \"$(printf '%s-' '{{ x }}')\"",
    "printf %s \"$(printf %s- \"{{ x }}\")\"",
    "case x in ({{ x }}) ;; x) printf %s {{ x }};; esac",
    "f() { printf %s {{ x }}; }; f a b",
    "set -- a b c; printf %s {{ x }}",
    "(printf %s {{ x }})",
    "v={{ x }}; printf %s \"$v\"",
    "printf %s \"`printf '%s' '\\`'`{{ x }}\" | tail -c +2",
    "IFS='\n'; printf %s {{ x }}",
    "printf %s \"${undefined:-}\"{{ x }}\"$((1 << 2))\" | head -c -1",
    "if [ \"$(echo a)\" = a ]; then printf %s {{ x }}; fi",
    "printf %s \\\n  {{ x }}",
)  # fmt: skip
HERE = (
    "cat <<E\n{{ x }}\nE\n",
    "cat <<'E'\n{{ x }}\nE\n",
    'cat <<"E"\n{{ x }}\nE\n',
    "cat <<\\E\n{{ x }}\nE\n",
    "cat <<-E\n\t{{ x }}\n\tE\n",
    "cat <<A >&2; cat <<'B'\nq\nA\n{{ x }}\nB\n",
)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.text(
    "$`\\'\"(){};&|<># \n\t*?E"
)


def always(value: str) -> Render:
    return lambda _: value


def outputs(script: str, value: str, shell: str) -> bytes:
    text, values = parameterise(script, lambda _: value)
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    return subprocess.run([shell, "-c", text, shell, *values], capture_output=True, check=True, env=environ).stdout


@pytest.mark.parametrize("shell", SHELLS)
@given(value=VALUES)
@settings(max_examples=12, deadline=None)
def test_any_value_arrives_as_it_is_in_every_accepted_context(shell: str, value: str) -> None:
    script = "".join(f"{one}\n{NULS}" for one in (*ACCEPTED, *HERE))
    sent = value.encode()
    in_substitution = (value + "-").encode()

    got = outputs(script, value, shell).split(b"\0")[:-1]

    expected = [in_substitution if "$(printf" in one else sent for one in ACCEPTED] + [sent + b"\n" for _ in HERE]
    assert got == expected


FRAGMENTS = (
    "show ", "take ", " ", "\n", ";", "a", "b c", "'", '"', "\\", "#", "# it's\n", "`", "$(", ")", "(", "${V:-", "${V#", "}",
    "$((", "((", "))", "1", "$'", "$\"", "$x", "$", "<<E\n", "<<'E'\n", "<<-\\E\n", "\nE\n", "\n\tE\n", "E", "case a in a)",
    ";;esac", "&&", "|", "{", "[[ a = ", "]]", "<<<", "'it'", '"x"', "\t", "-", "=", "v=",
)  # fmt: skip
PLACE, TOKEN = "{{ x }}", "%T7"  # no part of the name that may be before it
HOSTILE = "$(show$IFS''HACKED)`show$IFS''HACKED`';\"\\;#&|>pwned<}{)((show${IFS}HACKED"
DEFINED = """show() { for a; do printf '<%s>' "$a"; done; }
take() { while IFS= read -r a; do printf '(%s)' "$a"; done; printf '(%s)' "$a"; }
"""
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.just(PLACE), min_size=1, max_size=14).map("".join)


def said(shell: str, folder: Path, text: str, *values: str) -> bytes:
    """Run *text* with nothing but two functions in reach, and give what it printed."""
    argv = [shell, "-c", text, shell, *values]
    environ = {"PATH": "/nowhere", "LC_ALL": "C.UTF-8"}
    program = f"/usr/bin/{shell}"
    done = subprocess.run(
        argv, executable=program, stdin=subprocess.DEVNULL, capture_output=True, cwd=folder, env=environ, timeout=20
    )
    return done.stdout


def assert_reads_the_same(text: str, folder: Path) -> bool:
    """A place is read as a plain word in it would be, and a hostile value is no more than that word."""
    script = f"{DEFINED}{text}"
    try:
        filled, values = parameterise(script, lambda _: HOSTILE)
    except BadInput:
        return False
    for shell in ("bash", "dash"):
        plain = said(shell, folder, script.replace(PLACE, TOKEN))
        hostile = said(shell, folder, filled, *values)
        assert hostile == plain.replace(TOKEN.encode(), HOSTILE.encode()), (shell, text)
        assert os.listdir(folder) == []
    return True


@given(text=TEXTS.filter(lambda text: PLACE in text))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_hostile_value_is_one_plain_word_in_any_text_that_is_accepted(text: str, tmp_path: Path) -> None:
    assert_reads_the_same(text, tmp_path)


@pytest.mark.deep
@pytest.mark.timeout(600)
@given(text=TEXTS.filter(lambda text: PLACE in text))
@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_hostile_value_is_one_plain_word_in_very_many_texts(text: str, tmp_path: Path) -> None:
    assert_reads_the_same(text, tmp_path)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo $'a {{ x }}'", "in `$'…'`"),
        ("echo $'it\\'s' {{ x }}", "shells read `$'…'` differently"),
        ("echo `echo {{ x }}`", "in backticks"),
        ('echo "`echo {{ x }}`"', "in backticks"),
        ("echo ${V:-{{ x }}}", "in `${…}`"),
        ("echo ${V:-\"{{ x }}\"}", "in `${…}`"),
        ("echo \"${V:-'}\" {{ x }}", "shells read quotes inside of"),
        ("echo $((echo a); echo {{ x }})", "shells read this `$((` differently"),
        ("(( {{ x }} > 1 ))", "in `(( ))`"),
        ("((1 << 2)) || echo {{ x }}", "shells read `<<` in `(( ))` differently"),
        ("a[{{ x }}]=1", "in a subscript"),
        ("a=([{{ x }}]=1)", "in a subscript"),
        ("echo ${{ x }}", "right behind a `$`"),
        ('echo "$${{ x }}"; echo "${{ x }}"', "right behind a `$`"),
        ('echo "$#{{ x }}"', "right behind `$#`"),
        ("echo \\{{ x }}", "behind a backslash"),
        ('echo "\\{{ x }}"', "behind a backslash"),
        ("echo $(case a in a) echo {{ x }};; esac)", "`case` in `$( )`"),
        ("cat <<{{ x }}\na\nE\n", "end word"),
        ("cat <<E\n{{ x }}\n", "no line that is just `E`"),
        ("echo $(cat <<E\n{{ x }}\nE)", "no line that is just `E`"),
        ("cat <<E \"a\n\" {{ x }}\nE\n", "a line goes on"),
        ("echo '{{ x }}", "single quotes are not closed"),
        ('echo "{{ x }}', "double quotes are not closed"),
        ("echo $[1] {{ x }}", "`$[`"),
        ("echo $(echo {{ x }}", "`)` is missing"),
        ("echo " + '"$(' * 50 + "{{ x }}" + ')"' * 50, "nested too deeply"),
    ],
)  # fmt: skip
def test_a_place_that_shells_may_read_in_two_ways_is_refused(script: str, why: str) -> None:
    with pytest.raises(BadInput) as caught:
        parameterise(script, lambda _: "a")

    assert why in str(caught.value)


@pytest.mark.parametrize("shell", SHELLS)
def test_in_arithmetic_only_a_whole_number_is_taken(shell: str) -> None:
    assert outputs("echo $((10 -{{ x }}))", "-3", shell) == b"13\n"
    for value in ("a[$(echo HACKED >&2)]", "", "1+1", "010", "9" * 40):
        with pytest.raises(BadInput, match="must be a whole number"):
            parameterise("echo $((10 -{{ x }}))", always(value))


@pytest.mark.parametrize("shell", SHELLS)
def test_the_authors_own_parameters_are_as_they_were_given(shell: str) -> None:
    argv = fill_argv((shell, "-c", 'printf "%s " "$0" "$#" "$@" {{ x }}', "name", "a b", "c"), lambda text: text)

    assert subprocess.run(argv, capture_output=True, check=True).stdout == b"name 2 a b c {{ x }} "


@pytest.mark.parametrize("shell", SHELLS)
def test_a_value_larger_than_a_word_may_be_arrives_whole(shell: str) -> None:
    value = "ä\n'" * 100_000

    assert outputs("printf %s {{ x }}", value, shell) == value.encode()


def test_a_value_that_no_process_can_be_given_is_refused() -> None:
    with pytest.raises(BadInput, match="exceed 1536 KiB"):
        parameterise("echo {{ x }}", always("x" * 2 * 2**20))
    with pytest.raises(BadInput, match="takes at most 130000"):
        fill_argv(("echo", "{{ x }}"), lambda _: "x" * 200_000)


def test_a_place_ends_where_its_template_does() -> None:
    script = """echo {{ "}}" }} {{ {"a": {"b": 1}}["a"] }} {% raw %}'{{ .Names }}'{% endraw %} {{ '{{ x }}' -}} $x"""

    found = find_placeholders(script)

    assert [place.text for place in found.places] == ['{{ "}}" }}', '{{ {"a": {"b": 1}}["a"] }}', "{{ '{{ x }}' -}}"]
    assert [script[place.origin :].startswith(place.text) for place in found.places] == [True] * 3
    assert "'{{ .Names }}'" in found.text
    assert "raw" not in found.text
