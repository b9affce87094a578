"""Descriptions of model families; imports neither torch nor verl.

A family is a folder of this package, whose `__init__` has a `FAMILY`. What its docstring says after the first paragraph
goes to docs/reference/model-families.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

EXAMPLE_FILE = "example.yaml"
Component = tuple[str, Mapping[str, Any]]  # class name, configuration


@dataclass(frozen=True, slots=True)
class Family:
    """Import paths of the code that trains the models of one architecture.

    Attributes:
        pipeline: `module:Class` of the engine's pipeline. The module also has `get_post_process_func`, the factory of
            the function that turns a decoded sample into the form that the request asked for.
        training: the `TrainingAdapter`: a module, `module:`, or a class, `module:Class`.
        pre_process: name of the factory in the pipeline's module of the function that checks a request before it is
            queued; None: the engine's own for the architecture, if there is one.
        encoder: `module:Class` that encodes prompts and images for training without the engine; None: there is none.
        shapes: module with the shapes of samples (`sample_shapes.SampleShapes`); None: there is none.
        images: module about input images of prompts (`input_images.InputImages`); None: prompts have no images.
        experts: whether a model may have a second transformer for low noise levels. The first argument of `velocity`
            is then `workers.actor.experts.Experts`, and the engine's pipeline calls the transformer of each step.
        videos: whether its samples are videos [T, 3, H, W], which scorers of images refuse.
        stepwise: whether the engine can run its steps one at a time (`rollout.step_execution`); None: the pipeline's
            `supports_step_execution` says it when the engine starts.
        checks_prompts: whether the training adapter may have a `prompt_check`; false spares `drl validate` its import.
        caches_prompts: whether `rollout.prompt_cache_dir` can keep its prompt embeddings; None: the pipeline's
            `caches_prompts` says it when the engine starts.
        divides_encoders: whether tensor parallelism divides a text encoder, whose ranks must then encode together.
    """

    pipeline: str
    training: str
    pre_process: str | None = None
    encoder: str | None = None
    shapes: str | None = None
    images: str | None = None
    experts: bool = False
    videos: bool = False
    stepwise: bool | None = None
    checks_prompts: bool = True
    caches_prompts: bool | None = None
    divides_encoders: bool = False

    @property
    def folder(self) -> str:
        """Name of the package that the pipeline's module is in."""
        return self.engine_module.rpartition(".")[0].rpartition(".")[2]

    @property
    def engine_module(self) -> str:
        """Name of the module that the engine imports."""
        return self.pipeline.partition(":")[0]

    @property
    def pipeline_class(self) -> str:
        """`module.Class`, as in the engine's `custom_pipeline_args`."""
        return self.pipeline.replace(":", ".")


@dataclass(frozen=True, slots=True)
class Example:
    """Tested example of a family, from which `drl init` makes a job.

    Attributes:
        name: the family's name in `drl init`.
        job: name of the file in `examples/`, without `.yaml`; `make crds` copies it to `EXAMPLE_FILE` in the folder.
        lent: whether `drl init` begins with it for families without one, whose samples are of the same kind.
    """

    name: str
    job: str
    lent: bool = False


@dataclass(frozen=True, slots=True)
class ReleasedModel:
    """Configuration of a released model, as far as it determines shapes.

    Attributes:
        architecture: `_class_name` in its `model_index.json`.
        components: by their names in that file.
        tokenizer_length: `model_max_length` of its first tokenizer.
        billions: published number of parameters of its transformer.
        index: further keys of `model_index.json`.
    """

    architecture: str
    components: Mapping[str, Component]
    tokenizer_length: int
    billions: float
    index: Mapping[str, Any] = field(default_factory=dict)


class FamilySizes(Protocol):
    """Interface of the module `sizes` of a family's folder.

    Attributes:
        RELEASED: released models, by Hugging Face model id, whose memory `drl fit` estimates offline. `drl init` writes
            the first one into a job.
        MEASURED: a transformer that is large enough for its layers, and not its embeddings, to need the memory.
        WIDE: changes of its configuration for an accelerator, to layers as wide as a released model's.
    """

    RELEASED: Mapping[str, ReleasedModel]
    MEASURED: Component
    WIDE: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FamilyDescription:
    """Description of a family's folder that does not need its import.

    Attributes:
        architectures: by `_class_name` in a model's `model_index.json`.
        models: what has this architecture, for the table in docs/reference/model-families.md.
        tiny_models: function of the module `tiny_model` that makes a tiny random model, by the model's name in
            `drl model tiny`. The folder's own name is among them.
        generates: what a sample is, for that table.
        example: what `drl init` begins with; None: with the example of another family.
        distilled: pattern of the names of its models that were distilled to few steps; empty: there are none, or their
            names say it.
        guided: whether guidance runs the transformer on a negative prompt as well; otherwise its scale is an input.
        pipeline: fields of `spec.rollout.pipeline` with the family's values, for a job from another one's example.
    """

    architectures: Mapping[str, Family]
    models: str
    tiny_models: Mapping[str, str]
    example: Example | None = None
    generates: str = "images"
    guided: bool = True
    distilled: str = ""
    pipeline: Mapping[str, float] = field(default_factory=dict)

    @property
    def videos(self) -> bool:
        """Whether its samples are videos."""
        return any(architecture.videos for architecture in self.architectures.values())

    @property
    def input_images(self) -> bool:
        """Whether its prompts have images."""
        return any(architecture.images for architecture in self.architectures.values())


def family_in(
    package: str,
    pipeline: str,
    *,
    training: str = "",
    encoder: str | None = None,
    images: bool = False,
    experts: bool = False,
    videos: bool = False,
    stepwise: bool = False,
    checks_prompts: bool = True,
    divides_encoders: bool = False,
) -> Family:
    """Family whose modules are in `package` under their usual names.

    Args:
        pipeline: class in `engine_pipeline`, a module that also has `get_pre_process_func`.
        training: class in `training`; empty: the module itself is the adapter.
        encoder: class in `encoding`; None: there is none.
        images: whether there is a module `images`.
    """
    return Family(
        f"{package}.engine_pipeline:{pipeline}",
        f"{package}.training:{training}",
        "get_pre_process_func",
        f"{package}.encoding:{encoder}" if encoder else None,
        f"{package}.shapes",
        f"{package}.images" if images else None,
        experts,
        videos,
        stepwise,
        checks_prompts,
        caches_prompts=not images,  # embeddings depend on input images
        divides_encoders=divides_encoders,
    )
