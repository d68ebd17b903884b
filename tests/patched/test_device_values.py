"""W15: tensors are created on the platform's device, or on that of the tensor at hand.

`meta` stands for a device that is neither "cuda" nor "cpu".
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import vllm.platforms
from patched_kit import fresh
from safetensors.torch import save_file
from vllm.distributed.eplb.eplb_state import EplbState
from vllm.distributed.kv_transfer.kv_connector.v1 import example_connector as connector
from vllm.distributed.weight_transfer import packed_tensor
from vllm.lora import lora_model
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.model_executor.layers.fla.ops import chunk
from vllm.model_executor.layers.fused_moe import routed_experts_capturer as routed
from vllm.model_executor.layers.rotary_embedding import dual_chunk_rope
from vllm.model_executor.layers.rotary_embedding.dual_chunk_rope import DualChunkRotaryEmbedding
from vllm.model_executor.model_loader import weight_utils
from vllm.model_executor.models import nemotron
from vllm.v1.spec_decode import ngram_proposer_gpu as ngram
from vllm.v1.structured_output import backend_lm_format_enforcer, backend_outlines
from vllm.v1.worker import gpu_model_runner

META = torch.device("meta")


def test_dual_chunk_rope(platform, monkeypatch: pytest.MonkeyPatch) -> None:
    platform(dual_chunk_rope, device_type="meta")
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 2)
    monkeypatch.setattr(DualChunkRotaryEmbedding, "dispatch_forward", lambda *a, **k: None)
    rope = DualChunkRotaryEmbedding(
        head_size=8,
        rotary_dim=8,
        max_position_embeddings=64,
        base=10000.0,
        is_neox_style=True,
        dtype=torch.float32,
        chunk_size=32,
        local_size=8,
    )
    assert rope.device == torch.device("meta", 2)
    assert {buffer.device.type for buffer in rope.buffers()} == {"meta"}
    assert rope.cos_sin_q_inter_cache.shape == (24, 8)


class Loaded(Exception):
    """Ends the loader once it has chosen a device."""


def test_fastsafetensors(platform, monkeypatch: pytest.MonkeyPatch) -> None:
    platform(weight_utils, device_type="meta", current_device=lambda: 3)
    devices = []

    def loader(group: object, device: torch.device, *rest: object, **options: object) -> None:
        devices.append(device)
        raise Loaded

    monkeypatch.setattr(weight_utils, "SingleGroup", lambda: SimpleNamespace(size=lambda: 1))
    monkeypatch.setattr(weight_utils, "_init_fastsafetensors_loader", loader)
    with pytest.raises(Loaded):
        next(weight_utils.fastsafetensors_weights_iterator(["a.safetensors"], False))
    assert devices == [torch.device("meta", 3)]


def test_example_connector_loads_to_the_device_of_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "layer.safetensors"
    save_file({"kv_cache": torch.ones(2, 3, 4)}, file)
    request = SimpleNamespace(
        is_store=False, slot_mapping=torch.arange(3), token_ids=torch.arange(3), mm_hashes=[]
    )
    stub = SimpleNamespace(
        _block_size=4,
        _generate_filename_debug=lambda *arguments: str(file),
        _get_connector_metadata=lambda: connector.ExampleConnectorMetadata([request]),
    )
    for device in ("cpu", "meta"):
        cache = torch.zeros(2, 2, 4, 4, device=device)  # two pages of four slots
        context = SimpleNamespace(
            attn_metadata={"layer": None},
            no_compile_layers={"layer": SimpleNamespace(kv_cache=[cache]), "mlp": object()},
            virtual_engine=0,
        )
        connector.ExampleConnector.start_load_kv(stub, context)
        if device == "cpu":
            assert cache.reshape(2, 8, 4)[:, :3].eq(1).all()
            assert cache.sum() == 2 * 3 * 4


@pytest.mark.parametrize(
    ("device", "there", "index"),
    [
        ("cpu", True, None),
        ("meta:1", True, 1),
        ("meta", True, 2),
        ("meta", False, None),
        ("cuda:0", False, 0),
    ],
)
def test_eplb_device_index(monkeypatch, device: str, there: bool, index: int | None) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: there)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 2)
    state = EplbState(SimpleNamespace(eplb_config=SimpleNamespace()), torch.device(device))
    assert state.cuda_device_index == index


@pytest.mark.parametrize(("given", "expected"), [(None, "meta"), ("cpu", "cpu"), (META, META)])
def test_ngram_kernel_defaults_to_the_platforms_device(platform, given, expected) -> None:
    platform(ngram, device_type="meta")
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=2, prompt_lookup_max=4, num_speculative_tokens=3
        ),
        model_config=SimpleNamespace(max_model_len=128),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
    )
    kernel = ngram.NgramGPUKernel.__new__(ngram.NgramGPUKernel)
    decorated = inspect.getclosurevars(ngram.NgramGPUKernel.__init__).nonlocals
    decorated["old_init"](kernel, config, device=given)  # the class's own `__init__`
    assert kernel.device == expected


@pytest.mark.parametrize(("given", "expected"), [({}, "meta"), ({"device": "cpu"}, "cpu")])
def test_ngram_dummy_data(platform, given: dict, expected: str) -> None:
    platform(ngram, device_type="meta")
    data = ngram.NgramProposerGPU._generate_dummy_data(None, 4, 16, 3, **given)
    assert {tensor.device.type for tensor in data} == {expected}
    assert [tuple(tensor.shape) for tensor in data] == [(4, 16), (4,), (4,), (4,)]


TENSORS = {
    "base_model.model.model.layers.0.q_proj.lora_A.weight": torch.ones(2, 8),
    "base_model.model.model.layers.0.q_proj.lora_B.weight": torch.ones(8, 2),
}
HELPER = PEFTHelper(r=2, lora_alpha=2, target_modules=["q_proj"])
DEVICES = pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "meta"), ({"device": None}, "meta"), ({"device": "cpu"}, "cpu")],
)


def devices(model: LoRAModel) -> set[str]:
    return {t.device.type for w in model.loras.values() for t in (w.lora_a, w.lora_b)}


@pytest.fixture
def lora(platform, monkeypatch: pytest.MonkeyPatch) -> None:
    platform(lora_model, device_type="meta")
    monkeypatch.setattr(lora_model, "is_pin_memory_available", lambda: False)


@DEVICES
def test_lora_from_tensors(lora, given: dict, expected: str) -> None:
    model = LoRAModel.from_lora_tensors(1, TENSORS, HELPER, **given)
    assert devices(model) == {expected}


@DEVICES
def test_lora_from_a_checkpoint(lora, tmp_path: Path, given: dict, expected: str) -> None:
    save_file(TENSORS, tmp_path / "adapter_model.safetensors")
    model = LoRAModel.from_local_checkpoint(
        str(tmp_path), {"q_proj"}, HELPER, lora_model_id=1, **given
    )
    assert devices(model) == {expected}


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (packed_tensor.packed_broadcast_producer, [0]),
        (packed_tensor.packed_broadcast_consumer, [0, 5, 5]),
    ],
)
def test_buffers_of_packed_weight_transfer(platform, function: Callable, sizes: list) -> None:
    """Each buffer by itself; test_platform_streams.py runs the whole functions."""
    platform(packed_tensor, device_type="meta")
    buffers = [
        eval(ast.unparse(node), vars(packed_tensor), {"packing_tensor_sizes": [5], "buffer_idx": 0})
        for node in ast.walk(ast.parse(inspect.getsource(function)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.empty"
    ]
    assert sorted(buffer.numel() for buffer in buffers) == sizes
    assert {(buffer.device, buffer.dtype) for buffer in buffers} == {(META, torch.uint8)}


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (backend_outlines, "OutlinesBackend"),
        (backend_lm_format_enforcer, "LMFormatEnforcerBackend"),
    ],
)
def test_grammar_bitmask_is_pinned_where_the_platform_can(monkeypatch, module, name, pinned):
    seen = {}
    full = torch.full

    def watched(*arguments: object, pin_memory: bool, **options: object) -> torch.Tensor:
        seen["pin_memory"] = pin_memory
        return full(*arguments, **options)

    monkeypatch.setattr(torch, "full", watched)
    monkeypatch.setattr(module, "is_pin_memory_available", lambda: pinned)
    mask = getattr(module, name).allocate_token_bitmask(SimpleNamespace(vocab_size=65), 4)
    assert seen == {"pin_memory": pinned}
    assert mask.tolist() == [[-1, -1, -1]] * 4


def test_nemotron_norm_takes_autocast_from_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = nemotron.NemotronLayerNorm1P(4)
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0]])
    casts, contexts = [], []
    autocast = torch.amp.autocast

    def cast(values: tuple, device_type: str, dtype: torch.dtype) -> tuple:
        casts.append(device_type)
        return values

    def watched(device_type: str, enabled: bool) -> torch.amp.autocast:
        contexts.append((device_type, enabled))
        return autocast(device_type, enabled=enabled)

    monkeypatch.setattr(torch.amp, "autocast", watched)
    monkeypatch.setattr(torch.amp.autocast_mode, "_cast", cast)
    plain = norm(x)
    assert contexts == [("cpu", False)]
    assert casts == []
    assert torch.allclose(plain, torch.nn.functional.layer_norm(x, (4,), 2 * torch.ones(4)))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device=None: device is None)
    monkeypatch.setattr(torch, "get_autocast_gpu_dtype", lambda: torch.bfloat16)
    assert torch.equal(norm(x), plain)
    assert casts == ["cpu"]


def test_gated_delta_rule_casts_on_the_platforms_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    custom_fwd = torch.amp.custom_fwd

    def watched(*, device_type: str) -> Callable:
        seen.append(device_type)
        return custom_fwd(device_type=device_type)

    monkeypatch.setattr(torch.amp, "custom_fwd", watched)
    platform = SimpleNamespace(device_type="privateuseone")
    monkeypatch.setattr(vllm.platforms, "_current_platform", platform)
    fresh(chunk.__name__)
    assert seen == ["privateuseone"]


def test_out_of_memory_error_is_the_one_of_every_device() -> None:
    tree = ast.parse(
        inspect.cleandoc(inspect.getsource(gpu_model_runner.GPUModelRunner.load_model))
    )
    caught = [ast.unparse(n.type) for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler)]
    assert caught == ["torch.OutOfMemoryError"]
    assert torch.OutOfMemoryError is torch.cuda.OutOfMemoryError


@pytest.fixture
def capturer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """`capturer(rank)` calls `init_buffer` for two layers and three experts a token."""
    config = SimpleNamespace(
        instance_id="test",
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(num_hidden_layers=2, num_experts_per_tok=3)
        ),
        parallel_config=SimpleNamespace(data_parallel_rank=0),
    )
    segments: list[tuple] = []

    def segment(name: str, size: int, lock: str) -> SimpleNamespace:
        segments.append((name, size))
        return SimpleNamespace(buf=bytearray(size), close=lambda: None, unlink=lambda: None)

    monkeypatch.setattr(routed, "_create_or_attach_shared_memory", segment)

    def make(rank: int) -> tuple[object, list[tuple]]:
        monkeypatch.setattr(routed, "get_tensor_model_parallel_rank", lambda: rank)
        made = routed.RoutedExpertsCapturer()
        made.init_buffer(4, 8, config)
        with pytest.raises(RuntimeError, match="already been initialized"):
            made.init_buffer(4, 8, config)
        return made, segments

    yield make


@pytest.mark.parametrize(("rank", "count"), [(0, 1), (1, 0)])
def test_routed_experts_buffer(platform, capturer, rank: int, count: int) -> None:
    platform(routed, device_type="meta")
    made, segments = capturer(rank)
    buffer = made._device_buffer
    assert (tuple(buffer.shape), buffer.dtype, buffer.device) == ((4, 2, 3), torch.int32, META)
    assert [size for _, size in segments] == [8 * 2 * 3 * 4] * count
