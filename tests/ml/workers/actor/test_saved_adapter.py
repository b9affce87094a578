"""Training that continues from an adapter: of peft, of diffusers, of an earlier run; and what is refused."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import open_dict
from safetensors.torch import load_file, save_file

from ml.workers.tiny_actor import model_settings
from verl_omni.settings_schema.declarations import SETTINGS
from verl_omni.settings_schema.setting import Limit, Setting
from verl_omni.trainer.settings import configuration
from verl_omni.trainer.settings import model_settings as driver
from verl_omni.utils.adapter_folder import DIFFUSERS_FILE, PEFT_FILE, PEFT_SETTINGS
from verl_omni.workers.actor import saved_adapter
from verl_omni.workers.actor.actor import DiffusionActor
from verl_omni.workers.actor.export import peft_config, stage_adapter
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig
from verl_omni.workers.config import DiffusionActorConfig, DiffusionFSDPConfig, DiffusionMixedPrecisionConfig

pytestmark = pytest.mark.slow

MODEL = "actor_rollout_ref.model"
TARGETS = ["attn.add_k_proj", "attn.to_out.0", "attn.to_q"]
RANK = 4
ALPHA = 12


def trained(base: Path, targets: Any = TARGETS, **config: Any) -> Any:
    """A transformer with an adapter that changes it, as after a fine-tuning."""
    from diffusers import AutoModel
    from peft import LoraConfig

    model = AutoModel.from_pretrained(str(base), subfolder="transformer")
    model.add_adapter(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, **config), adapter_name="default")
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 8
    return model


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """The values of its adapter, by the names that weight updates have."""
    return {
        f"transformer.{name.replace('.default.', '.')}": parameter.detach()
        for name, parameter in model.named_parameters()
        if "lora_" in name
    }


def write_peft(model: Any, folder: Path, prefix: str = "base_model.model.", **config: Any) -> Path:
    folder.mkdir()
    values = {name.replace("transformer.", prefix, 1): value.contiguous() for name, value in tensors(model).items()}
    save_file(values, folder / PEFT_FILE, metadata={"format": "pt"})
    (folder / PEFT_SETTINGS).write_text(json.dumps({**peft_config(model), **config}))
    return folder


def write_diffusers(model: Any, folder: Path) -> Path:
    from diffusers import StableDiffusion3Pipeline
    from peft.utils import get_peft_model_state_dict

    StableDiffusion3Pipeline.save_lora_weights(
        folder, get_peft_model_state_dict(model), transformer_lora_adapter_metadata=peft_config(model)
    )
    return folder


def write_alphas(model: Any, folder: Path) -> Path:
    """A file without metadata, whose layers have tensors `.alpha`."""
    values = {name: value.contiguous() for name, value in tensors(model).items()}
    alphas = {name.replace("lora_A.weight", "alpha"): torch.tensor(float(ALPHA)) for name in values if "lora_A" in name}
    folder.mkdir()
    save_file(values | alphas, folder / "sft.safetensors")
    return folder / "sft.safetensors"


def write_run(model: Any, folder: Path) -> Path:
    """The adapter of a checkpoint."""
    stage_adapter(model, folder, write=True)()
    return folder


LAYOUTS: dict[str, Callable[[Any, Path], Path]] = {
    "peft": write_peft,
    "peft-of-a-pipeline": lambda model, folder: write_peft(model, folder, "base_model.model.transformer."),
    "diffusers": write_diffusers,
    "alphas": write_alphas,
    "run": write_run,
}


def filled(base: Path, adapter: Path, *overrides: str) -> Any:
    """The settings of the model after the trainer's first check."""
    config = configuration.load(
        [
            f"{MODEL}.path='{base}'",
            f"{MODEL}.lora_adapter_path='{adapter}'",
            "data.train_files=x.jsonl",
            "trainer.total_training_steps=1",
            *overrides,
        ]
    )
    with open_dict(config):
        driver.fill_in(config.actor_rollout_ref.model, config.actor_rollout_ref.rollout)
    return config.actor_rollout_ref.model


