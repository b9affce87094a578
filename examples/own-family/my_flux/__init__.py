"""FLUX.1-dev as a model family: `actor_rollout_ref.model.external_lib=my_flux` registers it (docs/own-family.md)."""

from verl_omni.extensions import register_family

from .training import FluxTraining

register_family("FluxPipeline", pipeline="my_flux.engine_pipeline:FluxRolloutPipeline", shapes="my_flux.shapes")(
    FluxTraining
)
