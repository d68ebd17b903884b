"""`python -m ascend_runtime`: what is in the installed wheel, and is the installation sound.

Exit status: 0 if all is well, 1 if something is wrong, 2 if this is not an installed wheel.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ascend_runtime import doctor
from ascend_runtime import manifest as manifests

SCHEMA = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m ascend_runtime",
        description="Show what the installed patched vLLM holds, and check the installation.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    site = manifests.site()
    try:
        manifest = manifests.load(site)
    except manifests.ManifestError as error:
        print(
            f"python -m ascend_runtime: {error}; run it from another folder, with the Python that"
            " the wheel is installed in",
            file=sys.stderr,
        )
        return 2
    report = _report(manifest, site)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        _show(report)
    return 0 if report["ok"] else 1


def _report(manifest: manifests.Manifest, site: Path) -> dict[str, Any]:
    findings = doctor.examine(manifest, site)
    errors: list[str] = []
    operations = _operations(errors)
    if errors:
        more = f" (and {len(errors) - 1} more like it)" if errors[1:] else ""
        cure = "correct or unset the variable ASCEND_RUNTIME_..., or install what it needs"
        findings.append(doctor.Finding("environment", errors[0] + more, cure))
    return {
        "schema": SCHEMA,
        "ok": not findings,
        "site": str(site),
        "project": manifest.project,
        "version": manifest.version,
        "base": manifest.base,
        "transforms": manifest.transforms,
        "files": len(manifest.files),
        "operations": operations,
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


def _operations(errors: list[str]) -> dict[str, Any] | None:
    """Say for each operation what could do it on an NPU, what is missing, and what is taken.

    What is taken is None where a call would fail, as the environment asks for what is not there;
    why, is added to `errors`, once. Without torch, which an installation may still lack, there is
    nothing to say: None.
    """

    def ask(question: Callable[..., Any], *args: str) -> Any:
        try:
            return question(*args)
        except (ValueError, RuntimeError) as error:
            if str(error) not in errors:
                errors.append(str(error))
            return None

    try:
        from ascend_runtime import device, dispatch
        from ascend_runtime.operations import OPERATIONS
    except ImportError:
        return None
    if os.environ.get("ASCEND_RUNTIME_CORES"):
        ask(device.cores)
    kind = "npu" if device.is_npu() else "cpu"
    table = []
    for operation in OPERATIONS.values():
        ways = [
            {
                "kind": way.kind,
                "socs": list(way.socs),
                "needs": list(way.needs),
                "missing": dispatch.missing(way),
            }
            for way in operation.implementations
        ]
        chosen = ask(dispatch.choice, operation.name, kind)
        table.append({"name": operation.name, "implementations": ways, "chosen": chosen})
    return {"device": kind, "soc": ask(device.soc_name), "table": table}


def _show(report: dict[str, Any]) -> None:
    base = report["base"]
    print(f"vLLM {base['version']} edited by vllm-ascend-rewriter {report['project']}")
    print(f"  wheel {report['version']}")
    print(f"  base  {base['file'] or base['origin']}  sha256 {base['sha256']}")
    print(f"  in    {report['site']}")
    print()
    width = max((len(one["id"]) for one in report["transforms"]), default=0)
    for one in report["transforms"]:
        line = f"  {one['id']:{width}}  {one['outcome']:16}  {', '.join(one['seed']):20}"
        if one["files"]:
            files = one["files"]
            where = files[0] if len(files) == 1 else f"{len(files)} files"
            line += f"  +{one['added']} -{one['removed']} in {where}"
        print(line.rstrip())
    print()
    if report["operations"]:
        _show_operations(report["operations"])
        print()
    if report["ok"]:
        print(f"ok: {report['files']} files are as packed, and the doctor found nothing wrong")
    for finding in report["findings"]:
        print(f"wrong [{finding['check']}]: {finding['problem']}")
        print(f"  do: {finding['cure']}")


def _show_operations(operations: dict[str, Any]) -> None:
    chip = f" {operations['soc']}" if operations["soc"] else ""
    print(f"what does an operation, here on {operations['device']}{chip}:")
    width = max(len(one["name"]) for one in operations["table"])
    for one in operations["table"]:
        ways = []
        for way in one["implementations"]:
            needs = [f"no {n}" if n in way["missing"] else n for n in way["needs"]]
            text = way["kind"]
            if way["kind"] != "reference":
                needs.insert(0, "/".join(way["socs"]))
            ways.append(f"{text} ({', '.join(needs)})" if needs else text)
        print(f"  {one['name']:{width}}  {one['chosen'] or 'fails':9}  of {' > '.join(ways)}")


if __name__ == "__main__":
    sys.exit(main())
