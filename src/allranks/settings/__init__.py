"""RunSpec: what the user asked, as one frozen object; options, environment and TOML go into it.

Pure: text and mappings in, RunSpec out. It does not know nodes' facts (that is `plan/`).
"""

from .runspec import RunSpec

__all__ = ["RunSpec"]
