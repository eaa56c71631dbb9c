"""Names that stand once: what runs where allranks is not installed has them as text, and no other."""

import re
from pathlib import Path

import pytest

import allranks
from allranks.protocol import node_names

HOME = Path(allranks.__file__).parent
ALONE = (*sorted((HOME / "agent").glob("runner*.py")), HOME / "data" / "probe.py", HOME / "program.py")
VARIABLES = {value for name, value in vars(node_names).items() if isinstance(value, str) and name.isupper()}


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.name)
def test_a_file_that_ships_alone_has_no_other_variables(path: Path) -> None:
    assert set(re.findall(r"\bALLRANKS_[A-Z_]+", path.read_text())) <= VARIABLES


def test_nothing_else_has_a_variable_of_a_rank_as_text() -> None:
    names = "|".join(name for name in VARIABLES if name.startswith("ALLRANKS_"))
    places = [path for path in (*(HOME / "agent").glob("*.py"), *(HOME / "plan").rglob("*.py")) if path not in ALONE]
    assert [path.name for path in places if re.search(f'"({names})["=]', path.read_text())] == []
