"""Memory of the trained model on one device: its state by arithmetic, its activations from a micro-batch of fakes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from verl.utils.config import omega_conf_to_dataclass

from verl_omni.trainer.memory_estimate import micro_batch, pair_encoder
from verl_omni.trainer.memory_estimate.model_shapes import TRANSFORMER, ModelShapes, tensor_bytes
from verl_omni.trainer.memory_estimate.sharding import (
    FLOAT32,
    Sharding,
    as_computed,
    gathered_bytes,
    gradient_bytes,
    shard_bytes,
    weight_bytes,
)
from verl_omni.workers.actor import build, parallel, precision
from verl_omni.workers.actor.precision import float32_parts
from verl_omni.workers.actor.setting_checks import shards
from verl_omni.workers.algorithms.base import training_algorithm
from verl_omni.workers.config.diffusion.dtypes import parse_dtype

MOMENTS = 2  # AdamW's moments per trained value; with amsgrad, one more


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Memory in bytes, for one rank unless a line names the whole model; and counts, where a line says so.

    Attributes:
        weights: parameters and buffers.
        gradients: gradients of the trained parameters.
        optimizer: optimizer state of the trained parameters.
        trained: shards of the trained parameters.
        delayed_copies: copies of the trained parameters: the old policy that some algorithms keep, and the moving
            average.
        reference: the base model, kept if the algorithm compares with it and all weights are trained.
        gathered: parameters that FSDP2 gathers for the running layers.
        inputs: tensors of a micro-batch.
        activations: everything else that the forward and the backward pass keep and compute.
        step_temporary: temporary tensors of an optimizer step, after activations are freed.
        loading: CPU memory of a rank at the start, until its weights are on the device.
        whole_weights: weights of the whole model.
        whole_trained: trained weights of the whole model.
        largest: largest tensor that a weight update sends.
        sent: a weight update, in the dtype in which it is sent.
        largest_sent: largest tensor of a weight update, in the dtype in which it is sent.
        computed: the whole model's parameters in the compute dtype of the layers.
        parameters: number of parameters of the whole model.
        trained_parameters: number of trained parameters of the whole model.
        shards: number of ranks that share one copy of the weights.
        backward_passes: number of backward passes in an optimizer step.
        calls: number of forward passes of the model in each of them.
        evaluations: number of forward passes without gradients in an update, before its first optimizer step.
        start_values: results of these forward passes, in CPU memory.
        encoders: weights of the encoders of a data set's pairs; 0 without such pairs.
        encoding: activations of these encoders; 0 without such pairs.
    """

    weights: int
    gradients: int
    optimizer: int
    trained: int
    delayed_copies: int
    reference: int
    gathered: int
    inputs: int
    activations: int
    step_temporary: int
    loading: int
    whole_weights: int
    whole_trained: int
    largest: int
    sent: int
    largest_sent: int
    computed: int
    parameters: int
    trained_parameters: int
    shards: int
    backward_passes: int
    calls: int
    evaluations: int
    start_values: int
    encoders: int
    encoding: int


