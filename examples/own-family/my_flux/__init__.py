"""FLUX.1-dev as a model family outside of the package, under another name (docs/guides/own-family.md).

`actor_rollout_ref.model.external_lib=my_flux` registers it.
"""

from verl_omni.extensions import register_family

from .training import FluxTraining

register_family("MyFluxPipeline", pipeline="my_flux.engine_pipeline:FluxRolloutPipeline", shapes="my_flux.shapes")(
    FluxTraining
)
