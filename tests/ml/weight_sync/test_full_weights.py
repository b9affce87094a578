"""Full weight updates of a serving model: every parameter once, no unknown names, wrapped layers included."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.full_weights import FullUpdate, LanguageModelUpdate
from verl_omni.weight_sync.names import to_engine_adapter


class Wrapper(nn.Module):
    """The engine's wrapper of a layer that supports LoRA."""

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer


class Transformer(nn.Module):
    """Loads like vLLM-Omni's models: sent names are mapped to fused parameters by substring.

    Attributes:
        reports_parts: like Wan's, it reports sent names, and a fused parameter only if all parts came in one call.
    """

    def __init__(self, *, wrapped: bool, reports_parts: bool = False) -> None:
        super().__init__()
        self.reports_parts = reports_parts
        self.stacked_params_mapping = [(".to_qkv", ".to_q", "q"), (".to_qkv", ".to_k", "k"), (".to_qkv", ".to_v", "v")]
        self.attn = nn.ModuleDict({"to_qkv": nn.Linear(2, 6), "to_out": nn.Linear(2, 2)})
        self.norm = nn.LayerNorm(2)
        self.register_buffer("pos_embed", torch.zeros(3))
        if wrapped:
            for name in ("to_qkv", "to_out"):
                self.attn[name] = Wrapper(self.attn[name])  # type: ignore[arg-type]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        tensors = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        loaded = set()
        shards: dict[str, set[str]] = {}
        for name, tensor in weights:
            sent_name = name
            for fused, part, shard in self.stacked_params_mapping:
                if part in name:
                    name = name.replace(part, fused)
                    start = 2 * "qkv".index(shard)
                    tensors[name].data[start : start + 2] = tensor
                    shards.setdefault(name, set()).add(shard)
                    break
            else:
                assert tensors[name].shape == tensor.shape
                tensors[name].data.copy_(tensor)
            loaded.add(sent_name if self.reports_parts else name)
            if len(shards.get(name, "")) == 3:
                loaded.add(name)
        return loaded


class Pipeline:
    def __init__(self, *, wrapped: bool = False, reports_parts: bool = False, ignoring: str = "no such name") -> None:
        self.transformer = Transformer(wrapped=wrapped, reports_parts=reports_parts)
        self.ignoring = ignoring
        self.calls = 0

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        self.calls += 1
        mine = [(name.removeprefix("transformer."), tensor) for name, tensor in weights if self.ignoring not in name]
        return {f"transformer.{name}" for name in self.transformer.load_weights(mine)}


def sent() -> dict[str, Tensor]:
    shapes = {f"attn.to_{x}.weight": (2, 2) for x in "qkv"} | {f"attn.to_{x}.bias": (2,) for x in "qkv"}
    shapes |= {"attn.to_out.weight": (2, 2), "attn.to_out.bias": (2,), "norm.weight": (2,), "norm.bias": (2,)}
    generator = torch.Generator().manual_seed(1)
    return {f"transformer.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@given(st.permutations(sorted(sent())), st.integers(1, 10), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_order_and_bucket_size_writes_all_weights(
    order: list[str], size: int, wrapped: bool, reports_parts: bool
) -> None:
    pipeline = Pipeline(wrapped=wrapped, reports_parts=reports_parts)
    weights = sent()
    update = FullUpdate(pipeline)
    for start in range(0, len(order), size):
        update.load([(name, weights[name]) for name in order[start : start + size]])
    assert update.finish() == 6
    layer: Any = pipeline.transformer.attn["to_qkv"]
    fused = (layer.base_layer if wrapped else layer).weight
    assert torch.equal(fused, torch.cat([weights[f"transformer.attn.to_{x}.weight"] for x in "qkv"]))


@given(st.sampled_from(sorted(sent())))
@settings(deadline=None)
def test_missing_weights_are_detected(left_out: str) -> None:
    """Also a missing part of a fused weight, which the loader reports as loaded."""
    update = FullUpdate(Pipeline())
    update.load([(name, tensor) for name, tensor in sent().items() if name != left_out])
    with pytest.raises(IncompleteUpdate, match="were not sent"):
        update.finish()


@pytest.mark.parametrize(
    ("bucket", "message"),
    [
        ([("transformer.no.such", torch.ones(1))], "not a weight of"),
        ([("unet.norm.weight", torch.ones(2))], "not a weight of"),
        ([("transformer.attn.to_x.bias", torch.ones(2))], "not a weight of"),
        ([("transformer.attn.to_qkv.bias", torch.ones(6))], "not a weight of"),  # loaders map parts only
        ([("transformer.norm.weight", torch.ones(2))] * 2, "twice"),
        ([("transformer.norm.weight", torch.tensor([1.0, float("inf")]))], "not finite"),
    ],
)
def test_an_invalid_bucket_is_refused_before_anything_is_written(bucket: Any, message: str) -> None:
    pipeline = Pipeline()
    update = FullUpdate(pipeline)
    with pytest.raises(IncompleteUpdate, match=message):
        update.load(bucket)
    assert pipeline.calls == 0 and not update.started


def test_a_weight_that_the_loader_ignores_is_detected() -> None:
    update = FullUpdate(Pipeline(ignoring="norm.bias"))
    with pytest.raises(IncompleteUpdate, match=r"ignored transformer\.norm\.bias"):
        update.load(list(sent().items()))
    assert update.started


