"""`shoal report`: a run as a page, a comment, test results and a document, whatever agents wrote."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from shoal.cli.render.html_report import AgentDiff, PageContent, page
from shoal.cli.render.junit import junit
from shoal.cli.render.markdown import markdown
from shoal.cli.render.resource_plots import plot_svg
from shoal.model.activity import Act
from shoal.model.events import AgentActed, AgentEnded, AgentStarted, Recorded
from shoal.model.merge import Overlap
from shoal.model.resources import ResourceSample
from shoal.model.results import RunReport, StepResult, WorkerResult
from shoal.model.status import Status
from shoal.store.reader import SampleAt
from shoal.store.timeline import cpu_points, disk_points, memory_points, read_lane
from tests.cli.conftest import Shoal, shoal_in
from tests.conftest import git, make_repo

NASTY = "</pre><script>alert(1)</script> @octocat #12 | ``` [x](https://e.example) <img src=x onerror=y>"
FILE = f"""
runtime: {{sandbox: none, network: host}}
agents:
  good: {{adapter: scripted, script: [{{write: {{path: a.txt, content: {json.dumps(NASTY)}}}}}, {{say: {json.dumps(NASTY)}}}]}}
  bad: {{adapter: scripted, script: [{{fail: {json.dumps(NASTY)}}}]}}
steps:
  - {{name: good, agent: good, prompt: go, concurrency: 2}}
  - {{name: bad, agent: bad, prompt: go}}
  - {{name: after, needs: [bad], agent: good, prompt: go}}