def actor(model: Any, *, sharded: bool = False) -> DiffusionActor:
    settings = model_settings(Path(model.path), [], rank=model.lora_rank)
    settings.target_modules = model.target_modules
    settings.lora_alpha = model.lora_alpha
    settings.lora_adapter_path = model.lora_adapter_path
    fsdp = DiffusionFSDPConfig(
        mixed_precision=DiffusionMixedPrecisionConfig(param_dtype="bfloat16" if sharded else "float32")
    )
    return DiffusionActor(settings, DiffusionActorConfig(diffusion_loss=FlowGRPOLossConfig(), fsdp_config=fsdp), 2)


@pytest.fixture(scope="module")
def before(model_folder: Path) -> Any:
    """A transformer with the adapter of an earlier training."""
    return trained(model_folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_starts_from_the_values_rank_alpha_and_layers_of_an_adapter(
    model_folder: Path, before: Any, tmp_path: Path, layout: str
) -> None:
    model = filled(model_folder, LAYOUTS[layout](before, tmp_path / "adapter"))
    assert (model.lora_rank, model.lora_alpha, sorted(model.target_modules)) == (RANK, ALPHA, TARGETS)
    started = actor(model)
    weights = dict(started.weights("lora"))
    assert weights.keys() == tensors(before).keys()
    assert all(torch.equal(weights[name], value) for name, value in tensors(before).items())
    assert started.peft_config()["lora_alpha"] == ALPHA


def test_a_sharded_model_starts_from_the_adapter_and_its_base_is_the_base_model(
    model_folder: Path, before: Any, tmp_path: Path
) -> None:
    started = actor(filled(model_folder, write_diffusers(before, tmp_path / "adapter")), sharded=True)
    assert started.mesh is not None
    weights = dict(started.weights("lora"))
    assert all(torch.equal(weights[name], value) for name, value in tensors(before).items())
    inputs = {"prompt_embeds": torch.randn(1, 8, 64), "pooled_prompt_embeds": torch.randn(1, 64)}
    x = torch.randn(1, 16, 8, 8)
    time = torch.tensor([0.5])
    with torch.no_grad(), started.offload.loaded():
        policy = started.policy.velocity_at(inputs, x, time)
        with started.policy.as_base():
            base = started.policy.velocity_at(inputs, x, time)
        for parameter in started.policy.trained.values():
            parameter.zero_()
        assert torch.equal(started.policy.velocity_at(inputs, x, time), base)
    assert (policy - base).abs().max() > 0.01


def test_the_settings_of_the_adapter_may_be_given_too(model_folder: Path, before: Any, tmp_path: Path) -> None:
    targets = "[attn.to_q,attn.add_k_proj,attn.to_out.0]"
    overrides = [f"{MODEL}.lora_rank={RANK}", f"{MODEL}.lora_alpha={ALPHA}", f"{MODEL}.target_modules={targets}"]
    model = filled(model_folder, write_peft(before, tmp_path / "adapter"), *overrides)
    assert (model.lora_rank, model.lora_alpha, len(model.target_modules)) == (RANK, ALPHA, 3)


def test_an_adapter_of_some_layers_alone_adapts_those_alone(model_folder: Path, tmp_path: Path) -> None:
    before = trained(model_folder, r"transformer_blocks\.1\.attn\.to_q")
    model = filled(model_folder, write_peft(before, tmp_path / "adapter"))
    assert dict(actor(model).weights("lora")).keys() == tensors(before).keys()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("lora_rank=8", "lora_rank: 8, and the adapter .* has 4; leave the setting out"),
        ("lora_alpha=64", "lora_alpha: 64, and the adapter .* has 12; leave the setting out"),
        ("target_modules=[attn.to_q]", r"target_modules: .* selects other layers .*0.attn.add_k_proj"),
        ("target_modules=all-linear", r"target_modules: \.\* selects other layers .* context_embedder"),
    ],
)
def test_settings_that_contradict_the_adapter_are_refused(
    model_folder: Path, before: Any, tmp_path: Path, setting: str, words: str
) -> None:
    folder = write_peft(before, tmp_path / "adapter")
    with pytest.raises(saved_adapter.AdapterNotUsable, match=words):
        filled(model_folder, folder, f"{MODEL}.{setting}")


