"""Which files run code on a person's machine, or on a server in their name, without being asked to.

A name is looked at as the most forgiving checkout would see it: macOS and Windows ignore case, HFS+ ignores code
points that cannot be seen, and Windows ignores dots and blanks at the end of a name. Rather one flag too many.
"""

import re
import unicodedata
from collections.abc import Iterable

# A rule is a path whose parts may hold `*`; with a leading slash it counts at the top only, else at any depth.
# It speaks for what lies below it, and for a link or file that stands where one of its folders should be.
GIT = (".gitattributes", ".gitmodules", ".gitconfig")
AGENTS = (
    *(".claude", ".mcp.json", ".codex", ".cursor", ".gemini", ".opencode", "opencode.json*", ".goose*", ".aider*"),
    *(".copilot", ".continue", ".qwen", ".kiro", ".windsurf", ".roo", ".amp"),
)
INSTRUCTIONS = (
    *("AGENTS*.md", "CLAUDE*.md", "GEMINI.md", "QWEN.md", ".cursorrules", ".clinerules", ".windsurfrules"),
    *("/.github/copilot-instructions.md", "/.github/instructions", "/.github/prompts", ".vscode/mcp.json"),
)
"""What clients read as words of their user, and run nothing."""
SETTINGS = (*AGENTS, ".vscode/mcp.json", ".env")
"""Where clients are told what to run, and where to send what they are asked."""
EDITORS = (
    *(".vscode/tasks.json", ".vscode/launch.json", ".vscode/settings.json", ".vscode/mcp.json", "*.code-workspace"),
    *(".idea", ".zed", ".devcontainer", ".devcontainer.json", ".exrc", ".nvimrc", ".nvim.lua", ".dir-locals.el"),
)
SHELLS = (".envrc", ".mise.toml", "mise.toml", ".mise", ".autoenv*")
HOOKS = (
    *(".husky", ".githooks", ".pre-commit-config.y*ml", "lefthook*.y*ml", ".lefthook*", "lefthook.toml"),
    *(".huskyrc*", ".overcommit.yml"),
)
SERVERS = (
    *("/.github/workflows", "/.github/actions", "/.gitlab-ci.yml", "/.gitlab/ci", "/.circleci", "Jenkinsfile*"),
    *("/azure-pipelines*.y*ml", "/bitbucket-pipelines.yml", "/.travis.yml", "/.drone.yml", "/.buildkite"),
    *("/.woodpecker*", "/.gitea/workflows", "/.forgejo/workflows", "/appveyor.yml"),
)
INSTALLERS = (".npmrc", ".yarnrc*", ".yarn/releases", ".yarn/plugins", ".pnpmfile.cjs", "bunfig.toml")
OURS = ("shoal.y*ml", ".shoal*")

ALWAYS = (*GIT, *AGENTS, *EDITORS, *SHELLS, *HOOKS, *SERVERS, *INSTALLERS, *OURS)
OPTIONAL = (
    *("package.json", "Makefile", "GNUmakefile", "*.mk", "justfile", ".justfile", "Taskfile.y*ml", "Rakefile"),
    *("composer.json", "setup.py", "build.rs", ".cargo/config", ".cargo/config.toml"),
)
"""Files that run code when a person builds or installs, as whoever builds expects."""


def executable_paths(paths: Iterable[str], *, strict: bool = False) -> tuple[str, ...]:
    """Give those of *paths* that run code later, as they are written; *strict* adds the optional ones.

    Paths are git's, from the top of the repository. What a name does not tell stays unseen: the target of a link
    that was there before, or a program that one of these files calls.
    """
    rules = _STRICT if strict else _USUAL
    return tuple(path for path in paths if rules.search(_folded(path)))


def is_read_by_clients(path: str) -> bool:
    """Say whether a client that works there takes *path* for its settings, or for words of its user."""
    return _CLIENTS.search(_folded(path)) is not None


def is_client_config(path: str) -> bool:
    """Say whether a client that works there may run what *path* names, or send its login where that says."""
    return _SETTINGS.search(_folded(path)) is not None


def _folded(path: str) -> str:
    """Spell *path* as a checkout that ignores case and what cannot be seen would."""
    if not path.isascii():
        seen = "".join(sign for sign in path if unicodedata.category(sign) != "Cf")
        path = unicodedata.normalize("NFC", seen)
    parts = path.casefold().replace("\\", "/").split("/")
    return "/".join(part.split(":", 1)[0].rstrip(". ") or part for part in parts)


def _compiled(rules: Iterable[str]) -> re.Pattern[str]:
    patterns = [_pattern(rule.casefold()) for rule in rules]
    top = "|".join(pattern.removeprefix("/") for pattern in patterns if pattern.startswith("/"))
    anywhere = "|".join(pattern for pattern in patterns if not pattern.startswith("/"))
    return re.compile(rf"(?:\A(?:{top})|(?:\A|/)(?:{anywhere}))\Z", re.DOTALL)


def _pattern(rule: str) -> str:
    *folders, last = (re.escape(part).replace(r"\*", "[^/]*") for part in rule.removeprefix("/").split("/"))
    pattern = f"{last}(?:/.*)?"
    for folder in reversed(folders):
        pattern = f"{folder}(?:/{pattern})?"
    return f"/{pattern}" if rule.startswith("/") else pattern


_USUAL = _compiled(ALWAYS)
_STRICT = _compiled((*ALWAYS, *OPTIONAL))
_CLIENTS = _compiled((*AGENTS, *INSTRUCTIONS))
_SETTINGS = _compiled(SETTINGS)
