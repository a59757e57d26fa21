"""A hook of mkdocs: pages of the site that are files outside of docs/, and links to them."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "start.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples/README.md",
}
"""Pages by the file that they show."""
LANGUAGES = {".yaml": "yaml", ".py": "python"}
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)#:\s]+)(?P<after>[)#])")
LOOSE = re.compile(r"(?<=\S)\n(?=[-*] )")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in LANGUAGES and "__pycache__" not in path.parts:
            text = f"# {path.name}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text()}```\n"
            files.append(File.generated(config, f"{path.relative_to(ROOT)}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of the repository into links of the site."""
    shown = {to: source for source, to in PAGES.items()}
    home = Path(shown.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent

    def replace(match: re.Match[str]) -> str:
        return f"{match['before']}{_target(home, match['target'], page.file.src_uri)}{match['after']}"

    return LOOSE.sub(_loosen, LINK.sub(replace, markdown))


def _loosen(match: re.Match[str]) -> str:
    """Begin a list with an empty line only after a paragraph, as GitHub needs none."""
    line = match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()]
    return "\n" if line.lstrip().startswith(("-", "*", "#", "|", "`")) or line.startswith("  ") else "\n\n"


def _target(home: Path, target: str, page: str) -> str:
    """Return the link of the site for a path of the repository, relative to *page*."""
    parts: list[str] = []
    for part in (home / target).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    path = "/".join(parts)
    if path in PAGES:
        wanted = PAGES[path]
    elif path.startswith("docs/"):
        wanted = path.removeprefix("docs/")
    elif Path(path).suffix in LANGUAGES:
        wanted = f"{path}.md"
    elif (ROOT / path).is_dir():
        wanted = PAGES.get(f"{path}/README.md", PAGES["README.md"])
    else:
        wanted = PAGES["CONTRIBUTING.md"]
    wanted = f"{wanted}/README.md" if (ROOT / "docs" / wanted).is_dir() else wanted
    return "../" * page.count("/") + wanted
