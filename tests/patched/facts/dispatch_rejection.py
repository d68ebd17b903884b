"""The rejection sampler and top-k/top-p, chosen at each call."""

from __future__ import annotations

from facts import fact


@fact
def dispatch_rejection() -> bool:
    import vllm.v1.sample.rejection_sampler as sampler

    from ascend_runtime.dispatch import _Kernel

    kernels = ("rejection_greedy_sample", "rejection_random_sample", "expand")
    names = [*(f"{kernel}_kernel" for kernel in kernels), "sample_recovered_tokens_kernel"]
    return all(isinstance(getattr(sampler, name), _Kernel) for name in names)


@fact
def dispatch_top_k_top_p() -> bool:
    import torch
    from vllm.v1.worker.gpu.sample.states import apply_top_k_top_p

    from ascend_runtime import dispatch

    logits = torch.tensor([[1.0, 2.0]])
    with dispatch.override("reference"):
        cut = apply_top_k_top_p(logits, torch.tensor([1]), None)
    return hasattr(apply_top_k_top_p, "__wrapped__") and cut.tolist() == [[float("-inf"), 2.0]]
