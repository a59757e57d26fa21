"""A run as JUnit XML, which CI systems show as tests: a suite for each step, a case for each worker."""

import time
from xml.etree import ElementTree

from shoal.cli.output import escape, flat
from shoal.model.results import RunReport, StepResult, WorkerResult
from shoal.model.status import Status

MESSAGE_CHARS = 300
TEXT_CHARS = 20_000
SKIPPED = (Status.SKIPPED, Status.CANCELLED, Status.PENDING, Status.RUNNING, Status.PAUSED)


def junit(report: RunReport, started_at: float) -> str:
    """Write the document in ASCII; characters that XML forbids are escaped."""
    root = ElementTree.Element("testsuites", name=safe(report.run), time=f"{report.duration_seconds:.3f}")
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(started_at))
    for step in report.steps:
        root.append(_suite(step, when))
    if report.error is not None:
        suite = ElementTree.SubElement(root, "testsuite", name="run", timestamp=when)
        case = ElementTree.SubElement(suite, "testcase", classname="run", name="run")
        _add(case, "error", report.status.value, report.error)
        _count(suite)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    return str(ElementTree.tostring(root, encoding="us-ascii", xml_declaration=True), "ascii")


def safe(text: str) -> str:
    """Escape invisible characters, including all that XML forbids."""
    return escape(text, keep="\n\t")


def _suite(step: StepResult, when: str) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=safe(step.step), timestamp=when)
    for worker in step.worker_results:
        suite.append(_case(step, worker))
    if not step.worker_results:
        case = ElementTree.SubElement(suite, "testcase", classname=safe(step.step), name=safe(step.step), time="0")
        if not step.status.is_good:
            kind = "skipped" if step.status in SKIPPED else "failure"
            _add(case, kind, step.status.value, step.error or "")
    suite.set("time", f"{sum(worker.duration_seconds for worker in step.worker_results):.3f}")
    _count(suite)
    return suite


def _case(step: StepResult, worker: WorkerResult) -> ElementTree.Element:
    """Name a case by its step and index, not by its session: a CI system compares the cases of successive runs."""
    item = f" {worker.item}" if worker.item else ""
    name = f"{step.step}[{worker.index}]{item}" if step.total_workers > 1 else f"{step.step}{item}"
    took = f"{worker.duration_seconds:.3f}"
    case = ElementTree.Element("testcase", classname=safe(step.step), name=safe(name), time=took)
    if not worker.status.is_good:
        kind = "skipped" if worker.status in SKIPPED else "error" if worker.status.is_interrupted else "failure"
        _add(case, kind, worker.status.value, worker.error or "")
    about = [f"session: {worker.session}", f"status: {worker.status.value}", f"branch: {worker.branch or '-'}"]
    out = ElementTree.SubElement(case, "system-out")
    out.text = safe("\n".join([*about, "", worker.output[-TEXT_CHARS:]]))
    return case


def _add(case: ElementTree.Element, kind: str, status: str, reason: str) -> None:
    message = flat(reason)[:MESSAGE_CHARS] or status
    entry = ElementTree.SubElement(case, kind, type=status, message=message)
    entry.text = safe(reason[:TEXT_CHARS])


def _count(suite: ElementTree.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))