def measure(
    config: DictConfig, model: ModelShapes, sample: Mapping[str, Tensor], *, ranks: int, accelerator: bool
) -> TrainerMemory:
    """Memory of one of `ranks` ranks in an update.

    Args:
        sample: tensors of one sample.
        accelerator: whether an accelerator trains; on one, AdamW handles plain tensors together.
    """
    settings = config.actor_rollout_ref
    sharding = _sharding(config, ranks)
    number = model.transformers
    module = _trained_module(config, model, sharding.precision)
    parameters = list(module.parameters())
    trained = [p for p in parameters if p.requires_grad]
    weights = weight_bytes(module, sharding) + tensor_bytes(module.buffers())
    whole_weights = tensor_bytes([*parameters, *module.buffers()])
    loading = _loading_bytes(module, settings.model, sharding)
    gathered = _gathered_bytes(module, settings, sharding)
    module = as_computed(module, sharding.precision)
    computed = tensor_bytes(module.parameters())
    base = None
    reference = 0
    if settings.model.lora_rank == 0 and _compares_with_base(settings.actor):
        base = as_computed(_trained_module(config, model, sharding.precision), sharding.precision)
        reference = weight_bytes(base, sharding)  # it shares the buffers
    passes = micro_batch.run(config, model, module, base, sample, sharding)
    once = passes.passes > 1 and not parallel.reduces_each_pass(settings.actor.fsdp_config, number > 1)
    shard = shard_bytes(trained, sharding.shards)
    sent = _sent_bytes(settings, parameters)
    encoders = encoding = 0
    if config.algorithm.sample_source == "offline":
        pairs = math.ceil(config.data.train_batch_size / sharding.groups)
        encoders, encoding = pair_encoder.measure(config, model, sample, pairs=pairs)
    copies = ("old" in settings.model.policy_state_adapters) + (settings.actor.ema_decay is not None)
    together = accelerator and not sharding.wrapped  # torch.optim: `foreach`
    amsgrad = (settings.actor.optim.override_optimizer_config or {}).get("amsgrad")
    return TrainerMemory(
        weights=number * weights,
        gradients=number * gradient_bytes(trained, sharding, accumulates_unsharded=once),
        optimizer=number * (MOMENTS + bool(amsgrad)) * shard,
        trained=number * shard,
        delayed_copies=number * shard * copies,
        reference=number * reference,
        gathered=number * gathered,  # at most: each keeps what is around its layers
        inputs=passes.inputs,
        # What a rank keeps outside of the layers, of inputs and predictions, is not split, and too small to count.
        activations=math.ceil(passes.activations / sharding.sequence),
        step_temporary=number * shard if together else 2 * max(shard_bytes([p], sharding.shards) for p in trained),
        loading=number * loading,  # at most: one is loaded after the other
        whole_weights=number * whole_weights,
        whole_trained=number * tensor_bytes(trained),
        largest=max(p.nbytes for p in (trained if settings.model.lora_rank > 0 else parameters)),
        sent=number * sum(sent),
        largest_sent=max(sent),
        computed=number * computed,
        parameters=number * sum(p.numel() for p in parameters),
        trained_parameters=number * sum(p.numel() for p in trained),
        shards=sharding.shards,
        backward_passes=passes.passes,
        calls=passes.calls,
        evaluations=passes.evaluations,
        start_values=passes.start_values,
        encoders=encoders,
        encoding=encoding,
    )


def _sent_bytes(settings: DictConfig, parameters: Sequence[nn.Parameter]) -> list[int]:
    """Bytes of each tensor of a weight update: an adapter in its own dtype, all parameters in the engine's dtype."""
    if settings.model.lora_rank > 0:
        return [p.nbytes for p in parameters if p.requires_grad]
    dtype = parse_dtype("rollout.dtype", settings.rollout.dtype)
    return [p.numel() * dtype.itemsize for p in parameters]


def _gathered_bytes(module: nn.Module, settings: DictConfig, sharding: Sharding) -> int:
    """Memory that FSDP2 gathers, if the actor uses it."""
    if not sharding.wrapped:
        return 0
    reshards = settings.actor.fsdp_config.reshard_after_forward
    return gathered_bytes(module, settings.model.fsdp_layer_prefixes, sharding.precision, reshards=reshards)


def _sharding(config: DictConfig, ranks: int) -> Sharding:
    fsdp = config.actor_rollout_ref.actor.fsdp_config
    dtypes = precision.resolve(omega_conf_to_dataclass(fsdp), lora=config.actor_rollout_ref.model.lora_rank > 0)
    return Sharding(ranks, shards(ranks, fsdp.fsdp_size), fsdp.ulysses_sequence_parallel_size, dtypes)


def _loading_bytes(module: nn.Module, settings: DictConfig, sharding: Sharding) -> int:
    """CPU memory of a rank that loads the model: buffers, adapter, and a slice of the files with its cast copy.

    Without FSDP2 it is the whole model.
    """
    parameters = list(module.parameters())
    if not sharding.wrapped:
        return tensor_bytes([*parameters, *module.buffers()])
    kept = set(float32_parts(module))  # if frozen, each rank reads them whole
    slices = [
        p.numel() * FLOAT32
        if name in kept and not p.requires_grad
        else math.ceil(p.numel() / sharding.shards) * FLOAT32
        for name, p in module.named_parameters()
    ]
    adapter = [p for p in parameters if p.requires_grad] if settings.lora_rank > 0 else []
    return tensor_bytes([*adapter, *module.buffers()]) + 2 * max(slices)


def _trained_module(config: DictConfig, model: ModelShapes, dtypes: precision.Precision) -> nn.Module:
    """The transformer as the actor loads it, on the meta device, with torch's own attention."""
    settings = OmegaConf.merge(config.actor_rollout_ref.model, {"attn_backend": "native"})
    with torch.device("meta"):
        return build.prepare(model.on_meta(TRANSFORMER, dtypes.frozen), settings, precision=dtypes, seed=0)


def _compares_with_base(actor: DictConfig) -> bool:
    loss = omega_conf_to_dataclass(actor.diffusion_loss)
    return training_algorithm(loss.loss_mode).compares_with_base(loss, omega_conf_to_dataclass(actor))
