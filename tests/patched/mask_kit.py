"""Models that merge multimodal embeddings, without weights, and a watch on what waits for a device.

For scenes of their own process: the models are imported with stand-ins for torchvision and
torchaudio, which they need for images and sounds and not for what is tried here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WIDTH, LEVELS = 4, 2
#: Text tokens are below VOCABULARY; the others are placeholders.
VOCABULARY, VIDEO, AUDIO, IMAGE = 8, 10, 11, 12
#: The embedding of token t is t/8 in each place.
TABLE = (torch.arange(float(VOCABULARY)) / 8)[:, None].expand(-1, WIDTH).contiguous()


class _Absent(MetaPathFinder, Loader):
    """Makes modules of packages that are not here, of which any attribute is a mock."""

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        absent = name.partition(".")[0] in ("torchvision", "torchaudio")
        return ModuleSpec(name, self, is_package=True) if absent else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = lambda name: MagicMock(name=name)


@cache
def model_module(name: str) -> ModuleType:
    import transformers  # noqa: F401  (looks for torchvision, and must not find the stand-in)

    if not any(isinstance(finder, _Absent) for finder in sys.meta_path):
        sys.meta_path.append(_Absent())
    return import_module(f"vllm.model_executor.models.{name}")


class Waits(TorchDispatchMode):
    """Lists the operators that make the host wait for a device: reads of its tensors."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        result = func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        there = [x for x in tensors if x.device.type == "npu"]
        to_host = name in ("_to_copy", "copy_") and result.device.type == "cpu"
        masks = "index" in name and any(x.dtype is torch.bool for x in there[1:])
        if there and (to_host or masks or name.startswith(self.READS)):
            self.seen.append(name)
        return result


@dataclass
class Case:
    """A model, what it is to merge, and what each position is to have where it is no text."""

    model: object
    ids: list[int]
    embeddings: list[torch.Tensor]
    rows: dict[int, torch.Tensor]
    deepstack: dict[int, torch.Tensor] | None = None

    def wanted(self) -> list:
        """The merged embeddings, and what goes to later layers, one position after the other."""
        merged = [self.rows.get(i, TABLE[t % VOCABULARY]) for i, t in enumerate(self.ids)]
        nothing = torch.zeros(LEVELS * WIDTH)
        deep = self.deepstack
        return [
            torch.stack(merged).tolist(),
            deep and [deep.get(i, nothing).tolist() for i in range(len(self.ids))],
        ]

    def run(self, device: str, mask_on: str) -> tuple[torch.Tensor, list, list[str]]:
        """Merge, and return the result, what Case.wanted tells of it, and what waited."""
        model = self.model
        vars(model).update(table=TABLE.to(device), deep=None)
        mask = torch.tensor([i in self.rows for i in range(len(self.ids))])
        ids = torch.tensor(self.ids, device=device)
        embeddings = [e.to(device) for e in self.embeddings]
        mask = mask.to(mask_on)
        with Waits() as waits:
            merged = model.embed_input_ids(ids, embeddings, is_multimodal=mask)
        deep = model.deep  # levels, tokens, width
        deep = None if deep is None else deep.permute(1, 0, 2).flatten(1).tolist()
        return merged, [merged.tolist(), deep], waits.seen


def rows(count: int, start: float, width: int = WIDTH) -> torch.Tensor:
    return torch.arange(start, start + count * width, dtype=torch.float32).view(count, width)


def bare(module: str, name: str, **attributes: object) -> SimpleNamespace:
    """A model of a class of vLLM with a table of embeddings wherever one of them looks for it."""

    class Model(getattr(model_module(module), name)):
        def get_language_model(self) -> SimpleNamespace:
            return text

        def _set_deepstack_input_embeds(self, deep: torch.Tensor) -> None:
            vars(self)["deep"] = deep

    model = Model.__new__(Model)
    text = SimpleNamespace(embed_input_ids=lambda ids: vars(model)["table"][ids])
    text.embed_tokens, text.model, text.decoder = text.embed_input_ids, text, text
    vars(model).update(model=text, language_model=text, embed_tokens=text.embed_input_ids)
    vars(model).update(attributes)
    return model


