"""What becomes of the weights of a draft whose target was rotated, and of what cannot be."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from ascend_runtime import quarot
from ascend_runtime.quarot import TargetRotation, adapt_draft_weights, find_target_rotation

H, V = 8, 16
GENERATOR = torch.Generator().manual_seed(0)
Q = torch.linalg.qr(torch.randn(H, H, generator=GENERATOR, dtype=torch.float64))[0].contiguous()
BLOCKS = torch.block_diag(Q, Q, Q)
EMBEDDING = torch.randn(V, H, generator=GENERATOR)
FC = torch.randn(H, 3 * H, generator=GENERATOR)
GAMMA = torch.randn(3 * H, generator=GENERATOR)
REST = {"lm_head.weight": torch.ones(4, H), "embed_tokens.weight": torch.ones(V, H)}


@pytest.fixture
def rotation(tmp_path: Path) -> TargetRotation:
    save_file({"global_rotation": Q}, tmp_path / "q.safetensors")
    return TargetRotation(tmp_path, tmp_path / "q.safetensors")


def draft(rotation: TargetRotation | None, norm_before_fc: bool = False) -> SimpleNamespace:
    embed = SimpleNamespace(weight=torch.zeros(V, H))
    model = SimpleNamespace(embed_tokens=embed, norm_before_fc=norm_before_fc)
    return SimpleNamespace(target_rotation=rotation, model=model)


def adapted(draft: SimpleNamespace, weights: dict) -> dict[str, torch.Tensor]:
    return dict(adapt_draft_weights(draft, iter(weights.items())))


def relative(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("name", ["fc.weight", "model.fc.weight"])
def test_fc(rotation: TargetRotation, name: str) -> None:
    result = adapted(draft(rotation), {name: FC, **REST})
    states = torch.randn(5, 3 * H, generator=GENERATOR, dtype=torch.float64)
    turned = states @ BLOCKS @ result[name].double().t()
    torch.testing.assert_close(turned, states @ FC.double().t(), atol=1e-5, rtol=1e-5)
    assert result["lm_head.weight"] is REST["lm_head.weight"]
    assert result["embed_tokens.weight"] is REST["embed_tokens.weight"]


def test_norm_is_folded_into_fc_whichever_comes_first(rotation: TargetRotation) -> None:
    weights = {"input_norm.weight": GAMMA, "fc.weight": FC}
    exact = (FC * GAMMA).double() @ BLOCKS
    for order in (weights, dict(reversed(weights.items()))):
        result = adapted(draft(rotation, norm_before_fc=True), {**order, **REST})
        assert torch.equal(result["input_norm.weight"], torch.ones(3 * H))
        assert relative(result["fc.weight"], exact) < 1e-6


def test_norm_of_a_draft_that_does_not_use_it_stays(rotation: TargetRotation) -> None:
    result = adapted(draft(rotation), {"input_norm.weight": GAMMA, "fc.weight": FC, **REST})
    assert result["input_norm.weight"] is GAMMA
    assert relative(result["fc.weight"], FC.double() @ BLOCKS) < 1e-6


def test_norm_that_the_checkpoint_lacks_is_one(rotation: TargetRotation) -> None:
    result = adapted(draft(rotation, norm_before_fc=True), {"fc.weight": FC, **REST})
    assert relative(result["fc.weight"], FC.double() @ BLOCKS) < 1e-6
    assert "input_norm.weight" not in result


def test_mask_hidden_keeps_its_shape(rotation: TargetRotation) -> None:
    mask = GAMMA.view(1, 1, -1)
    result = adapted(draft(rotation), {"mask_hidden": mask, "fc.weight": FC, **REST})
    assert result["mask_hidden"].shape == mask.shape
    assert relative(result["mask_hidden"][0], GAMMA[None].double() @ BLOCKS) < 1e-6


def test_other_names_with_fc_in_them_stay(rotation: TargetRotation) -> None:
    others = {f"layers.0.{name}": torch.ones(2, 3 * H) for name in ("fc.weight", "mlp_fc.scale")}
    result = adapted(draft(rotation), {**others, "fc.weight": FC, **REST})
    assert all(result[name] is weight for name, weight in others.items())


def test_products_are_rounded_once(rotation: TargetRotation) -> None:
    """An error of 1.7e-3; in bf16 all the way it is 2.4e-3."""
    size = 256
    q = torch.linalg.qr(torch.randn(size, size, generator=GENERATOR, dtype=torch.float64))[0]
    save_file({"global_rotation": q.contiguous()}, rotation.file)
    fc = torch.randn(size, 3 * size, generator=GENERATOR).bfloat16()
    result = adapted(draft(rotation), {"fc.weight": fc, **REST})["fc.weight"]
    exact = fc.double() @ torch.block_diag(q, q, q)
    assert result.dtype is torch.bfloat16
    assert (
        relative(result, exact)
        < 1.8e-3
        < relative(fc @ torch.block_diag(q, q, q).bfloat16(), exact)
    )


def test_long_embeddings_are_turned_in_parts(rotation: TargetRotation, monkeypatch) -> None:
    save_file(
        {"model.embed_tokens.weight": (EMBEDDING.double() @ Q).float()},
        rotation.folder / "model.safetensors",
    )
    weights = {"fc.weight": FC, "lm_head.weight": REST["lm_head.weight"]}
    whole = adapted(draft(rotation), weights)["embed_tokens.weight"]
    monkeypatch.setattr(quarot, "_ROWS", 5)
    parts = adapted(draft(rotation), weights)["embed_tokens.weight"]
    torch.testing.assert_close(whole, EMBEDDING, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(parts, EMBEDDING, atol=1e-6, rtol=1e-6)


def files(folder: Path, **tensors: dict[str, torch.Tensor]) -> None:
    for name, content in tensors.items():
        save_file(content, folder / f"{name}.safetensors")


def turned(name: str) -> dict[str, torch.Tensor]:
    return {name: EMBEDDING}


@pytest.mark.parametrize(
    "name",
    [
        "embed_tokens.weight",
        "model.embed_tokens.weight",
        "model.language_model.embed_tokens.weight",
        "language_model.model.embed_tokens.weight",
    ],
)
def test_embedding_of_the_language_model_is_found(rotation: TargetRotation, name: str) -> None:
    """Not that of image patches or positions, nor the copy of a predictor."""
    decoys = {
        "a.visual.patch_embed.weight": torch.zeros(2, 2),
        "visual.position_embed_tokens.weight": torch.zeros(2, 2),
        "model.layers.61.embed_tokens.weight": torch.zeros(V, H),
    }
    files(rotation.folder, a=decoys, b=turned(name), c={"model.embed_norm.weight": torch.ones(2)})
    assert torch.equal(rotation.embedding(), EMBEDDING)


def test_index_is_used_where_there_is_one(rotation: TargetRotation) -> None:
    files(rotation.folder, a={"other": torch.ones(1)}, b=turned("model.embed_tokens.weight"))
    (rotation.folder / "c.safetensors").write_bytes(b"not opened")
    index = {"weight_map": {"model.embed_tokens.weight": "b.safetensors", "other": "a.safetensors"}}
    (rotation.folder / "quant.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(rotation.embedding(), EMBEDDING)


def test_no_embedding_or_two_are_refused(rotation: TargetRotation) -> None:
    with pytest.raises(ValueError, match="found none"):
        rotation.embedding()
    names = ("encoder.embed_tokens.weight", "model.embed_tokens.weight")
    files(rotation.folder, a={name: EMBEDDING.clone() for name in names})
    with pytest.raises(ValueError, match=f"found {', '.join(names)}"):
        rotation.embedding()


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"fc.weight": FC, "fc.weight_scale": torch.ones(1)}, r"fc\.weight_scale: a quantized fc"),
        ({"fc.qweight": FC.int()}, r"fc\.qweight: a quantized fc"),
        ({"fc.weight": FC.to(torch.int8)}, r"fc\.weight: .*int8 does not fit"),
        ({"fc.weight": FC.to(torch.float8_e4m3fn)}, r"fc\.weight: .*float8_e4m3fn does not fit"),
        ({"fc.weight": torch.ones(H, 3 * H + 1)}, r"\[8, 25\] torch.float32 does not fit"),
    ],
)
def test_what_cannot_be_rotated_is_refused(rotation, weights, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        adapted(draft(rotation), {**weights, **REST})


def content(path: Path, what: str) -> None:
    makers: dict[str, Callable[[], object]] = {
        "missing": lambda: path.unlink(missing_ok=True),
        "garbage": lambda: path.write_bytes(b"garbage"),
        "other": lambda: save_file({"other": Q}, path),
        "oblong": lambda: save_file({"global_rotation": Q[:4].contiguous()}, path),
    }
    makers[what]()


@pytest.mark.parametrize("what", ["missing", "garbage", "other", "oblong"])
def test_unreadable_rotation_is_told_with_its_path(rotation: TargetRotation, what: str) -> None:
    content(rotation.file, what)
    with pytest.raises(ValueError, match=str(rotation.file)):
        adapted(draft(rotation), {"fc.weight": FC, **REST})


@pytest.mark.parametrize(
    ("missing", "warning"),
    [("lm_head.weight", "no lm_head of its own"), ("fc.weight", "this draft has no fc")],
)
def test_what_stays_rotated_is_warned_of(rotation, caplog, missing, warning) -> None:
    weights = {"fc.weight": FC, **REST}
    with caplog.at_level(logging.WARNING):
        adapted(draft(rotation), weights)
        assert not caplog.records
        adapted(draft(rotation), {n: w for n, w in weights.items() if n != missing})
    (record,) = caplog.records
    assert warning in record.message


def test_without_rotation_the_iterator_itself_comes_back() -> None:
    weights = iter([("fc.weight", FC)])
    assert adapt_draft_weights(draft(None), weights) is weights


def configuration(description: object, model: str = ".") -> SimpleNamespace:
    return SimpleNamespace(
        quant_config=SimpleNamespace(quant_description=description),
        model_config=SimpleNamespace(model=model, revision=None),
        load_config=SimpleNamespace(download_dir=None),
    )


def test_description_names_a_file_below_the_folder_of_the_target(tmp_path: Path) -> None:
    levels = {"rotation_map": {"global_rotation": "optional/q.safetensors"}}
    found = find_target_rotation(
        configuration({"optional": {"quarot": levels}, "fa_quant_type": "C8"}, str(tmp_path))
    )
    assert found == TargetRotation(tmp_path, tmp_path / "optional/q.safetensors")


@pytest.mark.parametrize(
    "quant_config",
    [None, SimpleNamespace(), SimpleNamespace(quant_description={"model_quant_type": "W8A8"})],
)
def test_other_quantizations_have_none(quant_config) -> None:
    config = configuration({})
    config.quant_config = quant_config
    assert find_target_rotation(config) is None
