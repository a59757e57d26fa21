"""`shoal serve` as a process of its own, and plain HTTP requests to it, without what a browser adds."""

import contextlib
import http.client
import json
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.conftest import SHOAL, environment

SECONDS = 30
PIPELINE = """\
agents:
  writer: {adapter: scripted, script: [{write: {path: plan.txt, content: "plan <b>bold</b>\\n"}}, {say: "<img src=x>"}]}
  slow: {adapter: scripted, script: [{say: "reading the parser"}, {write: {path: a.txt, content: "x"}}, {sleep: 60}]}
pipelines:
  - name: release
    steps:
      - {name: plan, agent: writer, prompt: "plan <script>alert(1)</script>"}
      - {name: ship, needs: [plan], gate: "Deploy it?"}
      - {name: deploy, needs: [ship], agent: slow, prompt: deploy, concurrency: 2, on_failure: best_effort}
"""


@dataclass(frozen=True)
class Answer:
    """An answer, read to its end."""

    status: int
    headers: http.client.HTTPMessage
    content: bytes


@dataclass
class Dashboard:
    """A dashboard that runs, and the cookie of a browser that opened its link."""

    process: subprocess.Popen[str]
    link: str
    port: int
    cookie: str = ""

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send one request with just these *headers* (underscores are dashes) and the cookie."""
        with contextlib.closing(self._send(method, path, body, headers)) as connection:
            got = connection.getresponse()
            return Answer(got.status, got.headers, b"" if self._is_stream(got) else got.read())

    def _is_stream(self, got: http.client.HTTPResponse) -> bool:
        return got.headers.get_content_type() == "text/event-stream"

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        cookie = {"Cookie": self.cookie} if self.cookie and "Cookie" not in named else {}
        connection.request(method, path, body=body, headers={**cookie, **named})
        return connection

    def open(self) -> None:
        """Open the link as a browser does, and keep the cookie."""
        answer = self.ask("GET", self.link.partition(f":{self.port}")[2])
        assert answer.status == 200, answer.content
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.content
        return json.loads(answer.content)

    def act(self, site: str, **fields: object) -> tuple[int, Any]:
        """Press a button."""
        body = json.dumps(fields).encode()
        answer = self.ask("POST", f"/api/act/{site}", body, X_Shoal="1", Content_Type="application/json")
        return answer.status, json.loads(answer.content)

    def changes(
        self, path: str = "/api/live", **headers: str
    ) -> Generator[tuple[str, list[Mapping[str, Any]]], None, None]:
        """Yield the id and the changes of each message of the stream."""
        with contextlib.closing(self._send("GET", path, None, headers)) as connection, connection.getresponse() as got:
            assert got.status == 200
            number = ""
            for line in iter(got.fp.readline, b""):
                name, _, value = line.decode().rstrip("\r\n").partition(": ")
                if name == "id":
                    number = value
                elif name == "data":
                    yield number, json.loads(value)

    def wait_for(self, is_there: Callable[[Mapping[str, Any]], bool], path: str = "/api/live") -> Mapping[str, Any]:
        """Follow the stream until a document is as wanted."""
        with contextlib.closing(self.changes(path)) as stream:
            for _, changes in stream:
                for change in changes:
                    if is_there(change["document"]):
                        return dict(change["document"])
        raise AssertionError("the stream ended")


@contextlib.contextmanager
def serving(repo: Path, *words: str, **env: str) -> Iterator[Dashboard]:
    """Hold `shoal serve` in *repo*, and end it."""
    command = [str(SHOAL), "serve", "--no-browser", *words]
    with subprocess.Popen(
        command, cwd=repo, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment(**env)
    ) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            link = first.split()[-1]
            yield Dashboard(process, link, int(link.split(":")[2].partition("/")[0]))
        finally:
            process.terminate()
            process.wait(SECONDS)
