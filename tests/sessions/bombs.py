"""What a hostile agent leaves for Shoal's own git: quick to write, expensive to read."""

OBJECTS = """
import hashlib, os, struct, subprocess, zlib
def run(*words): return subprocess.run(words, capture_output=True, check=True).stdout.strip().decode()
gitdir, base = run("git", "rev-parse", "--absolute-git-dir"), run("git", "rev-parse", "HEAD")
def put(kind, data):
    full = kind + b" %d\\0" % len(data) + data
    name = hashlib.sha1(full).hexdigest()
    os.makedirs(f"{gitdir}/objects/{name[:2]}", exist_ok=True)
    with open(f"{gitdir}/objects/{name[:2]}/{name[2:]}", "wb") as file: file.write(zlib.compress(full))
    return name
def tree(*entries): return put(b"tree", b"".join(b"%s %s\\0" % (mode, name) + bytes.fromhex(what) for mode, name, what in entries))
def commit(tree, *parents):
    above = "".join(f"parent {parent}\\n" for parent in parents)
    who = "a <a@a> 1 +0000"
    return put(b"commit", f"tree {tree}\\n{above}author {who}\\ncommitter {who}\\n\\nbomb\\n".encode())
def point(ref, name):
    os.makedirs(os.path.dirname(f"{gitdir}/{ref}"), exist_ok=True)
    with open(f"{gitdir}/{ref}", "w") as file: file.write(name + "\\n")
def paths(levels):
    leaf = put(b"blob", b"bomb\\n")
    top = tree(*((b"100644", b"f%d" % n, leaf) for n in range(10)))
    for _ in range(levels): top = tree(*((b"40000", b"d%d" % n, top) for n in range(10)))
    return top
"""

PATHS = (
    OBJECTS
    + """
bomb = commit(paths({levels}), base)
point("HEAD", bomb)
point("refs/heads/x/bomb", bomb)
open("w.txt", "w").write("work\\n")
"""
)
"""Ten to the power of *levels* and one more files, in a dozen of objects."""

STATE = (
    OBJECTS
    + """
shoal = tree((b"100644", b"ledger.db", put(b"blob", b"a ledger of the agent's\\n")))
point("refs/heads/x/kept", commit(tree((b"40000", b".shoal", shoal), (b"40000", b"z", paths({levels}))), base))
open("w.txt", "w").write("work\\n")
"""
)
"""A branch beside HEAD that holds `.shoal`, and so many paths that the check of it dies."""

ZEROS = (
    OBJECTS
    + """
size, blobs = {size}, []
zeros, packer, digest = bytes(1 << 20), zlib.compressobj(9), hashlib.sha1(b"blob %d\\0" % size)
head = b""
for _ in range((size >> 20) - 1):
    head += packer.compress(zeros)
    digest.update(zeros)
head += packer.compress(zeros[8:])
digest.update(zeros[8:])
def header(kind, number):
    said, byte = [], (kind << 4) | (number & 15)
    number >>= 4
    while number:
        said.append(byte | 128)
        byte, number = number & 127, number >> 7
    return bytes([*said, byte])
records, pack = [], b"PACK" + struct.pack(">II", 2, {count})
for n in range({count}):
    end, one, name = struct.pack(">Q", n), packer.copy(), digest.copy()
    name.update(end)
    record = header(3, size) + head + one.compress(end) + one.flush()
    records.append((name.digest(), zlib.crc32(record), len(pack)))
    pack += record
check = hashlib.sha1(pack).digest()
records.sort()
fan = [sum(record[0][0] <= n for record in records) for n in range(256)]
index = b"\\xfftOc" + struct.pack(">I", 2) + struct.pack(">256I", *fan)
index += b"".join(r[0] for r in records) + b"".join(struct.pack(">I", r[1]) for r in records)
index += b"".join(struct.pack(">I", r[2]) for r in records) + check
index += hashlib.sha1(index).digest()
os.makedirs(f"{gitdir}/objects/pack", exist_ok=True)
for ending, content in (("pack", pack + check), ("idx", index)):
    with open(f"{gitdir}/objects/pack/pack-{check.hex()}.{ending}", "wb") as file: file.write(content)
point("HEAD", commit(tree(*((b"100644", b"f%05d" % n, r[0].hex()) for n, r in enumerate(records))), base))
open("w.txt", "w").write("work\\n")
"""
)
"""Blobs of zeros that differ in their last bytes, in a pack that was never unpacked."""

STARS = (
    'p=$(printf "a/%.0s" $(seq {depth})); mkdir -p $p; echo deep > ${p}f; echo work > w.txt; git add w.txt; git commit -qm w;'
    " echo '/**/a/**/a/**/a/**/a/**/a/**/b{attribute}' > {name}"
)
"""A pattern of 30 bytes that git follows for minutes."""

NESTED = """
import os
for _ in range({depth}):
    os.mkdir("a"); os.chdir("a")
    with open("{name}", "w") as file: file.truncate(10 * 2**20 - 1)
open("leaf", "w").write("work\\n")
"""
"""Rules of 10 MiB in folders in folders, which take no disk: git holds all that are above a file at once."""


def of(text: str, **values: object) -> str:
    """Fill in *values*; the other braces of a program stay."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def as_python(text: str, **values: object) -> str:
    """Give a shell script that runs *text*."""
    return f"exec python3 - <<'EOF'\n{of(text, **values)}\nEOF"
