"""The table of a check, for a few nodes and for many; findings; the page."""

from allranks.findings import Finding, Where
from allranks.gang.plugins import built_in
from allranks.preflight.judge import table
from allranks.report.checks_table import counts, finding_lines, grouped, setting_lines, table_lines
from allranks.report.page import check_page
from allranks.runs.documents import PreflightDocument

CHECKS = built_in()
CHOSEN = [CHECKS["ports"], CHECKS["shm"], CHECKS["limits"]]
FOUND = [
    Finding("port-blocked", "fail", "no TCP connection from h1 to h3", "sudo ufw …", Where(node="h1", peer="h3"),
            ("h1 -> h3: timeout",), "ports"),
    Finding("shm-too-small", "warn", "/dev/shm on h2 has 64 KB", "", Where(node="h2"), (), "shm"),
    Finding("limits", "unknown", "could not look at h4: no", "", Where(node="h4"), (), "limits"),
]  # fmt: skip
FACTS = {f"h{i}": {"pairs": {}, "limits": []} for i in (1, 2, 3)} | {"h4": {"pairs": {}, "limits": {"error": "no"}}}


def rows() -> dict[str, dict[str, str]]:
    return table({}, FACTS, CHOSEN, FOUND)


def test_cells() -> None:
    assert rows() == {
        "ports": {"h1": "fail", "h2": "ok", "h3": "fail", "h4": "ok"},
        "shm": {"h1": "ok", "h2": "warn", "h3": "ok", "h4": "ok"},
        "limits": {"h1": "ok", "h2": "ok", "h3": "ok", "h4": "unknown"},
    }
    assert table({}, {"h1": {}}, [CHECKS["ports"], CHECKS["limits"]], []) == {
        "ports": {"h1": "skipped"}, "limits": {"h1": "skipped"}
    }  # fmt: skip


def test_a_column_a_node_where_it_fits() -> None:
    lines = table_lines(rows(), CHECKS, 80, verbose=False, colour=False)
    assert lines == [
        "        h1    h2    h3    h4",
        "ports   FAIL  ok    FAIL  ok",
        "shm     ok    warn  ok    ok",
        "limits  ok    ok    ok    ?",
    ]
    narrow = table_lines(rows(), CHECKS, 20, verbose=False, colour=False)
    assert narrow[0] == "ports   FAIL h1, h3 · 2 ok"


def test_only_what_is_not_ok_is_shown() -> None:
    fine = {"shm": {"h1": "ok"}, "gate": {"h1": "skipped"}}
    assert table_lines(fine, CHECKS, 80, verbose=False, colour=False) == []
    assert len(table_lines(fine, CHECKS, 80, verbose=True, colour=False)) == 3


def test_findings_with_remedies_then_what_could_not_be_looked_at() -> None:
    lines = finding_lines(FOUND, colour=False, verbose=False)
    assert lines == [
        "FAIL no TCP connection from h1 to h3  [ports]", "     -> sudo ufw …", "warn /dev/shm on h2 has 64 KB  [shm]",
        "?    could not look: limits (-v says more)",
    ]  # fmt: skip
    assert "        h1 -> h3: timeout" in finding_lines(FOUND, colour=False, verbose=True)
    assert counts(FOUND, rows()) == "3 checks on 4 nodes: 1 failed, 1 warned, 1 could not look"
    assert "\x1b[31m" in finding_lines(FOUND, colour=True, verbose=False)[0]


def test_every_check_is_counted_once() -> None:
    """The numbers of the last line add up to the checks that the first line announces."""
    assert counts([], {"shm": {"h1": "ok"}, "limits": {"h1": "ok"}}) == "2 checks on 1 node: all ok"
    half = {"shm": {"h1": "ok", "h2": "ok"}, "gate": {"h1": "skipped", "h2": "skipped"}}
    assert counts([], half) == "2 checks on 2 nodes: 1 ok, 1 skipped"
    some = {**half, "limits": {"h1": "skipped", "h2": "ok"}}
    assert counts([], some) == "3 checks on 2 nodes: 2 ok, 1 skipped"
    warned = [Finding("shm", "warn", "small", check="shm"), Finding("disk-full", "warn", "full", check="shm")]
    assert counts(warned, half) == "2 checks on 2 nodes: 1 warned, 1 skipped"
    unreached = [Finding("ssh-auth", "fail", "h3: refused", where=Where(node="h3"), check="reached")]
    assert counts(unreached, {"shm": {}}) == "1 check on 0 of 1 node: 1 skipped"
    assert counts(unreached, half) == "2 checks on 2 of 3 nodes: 1 ok, 1 skipped"


def test_settings_are_said_once_for_equal_nodes() -> None:
    row = [("GLOO_SOCKET_IFNAME", "eth0", "allranks", "the way to the master")]
    assert grouped({"h1": row, "h2": row, "h3": []})[0] == ("h1 and h2", row)
    assert setting_lines({"h1": row, "h2": row}) == [
        "network of the ranks on h1 and h2", "  GLOO_SOCKET_IFNAME  eth0  allranks  the way to the master",
    ]  # fmt: skip


def test_the_page_escapes_what_nodes_say() -> None:
    hostile = Finding("x", "fail", "<script>alert(1)</script>", "a & b", Where(node="h1"), ("<b>",), "shm")
    page = check_page("check-1", PreflightDocument(nodes=FACTS), [hostile], rows(), {c.name: c.title for c in CHOSEN})
    assert "<script>" not in page and "&lt;script&gt;" in page and "a &amp; b" in page
    assert "http://" not in page and "https://" not in page and "src=" not in page
