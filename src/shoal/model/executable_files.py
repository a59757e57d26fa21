"""Which files run code on a person's machine, or on a server in their name, without being asked.

Names are compared as the most forgiving checkout would see them: macOS and Windows ignore case, HFS+ ignores
invisible code points, and Windows ignores trailing dots and blanks. Better one flag too many.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

# A rule is a path whose parts may contain `*`; with a leading slash it applies at the root only, else at any depth.
# It also applies to everything below it, and to a link or file in place of one of its folders.
GIT = (".gitattributes", ".gitmodules", ".gitconfig")
AGENTS = (
    *(".claude", ".mcp.json", ".codex", ".cursor", ".gemini", ".opencode", "opencode.json*", ".goose*", ".aider*"),
    *(".copilot", ".continue", ".qwen", ".kiro", ".windsurf", ".roo", ".amp", ".crush*", "crush.json", ".cline"),
    *(".augment", ".junie", ".factory", ".trae", ".agents", ".amazonq"),
)
INSTRUCTIONS = (
    *("AGENTS*.md", "CLAUDE*.md", "GEMINI.md", "QWEN.md", ".cursorrules", ".clinerules", ".windsurfrules"),
    *("/.github/copilot-instructions.md", "/.github/instructions", "/.github/prompts", ".vscode/mcp.json"),
)
"""Files that clients read as instructions, and that run nothing."""
SETTINGS = (*AGENTS, ".vscode/mcp.json", ".env")
"""Files that tell clients what to run, and where to send their requests."""
EDITORS = (
    *(".vscode/tasks.json", ".vscode/launch.json", ".vscode/settings.json", ".vscode/mcp.json", "*.code-workspace"),
    *(".idea", ".zed", ".fleet", ".helix", ".devcontainer", ".devcontainer.json", ".exrc", ".vimrc", ".lvimrc"),
    *(".nvimrc", ".nvim.lua", ".lazy.lua", ".dir-locals.el", ".dir-locals-2.el", ".ycm_extra_conf.py", ".gdbinit"),
    *(".lldbinit",),
)
SHELLS = (".envrc", ".mise.toml", "mise.toml", ".mise", ".autoenv*")
# Shell prompts and editors call these where they find them, and they run what their own settings say.
REPOSITORIES = (".hg", ".jj", ".sl", ".svn", ".bzr")
HOOKS = (
    *(".husky", ".githooks", ".pre-commit-config.y*ml", "lefthook*.y*ml", ".lefthook*", "lefthook.toml"),
    *(".huskyrc*", ".overcommit.yml"),
)
SERVERS = (
    *("/.github/workflows", "/.github/actions", "/.gitlab-ci.yml", "/.gitlab/ci", "/.circleci", "Jenkinsfile*"),
    *("/azure-pipelines*.y*ml", "/bitbucket-pipelines.yml", "/.travis.yml", "/.drone.yml", "/.buildkite"),
    *("/.woodpecker*", "/.gitea/workflows", "/.forgejo/workflows", "/appveyor.yml", "/.gitpod.yml", "/.replit"),
)
INSTALLERS = (".npmrc", ".yarnrc*", ".yarn/releases", ".yarn/plugins", ".pnpmfile.cjs", "bunfig.toml", ".bundle")
OURS = ("shoal.y*ml", ".shoal*", ".worktreeinclude", "conductor.json", ".conductor")
"""Files that configure the next run, and choose which of the user's files are copied into it."""

