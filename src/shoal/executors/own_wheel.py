"""A wheel of the running Shoal, packed from its own files: it needs no network, no build tools and no checkout."""

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from shoal import __version__
from shoal.errors import Unavailable

PACKAGE = Path(__file__).parents[1]
WHEEL = "Wheel-Version: 1.0\nGenerator: shoal\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the oldest that a zip knows: the same files make the same wheel


def build_wheel(folder: Path) -> Path:
    """Write the wheel into *folder*, and return its path."""
    info = f"shoal-{__version__}.dist-info"
    target = folder / f"shoal-{__version__}-py3-none-any.whl"
    record: list[str] = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in (*_list_package(), *_list_metadata(info)):
            wheel.writestr(zipfile.ZipInfo(name, LONG_AGO), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}")
        record.append(f"{info}/RECORD,,")
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", LONG_AGO), "\n".join([*record, ""]), zipfile.ZIP_DEFLATED)
    return target


def _list_package() -> Iterator[tuple[str, bytes]]:
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(PACKAGE.parent).as_posix(), path.read_bytes()


def _list_metadata(info: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of `dist-info` that an installer reads."""
    try:
        found = metadata.distribution("shoal")
    except metadata.PackageNotFoundError as error:
        raise Unavailable(
            "a wheel of Shoal", "it runs from files that were not installed", "run: pip install shoal"
        ) from error
    head = found.read_text("METADATA") or ""
    # those of an editable checkout may be older than its code
    yield f"{info}/METADATA", head.replace(f"\nVersion: {found.version}\n", f"\nVersion: {__version__}\n", 1).encode()
    yield f"{info}/WHEEL", WHEEL.encode()
    yield f"{info}/entry_points.txt", (found.read_text("entry_points.txt") or "").encode()