"""
ALLOWED = {"html", "head", "body", "header", "main", "footer", "title", "style", "meta", "h1", "h2", "p", "span"} | {
    *("div", "table", "thead", "tbody", "tfoot", "tr", "th", "td", "br", "pre", "ul", "li", "details", "summary"),
    *("svg", "text", "line", "rect", "polyline", "polygon"),
}
ATTRIBUTES = {"class", "lang", "charset", "content", "http-equiv", "name", "viewbox", "role", "aria-label"} | {
    *("x", "y", "x1", "x2", "y1", "y2", "width", "height", "text-anchor", "points"),
}


class Elements(HTMLParser):
    """Collects the elements of a page, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.said = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.said += data


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository in which agents that write markup have run."""
    repo = make_repo(tmp_path_factory.mktemp("ended") / "repo")
    (repo / "p.yaml").write_text(FILE)
    assert shoal_in(repo)("run", "p.yaml").code == 1
    return repo


@pytest.fixture
def reports(ended: Path) -> Shoal:
    return shoal_in(ended)


def test_the_page_shows_agents_and_their_diffs_as_text(reports: Shoal, tmp_path: Path) -> None:
    done = reports("report", "--html", str(tmp_path / "run.html"))
    text = (tmp_path / "run.html").read_text()
    seen = Elements(text)

    assert (done.code, done.out) == (0, "")
    assert set(seen.tags) <= ALLOWED
    assert seen.attributes <= ATTRIBUTES
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert "prefers-color-scheme:dark" in text
    assert seen.tags.count("details") == 2, "the diff of each agent that changed something"
    assert "peak " in seen.said, "what each agent used of the machine"
    assert f"+{NASTY}" in seen.said
    assert f"it exited with 1: {NASTY}" in seen.said
    assert "dependency 'bad' failed" in seen.said
    assert os.listdir(tmp_path) == ["run.html"], "and nothing is left beside it"


def test_a_page_goes_to_stdout_and_into_an_existing_file(reports: Shoal, tmp_path: Path) -> None:
    file = tmp_path / "old.html"
    file.write_text("old")
    file.chmod(0o600)

    printed = reports("report", "--html", "-")
    assert reports("report", "--html", str(file)).code == 0

    assert printed.out.startswith("<!doctype html>")
    assert file.read_text().startswith("<!doctype html>")
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_comment_has_a_row_for_each_agent_and_reasons_as_text(reports: Shoal) -> None:
    done = reports("report", "--format", "md")
    tokens = MarkdownIt("commonmark").enable("table").parse(done.out)
    inline = [child.type for token in tokens for child in token.children or []]

    assert (done.code, done.out) == (0, reports("report").out)
    assert [token.type for token in tokens].count("tr_open") == 5
    assert set(inline) <= {"text", "code_inline", "strong_open", "strong_close"}
    assert next(token.content for token in tokens if token.type == "fence") == f"it exited with 1: {NASTY}\n"


def test_test_results_have_a_suite_for_each_step(reports: Shoal) -> None:
    root = ElementTree.fromstring(reports("report", "--format", "junit").out)
    cases = {case.get("name"): case for case in root.iter("testcase")}

    assert [suite.get("name") for suite in root] == ["good", "bad", "after"]
    assert list(cases) == ["good[0]", "good[1]", "bad", "after"]
    assert [root.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["4", "1", "0", "1"]
    failure = cases["bad"].find("failure")
    assert failure is not None
    assert failure.text == f"it exited with 1: {NASTY}"
    assert NASTY in (cases["good[0]"].findtext("system-out") or "")


def test_the_document_is_that_of_the_status(reports: Shoal) -> None:
    assert json.loads(reports("report", "--format", "json").out) == json.loads(reports("status", "--json").out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--html", "."], "it is a folder"),
        (["--html", "absent/x.html"], "there is no folder"),
        (["--html", "-", "--format", "md"], "both write to stdout"),
        (["nothing-of-it"], "nothing-of-it"),
        (["--format", "pdf"], "pdf"),
    ],
)
def test_bad_input_is_refused(reports: Shoal, words: list[str], said: str) -> None:
    done = reports("report", *words)

    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_page_says_which_work_is_gone(repo: Path, shoal: Shoal) -> None:
    assert shoal("run", "--task", "echo x > new.txt", "--command", "sh -s", "--sandbox", "none").code == 0
    branch = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent")
    git(repo, "branch", "-D", branch)
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "--prune=now", "-q")
    for pack in (repo / ".git" / "objects" / "pack").glob("*.keep"):
        pack.unlink()
    git(repo, "gc", "--prune=now", "-q")

    done = shoal("report", "--html", "-")

    assert done.code == 0, done.err
    assert "its commit is no longer in the repository" in Elements(done.out).said


def test_secrets_do_not_reach_the_page(repo: Path) -> None:
    secret = "not-a-real-key-but-long-enough"
    text = """
    runtime: {sandbox: none, network: host}
    agents:
      odd: {adapter: command, command: [sh, -c, "echo $KEY > leaked.txt"], env: {KEY: {from: HOST_KEY}}}
    steps: [{name: only, agent: odd, prompt: x}]
    """
    (repo / "p.yaml").write_text(text)
    shoal = shoal_in(repo)
    assert shoal("run", "p.yaml", HOST_KEY=secret).code == 0

    pages = [shoal("report", "--html", "-").out, *(shoal("report", "--format", form).out for form in ("md", "junit"))]

    assert "it contains your secrets" in pages[0]
    assert not any(secret in text for text in pages)


def test_the_timeline_shows_queue_calls_and_waits() -> None:
    def act(at: float, kind: Act, **fields: object) -> Recorded:
        return Recorded(1, at, replace(AgentActed(run="r", session="s", act=kind), **fields))  # type: ignore[arg-type]

    events = [
        Recorded(1, 12.0, AgentStarted(run="r", session="s", pid=1)),
        act(13.0, Act.TOOL, tool="Bash", text="pytest"),
        act(14.0, Act.RETRY, text="429", seconds=3.0),
        act(18.0, Act.RESULT, ok=False, text="failed"),
        Recorded(1, 19.0, AgentEnded(run="r", session="s", exit_code=0, signal=None)),
        Recorded(1, 20.0, AgentStarted(run="r", session="s", pid=2)),
    ]

    lane = read_lane("s", events, queued=10.0, start=11.0, end=22.0)

    assert [(span.kind, span.start, span.end) for span in lane.spans] == [
        *(("queue", 10.0, 11.0), ("setup", 11.0, 12.0), ("run", 12.0, 19.0)),
        *(("seal", 19.0, 20.0), ("check", 20.0, 22.0), ("wait", 14.0, 17.0)),
    ]
    assert [(tick.kind, tick.text) for tick in lane.ticks] == [
        *(("call", "Bash: pytest"), ("wait", "429"), ("bad", "failed")),
    ]


def test_resources_are_plotted_over_time() -> None:
    samples = [SampleAt(10.0 + at, ResourceSample(memory_mb=50.0 * at, cpu_seconds=0.5 * at)) for at in range(3)]

    assert memory_points(samples) == [(10.0, 0.0), (11.0, 50.0), (12.0, 100.0)]
    assert cpu_points(samples) == [(11.0, 50.0), (12.0, 50.0)]
    assert disk_points(samples) == []
    drawn = "".join(plot_svg(memory_points(samples), "MB"))
    assert 'points="0.0,40.0 110.0,21.0 220.0,2.0"' in drawn
    assert "<title>up to 100 MB in 2.0 s</title>" in drawn


WORDS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="`|\\<>&@#[]()!*_~ \n\r\t-=+:/.wh1'\"$^\x00\x1b\u202e\ud800\ufffe", max_size=40),
    st.sampled_from([NASTY, "]]>", "-->", "```\n# x", "| a | b |\n|---|---|", "www.e.example", "&lt;", "\\`", "\\|"]),
)


def example(word: str) -> RunReport:
    """A report in which an agent could write *word* everywhere."""
    fields = dict.fromkeys(("unkept", "notes", "executable", "instructions", "set_back"), (word, word))
    worker = WorkerResult(
        index=0,
        session=f"s{word}",
        status=Status.FAILED,
        output=word,
        branch=f"b{word}",
        error=f"e{word}",
        item=word,
        prompt=word,
        commit="c" * 40,
        **fields,  # type: ignore[arg-type]
    )
    step = StepResult(
        step=f"t{word}",
        on_failure="gather",
        status=Status.FAILED,
        worker_results=(worker, replace(worker, index=1, status=Status.SUCCEEDED)),
        error=f"t{word}",
        notes=(f"n{word}",),
    )
    overlap = Overlap(one=f"s{word}", other=f"o{word}", paths=(f"p{word}",), files=1)
    return RunReport(
        run=f"r{word}",
        status=Status.FAILED,
        base=word,
        duration_seconds=1.0,
        steps=(step, replace(step, worker_results=())),
        wall=word,
        workspace=word,
        notes=(f"n{word}",),
        overlaps=(overlap,),
        error=f"e{word}",
    )


@settings(max_examples=40, deadline=None)
@pytest.mark.deep
@given(WORDS)
def test_no_word_of_an_agent_becomes_markdown(word: str) -> None:
    parser = MarkdownIt("commonmark").enable("table").enable("strikethrough")

    def shape(text: str) -> Iterator[str]:
        for token in parser.parse(text):
            if token.type != "fence":
                yield token.type
            for child in token.children or []:
                yield child.type if child.type == "code_inline" else f"{child.type} {child.content}"

    assert list(shape(markdown(example(word)))) == list(shape(markdown(example("x"))))


@settings(max_examples=40, deadline=None)
@pytest.mark.deep
@given(WORDS)
def test_no_word_of_an_agent_breaks_the_xml(word: str) -> None:
    root = ElementTree.fromstring(junit(example(word), 0.0))

    assert [element.tag for element in root.iter()] == [
        element.tag for element in ElementTree.fromstring(junit(example("x"), 0.0)).iter()
    ]


@settings(max_examples=40, deadline=None)
@pytest.mark.deep
@given(WORDS)
def test_no_word_of_an_agent_becomes_html(word: str) -> None:
    def write(text: str) -> str:
        log = [Recorded(1, 1.0, AgentActed(run="r", session="s", act=Act.TOOL, tool=text, text=text))]
        patch = f"diff --git a/{text} b/{text}\n@@ -0,0 +1 @@\n+{text}".encode(errors="surrogatepass")
        lanes = (read_lane(f"s{text}", log, queued=0.0, start=0.0, end=2.0),)
        diffs = {f"s{text}": AgentDiff(patch=patch, is_cut=True), "t": AgentDiff(omission=f"o{text}")}
        return page(PageContent(report=example(text), started_at=0.0, lanes=lanes, diffs=diffs))

    seen = Elements(write(word))

    assert set(seen.tags) <= ALLOWED
    assert seen.attributes <= ATTRIBUTES
    variable = {"span", "li", "ul", "br"}  # a patch has more lines, and a prompt or an item may be empty
    assert [tag for tag in seen.tags if tag not in variable] == [
        tag for tag in Elements(write("x")).tags if tag not in variable
    ]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", seen.said)


def test_a_comment_of_many_agents_is_not_too_long_for_its_host() -> None:
    worst = "`|@" * 5000
    report = example(worst)
    (step, _) = report.steps
    crowd = replace(step, worker_results=tuple(replace(step.worker_results[0], index=index) for index in range(200)))

    assert len(markdown(replace(report, steps=(crowd,) * 3))) < 65_536
