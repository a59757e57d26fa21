"""What a session has on a database server, and the variables that name it; without any driver of a database."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

PORT = 5432


@dataclass(slots=True, kw_only=True)
class SessionDatabase:
    """What one session has on the server, and how its programs connect to it."""

    role: str
    """Its role, whose name its schema has too."""
    password: str = field(repr=False)
    database: str
    folder: Path
    """The folder with its socket, which its sandbox shows."""
    most_bytes: int | None = None
    size_bytes: int = 0
    is_full: bool = False
    """Whether it has more on the server than it may."""

    def environment(self) -> dict[str, str]:
        """Return the variables by which programs find it."""
        role, password, folder = self.role, self.password, str(self.folder)
        url = f"postgresql://{role}:{password}@/{self.database}?host={quote(folder)}&port={PORT}"
        return {
            "DATABASE_URL": url,
            "SHOAL_DATABASE_URL": url,
            "PGHOST": folder,
            "PGPORT": str(PORT),
            "PGUSER": role,
            "PGPASSWORD": password,
            "PGDATABASE": self.database,
        }
