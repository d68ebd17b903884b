"""The mask of multimodal tokens on the host, and embeddings on the device of type "npu".

`python npu_mask_scenes.py SCENE` prints one JSON object for test_mask_on_host.py.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import torch
from mask_kit import Waits, cases, model_module, rows
from npu_scenes import use_npu

#: Modules that have the function that merges under its own name, and import it when they load.
COPIES = (
    "qwen3_5_mtp",
    "phi3v",
    "molmo2",
    "qwen3_vl",
    "qwen3_asr",
    "nano_nemotron_vl",
    "qwen3_5",
    "fireredasr2",
    "funasr",
    "qwen3_omni_moe_thinker",
)


def wanted() -> dict[str, list]:
    return {name: case.wanted() for name, case in cases().items()}


def on_host() -> dict[str, list]:
    """All on the host; this runs on the pristine tree, too."""
    return {name: case.run("cpu", "cpu")[1] for name, case in cases().items()}


def on_device() -> dict[str, list]:
    """Embeddings on the device, the mask on the host: values and what waited."""
    use_npu()
    answers = {}
    for name, case in cases().items():
        merged, values, waits = case.run("npu", "cpu")
        answers[name] = [merged.device.type, values, waits]
    return answers


def mask_on_device() -> dict[str, list]:
    """As plugins have it that make the mask on the device."""
    use_npu()
    return {name: case.run("npu", "npu")[1:] for name, case in cases().items()}


def copies() -> dict[str, bool]:
    """Whether the modules that took the function by name have the edited one, and of no tokens."""
    from vllm.model_executor.models.utils import _merge_multimodal_embeddings as merge

    return {name: model_module(name)._merge_multimodal_embeddings is merge for name in COPIES}


def decode() -> dict[str, list]:
    """A step without new sounds, in the models that do not look whether there are any."""
    answers = {}
    for name, case in cases().items():
        case.embeddings, case.rows = [], {}
        case.ids = [1, 2, 3]
        answers[name] = case.run("cpu", "cpu")[1]
    return answers


def features(device: torch.device) -> tuple[dict, dict]:
    """Two requests: an image with a hole and a sound over the hole; an image half computed."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    def feature(name: str, offset: int, length: int, is_embed: list[int] | None = None):
        holes = None if is_embed is None else torch.tensor(is_embed, dtype=torch.bool)
        return MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset, length, holes))

    requests = {
        "a": [feature("hole", 1, 4, [1, 0, 0, 1]), feature("sound", 2, 2)],
        "b": [feature("long", 0, 6)],
    }
    outputs = {"hole": rows(2, 0), "sound": rows(2, 10), "long": rows(6, 20)}
    return requests, {name: output.to(device) for name, output in outputs.items()}


def told(embeddings: list[torch.Tensor], mask: torch.Tensor) -> list:
    values = [[e.device.type, e[:, 0].tolist()] for e in embeddings]
    return [mask.device.type, mask.is_pinned(), mask.int().tolist(), values]


def first_runner() -> dict[str, object]:
    """Six tokens of request a; four of b, of which three are computed; then those of the draft."""
    device = use_npu()
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    requests, outputs = features(device)
    runner = SimpleNamespace(
        pin_memory=True,
        input_batch=SimpleNamespace(req_ids=["a", "b"]),
        requests={
            name: SimpleNamespace(num_computed_tokens=computed, mm_features=requests[name])
            for name, computed in (("a", 0), ("b", 3))
        },
        encoder_cache=outputs,
        is_multimodal_pruning_enabled=False,
        uses_mrope=False,
    )
    step = SimpleNamespace(total_num_scheduled_tokens=10, num_scheduled_tokens={"a": 6, "b": 4})
    with Waits() as waits:
        first = GPUModelRunner._gather_mm_embeddings(runner, step)
        kept = first[1].clone()
        draft = GPUModelRunner._gather_mm_embeddings(runner, step, shift_computed_tokens=1)
    return {
        "first": told(*first),
        "draft": told(*draft),
        "fresh": first[1].data_ptr() != draft[1].data_ptr() and torch.equal(first[1], kept),
        "waits": waits.seen,
    }


def second_runner() -> dict[str, object]:
    """The same step by the second runner; and one of decodes alone."""
    device = use_npu()
    from vllm.v1.worker.gpu.mm.encoder_runner import EncoderRunner

    requests, outputs = features(device)
    del requests["a"][1]  # it takes no features that overlap
    runner = EncoderRunner.__new__(EncoderRunner)
    runner.device = device
    runner.encoder_cache = SimpleNamespace(mm_features=requests, encoder_outputs=outputs)
    step = (["a", "b"], 10, np.array([6, 4]), np.array([0, 6, 10]), np.array([6, 7]))
    with Waits() as waits:
        one = runner.gather_mm_embeddings(*step, np.array([0, 3]))
        two = runner.gather_mm_embeddings(*step, np.array([0, 3]))
        decodes = runner.gather_mm_embeddings(*step, np.array([6, 7]))
    return {
        "step": told(*one),
        "fresh": one[1].data_ptr() != two[1].data_ptr(),
        "decodes": [decodes[0], decodes[1].device.type, int(decodes[1].sum())],
        "waits": waits.seen,
    }


def edited() -> dict[str, object]:
    """All of them, in one process: the imports take longest."""
    scenes = (wanted, on_host, on_device, mask_on_device, copies, decode)
    return {scene.__name__: scene() for scene in (*scenes, first_runner, second_runner)}


SCENES = {"on_host": on_host, "edited": edited}

if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]]()))
