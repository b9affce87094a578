"""Types of scorers' settings: ranges, patterns, and the line that messages and docs/reference/rewards.md show.

A scorer's parameters have these types. Trainer, `drl validate` and operator check a job's settings by them, so this
module and the modules in `rewards` import no machine-learning library.
"""

from typing import Annotated, Final, Literal

from pydantic import Field

JSON: Final = "json"
PICKLE: Final = "pickle"
MODEL = "model_name_or_path"
PROCESSOR = "processor_name_or_path"
# Settings of an entry of `reward.reward_functions` that are not the scorer's.
OWN_SETTINGS = ("path", "name", "weight", "required", "use", "pool")
COMBINED = "combined"  # what the weighted mean or sum is called among the scores
EVALUATION = "evaluation"  # value of `use`: scored in evaluations only, and in no reward
FILE = "file"  # marks a setting that is a file
FOLDER = "folder"  # marks a setting that is the folder of a model, or a repository of the hub
# Host, valid port, path. The port is opened in a NetworkPolicy. User and password are not allowed.
_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
SERVER_URL = rf"^https?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:({_PORT}))?([/?#][^\s\x00-\x1f]*)?$"

Attempts = Annotated[int, Field(ge=1, le=100, description="Attempts while the server is unreachable or busy.")]
Backoff = Annotated[float, Field(ge=0, le=3600, description="Seconds before the second attempt.")]
Device = Annotated[
    str,
    Field(
        pattern=r"^[a-z]+(:[0-9]+)?$",
        description="Device of the model: cpu, trainer (the trainer's accelerators), or an accelerator of its own such "
        "as cuda.",
    ),
]
File = Annotated[str, Field(min_length=1), FILE]
Interval = Annotated[int, Field(ge=1, description="Of a video, the judge gets each frame of this distance.")]
JudgeModel = Annotated[
    str | None, Field(min_length=1, description="The name that the server at base_url serves the model under.")
]
JudgeUrl = Annotated[
    str | None,
    Field(
        max_length=2048,
        pattern=SERVER_URL,
        description="The judge's URL up to and with /v1: http:// or https://, host, optional port, path. Default: the "
        "judge of spec.reward.model.",
    ),
]
KeyVariable = Annotated[
    str | None,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Name of the environment variable with the API key."),
]
ModelFolder = Annotated[
    str,
    Field(min_length=1, description="The model: a folder, or a repository that is in the hub cache."),
    FOLDER,
]
NotNegative = Annotated[float, Field(ge=0)]
Protocol = Literal["json", "pickle"]
Quality = Annotated[int, Field(ge=1, le=100, description="Quality of the JPEG encoder.")]
Retries = Annotated[int, Field(ge=0, le=100, description="Attempts after the first.")]
Seconds = Annotated[float, Field(gt=0, le=3600, description="Timeout of one attempt, in seconds.")]
ServerUrl = Annotated[
    str,
    Field(
        max_length=2048,
        pattern=SERVER_URL,
        description="The server's URL: http:// or https://, host, optional port and path, without user and password.",
    ),
]
Share = Annotated[float, Field(ge=0, le=1)]
Tokens = Annotated[int, Field(ge=1, description="Upper limit of an answer.")]