def test_buffers_and_names_with_base_layer_are_accepted() -> None:
    pipeline = Pipeline(wrapped=True)
    update = FullUpdate(pipeline)
    weights = {name.replace("to_out.", "to_out.base_layer."): tensor for name, tensor in sent().items()}
    update.load([*weights.items(), ("transformer.pos_embed", torch.ones(3))])
    assert update.finish() == 6
    assert pipeline.transformer.pos_embed.tolist() == [1, 1, 1]


def test_casts_to_another_dtype_of_the_engine_are_stated() -> None:
    pipeline = Pipeline(wrapped=True)
    pipeline.transformer.norm.bfloat16()
    update = FullUpdate(pipeline)
    update.load([(name, tensor.bfloat16()) for name, tensor in sent().items()])
    assert update.casts == {"bfloat16 to float32": 8}, "6 parts of to_qkv and 2 tensors of to_out, none of norm"
    same = FullUpdate(Pipeline())
    same.load(list(sent().items()))
    assert same.casts == {}


def test_an_update_without_weights_is_refused() -> None:
    update = FullUpdate(Pipeline())
    update.load([])
    with pytest.raises(IncompleteUpdate, match="no weights"):
        update.finish()


def test_checkpoint_names_are_mapped_to_parameter_names() -> None:
    class Renaming(Pipeline):
        checkpoint_names = ((".to_out.", ".to_out.0."), (".norm.", ".final.norm."))

        def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
            pairs = list(weights)
            assert all(".to_out.0." in name or "to_out" not in name for name, _ in pairs)
            return super().load_weights(
                (name.replace(".to_out.0.", ".to_out.").replace(".final.norm.", ".norm."), tensor)
                for name, tensor in pairs
            )

    theirs = {name.replace("to_out.", "to_out.0.").replace("norm.", "final.norm."): t for name, t in sent().items()}
    for wrapped in (False, True):
        pipeline = Renaming(wrapped=wrapped)
        update = FullUpdate(pipeline)
        update.load(list(theirs.items()))
        assert update.finish() == 6
        assert torch.equal(pipeline.transformer.norm.bias, sent()["transformer.norm.bias"])
    with pytest.raises(IncompleteUpdate, match="not a weight of"):
        FullUpdate(Renaming()).load([("transformer.norm.weight", torch.ones(2))])


def test_an_adapters_tensors_are_renamed_too() -> None:
    tensors = {"transformer.blocks.1.attn.to_out.0.lora_A.weight": torch.ones(1, 2)}
    renamed, config = to_engine_adapter(tensors, {"r": 4}, ((".to_out.", ".to_out.0."),))
    assert list(renamed) == ["transformer.blocks.1.attn.to_out.lora_A.weight"] and config == {"r": 4}


# --- language models -----------------------------------------------------------------------------------


class Language(nn.Module):
    """Loads like vLLM's models: it accepts checkpoint names, and reports its own without LoRA wrappers."""

    def __init__(self, *, tied: bool = False, wrapped: bool = False) -> None:
        super().__init__()
        self.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
        qkv: nn.Module = nn.Linear(2, 6)
        self.model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "qkv_proj": Wrapper(qkv) if wrapped else qkv})  # type: ignore[arg-type]
        self.lm_head = nn.Linear(2, 4, bias=False)
        if tied:
            self.lm_head.weight = self.model["embed"].weight  # type: ignore[assignment]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        parameters = {name.replace(".base_layer", ""): parameter for name, parameter in self.named_parameters()}
        loaded = set()
        for name, tensor in weights:
            fused = name
            rows = slice(None)
            for index, part in enumerate("qkv"):
                if f"{part}_proj" in name:
                    fused = name.replace(f"{part}_proj", "qkv_proj")
                    rows = slice(2 * index, 2 * index + 2)
            parameters[fused].data[rows] = tensor
            loaded.add(fused)
        return loaded


def sent_to_language(*, tied: bool = False) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed.weight": (4, 2)}
    for part in "qkv":
        shapes |= {f"model.{part}_proj.weight": (2, 2), f"model.{part}_proj.bias": (2,)}
    if not tied:
        shapes["lm_head.weight"] = (4, 2)
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_a_language_model_refuses_a_partial_update() -> None:
    weights = sent_to_language()
    for left_out in weights:
        update = LanguageModelUpdate(Language())
        update.load([pair for pair in weights.items() if pair[0] != left_out])
        with pytest.raises(IncompleteUpdate, match="not sent, or only in part"):
            update.finish()
    with pytest.raises(IncompleteUpdate, match=r"model.layers.7.weight is not a weight of the engine's Language"):
        LanguageModelUpdate(Language()).load([("model.layers.7.weight", torch.zeros(1))])


@pytest.mark.parametrize("named_twice", [False, True])
def test_a_shared_weight_may_be_sent_under_either_name(named_twice: bool) -> None:
    model = Language(tied=True)
    weights = sent_to_language(tied=True)
    update = LanguageModelUpdate(model)
    update.load([*weights.items(), *([("lm_head.weight", weights["model.embed.weight"])] if named_twice else [])])
    assert update.finish() == 3
    assert torch.equal(model.lm_head.weight, weights["model.embed.weight"])
