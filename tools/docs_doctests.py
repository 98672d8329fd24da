"""For the documentation site: doctests in docstrings become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Put a fence around every paragraph that starts with >>>."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite all docstrings of a package once it is loaded."""
        waiting: list[griffe.Object | griffe.Alias] = [pkg]
        while waiting:
            one = waiting.pop()
            if one.is_alias:
                continue
            if one.docstring is not None:
                one.docstring.value = _DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", one.docstring.value)
            waiting += one.members.values()
