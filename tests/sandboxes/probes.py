"""Probes inside a bubblewrap sandbox, and their answers in an intact one."""

import json

from shoal.model.policy import Network, Policy
from shoal.sandboxes.mounts import MEMORY_BYTES
from tests.sandboxes.sandbox_runs import Ran

NAMESPACES = ("user", "pid", "ipc", "uts", "net", "cgroup", "mnt")

# One probe per function; each gives an answer that differs when the flag that it stands for is gone.
PROBES = r"""
import ctypes, errno, json, os, socket, stat, sys
given = json.loads(sys.argv[1])
def tried(act):
    try:
        return act() or "done"
    except OSError as error:
        return errno.errorcode[error.errno]
def made(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
def created(folder):
    path = os.path.join(folder, "probe")
    outcome = tried(lambda: made(path))
    if outcome == "done":
        os.unlink(path)
    return outcome
def connected(family, address):
    with socket.socket(family) as client:
        client.settimeout(5)
        client.connect(address)
def text(path):
    with open(path) as file:
        return file.read()
def listed(path):
    return sorted(os.listdir(path))
def emptied(path):
    os.unlink(os.path.join(path, "deep/file"))
    os.rmdir(os.path.join(path, "deep"))
    os.mkdir(os.path.join(path, "deep"))
    return listed(os.path.join(path, "deep")) or "empty"
def memory(path):
    is_seen = os.path.exists(os.path.join(path, given["marker"]))
    size = os.statvfs(path).f_blocks * os.statvfs(path).f_frsize
    return [oct(stat.S_IMODE(os.stat(path).st_mode)), size, "the host's" if is_seen else "private"]
def copied(path):
    found = os.stat(path)
    is_copy = found.st_dev == os.stat("/").st_dev
    return [oct(stat.S_IMODE(found.st_mode)), "a copy" if is_copy else "the host's"]
def read_only(path):
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
def usable(path):
    return path == "/dev/tty" or tried(lambda: os.close(os.open(path, os.O_RDWR)))
def keyctl():
    if ctypes.CDLL(None, use_errno=True).syscall(250, 0, -3, 0) < 0:
        raise OSError(ctypes.get_errno(), "keyctl")
def nested():
    os.dup2(os.pipe()[1], 2)
    return "refused" if os.spawnlp(os.P_WAIT, "unshare", "unshare", "-U", "true") else "done"
HERE = {name: os.readlink("/proc/self/ns/" + name) for name in given["namespaces"]}
print(json.dumps({
    "namespaces": {name: "own" if HERE[name] != link else "the host's" for name, link in given["namespaces"].items()},
    "hostname": socket.gethostname(), "uid": os.getuid(), "gid": os.getgid(), "cwd": os.getcwd(),
    "session": "own" if os.getsid(0) else "the host's",
    "processes": "the host's" if os.path.exists("/proc/%d" % given["pid"]) else "own",
    "terminals": "the host's" if os.path.exists(given["terminal"]) else "own",
    "root": tried(lambda: made("/probe")), "dev": tried(lambda: made("/dev/probe")),
    "proc": tried(lambda: made("/proc/self/oom_score_adj")),
    "frames": {path: created(path) for path in given["frames"]},
    "memory": {path: memory(path) for path in given["memory"]},
    "copies": {path: tried(lambda: copied(path)) for path in given["copies"]},
    "links": {path: tried(lambda: os.readlink(path)) for path in given["links"]},
    "read_only": {path: tried(lambda: [read_only(path)]) for path in given["read_only"]},
    "covers": {path: tried(lambda: text(path)) for path in given["covers"]},
    "writes": {path: created(path) for path in given["writes"]},
    "environment": dict(word.split("=", 1) for word in text("/proc/self/environ").split("\0")[:-1]),
    "network": tried(lambda: connected(socket.AF_INET, ("127.0.0.1", given["port"]))),
    "abstract": tried(lambda: connected(socket.AF_UNIX, "\0" + given["abstract"])),
    "keyctl": tried(keyctl), "nested": nested(),
    "layers": {path: tried(lambda: emptied(path)) for path in given["layers"]},
    "devices": {path: [tried(lambda: os.chmod(path, 0o666)), usable(path)] for path in given["devices"]},
    "closed": {path: tried(lambda: os.close(os.open(path, os.O_RDONLY))) for path in given["closed"]},
}))
"""


def expected(policy: Policy, given: dict[str, object], env: dict[str, str], links: object) -> dict[str, object]:
    """Return the probes' answers in an intact sandbox."""
    is_open = policy.network is Network.HOST

    def each(key: str, answer: object) -> dict[str, object]:
        paths = given[key]
        assert isinstance(paths, list)
        return dict.fromkeys(paths, answer)

    assert isinstance(links, tuple)
    texts = {str(cover.target): cover.source.read_text() for cover in policy.covers}
    return {
        **{"hostname": "shoal", "uid": 1000, "gid": 1000, "cwd": str(policy.write[0]), "session": "own"},
        **{"processes": "own", "terminals": "own", "root": "EROFS", "dev": "EROFS", "proc": "EROFS"},
        **{"environment": env, "keyctl": "EPERM", "nested": "refused", "report": True},
        "namespaces": {name: "own" if name != "net" or not is_open else "the host's" for name in NAMESPACES},
        "frames": each("frames", "EROFS"),
        "memory": each("memory", ["0o1777", MEMORY_BYTES, "private"]),
        "copies": each("copies", ["0o444", "a copy"]),
        "links": {str(link.path): link.text for link in links},
        "read_only": each("read_only", [True]),
        "covers": texts,
        "writes": each("writes", "done"),
        "network": "done" if is_open else "ECONNREFUSED",
        "abstract": "EPERM" if is_open else "ECONNREFUSED",
        "layers": each("layers", "empty"),
        "devices": {path: ["EPERM", path == "/dev/tty" or "done"] for path in each("devices", None)},
        "closed": each("closed", "EACCES"),
    }


def answers(done: Ran) -> dict[str, object]:
    """Read the probes' answers; a sandbox that did not start has none."""
    if not done.out:
        return {}
    found: dict[str, object] = json.loads(done.out)
    return {**found, "report": "child-pid" in done.info}
