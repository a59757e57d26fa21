"""Makes listening sockets in the networks of sandboxes, and hands them back; it holds no secret.

usage: listen_program.py SOCKET

Each message on SOCKET is a network namespace and JSON of the form {"id": 1, "ports": [80]}. The answer has the same
id, with one listening socket for each port, or with the `error`. A child process handles each, because no
process can leave a user namespace. It ends with its socket, and so with whoever started it.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
from typing import Any

NS_GET_USERNS, CLONE_NEWUSER, CLONE_NEWNET = 0xB701, 0x10000000, 0x40000000
IP_FREEBIND = 15
ADDRESS = "127.0.0.1"
BACKLOG = 128
LARGEST = 4096
LONGEST_SECONDS = 20


def main(control: socket.socket) -> None:
    """Answer until the other end is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    libc = ctypes.CDLL(None, use_errno=True)
    while True:
        words, fds, _, _ = socket.recv_fds(control, LARGEST, 1)
        if not words:
            return
        if os.fork() == 0:
            signal.alarm(LONGEST_SECONDS)
            answer(control, json.loads(words), fds, libc)
            os._exit(0)
        for fd in fds:
            os.close(fd)


def answer(control: socket.socket, request: dict[str, Any], fds: list[int], libc: ctypes.CDLL) -> None:
    """Listen as *request* says, and send the sockets."""
    try:
        (network,) = fds
        join(network, libc)
        listeners = [listen(port) for port in request["ports"]]
    except (OSError, ValueError) as error:
        control.sendall(json.dumps({"id": request["id"], "error": str(error)}).encode())
        return
    fds = [listener.fileno() for listener in listeners]
    socket.send_fds(control, [json.dumps({"id": request["id"]}).encode()], fds)


def join(network: int, libc: ctypes.CDLL) -> None:
    """Enter a network namespace through the user namespace that owns it, in which we have all rights."""
    if is_own(network, "net"):
        raise OSError("the sandbox has no network of its own")
    owner = fcntl.ioctl(network, NS_GET_USERNS)
    if not is_own(owner, "user"):
        enter(owner, CLONE_NEWUSER, libc)
    enter(network, CLONE_NEWNET, libc)


def is_own(namespace: int, kind: str) -> bool:
    """Return whether we are already in *namespace*."""
    there, here = os.fstat(namespace), os.stat(f"/proc/self/ns/{kind}")  # noqa: PTH116 - a path costs an import
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def enter(namespace: int, kind: int, libc: ctypes.CDLL) -> None:
    """Call setns(2)."""
    if libc.setns(namespace, kind):
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


def listen(port: int) -> socket.socket:
    """Listen on loopback, which may not be up yet."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    made.bind((ADDRESS, port))
    made.listen(BACKLOG)
    return made


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