def spoiled(spoil: Callable[[Path], object]) -> Callable[[Any, Path], Path]:
    """An adapter of peft whose folder is changed."""

    def write(model: Any, folder: Path) -> Path:
        spoil(write_peft(model, folder))
        return folder

    return write


def changed(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Any, Path], Path]:
    """An adapter of peft whose tensors are changed."""
    return spoiled(lambda folder: save_file(change(load_file(folder / PEFT_FILE)), folder / PEFT_FILE))


def configured(**config: Any) -> Callable[[Any, Path], Path]:
    return lambda model, folder: write_peft(model, folder, **config)


def described(text: str) -> Callable[[Any, Path], Path]:
    """An adapter of peft with another text as its settings."""
    return spoiled(lambda folder: (folder / PEFT_SETTINGS).write_text(text))


def test_a_model_of_two_transformers_needs_the_adapters_of_both(tmp_path: Path) -> None:
    layer = "blocks.0.attn1.to_q"
    base = tmp_path / "base"
    adapter = tmp_path / "adapter"
    values = {
        f"transformer.{layer}.lora_A.weight": torch.ones(2, 8),
        f"transformer.{layer}.lora_B.weight": torch.ones(6, 2),
    }
    for part in ("transformer", "transformer_2"):
        (base / part).mkdir(parents=True)
        save_file({f"{layer}.weight": torch.zeros(6, 8)}, base / part / "diffusion_pytorch_model.safetensors")
    adapter.mkdir()
    save_file(values, adapter / DIFFUSERS_FILE)
    with pytest.raises(saved_adapter.AdapterNotUsable, match="do not both have transformer_2; fuse it"):
        saved_adapter.check_base(saved_adapter.read(adapter), base, "a")
    (adapter / "transformer_2").mkdir()
    save_file({name: value * 3 for name, value in values.items()}, adapter / "transformer_2" / DIFFUSERS_FILE)
    both = saved_adapter.read(adapter)
    assert saved_adapter.check_base(both, base, "a") == [layer] and (both.rank, both.alpha) == (2, 2)
    expected = {"transformer": 1, "transformer_2": 3}
    assert {part: value.max() for part in expected for value in both.tensors(part).values()} == expected
    joined = {
        f"transformer{end}.{name.removeprefix('transformer.')}": value.clone()
        for end in ("", "_2")
        for name, value in values.items()
    }
    save_file(joined, tmp_path / "one.safetensors")
    assert saved_adapter.read(tmp_path / "one.safetensors").shapes == both.shapes


