"""The command `shoal-talk` of agents: calls a tool of Shoal, or carries a client's MCP messages to Shoal.

usage: shoal-talk [TOOL [NAME=VALUE …]]     without a tool, list the tools
       shoal-talk --stdio                   speak MCP on standard input and output

Run inside the sandbox on any Python from 3.9; it imports nothing of ours. It ends with 1 if the call is refused.
"""
# json and socket are the only imports that take time

import json
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all the rest
    from typing import Any

MISSING = "SHOAL_MCP_URL and SHOAL_MCP_TOKEN are not set: this agent may not talk to others"


class Failed(Exception):
    """The server cannot be reached, or answers with an error."""


class Connection:
    """A connection to the server, kept for the next call."""

    def __init__(self, url: str, token: str) -> None:
        authority, _, path = url.partition("://")[2].partition("/")
        host, _, port = authority.partition(":")
        self.host, self.port, self.path, self.token = host, int(port), f"/{path}", token
        self.socket: socket.socket | None = None
        self.left = b""

    def post(self, body: bytes) -> bytes:
        """Send a message, and return the answer."""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            self.connect().sendall(head.encode() + body)
            return self.read_answer()
        except OSError as error:
            self.socket = None
            raise Failed(f"Shoal cannot be reached: {error.strerror or error}") from None

    def connect(self) -> socket.socket:
        """Return the connection, a new one if there is none."""
        if self.socket is None:
            self.socket = socket.create_connection((self.host, self.port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.left = b""
        return self.socket

    def read_answer(self) -> bytes:
        """Read one answer."""
        while b"\r\n\r\n" not in self.left:
            self.read_more()
        head, _, self.left = self.left.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(":", 1) for line in lines[1:])
        length = int(headers.get("content-length", "0"))
        while len(self.left) < length:
            self.read_more()
        body, self.left = self.left[:length], self.left[length:]
        if headers.get("connection", "").strip() == "close":
            self.socket = None
        status = lines[0].split(" ")[1]
        if status not in ("200", "202"):
            raise Failed(f"Shoal refused the call ({status}): {reason(body)}")
        return body

    def read_more(self) -> None:
        """Read what is there."""
        more = self.connect().recv(65536)
        if not more:
            raise OSError(0, "the connection was closed")
        self.left += more


def reason(body: bytes) -> str:
    """Return the message of an error."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "it gave no reason"


def call(connection: Connection, method: str, params: "dict[str, object]") -> "Any":  # noqa: ANN401 - what a server answers
    """Call a method, and return its result."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = json.loads(connection.post(json.dumps(message).encode()))
    if "error" in answer:
        raise Failed(str(answer["error"].get("message")))
    return answer["result"]


def list_tools(connection: Connection) -> None:
    """Print the tools with their parameters."""
    for tool in call(connection, "tools/list", {})["tools"]:
        schema = tool["inputSchema"]
        names = [name if name in schema["required"] else f"[{name}]" for name in schema["properties"]]
        print_out(f"{tool['name']} {' '.join(f'{name}=…' for name in names)}".rstrip())
        print_out(f"    {tool['description'].splitlines()[0]}")


def run_tool(connection: Connection, name: str, words: "list[str]") -> int:
    """Call a tool with NAME=VALUE; a value that stands alone is that of the first parameter without one."""
    known = {tool["name"]: tool for tool in call(connection, "tools/list", {})["tools"]} if words else {}
    if words and name not in known:
        raise Failed(f"no tool named {name!r}; known: {', '.join(known)}")
    expected = list(known[name]["inputSchema"]["properties"]) if words else []
    given = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or (expected and key not in expected):
            left = [parameter for parameter in expected if parameter not in given]
            if not left:
                raise Failed(f"{name} takes no value {word!r}; write NAME=VALUE")
            key, value = left[0], word
        given[key] = value
    result = call(connection, "tools/call", {"name": name, "arguments": given})
    text = "\n".join(part.get("text", "") for part in result["content"])
    if result.get("isError"):
        sys.stderr.write(f"{text}\n")
        return 1
    print_out(text)
    return 0


def carry(connection: Connection) -> None:
    """Carry messages between standard input and output and the server, line by line."""
    for line in sys.stdin.buffer:
        if line.strip():
            answer = connection.post(line.strip())
            if answer:
                sys.stdout.buffer.write(answer + b"\n")
                sys.stdout.buffer.flush()


def print_out(text: str) -> None:
    """Write a line."""
    sys.stdout.buffer.write(f"{text}\n".encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def main(words: "list[str]") -> int:
    """Do what the command line says."""
    url, token = os.environ.get("SHOAL_MCP_URL"), os.environ.get("SHOAL_MCP_TOKEN")
    if not url or not token:
        sys.stderr.write(f"shoal-talk: {MISSING}\n")
        return 1
    try:
        connection = Connection(url, token)
        if words == ["--stdio"]:
            carry(connection)
        elif not words or words[0] in ("--help", "-h"):
            print_out(__doc__ or "")
            list_tools(connection)
        else:
            return run_tool(connection, words[0], words[1:])
    except Failed as error:
        sys.stderr.write(f"shoal-talk: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
