"""Write the findings of cases again and print the sentences that changed.

python -m tests.preflight.checks.write [CHECK…]
"""

import json
import sys

from tests.preflight.checks.test_checks import CASES, difference, findings_of, load


def main() -> None:
    """All cases, or those of the named checks."""
    for path in CASES:
        if not sys.argv[1:] or path.parent.name in sys.argv[1:]:
            case = load(path)
            findings = findings_of(path, case)
            changed = difference(case["findings"], findings)
            if changed:
                print(f"{path.parent.name}/{path.stem}:\n{changed}\n")
            case["findings"] = findings
            path.write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
