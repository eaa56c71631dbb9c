"""One gang of all nodes that runs collective tests: start, end, what is printed and saved."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from allranks import exitcodes
from allranks.cluster import Cluster
from allranks.engines.controlled import opening
from allranks.findings import Finding
from allranks.gang import session as sessions
from allranks.gang.tested import verdict_of
from allranks.gang.transport import NodeReach, Transport
from allranks.protocol.codec import document_line
from allranks.report import can_write_pages
from allranks.report.live import OutputView
from allranks.report.testview import FailureView, TestView
from allranks.runs.directory import RunDirectory
from allranks.runs.documents import ResultDocument, SuiteResult, suite_result
from allranks.runs.result import replace_result
from allranks.runs.view import View
from allranks.settings import RunSpec

from .check import Printing, say_unwritten_page

SYNC_PASSED = (
    "every collective that was tested gives right results on all ranks: the cluster carries collectives. Look at the "
    "training code"
)

ONE_PASSED = (
    "every collective that was tested gives right results on this node. Test it together with others: "
    "allranks test --hosts hosts.txt"
)


def run_together(
    spec: RunSpec,
    cluster: Cluster,
    printing: Printing,
    transport: Transport,
    before: Sequence[Finding] = (),
    dead: tuple[tuple[str, str], ...] = (),
) -> int:
    """One gang of all nodes; gives the exit code. `before` has findings that are known already."""
    view = _view(printing)
    session = sessions.create(spec, cluster, NodeReach(transport), os.environ, os.getcwd(), lambda: view, dead=dead)
    session.view.opening(opening(session))
    result = session.run(None)
    result = replace(result, findings=(*before, *result.findings))
    if before and result.exit == exitcodes.DONE:
        result = replace(result, exit=exitcodes.CHECK_FAILED, verdict=verdict_of(before[0]))
    close(spec, session, result, printing.as_json)
    return result.exit


def _view(printing: Printing) -> View:
    if printing.as_json:
        return OutputView()
    if printing.quiet:
        return FailureView()
    return TestView()


def close(spec: RunSpec, session: sessions.Session, result: ResultDocument, json_: bool) -> None:
    """Print and save the end."""
    roster = session.controller.gang.roster
    tested = replace(
        suite_result(result),
        suite=spec.tests.suite,
        ok=result.exit == exitcodes.DONE,
        nodes=tuple(node.name for node in roster.cluster.nodes),
        ranks=len(roster.ranks()),
        started=session.started,
    )
    if spec.tests.suite == "sync" and tested.ok:
        tested = replace(tested, meaning=SYNC_PASSED if len(tested.nodes) > 1 else ONE_PASSED)
    save_suite(session.run_dir, tested, json_)
    session.view.closing(tested)


def save_suite(run: RunDirectory, tested: SuiteResult, json_: bool) -> None:
    """Write the result of a test and its page; print the document where `json_`."""
    replace_result(run, tested)
    if can_write_pages():
        from allranks.report.testpage import test_page  # imported late: Jinja2 is wanted for the page alone

        say_unwritten_page(run, run.write_page(test_page(tested)))
    if json_:
        print_document(tested)


def print_document(tested: SuiteResult) -> None:
    """Print the JSON document of a test."""
    sys.stdout.write(document_line(tested) + "\n")
