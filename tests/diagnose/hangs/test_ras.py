"""What NCCL's RAS says, in the words of its source (src/ras/client_support.cc); no hardware was at hand."""

import pytest

from allranks.diagnose.hangs.ras import evidence, read_ras

TEXT = """NCCL version 2.27.3 compiled with CUDA 12.9

Communicators... (0.02s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank:
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation 48301
  Rank 3 has launched up to operation 48300 -- GPU 3 managed by process 3487981 on node 172.16.64.213

"""


def test_complaints_in_their_order() -> None:
    assert [(line.partition(":")[0], pids) for line, pids in read_ras(TEXT)] == [
        ("NCCL RAS INCOMPLETE", [3487984]),
        ("NCCL RAS INCOMPLETE", [3487984]),
        ("NCCL RAS TIMEOUT", []),
        ("NCCL RAS MISMATCH", [3487981]),
    ]


def test_lines_of_this_jobs_processes_once() -> None:
    lines = evidence([TEXT, TEXT], {3487981: [3]})
    assert len(lines) == 1 and lines[0].startswith("NCCL RAS MISMATCH: Communicator ranks have different AllReduce")
    assert "Rank 3 has launched up to operation 48300" in lines[0]
    assert len(evidence([TEXT], {3487981: [3], 3487984: [21]})) == 3


def test_another_job_is_passed_over() -> None:
    assert evidence([TEXT], {1: [0]}) == ()


@pytest.mark.parametrize(
    "text", ["", "garbage", TEXT.partition("Errors\n")[0], "Errors\n======\n\nWarnings\n========\n"]
)
def test_nothing_to_say(text: str) -> None:
    assert list(read_ras(text)) == []


def test_a_text_that_is_cut() -> None:
    cut = TEXT[: TEXT.index("#0-0 (cf264af53edbe986) MISMATCH") - 5]
    assert [line.split()[2] for line, _ in read_ras(cut)] == ["INCOMPLETE:", "INCOMPLETE:", "TIMEOUT:"]
