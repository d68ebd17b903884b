"""What source edits give and run-time patches cannot: every process, every copy, real lines."""

from __future__ import annotations

import json
import linecache
import multiprocessing
import traceback
from pathlib import Path

import facts
import pytest
import torch
from patched_kit import HERE, forks, module_name, python
from vllm.model_executor.models.utils import _merge_multimodal_embeddings


def imports(names: list[str], **env: str) -> dict[str, str]:
    done = python(HERE / "import_edited.py", stdin=json.dumps(names), **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_edited_modules_import_without_triton_torch_npu_and_extension(installed, base) -> None:
    """Those that lack another package lack it in the pristine vLLM as well."""
    names = [module_name(path) for path in installed.edited]
    missing = {name: what for name, what in imports(names).items() if what}
    without = ("nemotron_parse", "qwen3_5", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
    assert set(missing) <= {f"vllm.model_executor.models.{name}" for name in without}
    assert imports(list(missing), PYTHONPATH=str(base.root)) == missing


def test_spawned_process_sees_each_edit(installed) -> None:
    applied = {t["id"] for t in installed.report["transforms"] if t["outcome"] == "applied"}
    assert set(facts.FACTS) == applied, "facts/ wants one for each applied transform"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(facts.collect) == dict.fromkeys(facts.FACTS, True)


def test_edited_modules_come_from_the_wheel(installed) -> None:
    import vllm

    import ascend_runtime

    for package in (ascend_runtime, vllm):
        assert Path(package.__file__).parents[1] == installed.site


def test_traceback_shows_the_lines_of_the_file(installed) -> None:
    with pytest.raises(ValueError, match="placeholders") as caught:
        _merge_multimodal_embeddings(
            torch.zeros(3, 2), torch.ones(1, 2), torch.ones(3, dtype=torch.bool)
        )
    cause = caught.value.__cause__
    frame = traceback.extract_tb(cause.__traceback__)[-1]
    file = Path(installed.site, "vllm/model_executor/models/utils.py")
    assert Path(frame.filename) == file
    line = file.read_text().splitlines()[frame.lineno - 1].strip()
    assert line == 'raise RuntimeError("number of embeddings and placeholders differ")'
    assert line == linecache.getline(frame.filename, frame.lineno).strip() == frame.line
    assert frame.name == "_merge_multimodal_embeddings"


EARLY = """
from vllm.platforms import vllm_version_matches_substr as early
from vllm.model_executor.models.{user} import {name} as copy
from vllm.model_executor.models import {home}

print(early("+npu."), copy is {home}.{name})
"""


def test_copy_taken_before_anything_else_is_the_edited_one() -> None:
    copies = {
        "roberta": ("bert", "_encode_token_type_ids"),
        "phi3v": ("utils", "_merge_multimodal_embeddings"),
    }
    jobs = {
        user: EARLY.format(user=user, home=home, name=name) for user, (home, name) in copies.items()
    }
    assert forks(jobs) == dict.fromkeys(jobs, "True True\n")
