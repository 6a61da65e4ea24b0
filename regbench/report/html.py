"""Pages that need nothing but themselves: text, style, script and data in one file, and no way out to a network.

Whatever comes from a user (names, options, tokens) reaches a page only through `text`, which escapes it, or through the
embedded data, which scripts show as text. Should one slip through, the content security policy lets no script run but ours.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

_TEMPLATE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
<script>{early}</script>
</head>
<body>
{body}
<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""
# Before anything is drawn, so that what only scripts can show takes its place at once and nothing moves later.
_EARLY = 'document.documentElement.classList.add("js");'


def text(value: object) -> str:
    """`value` as text that is safe in an element and in a quoted attribute."""
    return escape(str(value), quote=True)


def embed(data: Any) -> str:
    """`data` as JSON that is safe inside a script element: no "<", ">", "&" or line separator appears in it as such.

    Raises:
        ValueError: a NaN or an infinity.
    """
    content = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        content = content.replace(character, f"\\u{ord(character):04x}")
    return content


def asset(package: str, name: str) -> str:
    """A style or a script that lies in the folder `assets` of `package`."""
    return resources.files(package).joinpath("assets", name).read_text(encoding="utf-8")


def page(title: str, body: str, data: Mapping[str, Any], styles: Sequence[str], scripts: Sequence[str]) -> str:
    """A whole page. `body` is HTML; the scripts find `data` in the element `data`. The same arguments give the same bytes."""
    script = "".join(scripts)
    hashes = " ".join(f"'sha256-{_sha256(code)}'" for code in (_EARLY, "\n" + script))
    return _TEMPLATE.format(
        title=text(title),
        hashes=hashes,
        style="".join(styles),
        early=_EARLY,
        body=body,
        data=embed(data),
        script=script,
    )


def _sha256(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
