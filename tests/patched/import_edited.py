"""Reads module names as JSON and imports each with triton, torch_npu and vllm._C out of sight.

Writes {name: "" or the missing package or what else went wrong} as JSON.
"""

import importlib
import json
import sys
from importlib.machinery import PathFinder

HIDDEN = ("triton", "torch_npu", "vllm._C")


class Hiding(PathFinder):
    """Finds what is on sys.path, but for the hidden packages: as if they were not installed."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        """Return None for a hidden module or one within it."""
        if any(fullname == name or fullname.startswith(f"{name}.") for name in HIDDEN):
            return None
        return super().find_spec(fullname, path, target)


def attempt(name: str) -> str:
    """Import a module; say what is missing."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return error.name or str(error)
    except Exception as error:
        return repr(error)
    return ""


sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
assert [attempt(name) for name in HIDDEN[:2]] == list(HIDDEN[:2])
results = {name: attempt(name) for name in json.load(sys.stdin)}
assert not any(name in sys.modules for name in HIDDEN)
print(json.dumps(results))
