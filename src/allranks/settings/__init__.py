"""RunSpec: what the user asked, as one frozen object; options, environment and TOML go into it.

Pure: text and mappings in, RunSpec out. It does not know nodes' facts (that is `plan/`).
"""

from .config_template import commented_config
from .document import from_document, to_document
from .layers import Resolved, resolve
from .runspec import RunSpec
from .secrets import redact_argv, redact_env

__all__ = [
    "Resolved",
    "RunSpec",
    "commented_config",
    "from_document",
    "redact_argv",
    "redact_env",
    "resolve",
    "to_document",
]
