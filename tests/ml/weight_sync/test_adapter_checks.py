"""Checks of an adapter: settings, tensor pairs, sizes, and what the layers hold after binding."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.weight_sync import checks
from verl_omni.weight_sync.errors import BindingIncomplete, IncompleteUpdate, UnsupportedAdapter

RANK = 2
WIDTH = 6
MAX_RANK = 4


@dataclass
class Layer:
    """An engine's LoRA layer: fused parts, and buffers; a matrix is copied into the corner of its buffer."""

    rows: tuple[int, ...] = (WIDTH,)
    columns: int = WIDTH
    tp_size: int = 1
    base_layer: Any = field(init=False)
    lora_a_stacked: Any = field(init=False)
    lora_b_stacked: Any = field(init=False)

    def __post_init__(self) -> None:
        self.base_layer = SimpleNamespace(
            input_size=self.columns, output_size=sum(self.rows), output_sizes=list(self.rows)
        )
        self.lora_a_stacked = tuple(torch.zeros(1, 1, MAX_RANK, self.columns) for _ in self.rows)
        self.lora_b_stacked = tuple(torch.zeros(1, 1, rows, MAX_RANK) for rows in self.rows)

    @property
    def n_slices(self) -> int:
        return len(self.rows)

    def take(self, index: int, a: torch.Tensor, b: torch.Tensor) -> None:
        for held, given_ in ((self.lora_a_stacked, a), (self.lora_b_stacked, b)):
            held[index][0, 0, : given_.shape[0], : given_.shape[1]] = given_


def pair(rows: int = WIDTH, columns: int = WIDTH, rank: int = RANK) -> Any:
    return SimpleNamespace(lora_a=torch.randn(rank, columns), lora_b=torch.randn(rows, rank))


def tensors(**modules: Any) -> dict[str, torch.Tensor]:
    named = {}
    for module, weights in modules.items():
        named[f"{module}.lora_A.weight"] = weights.lora_a
        named[f"{module}.lora_B.weight"] = weights.lora_b
    return named


FUSED = {"to_qkv": ["to_q", "to_k", "to_v"]}


def layers() -> dict[str, Layer]:
    return {"transformer.b.attn.to_qkv": Layer(rows=(4, 6, 6)), "transformer.b.attn.to_out.0": Layer(columns=8)}


@pytest.mark.parametrize("setting", checks.UNSUPPORTED_SETTINGS)
def test_unsupported_settings_are_refused(setting: str) -> None:
    with pytest.raises(UnsupportedAdapter, match=setting):
        checks.check_settings({"r": 4, setting: {"x": 1}}, base_synced=True)
    assert checks.check_settings({"r": 4, setting: None, "bias": "none"}, base_synced=True) == 4


@pytest.mark.parametrize(("start", "fine"), [("gaussian", True), (True, True), ("pissa_niter_4", False)])
def test_an_init_that_changes_base_weights_needs_a_base_sync(start: Any, fine: bool) -> None:
    settings_ = {"r": 4, "init_lora_weights": start}
    assert checks.check_settings(settings_, base_synced=True) == 4
    if fine:
        assert checks.check_settings(settings_, base_synced=False) == 4
    else:
        with pytest.raises(UnsupportedAdapter, match="base weights"):
            checks.check_settings(settings_, base_synced=False)


@pytest.mark.parametrize("wrong", [{}, {"r": 0}, {"r": "8"}, {"r": 4, "bias": "all"}])
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedAdapter):
        checks.check_settings(wrong, base_synced=True)


def test_incomplete_pairs_and_wrong_ranks_are_refused() -> None:
    complete = tensors(a=pair(), b=pair())
    assert checks.check_pairs(complete, RANK) == {"a", "b"}
    for broken in (
        {name: tensor for name, tensor in complete.items() if name != "b.lora_B.weight"},
        {**complete, "b.weight": torch.ones(1)},
        {**complete, "a.lora_A.weight": torch.ones(RANK + 1, WIDTH)},
        {**complete, "a.lora_B.weight": torch.ones(WIDTH, RANK - 1)},
        {**complete, "a.lora_B.weight": torch.ones(WIDTH)},
        {},
    ):
        with pytest.raises(IncompleteUpdate):
            checks.check_pairs(broken, RANK)


