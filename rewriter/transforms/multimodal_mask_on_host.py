"""Keep the mask of multimodal tokens on the host.

Both model runners make the mask on the host and copy it to the device,
where indexing with it makes the host wait for its positions (`nonzero`).
The mask now stays on the host: the runners hand out a fresh one in each
step, and the models find the positions there. Where the device needs the
mask after all, to blank token ids beyond the vocabulary, it is copied
without waiting; it is pinned for that, and torch keeps pinned memory until
such copies are done, so the pair of buffers that took turns is gone. The
Qwen omni models look for their token ids below the mask; they copy the ids
to it once, which is one wait in place of about ten.

The masks of plugins that still make them on the device work as before. So
does the one that the second runner makes on the device in a step of decodes
alone, when there is nothing to merge. torch itself copies the positions
that index a tensor to the device, and may wait for that copy.

Needs `multimodal_merge`: the code that it replaces wants mask and embeddings
on one device.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
ENCODER = "vllm/v1/worker/gpu/mm/encoder_runner.py"
INTERFACES = "vllm/model_executor/models/interfaces.py"
OMNI = (
    ("vllm/model_executor/models/qwen2_5_omni_thinker.py", "Qwen2_5OmniThinker"),
    ("vllm/model_executor/models/qwen3_omni_moe_thinker.py", "Qwen3OmniMoeThinker"),
)

BUFFERS = """
if self.supports_mm_inputs:
    self.is_mm_embed_buffers = [
        self._make_buffer(self.max_num_tokens, dtype=torch.bool),
        self._make_buffer(self.max_num_tokens, dtype=torch.bool),
    ]
    self.is_mm_embed_idx = 0
"""
TAKE_BUFFER = """
self.is_mm_embed_idx = 1 - self.is_mm_embed_idx
is_mm_embed_buf = self.is_mm_embed_buffers[self.is_mm_embed_idx]

mm_embeds = list[torch.Tensor]()
is_mm_embed = is_mm_embed_buf.cpu
is_mm_embed[:total_num_scheduled_tokens] = False
"""
MAKE_MASK = """
mm_embeds = list[torch.Tensor]()
# Not used again in the next step: an async copy may still be reading it then.
is_mm_embed = torch.zeros(
    total_num_scheduled_tokens,
    dtype=torch.bool,
    device="cpu",
    pin_memory=self.pin_memory,
)
"""
FIND = """
is_video = is_multimodal & (input_ids == video_token_id)
is_audio = is_multimodal & (input_ids == audio_token_id)
"""
FIND_BESIDE_MASK = """
# The mask is on the CPU: one copy, and no synchronization in what follows.
ids_beside_mask = input_ids.to(is_multimodal.device)
is_video = is_multimodal & (ids_beside_mask == video_token_id)
is_audio = is_multimodal & (ids_beside_mask == audio_token_id)
"""

TRANSFORM = Transform(
    seed=(),
    tag="Core",
    vllm=">=0.18,<0.20",
    upstream=Upstream.backport(
        "the rest of https://github.com/vllm-project/vllm/pull/34246, in 0.20.0; pinned here"
    ),
    remove_when="the base is 0.20.0 or later",
    edits=[
        In(RUNNER, "GPUModelRunner.__init__").do(replace(BUFFERS, "", with_comments=True)),
        In(RUNNER, "GPUModelRunner._gather_mm_embeddings").do(
            replace(TAKE_BUFFER, MAKE_MASK, with_comments=True),
            replace(
                "is_mm_embed = is_mm_embed_buf.copy_to_gpu(total_num_scheduled_tokens)",
                "",
            ),
        ),
        In(ENCODER, "EncoderRunner.gather_mm_embeddings").do(
            replace(
                "is_mm_embed = is_mm_embed.to(device=self.device, non_blocking=True)",
                "",
                with_comments=True,
            ),
        ),
        In(INTERFACES, "SupportsMultiModal._embed_text_input_ids").do(
            replace(
                "input_ids.masked_fill(is_multimodal, 0)",
                "input_ids.masked_fill("
                "is_multimodal.to(device=input_ids.device, non_blocking=True), 0)",
            ),
        ),
        *(
            In(path, f"{name}ForConditionalGeneration.embed_input_ids").do(
                replace(FIND, FIND_BESIDE_MASK)
            )
            for path, name in OMNI
        ),
    ],
    examples=[
        Example(
            RUNNER,
            before="""\
