"""Settings that a scorer takes, read from its function or, without running it, from its source."""

import ast
import difflib
import inspect
import re
import tokenize
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

# Arguments that reward managers fill in.
SAMPLE = frozenset({"data_source", "solution_image", "ground_truth", "extra_info"})
# Names of the same arguments in a scorer that takes lists of them, as in verl's batch reward manager.
PLURAL = {name: f"{name}s" for name in sorted(SAMPLE)}
# What a scorer of lists has as well if it compares the samples of a prompt: the group of each sample.
GROUPS = "groups"
# What verl's scorers of texts take instead.
OF_TEXTS = {
    text: f"is what scorers of texts get; name the parameter {image}"
    for text, image in (("solution_str", "solution_image"), ("solution_strs", PLURAL["solution_image"]))
}
# What reward functions of flow_grpo and TRL take instead.
OF_OTHERS = {
    foreign: f"must be given; if it is what flow_grpo and TRL pass, name the parameter {here}"
    for foreign, here in (
        ("image", "solution_image"),
        ("images", PLURAL["solution_image"]),
        ("prompt", "ground_truth"),
        ("prompts", PLURAL["ground_truth"]),
        ("metadata", PLURAL["extra_info"]),
    )
}
BEFORE_SLASH = "are before a `/`, and a scorer gets its arguments by name; remove the `/`"
GENERATES = "it has a `yield`, so a call returns a generator; return the score, or a list of scores"
CLASS_ADVICE = "name a function, which makes the object once and calls it"
NEEDS_LISTS = f"is given to scorers of lists; name the parameters {', '.join(PLURAL.values())}"
# An integer is a number, but a text is not, and neither are true, infinity and NaN.
_EXACT = ConfigDict(strict=True, allow_inf_nan=False)
FILLED_IN = SAMPLE | set(PLURAL.values()) | {GROUPS, "reward_router_address", "reward_model_tokenizer", "model_name"}


class ScorerNotFound(ValueError):
    """A file has no such function, or is not Python; the message names it."""


class ScorerNotLoaded(ValueError):
    """A scorer cannot be imported, is no function, or has a setting whose type does not exist; the message names it."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters of a scorer, without those that reward managers fill in.

    Attributes:
        settings: all names. required: those without a default.
        open_ended: it has `**kwargs`, so it takes any setting.
        group_wise: it has a parameter `groups`, so it gets all samples of a prompt together.
        of_lists: it has a parameter `solution_images`.
        positional: parameters before a `/`, which a call by name cannot give.
        generates: it has a `yield`, so a call returns a generator.
    """

    settings: frozenset[str]
    required: frozenset[str]
    open_ended: bool
    group_wise: bool = False
    of_lists: bool = False
    positional: tuple[str, ...] = ()
    generates: bool = False

    def function_problems(self) -> list[str]:
        """PURE: why no call of the function would give a score, whatever its settings are."""
        return [
            *([f"the parameters {', '.join(self.positional)} {BEFORE_SLASH}"] if self.positional else ()),
            *([GENERATES] if self.generates else ()),
        ]

    def problems(self, given: Collection[str]) -> list[str]:
        """PURE: messages about missing and unknown settings; for unknown names, with the nearest valid one."""
        unknown = [] if self.open_ended else sorted(set(given) - self.settings)
        missing = sorted(self.required - set(given))
        alone = [] if self.of_lists or not self.group_wise else [f"{GROUPS}: {NEEDS_LISTS}"]
        return [
            *alone,
            *(f"{name}: unknown setting{nearest_name(name, self.settings)}" for name in unknown),
            *(f"{name}: {(OF_TEXTS | OF_OTHERS).get(name, 'must be given')}" for name in missing),
        ]


def nearest_name(name: str, valid: Collection[str]) -> str:
    """PURE: the end of a message about an unknown name: the nearest valid one, else all of them."""
    if near := difflib.get_close_matches(name, valid, n=1, cutoff=0.5):
        return f"; did you mean {near[0]}?"
    return f"; one of {', '.join(sorted(valid))}" if valid else "; there are none"


