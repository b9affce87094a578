"""FLUX.1-dev as a model family (docs/guides/own-family.md).

`actor_rollout_ref.model.external_lib=my_flux` registers it.
"""

from verl_omni.extensions import register_family

from .training import FluxTraining

register_family("FluxPipeline", pipeline="my_flux.engine_pipeline:FluxRolloutPipeline", shapes="my_flux.shapes")(
    FluxTraining
)
