"""Mixtures of experts without quantization: vLLM's CPU code on its torch path.

Importing this module puts it in the place of vLLM's method, as a plugin's layer would be.
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers.fused_moe.cpu_fused_moe import CPUFusedMOE, select_experts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)


def route(
    layer: torch.nn.Module, hidden: torch.Tensor, logits: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and int32 ids of the chosen experts, [tokens, experts for each token].

    vLLM's CPU code knows no sigmoid scores without groups, as MiniMax-M2 has them.
    """
    if layer.use_grouped_topk or layer.custom_routing_function or layer.scoring_func == "softmax":
        return select_experts(
            hidden,
            logits,
            layer.top_k,
            layer.use_grouped_topk,
            layer.renormalize,
            layer.topk_group,
            layer.num_expert_group,
            layer.custom_routing_function,
            layer.scoring_func,
            layer.routed_scaling_factor,
            layer.e_score_correction_bias,
        )
    scores = logits.float().sigmoid()
    bias = layer.e_score_correction_bias
    ids = (scores if bias is None else scores + bias).topk(layer.top_k, dim=-1).indices
    weights = scores.gather(1, ids)
    if layer.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * layer.routed_scaling_factor, ids.to(torch.int32)


@UnquantizedFusedMoEMethod.register_oot
class TorchFusedMoEMethod(UnquantizedFusedMoEMethod):
    """Routes tokens and runs their experts one by one."""

    def __init__(self, moe) -> None:
        super().__init__(moe)
        self._is_monolithic = True
        self.apply_monolithic = self.run

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Take the weights as they are."""
        self.experts = CPUFusedMOE(layer)

    def run(
        self, layer: torch.nn.Module, x: torch.Tensor, router_logits: torch.Tensor
    ) -> torch.Tensor:
        """Return the experts' weighted sum, of x's shape [tokens, hidden size]."""
        weights, ids = route(layer, x, router_logits)
        return self.experts.forward_torch(
            layer,
            x,
            weights,
            ids,
            layer.activation,
            layer.global_num_experts,
            layer.apply_router_weight_on_input,
        )
