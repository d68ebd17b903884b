"""What surrounds the core of gated delta nets: rows of projections, connector, warm-up, buffers."""

from __future__ import annotations

import gdn_kit as kit
import pytest
import torch
from torch import nn
from vllm.distributed import kv_transfer
from vllm.model_executor.models import qwen3_next

NEXT = qwen3_next.Qwen3NextGatedDeltaNet
HIDDEN, Z = 6, kit.HV * kit.DV


@pytest.fixture(scope="module")
def qwen3_5() -> type:
    return kit.qwen3_5().Qwen3_5GatedDeltaNet


def projection(columns: int, gather: int = 1):
    """A projection that gathers the rows of so many ranks, each of which has the same."""
    weight = torch.randn(HIDDEN, columns, generator=torch.Generator().manual_seed(columns))
    return lambda x: (torch.cat([x] * gather) @ weight, None)


def scatter(x: torch.Tensor, ranks: int) -> tuple[torch.Tensor, None]:
    return x[: len(x) // ranks, :HIDDEN].contiguous(), None


def layer(cls: type, ranks: int, prefix: str = "layers.0") -> nn.Module:
    made = kit.layer(
        cls,
        prefix,
        in_proj_qkvz=projection(kit.QKV + Z, ranks),
        in_proj_ba=projection(2 * kit.HV, ranks),
        norm=lambda x, z: x * z,
        out_proj=lambda x: scatter(x, ranks),
    )
    made.seen = []

    def core(mixed_qkv, b, a, core_attn_out):
        made.seen.append([tuple(x.shape) for x in (mixed_qkv, b, a, core_attn_out)])
        value = mixed_qkv[:, -Z:].view(-1, kit.HV, kit.DV)
        core_attn_out.copy_(value * b[..., None] + a[..., None])

    made._forward_core = core
    return made


def run(made: nn.Module, rows: int, output_rows: int) -> torch.Tensor:
    hidden = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(rows))
    output = torch.full((output_rows, HIDDEN), 7.0)
    with kit.step([made], None):
        made(hidden, output)
    return output


@pytest.mark.parametrize("model", ["next", "3.5"])
def test_rows_come_from_the_projections(model, qwen3_5):
    cls = NEXT if model == "next" else qwen3_5
    plain, gathered = layer(cls, 1), layer(cls, 2)
    right = run(plain, 3, 3)
    assert plain.seen == [[(3, kit.QKV), (3, kit.HV), (3, kit.HV), (3, kit.HV, kit.DV)]]
    assert right.isfinite().all() and len(right.unique()) == right.numel()
    got = run(gathered, 3, 4)
    assert gathered.seen == [[(6, kit.QKV), (6, kit.HV), (6, kit.HV), (6, kit.HV, kit.DV)]]
    torch.testing.assert_close(got[:3], right)
    assert (got[3] == 7).all(), "only the rows of the result are written"


def test_upstream_counts_the_rows_of_the_input(base):
    upstream = kit.upstream(base.root).Qwen3NextGatedDeltaNet
    assert run(layer(upstream, 1), 3, 3).equal(run(layer(NEXT, 1), 3, 3))
    with pytest.raises(RuntimeError):
        run(layer(upstream, 2), 3, 4)


class Connector:
    def __init__(self) -> None:
        self.saved: list[tuple] = []

    def has_connector_metadata(self) -> bool:
        return True

    def save_kv_layer(self, name: str, states: object, metadata: object) -> None:
        self.saved.append((name, states, metadata))


@pytest.fixture
def connector(monkeypatch) -> Connector:
    made = Connector()
    monkeypatch.setattr(kv_transfer, "has_kv_transfer_group", lambda: True)
    monkeypatch.setattr(kv_transfer, "is_v1_kv_transfer_group", lambda connector=None: True)
    monkeypatch.setattr(kv_transfer, "get_kv_transfer_group", lambda: made)
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    return made


def two_layers() -> list[nn.Module]:
    layers = [layer(NEXT, 1, f"layers.{number}") for number in (3, 7)]
    for made in layers:
        made.kv_cache = [f"states of {made.prefix}"]
    return layers


