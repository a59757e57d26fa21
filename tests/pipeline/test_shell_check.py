"""Placeholders in shell commands are checked before an agent costs money, with line and column."""

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


@pytest.mark.parametrize(
    "command",
    [
        # what a shell reads from a pipe, from `<(…)`, or behind a redirection
        "echo @ | bash", "printf '%s' @ | tee f | sh", "cat <<E | sh\n@\nE", "{ echo a; echo @; } | sh",
        "for i in @; do echo $i; done | bash", "(echo a; echo @) | python3", "sh <(echo @)", "bash <(cat <<E\n@\nE\n)",
        ". <(echo @)", "sh 2>/dev/null -c 'echo @'", "sh /dev/stdin <<E\n@\nE", ". /dev/stdin <<E\n@\nE",
        "bash -s a <<E\n@\nE", "echo @ | xargs -I{} sh -c 'echo {}'", "echo @ | xargs -I % bash -c 'echo %'",
        # commands in a word
        "eval \"$(echo @)\"", "sh -c \"$(cat <<E\n@\nE\n)\"", "$SHELL -c 'echo @'", "$(echo sh) -c 'echo @'",
        "time -p eval @", "function f { eval @; }", "coproc eval @",
        # builtins
        "alias x=@", "compgen -W @", "compgen -C @", "mapfile -C @ -c 1 x < f", "declare -a x=@", "declare -A x=@",
        "readonly -a x=@", "declare -n r=@", "declare -a \"x=(@)\"", "printf @ a", "[ @ @ ]", "hash -p @ ls",
        # other programs
        "python3 - a <<E\n@\nE", "python3 -W ignore <<E\n@\nE", "awk -f - f <<E\n@\nE", "gawk -f a.awk --source '@' f",
        "busybox awk 'BEGIN { @ }'", "env -iS 'echo @'", "make -f - <<E\nall:\n\techo @\nE", "uv run python -c '@'",
        "script -qc 'echo @' /dev/null", "flock f -c 'echo @'", "fish -c 'echo @'", "pwsh -Command 'echo @'", "npx -c '@'",
        "git -c alias.x='!echo @' x", "git rebase --exec 'echo @' main", "git submodule foreach 'echo @'",
        "tar xf a.tar --to-command=@", "tar -I @ -xf a.tar", "split --filter='@' f", "sort --compress-program=@ f",
        "rsync -e 'ssh @' a b", "scp -o ProxyCommand=@ a b:", "find . -exec @ \\;", "sqlite3 d.db 'select \"@\"'",
        "sqlite3 d.db <<E\n.shell @\nE", "psql -d db <<E\n@\nE", "m4 <<E\n@\nE", "ed f <<E\n@\nE", "at now <<E\n@\nE",
        "crontab - <<E\n* * * * * @\nE", "vim -c '@' f", "emacs --batch --eval '@'", "tmux new-session '@'",
        "parallel 'echo {}' ::: @", "deno eval '@'", "julia -e '@'", "osascript -e '@'",
    ],
)  # fmt: skip
def test_a_value_is_no_code_however_it_gets_to_a_program(command: str) -> None:
    found = of_command(command.replace("@", OUTPUT))

    assert found
    assert all("reads this as its own code, and would run what is in" in problem for problem in found)


@pytest.mark.parametrize("command", ["@ -v", '"@"', "./@", "$(echo @) a", ". @", "source ./@", "exec @", "env A=1 @ a",
                                     "nohup @", "timeout 5 @", "if @; then a; fi", "a | @", "sudo @"])  # fmt: skip
def test_a_value_never_names_the_command_that_is_run(command: str) -> None:
    (found,) = of_command(command.replace("@", OUTPUT))

    assert f"what is in `{OUTPUT}` would name the command that a shell runs; {BY_ENV}" in found
    assert of_command(command.replace("@", "{{ input.program }}")) == []


@pytest.mark.parametrize(
    ("command", "variable"),
    [
        ("PATH=@ ls", "PATH"),
        ("BASH_ENV=@ bash a.sh", "BASH_ENV"),
        ("export LD_PRELOAD=@", "LD_PRELOAD"),
        ("env PS4=@ bash -x a.sh", "PS4"),
        ("GIT_SSH_COMMAND=@ git fetch", "GIT_SSH_COMMAND"),
        ("PATH=/a:$(echo @); ls", "PATH"),
        ("V=@ make all", "V"),
    ],
)
def test_a_value_is_no_variable_that_programs_run(command: str, variable: str) -> None:
    (found,) = of_command(command.replace("@", OUTPUT))

    assert f"programs run what is in the variable `{variable}`; {BY_ENV}" in found


def test_nor_does_env_of_a_step_set_one_from_what_an_agent_said() -> None:
    (found,) = problems("    command: a\n    env: {A: '{{ steps.a.output }}', PATH: '/a:{{ steps.a.output }}'}\n")

    assert found == "7:48: programs run what is in the variable `PATH`"
    assert problems("    command: a\n    env: {PATH: '/a:{{ input.bin }}:{{ run.id }}'}\n") == []


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("tar cf a.tar @", "tar"),
        ("python3 @", "python"),
        ("perl -w @", "perl"),
        ("sh @", "sh"),
        ("git log @", "git"),
        ("find @ -name a", "find"),
        ("sort f @", "sort"),
    ],
)
def test_a_value_is_no_option_that_runs_commands(command: str, program: str) -> None:
    found = [problem for problem in of_command(command.replace("@", OUTPUT)) if "begins with `-`" in problem]

    assert found
    assert all(f"`{program}` would take `{OUTPUT}` for an option if it begins with `-`" in text for text in found)
    assert all(text.endswith("write `--` or `./` before it") for text in found)


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
        f"echo {OUTPUT} | python3 a.py; echo {OUTPUT} | jq . | xargs grep a",
        f"echo {OUTPUT} | grep a || sh a.sh && echo {OUTPUT} && echo a | sh",
        f"git -c user.name={OUTPUT} commit -am {OUTPUT}; git log -- {OUTPUT}",
        f"tar cf a.tar -- {OUTPUT} && tar cf a.tar ./{OUTPUT}; find . -name {OUTPUT}",
        f"[[ a = b && {OUTPUT} = c && -n {OUTPUT} ]]",
        "git merge {{ steps.a.worker_results[0].branch }} {{ steps.a.branch }}",
        f"python3 a.py {OUTPUT} && python3 -m pytest {OUTPUT}; sh -c 'echo $1' sh {OUTPUT}",
        f"V={OUTPUT} npm test -- {OUTPUT} && docker run --rm a grep {OUTPUT}",
        f"timeout 5 grep {OUTPUT} f 2>&1 || [ \"$(cat {OUTPUT})\" = a ]",
    ],
)  # fmt: skip
def test_what_is_certain_is_taken(command: str) -> None:
    assert of_command(command) == []
