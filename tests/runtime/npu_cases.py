"""What a device must do that whole models run on, in npu_tensor_cases.py and npu_program_cases.py.

`python npu_cases.py` runs all of them in one process and prints {name: "" or what went wrong} as
JSON. torch keeps a renamed backend until the process ends, so pytest's own process runs none.
"""

from __future__ import annotations

import inspect
import json
import traceback

import npu_program_cases
import npu_tensor_cases

CASES = {
    name: value
    for module in (npu_tensor_cases, npu_program_cases)
    for name, value in vars(module).items()
    if inspect.isfunction(value)
    and value.__module__ == module.__name__
    and not inspect.signature(value).parameters
}


def main() -> None:
    """Run all cases."""
    results = {}
    for name, case in CASES.items():
        try:
            case()
            results[name] = ""
        except BaseException:
            results[name] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