@pytest.mark.parametrize("compiled", [False, True])
def test_connector_gets_each_layer_by_its_name(connector, compiled):
    layers = two_layers()
    hidden = torch.randn(2, HIDDEN)

    def forward(x):
        for made in layers:
            output = torch.zeros_like(x)
            made(x, output)
            x = output
        return x

    step = torch.compile(forward, backend="eager", fullgraph=True) if compiled else forward
    for number in range(2):
        with kit.step(layers, f"metadata {number}"):
            step(hidden)
    assert connector.saved == [
        (name, f"states of {name}", f"metadata {number}")
        for number in range(2)
        for name in ("layers.3", "layers.7")
    ]


def test_nothing_is_saved_in_a_profile_run_or_off_npus(connector, monkeypatch):
    layers = two_layers()
    with kit.step(layers, None):
        layers[0](torch.randn(2, HIDDEN), torch.zeros(2, HIDDEN))
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "cuda")
    with kit.step(layers, "metadata"):
        layers[0](torch.randn(2, HIDDEN), torch.zeros(2, HIDDEN))
    assert connector.saved == []


def test_nothing_is_asked_of_a_connector_that_is_not_there(monkeypatch):
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    monkeypatch.setattr(kv_transfer, "get_kv_transfer_group", lambda: pytest.fail("asked"))
    layers = two_layers()
    with kit.step(layers, "metadata"):
        layers[0](torch.randn(2, HIDDEN), torch.zeros(2, HIDDEN))


@pytest.mark.parametrize(("device", "lengths"), [("npu", []), ("cuda", [16, 32, 64])])
def test_warm_up_runs_where_kernels_are_tuned(monkeypatch, device, lengths):
    tuned = []

    def chunked(q, **rest):
        tuned.append(q.size(1))

    module = kit.edited()
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", device)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    made = kit.layer(
        module.Qwen3NextGatedDeltaNet,
        chunk_gated_delta_rule=chunked,
        get_state_dtype=lambda: (torch.float32, torch.float32),
        A_log=kit.A_LOG,
        dt_bias=kit.DT_BIAS,
        layer_idx=0,
    )
    made._warmup_prefill_kernels(torch.zeros(1, kit.QKV))
    assert tuned == lengths


class Block(nn.Module):
    """In the place of a decoder layer's parts; its attention tells the rows of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def forward(self, hidden_states, output, **rest) -> None:
        self.rows.append(len(output))
        output.copy_(hidden_states[: len(output)])


def decoder(ranks: int | None) -> nn.Module:
    made = qwen3_next.Qwen3NextDecoderLayer.__new__(qwen3_next.Qwen3NextDecoderLayer)
    nn.Module.__init__(made)
    made.layer_type, made.layer_scale = "linear_attention", False
    made.linear_attn = Block()
    made.input_layernorm = lambda x, residual=None: x if residual is None else (x, residual)
    made.post_attention_layernorm = lambda x, residual: (x, residual)
    made.mlp = lambda x: x
    if ranks:
        made.attn_output_ranks = ranks
    return made


@pytest.mark.parametrize(
    ("ranks", "positions", "rows"),
    [
        (None, torch.arange(5), 5),
        (4, torch.arange(5), 2),
        (4, torch.arange(15).view(3, 5), 2),
        (4, torch.arange(20), 5),  # the input is this rank's share already
    ],
)
def test_first_output_has_the_rows_of_a_rank(ranks, positions, rows):
    made = decoder(ranks)
    out, _ = made(torch.randn(5, HIDDEN), None, positions)
    assert made.linear_attn.rows == [rows] and len(out) == rows


def test_models_mark_their_first_layer(monkeypatch):
    from ascend_runtime import sp

    monkeypatch.setattr(sp, "enabled", lambda: True)
    monkeypatch.setattr(sp, "_ranks", lambda: 4)
    layers = nn.ModuleList(nn.Identity() for _ in range(4))
    sp.mark_first_layer(layers, 2)
    assert [getattr(one, "attn_output_ranks", None) for one in layers] == [None, None, 4, None]
