"""A copy of the package to which a test adds a file and a line, as a contributor would."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import shoal

START = "from shoal.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class PackageCopy:
    """A copy of `shoal` in the folder *path*."""

    path: Path

    @classmethod
    def make(cls, folder: Path) -> "PackageCopy":
        """Copy the package below *folder*."""
        path = folder / "copy" / "shoal"
        shutil.copytree(Path(shoal.__file__).parent, path, ignore=shutil.ignore_patterns("__pycache__"))
        return cls(path)

    def add_kind(self, table: str, name: str, module: str) -> None:
        """Write the text *module* beside the file *table*, and add its line to `KINDS` there, in the first place."""
        file = self.path / table
        dotted = f"shoal.{file.parent.name}.{name}"
        file.with_name(f"{name}.py").write_text(module)
        start = "KINDS = {\n"
        assert file.read_text().count(start) == 1
        file.write_text(file.read_text().replace(start, f'{start}    "{name}": "{dotted}",\n'))

    def run(self, repo: Path, *words: str, code: int = 0) -> str:
        """Run its command in *repo*, which must end with *code*, and return the output."""
        env = {**os.environ, "PYTHONPATH": str(self.path.parent)}
        done = subprocess.run([sys.executable, "-c", START, *words], cwd=repo, env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout
