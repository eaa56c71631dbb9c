"""Writes the findings of cases anew, to be read before a commit: python -m tests.checks.write [CHECK…]."""

import json
import sys

from tests.checks.test_checks import CASES, findings_of, load


def main() -> None:
    """All cases, or those of the named checks."""
    for path in CASES:
        if not sys.argv[1:] or path.parent.name in sys.argv[1:]:
            case = load(path)
            case["findings"] = findings_of(path, case)
            path.write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
