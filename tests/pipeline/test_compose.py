"""Text to tree: what is parsed, what is refused, and where."""

import pytest

from shoal.pipeline.problems import BadDocument
from shoal.pipeline.tree import find, items, plain
from shoal.pipeline.yaml_reader import compose

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{now}: &{now} [{','.join([f'*{before}'] * 9)}]\n" for before, now in zip("abcdefgh", "bcdefghi", strict=True)
)
DEEP_BY_ALIAS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 60))


def problems(text: str) -> list[str]:
    """All that is wrong with the form, whether it could be read to the end or not."""
    try:
        return [str(problem) for problem in compose(text, "f.yaml").problems]
    except BadDocument as error:
        return str(error).splitlines()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("0o17", 15),
        ("0x1f", 31),
        ("017", 17),
        ("-3", -3),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        ("'3'", "3"),
        ("!!str 3", "3"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(written: str, meant: object) -> None:
    assert plain(compose(f"a: {written}", "f.yaml").tree) == {"a": meant}


def test_a_few_aliases_are_read() -> None:
    assert plain(compose("a: &x [1]\nb: *x\nc: *x", "f").tree) == {"a": [1], "b": [1], "c": [1]}


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("", "f.yaml:1:1: the file is empty"),
        ("# only words\n", "f.yaml:1:1: the file is empty"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: `a` is given twice, first in line 1, column 1; keep one"),
        ("a:\n  1: x\n", "f.yaml:2:3: a key must be text, not 1; put it in quotes"),
        ("? [x]\n: 1\n", "f.yaml:1:3: a key must be text"),
        ("a: 1\nb: !!binary aGk=\n", "f.yaml:2:4: the tag '!!binary' is refused"),
        ('a: !!python/object/apply:os.system ["true"]', "f.yaml:1:4: the tag '!!python/object/apply:os.system' is"),
        ("a: !mine 3", "f.yaml:1:4: the tag '!mine' is refused"),
        ("a: !!int '3'", "f.yaml:1:4: the tag '!!int' is refused"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document"),
        ("%YAML 1.1\n---\na: no\n", "f.yaml:2:1: only YAML 1.2 is read"),
        ("a: *x", "f.yaml:1:4: no anchor `&x`"),
        ("&a [*a]", "f.yaml:1:5: `*a` refers to a value that contains it"),
        ("a: &a {b: *a}", "f.yaml:1:11: `*a` refers to a value that contains it"),
        ("a: &a 1\nb: [" + "*a, " * 101 + "]", "f.yaml:2:405: more than 100 aliases"),
        (BOMB, "f.yaml:6:8: more than 100000 values"),
        (DEEP_BY_ALIAS, "f.yaml:50:12: nested deeper than 50 levels"),
        ("[" * 20_000, "f.yaml:1:52: nested deeper than 50 levels"),
        ("{a: " * 20_000, "f.yaml:1:202: nested deeper than 50 levels"),
        ("- " * 20_000, "f.yaml:1:103: nested deeper than 50 levels"),
        ("a: [\n", "f.yaml:2:1: this is not YAML: "),
        ("a: b: c", "f.yaml:1:5: this is not YAML: "),
        ("\ta: b", "f.yaml:1:1: this is not YAML: "),
        ("a: 1\nb: \x01", "f.yaml:2:4: a control character"),
        ("a: 1\nb: x\0y", "f.yaml:2:5: a NUL"),
        ('a: "x\\0y"', "f.yaml:1:4: a NUL"),
        ('a: "\\ud800"', "f.yaml:1:4: a NUL or half a surrogate pair"),
        ("a: \ud800", "f.yaml:1:4: a NUL or broken character"),
        ('a: "\\UFFFFFFFF"', "f.yaml:1:1: what comes next cannot be read"),
        ("a: " + "x" * 1024 * 1024, "f.yaml: larger than 1 MiB"),
        ("a: " + "é" * 600_000, "f.yaml: larger than 1 MiB"),
    ],
)
def test_bad_form_is_refused_at_its_place(text: str, start: str) -> None:
    found = problems(text)

    assert len(found) == 1
    assert found[0].startswith(start)


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("a:\n\t- b\n", "2:1", "; indent with spaces, not with tabs"),
        (
            "a: {b: c: d}\n",
            "1:9",
            "; quote a text that contains `: `, and align keys of one mapping",
        ),
        (
            "a: b\n  c: d\n",
            "2:4",
            "; quote a text that contains `: `, and align keys of one mapping",
        ),
        ("a: @b\n", "1:4", "; a text that starts with '@' goes in quotes"),
        ("a: 'b\nc: d\n", "3:1", "; close the quote that opens in line 1, column 4"),
        ("a: [b\nc: d\n", "2:2", "; close the bracket that opens in line 1, column 4"),
        ("a: b\nc\nd: e\n", "3:1", "; line 2 has no `:`"),
        ('a: "\\d"\n', "1:6", "; in double quotes a backslash is written twice; in single ones it is not"),
        ("a: 'it's'\n", "1:8", "; put all of the text in quotes, of the other kind where it has some inside"),
        (
            "a:\n  - b: 1\n   c: 2\n",
            "3:4",
            "check the indentation: it matches neither the line before nor a block inside it",
        ),
        ("a: {{ b }}\n", "1:5", "; put all of `{{ … }}` in quotes"),
    ],
)
def test_a_usual_mistake_is_told_with_what_helps(text: str, place: str, hint: str) -> None:
    (found,) = problems(text)

    assert found.startswith(f"f.yaml:{place}: ")
    assert found.endswith(hint)


def test_what_can_be_gathered_is_told_at_once() -> None:
    places = [line.split(": ")[0] for line in problems("a: 1\na: 2\n2: x\nb: !t x\n")]

    assert places == ["f.yaml:2:1", "f.yaml:3:1", "f.yaml:4:4"]


def test_messages_hold_no_control_signs() -> None:
    with pytest.raises(BadDocument) as caught:
        raise BadDocument(compose('"\\e]52;\\u202e": 1\n"\\e]52;\\u202e": 2', "f\x1b.yaml").problems)

    assert str(caught.value).isprintable()


@pytest.mark.deep
def test_a_file_of_thousands_of_steps_is_not_too_large() -> None:
    steps = (f"- {{name: s{one}, agent: x, prompt: go, needs: [a, b, c]}}\n" for one in range(2_000))

    tree = compose("steps:\n" + "".join(steps), "f.yaml").tree

    assert len(list(items(find(tree, "steps")))) == 2_000
