"""Pages that need nothing but themselves: text, style, script and data in one file, and no way out to a network.

Templates escape every value. The only exceptions are styles and scripts, which come from our own files. Data for scripts
is embedded as JSON, and scripts show it as text. The content security policy allows no other script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from regbench.report.content import human_bytes, human_seconds, human_state

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FunctionLoader(lambda name: _asset(name)),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"human_bytes": human_bytes, "human_seconds": human_seconds, "human_state": human_state}
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}


def render_page(
    template: str, *, data: Mapping[str, Any], styles: Sequence[str], scripts: Sequence[str], **values: Any
) -> str:
    """Renders a whole page. The same arguments give the same bytes.

    Args:
        template: a template that extends `report/templates/frame.html`, as a path in the package regbench.
        data: what the scripts find, as JSON, in the element `data`.
        styles: CSS files, as paths in the package regbench.
        scripts: JavaScript files, as paths in the package regbench. They run in one scope, in this order.
        values: what the template shows.
    """
    script = "\n" + "".join(map(_asset, scripts))
    return _ENVIRONMENT.get_template(template).render(
        values, data=data, style=Markup("".join(map(_asset, styles))), script=Markup(script), sha256=_sha256
    )


def _asset(path: str) -> str:
    return resources.files("regbench").joinpath(path).read_text(encoding="utf-8")


def _sha256(code: str) -> str:
    """The digest of a script as a content security policy has it."""
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
