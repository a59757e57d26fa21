"""Check placeholders in shell commands: before any agent starts, each must be certain to stay a single value."""

from collections.abc import Iterator

from shoal.model.shell import Placeholder, PlaceholderText, find_placeholders, script_index
from shoal.model.shell_code import RUN_FROM, CodePlaceholder, find_code_placeholders
from shoal.model.shell_reader import read_shell_text
from shoal.model.shell_text import EXPANSION, MASK, Word
from shoal.pipeline.problems import Position, Problem, key
from shoal.pipeline.templates.template import BadTemplate, uses
from shoal.pipeline.templates.texts import Text
from shoal.pipeline.tree import Items, Node, Scalar, entries, find, items, text, value_of

OURS = ("run", "step", "worker")
OURS_OF_LOOP = ("round", "max")
OURS_OF_STEP = (
    "status", "branch", "commit", "exit_code", "success_count", "fail_count", "cancelled_count", "skipped_count",
    "total_workers", "selected", "session", "files_changed", "attempts", "duration_seconds", "step",
)  # fmt: skip
READ_AS = {
    "awk": 'ENVIRON["NAME"]', "gawk": 'ENVIRON["NAME"]', "mawk": 'ENVIRON["NAME"]', "nawk": 'ENVIRON["NAME"]',
    "python": 'os.environ["NAME"]', "pypy": 'os.environ["NAME"]', "node": "process.env.NAME", "bun": "process.env.NAME",
    "perl": "$ENV{NAME}", "ruby": 'ENV["NAME"]', "php": 'getenv("NAME")', "lua": 'os.getenv("NAME")',
    "Rscript": 'Sys.getenv("NAME")', "jq": "env.NAME", "yq": "strenv(NAME)", "make": "$$NAME in its recipe",
}  # fmt: skip
"""How programs interpret a variable."""
AS_SHELL = '"$NAME"'


def shell_problems(step: Node, name: str) -> Iterator[Problem]:
    """Find placeholders in the commands and variables of *step* whose values could become code."""
    for variable, entry in entries(find(step, "env")).items():
        if isinstance(entry.value, Scalar) and RUN_FROM.fullmatch(variable):
            yield from _Check(step, name).run_variable(entry.value, variable)
    for node in _commands(step):
        check = _Check(step, name)
        yield from check.script(node) if isinstance(node, Scalar) else check.argv(node)


def _commands(step: Node) -> Iterator[Scalar | Items]:
    contracts = [find(step, "contract"), *items(find(step, "contracts"))]
    source = find(step, "exec", "source") if text(find(step, "exec", "type")) == "command" else None
    own = (find(step, "command"), source, find(step, "select", "command"))
    for node in (*own, *(find(contract, "command") for contract in contracts)):
        if isinstance(node, Items) or text(node) is not None:
            assert isinstance(node, Scalar | Items)  # noqa: S101 - only a scalar has a text
            yield node


