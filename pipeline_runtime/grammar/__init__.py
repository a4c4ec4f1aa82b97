"""The grammar of expressions: from a text to a syntax tree, with nothing but Python.

Both packages use it: `expressions` types a tree and runs it on Arrow's kernels. The operator has no
Arrow, and can still refuse a text that is no expression before it makes a cluster.
"""

from __future__ import annotations

from pipeline_runtime.grammar.parser import parse_tree
from pipeline_runtime.grammar.spec import check_expressions, check_grammar, find_expressions

__all__ = ["check_expressions", "check_grammar", "find_expressions", "parse_tree"]