class GPUModelRunner:
    def __init__(self):
        # Only relevant for multimodal models
        if self.supports_mm_inputs:
            self.is_mm_embed_buffers = [
                self._make_buffer(self.max_num_tokens, dtype=torch.bool),
                self._make_buffer(self.max_num_tokens, dtype=torch.bool),
            ]
            self.is_mm_embed_idx = 0

        self.last = 1

    def _gather_mm_embeddings(self, total_num_scheduled_tokens, start, end):
        # Swap to the other buffer
        self.is_mm_embed_idx = 1 - self.is_mm_embed_idx
        is_mm_embed_buf = self.is_mm_embed_buffers[self.is_mm_embed_idx]

        mm_embeds = list[torch.Tensor]()
        is_mm_embed = is_mm_embed_buf.cpu
        is_mm_embed[:total_num_scheduled_tokens] = False

        is_mm_embed[start:end] = True
        is_mm_embed = is_mm_embed_buf.copy_to_gpu(total_num_scheduled_tokens)
        return mm_embeds, is_mm_embed
""",
            after="""\
class GPUModelRunner:
    def __init__(self):
        self.last = 1

    def _gather_mm_embeddings(self, total_num_scheduled_tokens, start, end):
        mm_embeds = list[torch.Tensor]()
        # Not used again in the next step: an async copy may still be reading it then.
        is_mm_embed = torch.zeros(
            total_num_scheduled_tokens,
            dtype=torch.bool,
            device="cpu",
            pin_memory=self.pin_memory,
        )

        is_mm_embed[start:end] = True
        return mm_embeds, is_mm_embed
""",
        ),
        Example(
            ENCODER,
            before="""\
class EncoderRunner:
    def gather_mm_embeddings(self, total, all_decode):
        if all_decode:
            return [], torch.zeros(total, dtype=torch.bool, device=self.device)
        is_mm_embed = torch.zeros(total, dtype=torch.bool, pin_memory=True)
        # Copy the is_mm_embed tensor to the GPU.
        is_mm_embed = is_mm_embed.to(device=self.device, non_blocking=True)
        return [], is_mm_embed
""",
            after="""\
class EncoderRunner:
    def gather_mm_embeddings(self, total, all_decode):
        if all_decode:
            return [], torch.zeros(total, dtype=torch.bool, device=self.device)
        is_mm_embed = torch.zeros(total, dtype=torch.bool, pin_memory=True)
        return [], is_mm_embed
""",
        ),
        Example(
            INTERFACES,
            before="""\
class SupportsMultiModal:
    def _embed_text_input_ids(self, input_ids, embed_input_ids, *, is_multimodal):
        in_vocab_ids = input_ids.masked_fill(is_multimodal, 0)
        return embed_input_ids(in_vocab_ids)
""",
            after="""\
class SupportsMultiModal:
    def _embed_text_input_ids(self, input_ids, embed_input_ids, *, is_multimodal):
        in_vocab_ids = input_ids.masked_fill(
            is_multimodal.to(device=input_ids.device, non_blocking=True), 0
        )
        return embed_input_ids(in_vocab_ids)
""",
        ),
        *(
            Example(
                path,
                before=f"""\
class {name}ForConditionalGeneration:
    def embed_input_ids(self, input_ids, is_multimodal, video_token_id, audio_token_id):
        is_video = is_multimodal & (input_ids == video_token_id)
        is_audio = is_multimodal & (input_ids == audio_token_id)
        return is_video, is_audio
""",
                after=f"""\
class {name}ForConditionalGeneration:
    def embed_input_ids(self, input_ids, is_multimodal, video_token_id, audio_token_id):
        # The mask is on the CPU: one copy, and no synchronization in what follows.
        ids_beside_mask = input_ids.to(is_multimodal.device)
        is_video = is_multimodal & (ids_beside_mask == video_token_id)
        is_audio = is_multimodal & (ids_beside_mask == audio_token_id)
        return is_video, is_audio
""",
            )
            for path, name in OMNI
        ),
        Example(
            INTERFACES,
            before="""\
class SupportsMultiModal:
    def _embed_text_input_ids(self, input_ids, padding, *, is_multimodal):
        return input_ids.masked_fill(padding, 0)
""",
            after=None,
        ),
    ],
)