TABLE = {
    "git": GIT,
    "coding agents": AGENTS,
    "editors and debuggers": EDITORS,
    "shells": SHELLS,
    "other version control": REPOSITORIES,
    "git hooks": HOOKS,
    "CI and hosted workspaces": SERVERS,
    "installers": INSTALLERS,
    "Shoal and set-up": OURS,
}
"""All names that are held, as listed in `docs/executable-config.md`."""
ALWAYS = tuple(rule for rules in TABLE.values() for rule in rules)
OPTIONAL = (
    *("package.json", "Makefile", "GNUmakefile", "*.mk", "justfile", ".justfile", "Taskfile.y*ml", "Rakefile"),
    *("composer.json", "setup.py", "build.rs", ".cargo/config", ".cargo/config.toml"),
)
"""Files that run code when a person builds or installs, as one would expect."""
NEVER = "(?!)"
LONGEST = 4096
"""No checkout can have a longer path: it is meant to be overlooked, or to waste time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutableRules:
    """A user's additions to the table, and exceptions from it."""

    add: tuple[str, ...] = ()
    excepted: tuple[str, ...] = ()

    def select(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return those of *paths* that run code later, judging by their names."""
        rules = _compile_once((*ALWAYS, *self.add))
        return tuple(path for path in paths if _matches(rules, path) and not self.excepts(path))

    def excepts(self, path: str) -> bool:
        """Return whether the user excepted *path*, whatever its content."""
        return bool(self.excepted) and _matches(_compile_once(self.excepted), path, otherwise=False)


def instruction_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Return those of *paths* that clients read as instructions; they are reported, not held."""
    return tuple(path for path in paths if len(path) <= LONGEST and _INSTRUCTIONS.search(fold_path(path)))


def executable_paths(paths: Iterable[str], *, strict: bool = False) -> tuple[str, ...]:
    """Return those of *paths* that run code later, as written; *strict* adds the optional ones.

    Paths are git's, relative to the repository. Names do not reveal everything: not the target of a link that existed
    before, nor a program that one of these files calls.
    """
    return ExecutableRules(add=OPTIONAL if strict else ()).select(paths)


def is_read_by_clients(path: str) -> bool:
    """Return whether a client reads *path* as its settings or as instructions."""
    return _CLIENTS.search(fold_path(path)) is not None


def is_client_config(path: str) -> bool:
    """Return whether a client may run what *path* says, or send its login to where that says."""
    return _SETTINGS.search(fold_path(path)) is not None


def _matches(rules: re.Pattern[str], path: str, *, otherwise: bool = True) -> bool:
    return otherwise if len(path) > LONGEST else rules.search(fold_path(path)) is not None


def fold_path(path: str) -> str:
    """Normalise *path* as a checkout that ignores case and invisible characters would."""
    if not path.isascii():
        seen = "".join(sign for sign in path if unicodedata.category(sign) != "Cf")
        path = unicodedata.normalize("NFC", seen)
    parts = path.casefold().replace("\\", "/").split("/")
    return "/".join(part.split(":", 1)[0].rstrip(". ") or part for part in parts)


def _compile(rules: Iterable[str]) -> re.Pattern[str]:
    patterns = [_pattern(rule.casefold()) for rule in rules]
    top = "|".join(pattern.removeprefix("/") for pattern in patterns if pattern.startswith("/")) or NEVER
    anywhere = "|".join(pattern for pattern in patterns if not pattern.startswith("/")) or NEVER
    return re.compile(rf"(?:\A(?:{top})|(?:\A|/)(?:{anywhere}))\Z", re.DOTALL)


def _pattern(rule: str) -> str:
    *folders, last = (re.escape(part).replace(r"\*", "[^/]*") for part in rule.removeprefix("/").split("/"))
    pattern = f"{last}(?:/.*)?"
    for folder in reversed(folders):
        pattern = f"{folder}(?:/{pattern})?"
    return f"/{pattern}" if rule.startswith("/") else pattern


_compile_once = functools.lru_cache(maxsize=16)(_compile)
_INSTRUCTIONS = _compile(rule for rule in INSTRUCTIONS if rule not in ALWAYS)
_CLIENTS = _compile((*AGENTS, *INSTRUCTIONS))
_SETTINGS = _compile(SETTINGS)


MOST_BYTES = 128 * 1024
MOST_DOTS = 12
UNREADABLE = "it cannot be read"
_TEXTS = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")
_INSTALL_SCRIPTS = frozenset(
    {
        *("preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare"),
        *("dependencies", "preuninstall", "uninstall", "postuninstall", "pnpm:devPreinstall"),
    }
)
_GIT_HOOKS = ("husky", "simple-git-hooks", "gitHooks", "ghooks", "pre-commit", "pre-push", "lint-staged")
_MAY_RUN = ("trustedDependencies", "allowScripts", "gypfile", "lavamoat")
_PNPM = ("onlyBuiltDependencies", "neverBuiltDependencies", "allowBuilds", "configDependencies")
_MANAGER = re.compile(r"(?:npm|pnpm|yarn|bun)@[0-9][\w.+-]*")
_COMPOSER_EVENT = re.compile(r"(?:pre|post)-.*|init|command")
_PYPROJECT = (
    *("build-system.build-backend", "build-system.backend-path", "tool.poetry.build", "tool.poetry.source"),
    *("tool.pdm.build", "tool.pdm.source", "tool.setuptools.cmdclass", "tool.hatch.build.hooks"),
    *("tool.hatch.metadata.hooks", "tool.uv.find-links", "tool.pixi.activation"),
)


def is_manifest(path: str) -> bool:
    """Return whether only some parts of the file at *path* count."""
    return _name(path) in MANIFESTS


def find_changed_hooks(path: str, before: bytes | None, after: bytes | None) -> tuple[str, ...]:
    """Name the parts of the manifest at *path* that run code by themselves and that differ in *after*."""
    if after is None:
        return ()
    parts = MANIFESTS[_name(path)]
    try:
        now = dict(parts(after))
    except (ValueError, TypeError, RecursionError):
        return (UNREADABLE,)
    try:
        was = {} if before is None else dict(parts(before))
    except (ValueError, TypeError, RecursionError):
        was = {}
    return tuple(sorted(name for name, value in now.items() if was.get(name) != value))


def _name(path: str) -> str:
    return fold_path(path).rpartition("/")[2]


def _package(content: bytes) -> Iterator[tuple[str, object]]:
    manifest = _mapping(json.loads(content.decode("utf-8-sig")))
    for name, value in _mapping(manifest.get("scripts", {})).items():
        if name in _INSTALL_SCRIPTS:
            yield f"scripts.{name}", value
    yield from ((name, manifest[name]) for name in (*_GIT_HOOKS, *_MAY_RUN) if name in manifest)
    pnpm = manifest.get("pnpm")
    if isinstance(pnpm, dict):
        yield from ((f"pnpm.{name}", pnpm[name]) for name in _PNPM if name in pnpm)
    manager = manifest.get("packageManager")
    if manager is not None and not (isinstance(manager, str) and _MANAGER.fullmatch(manager)):
        yield "packageManager", manager


def _composer(content: bytes) -> Iterator[tuple[str, object]]:
    manifest = _mapping(json.loads(content.decode("utf-8-sig")))
    scripts = manifest.get("scripts")
    if isinstance(scripts, dict):
        yield from ((f"scripts.{name}", value) for name, value in scripts.items() if _COMPOSER_EVENT.fullmatch(name))
    config = manifest.get("config")
    if isinstance(config, dict) and "allow-plugins" in config:
        yield "config.allow-plugins", config["allow-plugins"]
    if "repositories" in manifest:
        yield "repositories", manifest["repositories"]


def _pyproject(content: bytes) -> Iterator[tuple[str, object]]:
    import tomllib  # takes 10 ms, and few sessions change such a file

    text = content.decode()
    # tomllib takes quadratic time for a key of many parts.
    if any(line.count(".") > MOST_DOTS for line in _TEXTS.sub("", text).splitlines()):
        raise ValueError("too many dots in a key")
    settings = tomllib.loads(text)
    for path in _PYPROJECT:
        if (value := _at(settings, path)) is not None:
            yield path, value
    for name, value in _mapping(_at(settings, "tool.uv") or {}).items():
        if "index" in name:  # where packages come from, in each of uv's spellings
            yield f"tool.uv.{name}", value
    for name, target in _mapping(_at(settings, "tool.hatch.build.targets") or {}).items():
        if isinstance(target, dict) and "hooks" in target:
            yield f"tool.hatch.build.targets.{name}.hooks", target["hooks"]


def _at(value: object, path: str) -> object:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError("no mapping")
    return value


MANIFESTS: Mapping[str, Callable[[bytes], Iterator[tuple[str, object]]]] = {
    "package.json": _package,
    "composer.json": _composer,
    "pyproject.toml": _pyproject,
}


# What git looks for in a repository, and what makes an existing one dangerous.
_PART = re.compile(r"(?:\A|/)(?:(?:head|objects|refs|commondir|config|config\.worktree)\Z|(?:objects|refs|hooks)/)")


def possible_repositories(paths: Iterable[str]) -> Iterator[str]:
    """Name the folders that a change to one of *paths* could turn into a repository; the root is an empty name."""
    for path in paths:
        if len(path) <= LONGEST:
            spelt = fold_path(path)
            for found in _PART.finditer(spelt):
                depth = spelt.count("/", 0, found.start() + 1)
                yield "/".join(path.replace("\\", "/").split("/")[:depth])


def is_repository(names: Iterable[str]) -> bool:
    """Return whether git takes a folder with entries of these *names* for a repository."""
    parts = {fold_path(name) for name in names}
    return "head" in parts and ({"objects", "refs"} <= parts or "commondir" in parts)