class _Check:
    """Checks the commands of one step."""

    def __init__(self, step: Node, name: str) -> None:
        self.name = name
        self.has_items = value_of(find(step, "strategy"), "items_source") is not None

    def run_variable(self, node: Scalar, variable: str) -> Iterator[Problem]:
        """Check the value of a variable that programs execute."""
        written = Text.of(node)
        for place in find_placeholders(written.text).places:
            if not self._is_ours(place.text, "input"):
                yield self._problem(written, place.origin, f"programs run what is in the variable `{variable}`")

    def script(self, node: Scalar) -> Iterator[Problem]:
        written = Text.of(node)
        placed = find_placeholders(written.text)
        if placed.statement is not None and "{%" in written.text[placed.statement : placed.statement + 2]:
            what = "`{% … %}` cannot be used in a shell's text"
            yield self._problem(
                written, placed.statement, f"{what}; give it values by `{{{{ … }}}}`, and let the shell decide"
            )
        if placed.places:
            yield from self._places(written, placed)

    def _places(self, written: Text, placed: PlaceholderText) -> Iterator[Problem]:
        read = read_shell_text(placed.masked)
        code = {found.start: found for command in read.commands for found in find_code_placeholders(command)}
        for place in placed.places:
            if refusal := read.readings[place.start].refusal:
                what = f"it is not certain that a shell reads {key(place.text)} as one value: {refusal}"
                yield self._problem(written, place.origin, f"{what}; {_by_variable(place.text)}")
            elif why := self._why_not_code(code.get(place.start), place.text):
                yield self._problem(written, place.origin, why)

    def argv(self, node: Items) -> Iterator[Problem]:
        """Check an argument list: one of its words may be a shell command, others code of another program."""
        nodes = [item for item in node.items if isinstance(item, Scalar)]
        script = script_index([str(scalar.value) for scalar in nodes])
        words, places = list[Word](), dict[int, tuple[Scalar, Placeholder]]()
        for index, scalar in enumerate(nodes):
            placed = find_placeholders(str(scalar.value))
            word = Word("".join(_mask_places(placed)))
            if index != script:
                for place in placed.places:
                    word.places.append(len(places))
                    places[len(places)] = (scalar, place)
            words.append(word)
        if script is not None:
            yield from self.script(nodes[script])
        for found in find_code_placeholders(words):
            scalar, place = places[found.start]
            if why := self._why_not_code(found, place.text):
                yield self._problem(Text.of(scalar), place.origin, why)

    def _why_not_code(self, found: CodePlaceholder | None, written: str) -> str | None:
        """Return why the placeholder cannot be part of a program's code, or `None`."""
        if found is None or found.takes(written) or self._is_ours(written):
            return None
        if found.program == "":
            if self._is_ours(written, "input"):
                return None
            return f"what is in {key(written)} would name the command that a shell runs; {_by_variable(written)}"
        if found.is_option:
            what = f"`{found.program}` would take {key(written)} for an option if it begins with `-`"
            return f"{what}, and some of its options run commands; write `--` or `./` before it"
        if found.program.endswith("="):
            return f"programs run what is in the variable `{found.program[:-1]}`; {_by_variable(written)}"
        if found.program == "[[":
            return f"`[[ ]]` calculates what is compared by `-eq` and its like, and would run {key(written)}; use `[ ]`"
        program = key(found.program.replace(EXPANSION, "$…"))
        what = f"{program} reads this as its own code, and would run what is in {key(written)}"
        return f"{what}; {_by_variable(written, READ_AS.get(found.program, AS_SHELL))}"

    def _is_ours(self, written: str, *others: str) -> bool:
        """Return whether all of a placeholder's names are the author's, Shoal's or in *others*, never an agent's."""
        try:
            paths = [use.path.split(".") for use in uses(written)]
        except BadTemplate:
            return True  # that is reported separately
        return all(path[0] in others or self._is_our_path(*path) for path in paths)

    def _is_our_path(self, root: str, *rest: str) -> bool:
        if root == "steps":
            fields = rest[3:] if rest[1:2] == ("worker_results",) else rest[1:]
            return len(fields) == 1 and fields[0] in OURS_OF_STEP
        if root == "loop":
            return rest[:1] in {(field,) for field in OURS_OF_LOOP}
        return root in OURS or (root == "matrix" and not self.has_items)

    def _problem(self, written: Text, at: int, what: str) -> Problem:
        before = written.text[:at]
        place = Position(before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1)
        return Problem(self.name, written.place(place), what)


def _mask_places(placed: PlaceholderText) -> Iterator[str]:
    at = 0
    for place in placed.places:
        yield placed.text[at : place.start] + MASK
        at = place.end
    yield placed.text[at:]


def _by_variable(written: str, read_as: str = AS_SHELL) -> str:
    return f"hand it over by `env: {{NAME: '{written}'}}`, and write `{read_as}`"
