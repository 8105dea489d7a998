"""GLSL as data: kernel templates (`*.glsl.jinja`), the function library (`lib/*.glsl`) and the tiny renderer
for both.

`render` fills a kernel template. `library` gives the GLSL of the functions a kernel calls and of what those
call, and nothing else, because a kernel's compile time is mostly the text the compiler has to read. `catalog`
tells which functions there are and what they take.

This layer chooses, loops and names; it knows no torch and no Vulkan.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vkinductor.templates.functions import library, library_functions

if TYPE_CHECKING:
    import jinja2

__all__ = ["library", "library_functions", "render", "render_text"]


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # here, because a process whose kernels are all cached never renders one

    return jinja2.Environment(
        loader=jinja2.PackageLoader("vkinductor", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(name: str, **context: Any) -> str:
    """The text of template `name` (a path under `templates/`, such as "copy.glsl.jinja") with `context`
    filled in.

    Raises `jinja2.TemplateNotFound` for an unknown name and `jinja2.UndefinedError` for a variable that is
    not given: a hole in a kernel is a bug, never an empty string.
    """
    return _environment().get_template(name).render(**context)


def render_text(text: str, mark: str, **context: Any) -> str:
    """`text`, a template that is in no file, with `context` filled in.

    Lines end with the comment `mark` (a format of their number in `text`), wherever loops take them; lines that go on
    after a backslash have none. Raises `jinja2.TemplateError`, `UndefinedError` among them, for a wrong template.
    """
    environment = _environment().overlay(trim_blocks=False, lstrip_blocks=False)
    parts: list[str] = []
    for line, kind, value in environment.lex(text if text.endswith("\n") else f"{text}\n"):
        if kind == "data":
            pieces = value.split("\n")
            for i, piece in enumerate(pieces[:-1]):
                parts.append(f"{piece}\n" if piece.endswith("\\") else f"{piece}  // {mark.format(line + i)}\n")
            value = pieces[-1]
        parts.append(value)
    template = environment.from_string("".join(parts))
    rendered = template.render(**context)
    # What only chooses and loops leaves lines without GLSL.
    lines = (line for line in rendered.split("\n") if line.partition("//")[0].strip())
    return "\n".join(lines)