LAYER = "base_model.model.transformer_blocks.0.attn.to_q"
FUSE_WORDS = "fuse it into the base and train that model: python3 -c"
REFUSED: dict[str, tuple[Callable[[Any, Path], Path], str]] = {
    "nothing": (lambda _, folder: folder, "adapter does not exist"),
    "no adapter": (
        lambda model, folder: write_peft(model, folder).parent,
        "has neither pytorch_lora_weights.safetensors",
    ),
    "no config": (
        spoiled(lambda folder: (folder / PEFT_SETTINGS).unlink()),
        "adapter_config.json does not exist",
    ),
    "pickled": (
        spoiled(lambda folder: (folder / PEFT_FILE).rename(folder / "adapter_model.bin")),
        "safetensors files only; fuse it",
    ),
    "cut": (
        spoiled(lambda folder: os.truncate(folder / PEFT_FILE, 5000)),
        "is no safetensors file, or only a part of one",
    ),
    "rslora": (configured(use_rslora=True), f"use_rslora.*{FUSE_WORDS}"),
    "dora": (configured(use_dora=True), f"use_dora.*{FUSE_WORDS}"),
    "ranks": (configured(rank_pattern={"to_q": 8}), f"rank_pattern.*{FUSE_WORDS}"),
    "rank": (configured(r=8), "r=8, and its tensors the rank 4"),
    "other kind": (configured(peft_type="LOHA"), "peft_type 'LOHA', not LORA"),
    "kohya": (
        changed(lambda tensors: {"lora_unet_to_q.lora_down.weight": torch.zeros(4, 4)}),
        "is no LoRA tensor of a transformer",
    ),
    "text encoder": (
        changed(lambda tensors: {**tensors, "text_encoder.layers.0.lora_A.weight": torch.zeros(4, 4)}),
        "is no LoRA tensor",
    ),
    "no tensors": (changed(lambda tensors: {}), "has no LoRA tensors; write the file of an adapter"),
    "part of the config": (described('{"r": 4,'), r"adapter_config.json is not valid JSON: .*; download or save"),
    "a list as config": (described("[]"), "adapter_config.json is not a JSON object; download or save"),
    "several alphas in one": (
        changed(lambda tensors: {**tensors, f"{LAYER}.alpha": torch.ones(2)}),
        f"{LAYER}.alpha has 2 values, not one",
    ),
    "half": (
        changed(lambda tensors: {name: tensors[name] for name in tensors if name != f"{LAYER}.lora_B.weight"}),
        "lora_B is missing",
    ),
    "other layer": (
        changed(lambda tensors: {name.replace("attn.to_q", "attn.query"): tensors[name] for name in tensors}),
        "of another model: it adapts transformer_blocks.0.attn.query .* has no such layer",
    ),
    "other size": (
        changed(lambda tensors: {**tensors, f"{LAYER}.lora_A.weight": torch.zeros(RANK, 8)}),
        "of another model: it adapts .* 8 inputs and 32 outputs, and .* has 32 and 32",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_adapter_of_the_model_is_refused_before_the_start(
    model_folder: Path, before: Any, tmp_path: Path, case: str
) -> None:
    write, words = REFUSED[case]
    with pytest.raises((saved_adapter.AdapterNotUsable, FileNotFoundError), match=words) as refused:
        filled(model_folder, write(before, tmp_path / "adapter"))
    assert str(refused.value).startswith(f"{MODEL}.lora_adapter_path: ")


def test_layers_that_the_engine_cannot_adapt_are_refused(model_folder: Path, tmp_path: Path) -> None:
    folder = write_peft(trained(model_folder, ["norm1.linear"]), tmp_path / "adapter")
    with pytest.raises(saved_adapter.AdapterNotUsable, match=r"the engine cannot adapt .*norm1.linear.*fuse it"):
        filled(model_folder, folder)


def test_a_rank_that_the_engine_does_not_support_is_refused(
    model_folder: Path, before: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_peft(before, tmp_path / "adapter")
    limit = Limit(f"must be at most {RANK - 1}", lambda value: value < RANK, "so says the engine")
    monkeypatch.setitem(SETTINGS, f"{MODEL}.lora_rank", Setting(f"{MODEL}.lora_rank", limits=(limit,)))
    with pytest.raises(saved_adapter.AdapterNotUsable, match=r"must be at most 3: 4; so says the engine; fuse it"):
        filled(model_folder, folder)


def test_the_command_of_the_advice_fuses_an_adapter_that_is_refused(model_folder: Path, tmp_path: Path) -> None:
    from diffusers import AutoModel

    before = trained(model_folder, use_rslora=True)
    adapter = write_diffusers(before, tmp_path / "adapter")
    with pytest.raises(saved_adapter.AdapterNotUsable, match="use_rslora"):
        filled(model_folder, adapter)
    command = saved_adapter.FUSE.partition(": ")[2]
    for name, path in {"'BASE'": model_folder, "'ADAPTER'": adapter, "'FUSED'": tmp_path / "fused"}.items():
        command = command.replace(name, repr(str(path)))
    arguments = [sys.executable, *shlex.split(command)[1:]]
    subprocess.run(arguments, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True)
    before.fuse_lora()
    name = "transformer_blocks.0.attn.to_q"
    fused = AutoModel.from_pretrained(str(tmp_path / "fused"), subfolder="transformer")
    expected = before.get_submodule(name).base_layer.weight
    torch.testing.assert_close(fused.get_submodule(name).weight, expected)
    base = AutoModel.from_pretrained(str(model_folder), subfolder="transformer").get_submodule(name).weight
    assert (base - expected).abs().max() > 0.01
