"""Operations of the patched vLLM on tensors of the device of type "npu".

`python npu_dispatch_scenes.py SCENE` prints one JSON object for test_dispatch_on_npu.py.
"""

from __future__ import annotations

import json
import logging
import os
import sys

import torch
from npu_scenes import use_npu

OPERATIONS = (
    "norm.l2norm_fwd",
    "norm.layer_norm_fwd",
    "rejection.greedy",
    "sampling.apply_top_k_top_p",
    "sampling.gumbel_sample",
    "slots.compute_slot_mappings",
)


def _told(record: logging.LogRecord, told: list[str]) -> bool:
    told.append(record.getMessage())
    return True


def _run() -> dict[str, object]:
    """Call vLLM's own functions with tensors on the device."""
    from vllm.model_executor.layers.fla.ops.l2norm import l2norm_fwd
    from vllm.model_executor.layers.fla.ops.layernorm_guard import layer_norm_fwd
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
    from vllm.v1.sample.rejection_sampler import rejection_greedy_sample_kernel
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    from ascend_runtime import dispatch

    told: list[str] = []
    log = logging.getLogger("vllm.ascend_runtime.dispatch")
    log.setLevel(logging.WARNING)
    log.addFilter(lambda record: _told(record, told))
    x = torch.tensor([[3.0, 4.0]], device="npu")
    one = torch.ones(2, device="npu")
    zero = torch.zeros(1, dtype=torch.int64, device="npu")
    output = torch.full((2, 3), -1, dtype=torch.int32, device="npu")
    for _ in range(2):
        rejection_greedy_sample_kernel[(2,)](
            output,
            torch.tensor([2, 3], dtype=torch.int32, device="npu"),
            torch.tensor([10, 11, 20], dtype=torch.int32, device="npu"),
            torch.tensor([10, 99, 20], device="npu"),
            torch.tensor([[100], [200]], dtype=torch.int32, device="npu"),
            None,
            2,
        )
    drawn = gumbel_sample(x, zero, torch.zeros(1, device="npu"), zero, zero, True)
    results = {
        "l2norm": l2norm_fwd(x),
        "norm": layer_norm_fwd(x, one, None, 0.0)[0],
        "greedy": output,
        "top": apply_top_k_top_p(x.clone(), zero + 1, None),
        "drawn": drawn,
    }
    assert {result.device.type for result in results.values()} == {"npu"}
    values = {name: result.cpu().nan_to_num(neginf=-9).tolist() for name, result in results.items()}
    chosen = {name: dispatch.choice(name, "npu") for name in OPERATIONS}
    return {"values": values, "chosen": chosen, "told": told}


def references() -> dict[str, object]:
    use_npu()
    os.environ["ASCEND_RUNTIME_SOC"] = "310P"
    return _run()


def kernels() -> dict[str, object]:
    os.environ["TRITON_INTERPRET"] = "1"
    use_npu()
    os.environ["ASCEND_RUNTIME_SOC"] = "A2"
    return _run()


def vendor() -> dict[str, object]:
    """With an operator of the plugin's library, for the device alone."""
    use_npu()
    os.environ["ASCEND_RUNTIME_SOC"] = "A3"
    library = torch.library.Library("_C_ascend", "FRAGMENT")
    library.define("npu_apply_top_k_top_p(Tensor logits, *, Tensor? k, Tensor? p) -> Tensor")
    library.impl("npu_apply_top_k_top_p", lambda logits, k, p: logits + 100, "PrivateUse1")
    return _run()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
