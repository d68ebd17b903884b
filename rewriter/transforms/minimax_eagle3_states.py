"""Hand out the auxiliary hidden states of MiniMax-M2.

Eagle-3 drafts take in the hidden states of some layers of their target.
MiniMax-M2 hands out none, and does not say that it could. Its model gets
the mixin that every other target has: state L is what goes into layer L,
and for the number of layers, what comes out of the last one. Its class
says `SupportsEagle3` by inheritance, so every process knows, that which
inspects models for the registry too. Without a draft, no state is asked
for, and the model returns what it did.

Known limit: with pipeline parallelism only the states of the last stage
reach the draft.
"""

from rewriter.edits import In, add_base, insert_after, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/minimax_m2.py"
ANNOTATION = replace(
    "torch.Tensor | IntermediateTensors",
    "torch.Tensor | IntermediateTensors | tuple[torch.Tensor, list[torch.Tensor]]",
)

TRANSFORM = Transform(
    seed="worker/17",
    tag="Model",
    vllm=">=0.18,<0.20",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/37512, in 0.20.0"),
    remove_when="the base is 0.20.0 or later",
    edits=[
        In(FILE, "MiniMaxM2Model").do(
            add_base("EagleModelMixin"), imports="from .interfaces import EagleModelMixin"
        ),
        In(FILE, "MiniMaxM2Model.forward").do(
            ANNOTATION,
            replace(
                """
for layer in self.layers[self.start_layer : self.end_layer]:
    hidden_states, residual = layer(positions, hidden_states, residual)
""",
                """
aux_hidden_states = self._maybe_add_hidden_state(
    [], self.start_layer, hidden_states, residual
)
for layer_idx, layer in enumerate(
    self.layers[self.start_layer : self.end_layer], start=self.start_layer
):
    hidden_states, residual = layer(positions, hidden_states, residual)
    self._maybe_add_hidden_state(
        aux_hidden_states, layer_idx + 1, hidden_states, residual
    )
""",
            ),
            insert_after(
                "hidden_states, _ = self.norm(hidden_states, residual)",
                """
if len(aux_hidden_states) > 0:
    return hidden_states, aux_hidden_states
""",
            ),
        ),
        In(FILE, "MiniMaxM2ForCausalLM").do(
            add_base("SupportsEagle3"), imports="from .interfaces import SupportsEagle3"
        ),
        In(FILE, "MiniMaxM2ForCausalLM.forward").do(ANNOTATION),
    ],
    examples=[
        Example(
            FILE,
            before="""\
from .interfaces import SupportsLoRA, SupportsPP


@support_torch_compile
class MiniMaxM2Model(nn.Module):
    def forward(self, positions, hidden_states) -> torch.Tensor | IntermediateTensors:
        residual = None
        for layer in self.layers[self.start_layer : self.end_layer]:
            hidden_states, residual = layer(positions, hidden_states, residual)

        if not get_pp_group().is_last_rank:
            return IntermediateTensors(
                {"hidden_states": hidden_states, "residual": residual}
            )
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class MiniMaxM2ForCausalLM(nn.Module, SupportsLoRA, SupportsPP):
    def forward(self, positions) -> torch.Tensor | IntermediateTensors:
        return self.model(positions)
""",
            after="""\
from .interfaces import EagleModelMixin, SupportsEagle3, SupportsLoRA, SupportsPP


@support_torch_compile
class MiniMaxM2Model(nn.Module, EagleModelMixin):
    def forward(
        self, positions, hidden_states
    ) -> torch.Tensor | IntermediateTensors | tuple[torch.Tensor, list[torch.Tensor]]:
        residual = None
        aux_hidden_states = self._maybe_add_hidden_state(
            [], self.start_layer, hidden_states, residual
        )
        for layer_idx, layer in enumerate(
            self.layers[self.start_layer : self.end_layer], start=self.start_layer
        ):
            hidden_states, residual = layer(positions, hidden_states, residual)
            self._maybe_add_hidden_state(
                aux_hidden_states, layer_idx + 1, hidden_states, residual
            )

        if not get_pp_group().is_last_rank:
            return IntermediateTensors(
                {"hidden_states": hidden_states, "residual": residual}
            )
        hidden_states, _ = self.norm(hidden_states, residual)
        if len(aux_hidden_states) > 0:
            return hidden_states, aux_hidden_states
        return hidden_states


class MiniMaxM2ForCausalLM(nn.Module, SupportsLoRA, SupportsPP, SupportsEagle3):
    def forward(
        self, positions
    ) -> torch.Tensor | IntermediateTensors | tuple[torch.Tensor, list[torch.Tensor]]:
        return self.model(positions)
""",
        ),
        Example(
            FILE,
            before="""\
class MiniMaxM2Model(nn.Module):
    def forward(self, positions, hidden_states) -> torch.Tensor:
        for layer in self.layers:
            hidden_states = layer(positions, hidden_states)
        return hidden_states


class MiniMaxM2ForCausalLM(nn.Module, SupportsLoRA):
    def forward(self, positions) -> torch.Tensor:
        return self.model(positions)
""",
            after=None,
        ),
    ],
)
