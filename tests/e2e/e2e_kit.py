"""Whole models on the patched vLLM: tiny ones, made here, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import npu_device.build
import tiny_models
import torch
import torch_platform
from patched_kit import ENVIRONMENT, install
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
#: Text of more than a chunk of prefill, some blocks and a sliding window, and shorter ones.
TEXTS = (
    "hello world",
    "the quick brown fox",
    "Zwölf Boxkämpfer, 17 + 4! " * 6,
    "a",
    "vLLM: function name parameter arguments {city} [Tokyo] " * 3,
)
DEVICES = ("cpu", "npu")


@dataclass(frozen=True)
class Run:
    """One model, the engine's options, and what it is asked.

    `prompts` are token ids; `sampling` are fields of SamplingParams, for all or for each prompt.
    """

    folder: Path
    prompts: Sequence[Sequence[int]]
    options: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] | list[dict[str, Any]] = field(default_factory=dict)
    again: bool = False
    """Whether to ask the same once more, of the same engine."""


@dataclass(frozen=True)
class Ground:
    """Folders to import from, and one for models."""

    site: Path
    plugs: Path
    work: Path

    def environment(self, device: str = "cpu", v2: bool = False, **more: str) -> dict[str, str]:
        """The variables of a process that has the platform with this device."""
        path = [self.plugs, self.site, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            **ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "TORCH_PLATFORM_DEVICE": device,
            "VLLM_USE_V2_MODEL_RUNNER": str(int(v2)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "HF_HOME": str(self.work),
            # vLLM's kernels, and ours on an NPU, run in Triton's interpreter.
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "ASCEND_RUNTIME_SOC": "A2",
            "ASCEND_RUNTIME_CORES": "1,2",
            "OMP_NUM_THREADS": "1",
            **more,
        }

    def unedited(self, root: Path) -> Ground:
        """The same with the vLLM in `root`, beside the `ascend_runtime` that the platform wants."""
        site = self.work / "unedited"
        if not site.exists():
            site.mkdir()
            (site / "vllm").symlink_to(root / "vllm")
            (site / "ascend_runtime").symlink_to(self.site / "ascend_runtime")
        return replace(self, site=site)

    def generate(
        self, *runs: Run, device: str = "cpu", v2: bool = False, timeout: float = 600, **more: str
    ) -> list[dict[str, Any]]:
        """Do runs in one process, in order; see `offline_scene.py` for what it says of each."""
        jobs = [
            {
                "folder": str(run.folder),
                "prompts": [list(prompt) for prompt in run.prompts],
                "options": run.options,
                "sampling": run.sampling,
                "again": run.again,
            }
            for run in runs
        ]
        return self.scene("offline_scene.py", jobs, device, v2, timeout, **more)

    def scene(
        self,
        file: str,
        given: object,
        device: str = "cpu",
        v2: bool = False,
        timeout: float = 600,
        **more: str,
    ) -> Any:
        """Run a program of this folder; it reads JSON and prints JSON on its last line."""
        done = subprocess.run(
            [sys.executable, HERE / file],
            input=json.dumps(given),
            env=self.environment(device, v2, **more),
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-8000:]
        return json.loads(done.stdout.splitlines()[-1])

    def model(self, family: str, name: str = "", **changed: Any) -> Path:
        """Return the folder of a tiny model, made when it is first asked for."""
        folder = self.work / (name or family)
        if not folder.exists():
            tiny_models.save_model(folder, family, **changed)
        return folder


def ground(work: Path) -> Ground:
    """Install the wheel and the platform below `work`."""
    plugs, models = work / "plugs", work / "models"
    plugs.mkdir()
    models.mkdir()
    torch_platform.install(plugs)
    npu_device.build.extension()  # once, before many processes want it
    return Ground(install(work).site, plugs, models)


def prompts(folder: Path, texts: Sequence[str] = TEXTS) -> list[list[int]]:
    """Return the tokens of texts."""
    tokenizer = tiny_models.load_tokenizer(folder)
    return [tokenizer(text)["input_ids"] for text in texts]


def by_transformers(folder: Path, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Return the greedy tokens of transformers, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    results = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        generated = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        results.append(generated[0, len(prompt) :].tolist())
    return results


def deficits(model: Any, prompts: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]):
    """How much less likely than the best each token is, by the logits of a model in float32.

    Returns a tensor for each prompt, 0 where the token is the best after all that came before it.
    """
    results = []
    for prompt, generated in zip(prompts, tokens, strict=True):
        ids = torch.tensor([[*prompt, *generated]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(generated)[:, None])[:, 0]
        results.append(logits.amax(1) - chosen)
    return results
