"""Names of the reference's documentation that do not exist here: importing one says what to use.

The names are from verl-omni.readthedocs.io/en/stable/api (July 2026). docs/from-verl-omni/switching.md lists them.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_FAMILY = "register a model family of your own by verl_omni.extensions.register_family (docs/guides/own-family.md)"
_TRAINER = (
    "start a run by verl_omni.trainer.main_diffusion, and register an algorithm of your own (docs/guides/own-family.md)"
)
_ENGINE = "the trained model is verl_omni.workers.actor, which is not an interface for subclasses"
_SCORER = "name the scorer hpsv3 in the settings, or to verl_omni.utils.reward_score.default_compute_score_image"
_OF_PIPELINES = "verl_omni.pipelines"
# Modules that do not exist here: their documented names, and what to do instead.
MODULES = {
    "verl_omni.trainer.diffusion.ray_diffusion_trainer": (
        ("BaseRayDiffusionTrainer", "DirectPreferenceRayTrainer", "PolicyGradientRayTrainer"),
        _TRAINER,
    ),
    "verl_omni.workers.engine.fsdp.diffusers_impl": (("DiffusersFSDPEngine", "PPODiffusersFSDPEngine"), _ENGINE),
    "verl_omni.workers.engine.lora_adapter_mixin": (("LoRAAdapterMixin",), _ENGINE),
    f"{_OF_PIPELINES}.model_base": (("DiffusionModelBase", "VllmOmniPipelineBase"), _FAMILY),
    f"{_OF_PIPELINES}.qwen_image_flow_grpo": (("QwenImage",), _FAMILY),
    f"{_OF_PIPELINES}.qwen_image_mix_grpo": (("QwenImageMixGRPO",), _FAMILY),
    f"{_OF_PIPELINES}.schedulers.flow_match_sde": (
        ("FlowMatchSDEDiscreteScheduler",),
        "the steps and their densities are the functions of verl_omni.algos.sde",
    ),
    "verl_omni.reward_loop.reward_loop": (
        ("OmniRewardLoopManager",),
        "reward workers are started by the trainer; the settings are below reward",
    ),
    "verl_omni.utils.reward_score.hpsv3_reward": (("compute_score",), _SCORER),
}
# The same of modules that exist.
NAMES = {
    f"{_OF_PIPELINES}.sd3_dpo": (("StableDiffusion3DPO",), _FAMILY),
    "verl_omni.trainer.main_diffusion": (("TaskRunner",), _TRAINER),
    "verl_omni.workers.engine_workers": (("ActorRolloutRefWorker", "TrainingWorker"), _ENGINE),
}


class _Finder(MetaPathFinder):
    """The last finder: it is asked for what no other has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises `ModuleNotFoundError` for a module of the table, or a package of one; finds nothing."""
        known = [MODULES[module] for module in MODULES if module == fullname or module.startswith(f"{fullname}.")]
        if not known:
            return None
        names = ", ".join(name for listed, _ in known for name in listed)
        advice = "; ".join(dict.fromkeys(hint for _, hint in known))
        raise ModuleNotFoundError(f"{fullname} of the reference ({names}) does not exist here: {advice}", name=fullname)


_FINDER = _Finder()


def explain_missing_names() -> None:
    """Let imports of these names say what to use. Safe to repeat."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)


def missing_name(module: str, name: str) -> Exception:
    """What `__getattr__` of a module raises: `ImportError` for a name of the table, otherwise `AttributeError`."""
    names, advice = NAMES[module]
    if name in names:
        return ImportError(f"{module}.{name} of the reference does not exist here: {advice}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}")
