"""Places in shell texts are checked before an agent costs money, and told at their line and column."""

import pytest

from shoal.pipeline.load import parse
from shoal.pipeline.problems import BadDocument

AGENT = "agents: {w: {adapter: command, command: a}}\n"
STEPS = """steps:
  - {name: a, agent: w, prompt: x, output_artifacts: [p.txt]}
  - name: b
    needs: [a]
"""


def problems(written: str) -> list[str]:
    try:
        parse(f"{AGENT}{STEPS}{written}", "f.yaml")
    except BadDocument as error:
        return [str(problem).removeprefix("f.yaml:") for problem in error.problems]
    return []


def of_command(text: str) -> list[str]:
    lines = "".join(f"      {line}\n" for line in text.split("\n"))
    return problems(f"    command: |\n{lines}")


OUTPUT = "{{ steps.a.output }}"
BY_ENV = f"hand it over by `env: {{NAME: '{OUTPUT}'}}`, and write "


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("    command: echo `echo {{ steps.a.output }}`\n", "6:25"),
        ("    command: |\n      # don't\n      echo 1 `x {{ steps.a.output }}`\n", "8:17"),
        ("    exec: {type: command, source: 'echo `echo {{ steps.a.output }}`'}\n", "6:47"),
        ("    command: [bash, -ec, 'echo `echo {{ steps.a.output }}`']\n", "6:38"),
        ("    agent: w\n    prompt: x\n    contract: {type: command, command: 'a `{{ steps.a.output }}`'}\n", "8:44"),
        ("    agent: w\n    prompt: x\n    concurrency: 2\n    select: {by: command, command: 'a `{{ steps.a.output }}`'}\n", "9:40"),
    ],
)  # fmt: skip
def test_an_uncertain_place_is_told_wherever_a_shell_reads_it(written: str, place: str) -> None:
    (found,) = problems(written)

    assert found.startswith(f"{place}: it is not certain that a shell reads `{OUTPUT}` as one value: in backticks")
    assert found.endswith(f'{BY_ENV}`"$NAME"`')


@pytest.mark.parametrize(
    ("command", "program", "read_as"),
    [
        (f"bash -c 'echo {OUTPUT}'", "bash", '"$NAME"'),
        ("bash -c 'echo \"{{ steps.a.output | quote }}\"'", "bash", '"$NAME"'),
        (f"sudo env A=b sh -ec \"echo '{OUTPUT}'\"", "sh", '"$NAME"'),
        (f"find . -exec sh -c 'echo {OUTPUT}' \\;", "sh", '"$NAME"'),
        (f"bash <<E\necho {OUTPUT}\nE", "bash", '"$NAME"'),
        (f"bash -s <<< {OUTPUT}", "bash", '"$NAME"'),
        (f"eval {OUTPUT}", "eval", '"$NAME"'),
        (f"A={OUTPUT} eval {OUTPUT}", "eval", '"$NAME"'),
        (f"ssh host ls {OUTPUT}", "ssh", '"$NAME"'),
        (f"trap 'rm {OUTPUT}' EXIT", "trap", '"$NAME"'),
        (f"awk 'BEGIN {{ print \"{OUTPUT}\" }}'", "awk", 'ENVIRON["NAME"]'),
        (f"sed -i 's/a/{OUTPUT}/' f", "sed", '"$NAME"'),
        (f"sed -n -e p -e 's/a/{OUTPUT}/' f", "sed", '"$NAME"'),
        (f"jq -r --arg a b '.{OUTPUT}' f", "jq", "env.NAME"),
        (f"if python3 -c 'print(\"{OUTPUT}\")'; then a; fi", "python", 'os.environ["NAME"]'),
        (f"perl -ne 'print \"{OUTPUT}\"' f", "perl", "$ENV{NAME}"),
        (f"make V={OUTPUT}", "make", "$$NAME in its recipe"),
        (f"export {OUTPUT}", "export", '"$NAME"'),
        (f"declare -i n={OUTPUT}", "declare", '"$NAME"'),
        (f"printf -v {OUTPUT} %s a", "printf", '"$NAME"'),
        (f"[ -v {OUTPUT} ]", "[", '"$NAME"'),
        (f"test 1 -a -v 'a[{OUTPUT}]'", "test", '"$NAME"'),
        (f"read -r a {OUTPUT} < f", "read", '"$NAME"'),
    ],
)
def test_a_value_never_becomes_code_of_another_program(command: str, program: str, read_as: str) -> None:
    found = of_command(command)

    assert len(found) == 1
    assert f"`{program}` reads this as its own code, and would run what is in `{{{{ steps.a.output" in found[0]
    assert found[0].endswith(f"and write `{read_as}`")


def test_a_list_of_words_is_looked_at_too() -> None:
    (found,) = problems(f"    command: [python3, -c, 'print(\"{OUTPUT}\")']\n")

    assert found.startswith("6:36: `python` reads this as its own code")
    assert problems(f"    command: [python3, -c, 'import sys', '{OUTPUT}', './{OUTPUT}']\n") == []


def test_bash_calculates_in_double_brackets() -> None:
    for command in (f"[[ {OUTPUT} -eq 1 ]]", f"[[ a = a && {OUTPUT} -gt 1 && b = b ]]"):
        (found,) = of_command(command)
        assert "`[[ ]]` calculates" in found


@pytest.mark.parametrize(
    "command",
    [
        f"git commit -m {OUTPUT}",
        f"grep awk {OUTPUT} && echo -ne {OUTPUT}",
        f"python3 script.py {OUTPUT} <<E\n{OUTPUT}\nE",
        f"awk -v a={OUTPUT} '{{ print a }}' f",
        f"jq -n --arg a {OUTPUT} '$a'",
        f"export A={OUTPUT}; local b={OUTPUT}",
        f"[ {OUTPUT} -eq 1 ] || test {OUTPUT} = a",
        f"read -rp {OUTPUT} a <<< {OUTPUT}; printf %s {OUTPUT}",
        "bash -c 'echo {{ steps.a.output | quote }}'",
        "ssh host \"ls {{ steps.a.output | quote }}\"",
        "sed 's/a/{{ steps.a.branch }}/' f; bash -c 'echo {{ run.id }} {{ 1 + 2 }} {{ worker.index }}'",
        "docker ps --format '{% raw %}{{.Names}}{% endraw %}' {{ '{{ x }}' }}",
        f"echo $(( {OUTPUT} + 1 )) <<'E'\n{OUTPUT}\nE",
    ],
)  # fmt: skip
def test_what_is_certain_is_taken(command: str) -> None:
    assert of_command(command) == []
