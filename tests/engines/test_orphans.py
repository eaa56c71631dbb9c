"""What sweeps of nodes have answered: which processes are ended, and how those that stay are named."""

from allranks.engines.orphans import choose, left_alone, name_unended
from allranks.protocol.messages import SweptMessage
from allranks.protocol.processes import SweptProcess
from allranks.settings import RunSpec

DEAD = SweptProcess(3, 30, "python a.py", uid="a", node="node_00", live=False)
ALIVE = SweptProcess(4, 40, "python b.py", uid="b", node="node_00", live=True)
FOREIGN = SweptProcess(5, 50, "python c.py", why="holds port 29500")


def test_processes_of_living_runs_are_not_chosen() -> None:
    answers = {"h1": SweptMessage(processes=[DEAD, ALIVE], directories=[]), "h2": SweptMessage(processes=[])}
    assert choose(answers, foreign=False) == {"h1": [DEAD], "h2": []}


def test_a_node_that_leaves_out_what_it_was_asked_for_has_none_of_it() -> None:
    answers = {"h1": SweptMessage()}
    assert not any(choose(answers, foreign=False).values())
    assert not any(choose(answers, foreign=True).values())
    assert left_alone(answers, RunSpec()) == []


def test_what_stays_is_named_by_node_pid_and_command() -> None:
    assert name_unended({"h1": [], "h2": []}) == ""
    named = name_unended({"h1": [DEAD], "h2": [FOREIGN]})
    assert named == "could not end: h1 pid 3 (python a.py), h2 pid 5 (python c.py)"
