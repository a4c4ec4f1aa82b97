"""The grammar of expressions: from a text to a syntax tree, with nothing but Python.

Both packages ask here: `expressions` gives a tree types and runs it on Arrow's kernels, which an
operator does not have; that a text is no expression it can say all the same, before any cluster is
made for it.
"""

from __future__ import annotations

from pipeline_runtime.grammar.parser import parse_tree
from pipeline_runtime.grammar.spec import check_grammar, find_expressions

__all__ = ["check_grammar", "find_expressions", "parse_tree"]
