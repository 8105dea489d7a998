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

__all__ = ["library", "library_functions", "render"]


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