def test_layers_are_found_by_fused_name_by_part_and_without_component() -> None:
    known = checks.lora_targets(layers(), FUSED)
    assert known["transformer.b.attn.to_qkv"].slices == (0, 1, 2)
    assert known["transformer.b.attn.to_k"].slices == (1,) and known["b.attn.to_k"].rows == (6,)
    assert known["b.attn.to_out.0"].columns == 8
    assert "to_q" not in known, "a bare suffix would match every block"
    both = checks.lora_targets(
        {
            name.replace("transformer.", f"{component}."): layer
            for component in ("a", "b")
            for name, layer in layers().items()
        },
        FUSED,
    )
    assert "a.b.attn.to_k" in both and "b.attn.to_k" not in both, "the engine would bind the layers of both components"


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("transformer.c.attn.to_q", pair(4), "are not in the engine"),
        ("transformer.b.attn.to_q", pair(6), "has 6 rows"),
        ("transformer.b.attn.to_q", pair(4, columns=5), "6 -> 4 features"),
        ("transformer.b.attn.to_out.0", pair(6, columns=6), "8 -> 6 features"),
    ],
)
def test_matrices_of_wrong_size_are_refused(name: str, weights: Any, message: str) -> None:
    """vLLM silently copies a smaller matrix into a corner of its buffer."""
    with pytest.raises(BindingIncomplete, match=message):
        checks.check_loras({name: weights}, checks.lora_targets(layers(), FUSED))


def test_values_that_overflow_the_engines_dtype_are_refused() -> None:
    weights = pair(4)
    weights.lora_b = (weights.lora_b * 1e6).to(torch.float16)
    with pytest.raises(IncompleteUpdate, match="not finite"):
        checks.check_loras({"b.attn.to_q": weights}, checks.lora_targets(layers(), FUSED))


@given(st.sets(st.sampled_from(["to_q", "to_k", "to_v", "to_out.0"]), min_size=1), st.data())
@settings(deadline=None)
def test_binding_succeeds_only_if_every_layer_holds_its_matrices(wanted: set[str], data: st.DataObject) -> None:
    engine = layers()
    known = checks.lora_targets(engine, FUSED)
    loras = {
        f"transformer.b.attn.{leaf}": pair(known[f"b.attn.{leaf}"].rows[0], known[f"b.attn.{leaf}"].columns)
        for leaf in sorted(wanted)
    }
    checks.check_loras(loras, known)
    forgotten = data.draw(st.sampled_from([None, *loras]))
    for name, weights in loras.items():
        if name != forgotten:
            known[name].layer.take(known[name].slices[0], weights.lora_a, weights.lora_b)
    if forgotten is None:
        assert checks.check_binding(loras, known) == len(loras)
    else:
        with pytest.raises(BindingIncomplete, match="1 of"):
            checks.check_binding(loras, known)


def test_a_fused_matrix_is_bound_in_all_parts() -> None:
    engine = layers()
    known = checks.lora_targets(engine, FUSED)
    fused = pair(16)
    loras = {"b.attn.to_qkv": fused}
    checks.check_loras(loras, known)
    for index, part in enumerate(fused.lora_b.split([4, 6, 6])):
        with pytest.raises(BindingIncomplete):
            checks.check_binding(loras, known)
        engine["transformer.b.attn.to_qkv"].take(index, fused.lora_a, part)
    assert checks.check_binding(loras, known) == 1


def test_an_adapter_that_matches_no_layer_is_refused() -> None:
    with pytest.raises(BindingIncomplete):
        checks.check_binding({}, checks.lora_targets(layers(), FUSED))


def test_a_tensor_parallel_rank_holds_its_shard() -> None:
    class Sharded(Layer):
        def slice_lora_a(self, a: torch.Tensor) -> torch.Tensor:
            return a

        def slice_lora_b(self, b: torch.Tensor) -> torch.Tensor:
            return b[3:]

    layer = Sharded(rows=(WIDTH,), tp_size=2)
    weights = pair()
    known = checks.lora_targets({"t.a": layer}, {})
    with pytest.raises(BindingIncomplete):
        checks.check_binding({"t.a": weights}, known)
    layer.take(0, weights.lora_a, weights.lora_b[3:])
    assert checks.check_binding({"t.a": weights}, known) == 1
