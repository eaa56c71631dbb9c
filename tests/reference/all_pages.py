"""Every generated page of docs/reference, by its name there."""

import json
from pathlib import Path

from tests.reference.command_pages import commands_index, pages_of_commands
from tests.reference.explained_pages import (
    causes_index,
    checks_index,
    exit_codes_page,
    pages_of_causes,
    pages_of_checks,
)
from tests.reference.python_page import python_page
from tests.reference.schemas import PUBLISHED, events_page, schema_of, schemas_page
from tests.reference.settings_page import settings_page

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
GENERATED_FOLDERS = ("causes", "checks", "commands", "schemas")  # they hold nothing that is written by hand


def generated() -> dict[str, str]:
    """Write all of them; what is written by hand stays in those that have a part of each."""
    pages = {
        "settings.md": settings_page(),
        "causes.md": causes_index(REFERENCE / "causes.md"),
        "checks.md": checks_index(REFERENCE / "checks.md"),
        "commands.md": commands_index(),
        "events.md": events_page(),
        "exit-codes.md": exit_codes_page(),
        "schemas.md": schemas_page(),
        "python.md": python_page(REFERENCE / "python.md"),
    }
    for name in (*PUBLISHED, "events"):
        pages[f"schemas/{name}.json"] = json.dumps(schema_of(name), indent=1, ensure_ascii=False) + "\n"
    return pages | dict(pages_of_causes()) | dict(pages_of_checks()) | dict(pages_of_commands())