def plain(module: str, name: str, oov: bool, **attributes: object) -> Case:
    """A model whose embeddings lie in the order of the tokens."""
    model = bare(module, name, _has_oov_mm_tokens=oov, **attributes)
    width = WIDTH * (LEVELS + 1 if "deepstack_num_level" in attributes else 1)
    image, more = rows(2, 100, width), rows(1, 200, width)
    token = IMAGE if oov else 6
    seen = {1: image[0], 2: image[1], 4: more[0]}
    deepstack = {i: row[WIDTH:] for i, row in seen.items()} if width > WIDTH else None
    merged = {i: row[:WIDTH] for i, row in seen.items()}
    return Case(model, [1, token, token, 4, token, 0], [image, more], merged, deepstack)


def omni(generation: int, interleaved: bool) -> Case:
    """Images, videos and sounds, which are apart or, video and sound, in turns."""
    vision = WIDTH * (LEVELS + 1 if generation == 3 else 1)
    video, audio, image = rows(2, 100, vision), rows(2, 200), rows(1, 300, vision)
    if interleaved:
        ids, videos, audios, images = [1, VIDEO, AUDIO, VIDEO, AUDIO, 2], [1, 3], [2, 4], []
        if generation == 2:  # the third has no vision but video then
            ids, images = [*ids, IMAGE], [6]
    else:
        ids = [1, VIDEO, VIDEO, 2, AUDIO, AUDIO, 3, IMAGE]
        videos, audios, images = [1, 2], [4, 5], [7]
    embeddings = [video, audio] + [image] * len(images)
    seen = dict(zip(videos + images, [*video, *image], strict=False))
    text = SimpleNamespace(hidden_size=WIDTH)
    tokens = {"video_token_id": VIDEO, "audio_token_id": AUDIO}
    if generation == 2:
        tokens = {"video_token_index": VIDEO, "audio_token_index": AUDIO}
    name = "Qwen2_5OmniThinker" if generation == 2 else "Qwen3OmniMoeThinker"
    model = bare(
        "qwen2_5_omni_thinker" if generation == 2 else "qwen3_omni_moe_thinker",
        f"{name}ForConditionalGeneration",
        _has_oov_mm_tokens=True,
        config=SimpleNamespace(**tokens, text_config=text),
        visual=SimpleNamespace(deepstack_visual_indexes=range(LEVELS)),
    )
    deepstack = {i: row[WIDTH:] for i, row in seen.items()} if generation == 3 else None
    merged = {i: row[:WIDTH] for i, row in seen.items()} | dict(zip(audios, audio, strict=True))
    return Case(model, ids, embeddings, merged, deepstack)


def kimi() -> Case:
    """Sounds are not put in place of the text but added to it."""
    model = bare("kimi_audio", "KimiAudioForConditionalGeneration", _has_oov_mm_tokens=False)
    sound = rows(2, 100)
    merged = {i: (TABLE[6] + row) * 2**0.5 for i, row in zip((1, 2), sound, strict=True)}
    return Case(model, [1, 6, 6, 4], [sound], merged)


def cases() -> dict[str, Case]:
    deep = {
        "use_deepstack": True,
        "visual_dim": WIDTH,
        "multiscale_dim": WIDTH * LEVELS,
        "deepstack_num_level": LEVELS,
    }
    return {
        "interface": plain("interfaces", "SupportsMultiModal", False),
        "interface, ids beyond the vocabulary": plain("interfaces", "SupportsMultiModal", True),
        "phi3v": plain("phi3v", "Phi3VForCausalLM", True),
        "molmo2": plain("molmo2", "Molmo2ForConditionalGeneration", True),
        "qwen3_vl": plain("qwen3_vl", "Qwen3VLForConditionalGeneration", True, **deep),
        "qwen3_5": plain("qwen3_5", "Qwen3_5ForConditionalGeneration", True),
        "qwen3_5_mtp": plain("qwen3_5_mtp", "Qwen3_5MTP", True),
        "qwen3_asr": plain("qwen3_asr", "Qwen3ASRForConditionalGeneration", True),
        "fireredasr2": plain("fireredasr2", "FireRedASR2ForConditionalGeneration", False),
        "funasr": plain("funasr", "FunASRForConditionalGeneration", False),
        "kimi_audio": kimi(),
        "qwen2_5_omni": omni(2, interleaved=False),
        "qwen2_5_omni, interleaved": omni(2, interleaved=True),
        "qwen3_omni": omni(3, interleaved=False),
        "qwen3_omni, interleaved": omni(3, interleaved=True),
    }