def parameters_of(scorer: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a scorer; of a function in verl's wrapper, the wrapped function's parameters.

    verl passes a user's function as partial(wrapper, function, settings), where wrapper takes any argument.
    """
    known = inspect.signature(scorer).parameters
    if isinstance(scorer, partial) and scorer.args and callable(scorer.args[0]):
        kinds = {parameter.kind for parameter in known.values()}
        if kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            return parameters_of(scorer.args[0])
    return known


def taken_by(scorer: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a scorer has parameters for; all of them if it has `**kwargs`."""
    known = parameters_of(scorer)
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    return {name: value for name, value in arguments.items() if is_open or name in known}


def takes_lists(scorer: Callable[..., Any]) -> bool:
    """Whether a scorer scores several samples in a call: it has a parameter `solution_images`."""
    return PLURAL["solution_image"] in parameters_of(scorer)


def takes_groups(scorer: Callable[..., Any]) -> bool:
    """Whether a scorer gets all samples of a prompt together: it has a parameter `groups`."""
    return GROUPS in parameters_of(scorer)


def signature_of(scorer: Callable[..., Any]) -> Signature:
    """The signature of a function."""
    known = parameters_of(scorer).values()
    named = [
        parameter for parameter in known if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    return _signature(
        {parameter.name: parameter.default is not parameter.empty for parameter in named},
        open_ended=any(parameter.kind is parameter.VAR_KEYWORD for parameter in known),
        positional=[parameter.name for parameter in known if parameter.kind is parameter.POSITIONAL_ONLY],
        generates=_generates(scorer),
    )


def _generates(scorer: Callable[..., Any]) -> bool:
    """Whether a function, or the one in verl's wrapper, is a generator."""
    function = scorer.args[0] if isinstance(scorer, partial) and scorer.args and callable(scorer.args[0]) else scorer
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def setting_fields(scorer: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Type and default of each setting, as pydantic's `create_model` takes them; without a default, it is `...`.

    Only the annotations of settings are evaluated: a sample's type is imported for type checkers alone.

    Raises:
        ScorerNotLoaded: the type of a setting cannot be evaluated.
    """
    names = vars(inspect.getmodule(scorer))
    fields: dict[str, tuple[Any, Any]] = {}
    for name, parameter in parameters_of(scorer).items():
        if name in FILLED_IN or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        annotation = parameter.annotation
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, dict(names))
            except Exception as error:  # whatever a user wrote
                raise ScorerNotLoaded(
                    f"{scorer.__module__}:{scorer.__qualname__} has the setting {name} of the type {annotation}, which "
                    f"cannot be evaluated: {type(error).__name__}: {error}"
                ) from error
        if annotation is parameter.empty:
            annotation = Any
        fields[name] = (annotation, ... if parameter.default is parameter.empty else parameter.default)
    return fields


def value_problems(scorer: Callable[..., Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Messages about values that do not have the type of the scorer's parameter."""
    fields = setting_fields(scorer)
    for name, value in given.items():
        if name not in fields:  # a scorer with `**settings` takes any
            continue
        annotation = fields[name][0]
        try:
            TypeAdapter(annotation, config=_EXACT).validate_python(value)
        except ValidationError as error:
            yield f"{name}: {'null' if value is None else value} {_problem(error, annotation)}"


def _problem(error: ValidationError, annotation: Any) -> str:
    detail = error.errors()[0]
    info = FieldInfo.from_annotation(annotation)
    if detail["type"] == "literal_error":
        return f"is not one of {', '.join(get_args(info.annotation))}"
    if detail["type"] == "string_pattern_mismatch" and info.description:
        return f"has the wrong format: {info.description.removesuffix('.')}"
    return str(detail["msg"]).removeprefix("Input ")


def signature_in_source(text: str, name: str) -> Signature | None:
    """The signature of the function `name` that a module's text defines; None where it is made in another way.

    Raises:
        SyntaxError: `text` is not Python.
    """
    defined = [
        node
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    if not defined or defined[-1].decorator_list:
        return None
    arguments = defined[-1].args
    without_default = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    places = enumerate(arguments.args, start=len(arguments.posonlyargs))
    has_default = {argument.arg: position >= without_default for position, argument in places}
    keyword_only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    has_default |= {argument.arg: default is not None for argument, default in keyword_only}
    return _signature(
        has_default,
        open_ended=arguments.kwarg is not None,
        positional=[argument.arg for argument in arguments.posonlyargs],
        generates=_yields(defined[-1].body),
    )


def _yields(body: Sequence[ast.AST]) -> bool:
    """Whether there is a `yield` in the body of a function, outside of functions and classes that it defines."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    return any(
        isinstance(node, (ast.Yield, ast.YieldFrom))
        or (not isinstance(node, inner) and _yields(list(ast.iter_child_nodes(node))))
        for node in body
    )


def signature_in_file(file: Path, name: str) -> Signature | None:
    """The signature of a user's function; None where only running its module would show it.

    Raises:
        ScorerNotFound: the file has no such function, or is not Python.
    """
    try:
        with tokenize.open(file) as lines:  # with a byte order mark, or in the encoding that it names
            text = lines.read()
        signature = signature_in_source(text, name)
    except SyntaxError as error:
        line = f" (line {error.lineno})" if error.lineno else ""
        raise ScorerNotFound(f"{file} is not Python: {error.msg}{line}") from error
    except (OSError, ValueError) as error:
        raise ScorerNotFound(f"{file} cannot be read as Python: {error}") from error
    if signature is not None:
        return signature
    defined = ast.parse(text).body
    if any(isinstance(node, ast.ClassDef) and node.name == name for node in defined):
        raise ScorerNotFound(f"{name} of {file} is a class; {CLASS_ADVICE}")
    if not may_define(text, name):
        functions = [node.name for node in defined if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        raise ScorerNotFound(f"{file} has no function {name}{nearest_name(name, functions)}")
    return None


def may_define(text: str, name: str) -> bool:
    """Whether running a module's text may make something called `name`: not if neither it nor `import *` is there."""
    words = set(re.findall(r"\w+", text))
    return name in words or bool(words & {"globals", "exec", "__getattr__"}) or "import *" in text


def _signature(
    has_default: Mapping[str, bool], *, open_ended: bool, positional: Sequence[str], generates: bool
) -> Signature:
    settings = {name: default for name, default in has_default.items() if name not in FILLED_IN}
    return Signature(
        frozenset(settings),
        frozenset(name for name, default in settings.items() if not default),
        open_ended,
        group_wise=GROUPS in has_default,
        of_lists=PLURAL["solution_image"] in has_default,
        positional=tuple(positional),
        generates=generates,
    )
