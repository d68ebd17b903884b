#!/usr/bin/env python3
"""Build the patched vLLM wheels. `--help` lists the options; README.md has examples.

This file stays readable for old Pythons, so that they get a sentence and not a SyntaxError.
"""

import os
import sys


def main():
    """Check the interpreter, then hand over to rewriter.cli."""
    if sys.version_info < (3, 11):
        version = ".".join(map(str, sys.version_info[:3]))
        sys.stderr.write("error: Python 3.11 or later is needed, this is %s\n" % version)
        return 2
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, root)
    try:
        from rewriter.cli import main as run
    except ModuleNotFoundError as error:
        sys.stderr.write(
            "error: the package %s is missing; install the requirements first with"
            " 'python -m pip install .' in the project's folder\n" % error.name
        )
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was written\n")
        return 130
    return run(sys.argv[1:], os.path.join(root, "ascend_runtime"))


if __name__ == "__main__":
    sys.exit(main())
