"""Reads {name: code} as JSON, runs each in a fork, and writes {name: what it printed}."""

import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path


def run(code: str, output: Path) -> None:
    """Run one job in this process, which ends with it."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            exec(code, {"__name__": "job"})
        except BaseException:
            text.write(traceback.format_exc())
    output.write_text(text.getvalue())
    os._exit(0)


def main() -> None:
    """Keep as many forks going as there are cores to run on."""
    import torch
    import transformers  # noqa: F401

    assert not any(name.partition(".")[0] == "vllm" for name in sys.modules)
    torch.set_num_threads(1)
    jobs = json.load(sys.stdin)
    running = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, code in enumerate(jobs.values()):
            if running == (os.cpu_count() or 1):
                os.wait()
                running -= 1
            if os.fork() == 0:
                run(code, Path(folder, str(number)))
            running += 1
        while running:
            os.wait()
            running -= 1
        texts = [Path(folder, str(number)).read_text() for number in range(len(jobs))]
    print(json.dumps(dict(zip(jobs, texts, strict=True))))


if __name__ == "__main__":
    main()
