"""What pip is told, said to uv: an installer many times as fast that reads none of pip's settings.

Owns the translation; setup_env.py decides when uv is used.
"""

from __future__ import annotations

import ast
import re

# pip's name of a setting: the variable that tells uv, and what stands between the entries of a list there.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}

# What changes nothing of what is installed.
OF_PIP_ALONE = frozenset(
    ("cache-dir", "compile", "disable-pip-version-check", "no-cache-dir", "no-color", "no-compile", "no-input",
     "no-warn-script-location", "progress-bar", "quiet", "require-virtualenv", "root-user-action", "verbose")
)  # fmt: skip

# Where settings stand, a later one over an earlier one.
SECTIONS = ("global", "install", ":env:")

# pip takes the best of what all indexes have, uv unless told otherwise what the first one has.
AS_PIP = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


def translated(listed: str) -> dict[str, str] | None:
    """Environment variables that say to uv what `pip config list` printed; None where uv has no word for it."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for section, name, value in re.findall(r"^(\S+?)\.([\w-]+)=(.*)$", listed, re.MULTILINE):
        if section in found:
            found[section][name] = ast.literal_eval(value)
    settings = {name: value for section in SECTIONS for name, value in found[section].items()}
    result = dict(AS_PIP)
    for name, value in settings.items():
        if name in VARIABLES:
            variable, separator = VARIABLES[name]
            result[variable] = separator.join(value.split())
        elif name not in OF_PIP_ALONE:
            return None
    return result
