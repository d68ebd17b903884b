"""Chunks of gated delta nets on the device of type "npu" that lies in host memory.

`python npu_gdn_scenes.py SCENE` prints one JSON object for test_gdn_chunk_metadata.py.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
from npu_scenes import use_npu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


class LateCopies(TorchDispatchMode):
    """Makes the copies from host to device that need not be waited for only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        to = kwargs.get("device")
        late = function is aten._to_copy.default and to is not None and kwargs.get("non_blocking")
        if not late or torch.device(to).type != "npu" or args[0].device.type != "cpu":
            return function(*args, **kwargs)
        made = torch.full(args[0].shape, -7, dtype=args[0].dtype, device=to)
        self.waiting.append((made, args[0]))
        return made

    def make(self) -> None:
        for made, source in self.waiting:
            made.copy_(source)


def builds() -> dict[str, object]:
    """The copies of three builds are made after the last one."""
    device = use_npu()
    import test_gdn_argsort as kit

    kit.CPU = device
    common = kit.CommonAttentionMetadata

    def on_device(**fields):
        for name in ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"):
            fields[name] = fields[name].to(device)
        return common(**fields)

    kit.CommonAttentionMetadata = on_device
    with LateCopies() as copies:
        made = [kit.build(lengths, [-1] * len(lengths)) for lengths in ([4, 8], [130], [4, 0, 8])]
        pinned = [source for _, source in copies.waiting if source.is_pinned()]
    copies.make()
    return {
        "chunks": [[m.chunk_indices.tolist(), m.chunk_offsets.tolist()] for m in made],
        "copies": len(pinned),
        "memory": len({source.untyped_storage().data_ptr() for source in pinned}),
        "devices": [made[0].chunk_indices.device.type, made[0].chunk_offsets.device.type],
    }


class ToHost(TorchDispatchMode):
    """Records what makes the host wait for values of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **(kwargs or {}))
        taken = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        given = [x.device.type if isinstance(x, torch.Tensor) else "" for x in tree_leaves(answer)]
        if any(x.device.type == "npu" for x in taken) and given != ["npu"] * len(given):
            self.seen.append(str(function))
        return answer


def rule() -> dict[str, object]:
    """The rule's host part, with and without chunks."""
    device = use_npu()
    warnings.filterwarnings("ignore", "Input tensor shape suggests")
    from gdn_chunk_kit import batch, chunk, watched

    from ascend_runtime.gdn import build_chunk_metadata

    lengths = [70, 4]
    arguments = batch(lengths, device)
    host = torch.tensor([0, *lengths]).cumsum(0)
    answers = {}
    for name in ("alone", "given"):
        with watched(run=False), ToHost() as waits:
            given = {}
            if name == "given":
                meta = build_chunk_metadata(host, device=device)
                given = {"chunk_indices": meta.chunk_indices, "chunk_offsets": meta.chunk_offsets}
            chunk.chunk_gated_delta_rule(**arguments, **given)
        answers[name] = waits.seen
    return answers


def dispatched() -> dict[str, object]:
    """The rule by dispatch, twice."""
    device = use_npu()
    import logging

    from gdn_chunk_kit import batch, chunk

    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    log = logging.getLogger("vllm.ascend_runtime")
    log.addHandler(handler)
    log.setLevel(logging.WARNING)  # vLLM's is set to errors only
    lengths = [70, 0, 4]
    answers = [
        chunk.chunk_gated_delta_rule(**batch(lengths, where)) for where in ("cpu", device, device)
    ]
    off = [(a.cpu() - b).abs().max().item() for a, b in zip(answers[1], answers[0], strict=True)]
    return {"devices": [x.device.type for x in answers[1]], "off": max(off), "warnings": told}


SCENES = {scene.__name__: scene for scene in (builds, rule, dispatched)}

if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]]()))
