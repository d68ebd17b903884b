"""The edit primitives, for transforms to import.

Patterns and replacements are Python that looks like the code it changes (`rewriter.snippet`).
"""

from rewriter.codemod import Codemod
from rewriter.definitions import (
    add_base,
    add_decorator,
    add_member,
    add_parameter,
    set_parameter,
)
from rewriter.edit import In, Target
from rewriter.elements import add_entry, add_item, add_keyword, set_keyword
from rewriter.statements import insert_after, insert_before, replace

__all__ = [
    "Codemod",
    "In",
    "Target",
    "add_base",
    "add_decorator",
    "add_entry",
    "add_item",
    "add_keyword",
    "add_member",
    "add_parameter",
    "insert_after",
    "insert_before",
    "replace",
    "set_keyword",
    "set_parameter",
]
