"""PURE: the call of a trainer in a shell script, or in the commands of a YAML file.

Nothing is run. What a script needs to name the trainer's arguments is read: variables, arrays, quotes, functions,
conditions that depend on variables of the script, calls of other scripts. Output of programs stays as it is written,
and is named; so does a variable that the script may set to several values.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from .manifest_commands import Command, RecipeError, commands_in
from .shell_variables import ASSIGNMENT, MARK, TESTS, Value, Variables, evaluate_test, merge_ways
from .shell_words import Operator, Output, ScriptSyntaxError, Word, split_script

MODULE = "verl_omni.trainer.main_diffusion"
# Entry points, each with the settings that it stands for.
ENTRY_POINTS: dict[str, tuple[str, ...]] = {"main_diffusion": (), "main_diffusion_v1": ("trainer.use_v1=true",)}
SCRIPT = "the script"
_MODULE_OPTION = re.compile(r"-\w*m|--module")  # in front of a module that a program runs
_SETTING = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.[\w/]+)+=.*", re.DOTALL)
_SHELLS = ("bash", "sh")
_SHELL_TEXT = re.compile(r"-\w*c\w*")  # `bash -c`, `bash -lc`
_SHELL_OPTION = re.compile(r"[-+]\w*o")  # `-o pipefail`, `-euo pipefail`
_EXPORTING = re.compile(r"[-+]\w*a\w*")  # `set -a`
_MOST_SCRIPTS = 20  # that call one another
_IN_FRONT = ("exec", "nohup", "setsid", "command", "env")  # of the path of a script
_TRAINER = re.compile(r"(?:[A-Za-z_]\w*\.)*(main_\w+)|(?:.*/)?(main_\w+)\.py")
_DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_CALCULATED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)")  # variables that arithmetic sets
_CASE_ENDS = (";;", ";&", ";;&")
_ENDS = ("\n", ";", "&", ")", *_CASE_ENDS)  # of a list with && and ||
_PATTERN = re.compile(r"[*?\[{]")  # a word that may become other words
_UNKNOWN = re.compile(r"\0([^\0]*)\0|(\$\{\w+\}|\$\w+)")  # `\$NAME` and '$NAME' too, which nothing replaces
Tokens = Sequence[Word | Operator]


@dataclass(frozen=True, slots=True)
class OtherScript:
    """A script that another one calls."""

    path: str
    text: str


# Finds a script by its path as the command has it, without what is not known at its beginning, and by the path of the
# script that calls it, which is empty for the recipe.
FindScript = Callable[[str, str], OtherScript | None]


@dataclass(frozen=True, slots=True)
class TrainerCall:
    """Arguments of the trainer.

    Attributes:
        arguments: as the shell would pass them, except for what is in `unknown` and `conditional`.
        unknown: variables without a value, and commands whose output is not known.
        conditional: variables that a condition or a loop of the script sets, each with the line that does.
        environment: names of environment variables that the script sets for the trainer, and does not read itself.
        command: which command of a YAML file starts the trainer; empty for a script.
        read: paths of the other scripts that were read.
        missing: other scripts that are read into the script, and were not found.
    """

    arguments: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    conditional: tuple[tuple[str, str], ...] = ()
    environment: tuple[str, ...] = ()
    command: str = ""
    read: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def read_script(text: str, find: FindScript = lambda path, caller: None) -> TrainerCall:
    """Find the call of the trainer in a script or a YAML file, and expand the script's variables in it.

    Args:
        find: finds the scripts that it calls.

    Raises:
        RecipeError: there is no call, more than one, or one of another trainer; a quote is not closed; the script sets
            IFS; or it is YAML without a command.
    """
    commands = commands_in(text)
    findings = _Findings(find)
    for command in commands or (Command(SCRIPT, text),):
        values = {
            name: Value((f"{MARK}$({name}){MARK}" if value is None else value,), "")
            for name, value in command.environment.items()
        }
        _Shell(findings, command.name, "", values).run_text(command.name, command.text, "")
    if not findings.calls:
        named = ", ".join(command.name for command in commands)
        started = f"none of {named} starts {MODULE}" if named else f"the script does not start {MODULE}"
        raise RecipeError(started + "".join(f"; {path}, which it calls, was not found" for path in findings.not_found))
    if len(findings.calls) > 1:
        raise RecipeError(f"the script starts the trainer {len(findings.calls)} times; keep one call")
    (call,) = findings.calls
    expansions = [match[1] or match[2] for word in call.arguments for match in _UNKNOWN.finditer(word)]
    names = dict.fromkeys(expansions)
    conditional = findings.conditional
    return TrainerCall(
        arguments=tuple(word.replace(MARK, "") for word in call.arguments),
        unknown=tuple(name for name in names if name not in conditional),
        conditional=tuple((name, conditional[name]) for name in names if name in conditional),
        environment=tuple(name for name in call.environment if not _is_read(name, findings.texts)),
        command=call.command if commands else "",
        read=tuple(findings.read),
        missing=tuple(findings.not_sourced),
    )


def _is_read(name: str, texts: Sequence[str]) -> bool:
    """Whether a script reads a variable, other than for its own default: `export NAME=${NAME:-value}`."""
    without_defaults = (re.sub(rf"\b{re.escape(name)}=\S*", "", text) for text in texts)
    return any(re.search(rf"\$\{{?{re.escape(name)}\b", text) for text in without_defaults)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the trainer, with the command of a YAML file that has it."""

    arguments: Sequence[str]
    environment: Sequence[str]
    command: str


@dataclass(slots=True)
class _Findings:
    """What all shells of a recipe have found."""

    find: FindScript
    calls: list[_Call] = field(default_factory=list)
    conditional: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)  # texts, each called by the one before it
    read: dict[str, None] = field(default_factory=dict)  # paths of other scripts
    not_found: dict[str, None] = field(default_factory=dict)
    not_sourced: dict[str, None] = field(default_factory=dict)  # not found, and may set variables


class _Shell:
    """Goes through a script once. Of conditions it goes every way, and compares what each leaves in the variables."""

    def __init__(self, findings: _Findings, command: str, path: str, values: Mapping[str, Value]) -> None:
        self.findings = findings
        self.command = command  # of a YAML file
        self.path = path  # of the script that runs; empty for the recipe
        self.variables = Variables(dict(values), findings.conditional)
        self.exported = dict.fromkeys(values)
        self.exports_all = False
        self.functions: dict[str, tuple[Tokens, int, str, str]] = {}  # where they begin, how they end, and their file
        self.name = ""  # of the text that runs, in messages
        self.tokens: Tokens = ()
        self.at = 0
        self.skips = False  # commands that do not run
        self.succeeds: bool | None = None  # the last command; None if that is not known
        self.negated = False

    def run_text(self, name: str, text: str, path: str) -> None:
        """Run a text here, unless it is running already: a script may start itself in a container.

        Raises:
            RecipeError: a quote is not closed, or it starts another trainer.
        """
        findings = self.findings
        if text in findings.running:
            return
        if len(findings.running) == _MOST_SCRIPTS:
            raise RecipeError(f"{name}: scripts call one another more than {_MOST_SCRIPTS} deep")
        try:
            tokens = split_script(text)
        except ScriptSyntaxError as error:
            raise RecipeError(f"{'' if name == SCRIPT else f'{name}: '}not a shell script: {error}") from error
        findings.texts.append(text)
        findings.running.append(text)
        outer_path = self.path
        self.path = path
        self._run_tokens(tokens, 0, name)
        self.path = outer_path
        findings.running.pop()

    def _run_tokens(self, tokens: Tokens, at: int, name: str, *until: str) -> None:
        outer = (self.tokens, self.at, self.name)
        self.tokens = tokens
        self.at = at
        self.name = name
        self._run(*until)
        self.tokens, self.at, self.name = outer

    def _run(self, *until: str) -> str:
        """Run up to one of these words and operators, which is the next token then and returned; empty at the end."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token.source in until:
                return token.source
            self.at += 1
            match token.source:
                case "&&" | "||":
                    self._pass_over("\n")
                    # What follows `||` may run without what is in front of it; after `&&`, all in front of it ran.
                    ends = (*_ENDS, *until, "||", *(["&&"] if token.source == "||" else []))
                    self._run_if_last(token.source == "&&", ends)
                case "if":
                    self._if()
                case "case":
                    self._case()
                case "for" | "while" | "until":
                    self._loop(token.source)
                case "{":
                    self._group("}")
                case "(":
                    before = dict(self.variables.values)
                    self._group(")")
                    self.variables.values = before
                case "function":
                    self._define(self._next())
                case "!":
                    self.negated = not self.negated
                case _:
                    if isinstance(token, Word):
                        self._command(token)
        return ""

    def _next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1].source if self.at <= len(self.tokens) else ""

    def _run_through(self, *until: str, skips: bool = False) -> str:
        """Run, or only go through, the commands up to a word, and go behind it."""
        outer = self.skips
        self.skips = outer or skips
        end = self._run(*until)
        self.skips = outer
        self.at += 1
        return end

    def _pass_over(self, *sources: str) -> None:
        while self.at < len(self.tokens) and self.tokens[self.at].source in sources:
            self.at += 1

    def _group(self, end: str) -> None:
        negated = self.negated
        self.negated = False
        self._run_through(end)
        if negated:
            self.succeeds = None

    def _run_if_last(self, succeeds: bool, until: Sequence[str]) -> None:
        """Run commands that run only if the last one succeeds, or fails."""
        known = self.succeeds
        before = dict(self.variables.values)
        self._run_through(*until, skips=known is not None and known != succeeds)
        self.at -= 1
        if known is None:
            self.variables.values = merge_ways([before, self.variables.values])
            self.succeeds = None

    def _if(self) -> None:
        before = dict(self.variables.values)
        ends = []
        word = "if"
        decided = False
        while word not in ("fi", ""):
            self.variables.values = dict(before)
            holds = True if word == "else" else self._condition("then")
            skips = decided or holds is False
            word = self._run_through("elif", "else", "fi", skips=skips)
            if not skips:
                ends.append(self.variables.values)
            decided = decided or holds is True
        self.variables.values = merge_ways(ends if decided else [before, *ends])
        self.succeeds = None

    def _case(self) -> None:
        first = self.at
        while self._next() not in ("in", ""):
            pass
        word = next((token for token in self.tokens[first : self.at] if isinstance(token, Word)), None)
        text = MARK if word is None or self.skips else self.variables.text(word.parts)
        before = dict(self.variables.values)
        ends = []
        decided = False
        while True:
            self._pass_over("\n", "(", *_CASE_ENDS)
            if self._next() in ("esac", ""):
                break
            first = self.at - 1
            while self._next() not in (")", ""):
                pass
            matches = self._matches(text, self.tokens[first : self.at - 1])
            skips = decided or matches is False
            self.variables.values = dict(before)
            end = self._run_through(*_CASE_ENDS, "esac", skips=skips)
            self.at -= 1
            if not skips:
                ends.append(self.variables.values)
            decided = decided or (matches is True and end in (";;", "esac"))  # `;&` continues with the next commands
        self.variables.values = merge_ways(ends if decided else [before, *ends])
        self.succeeds = None

    def _matches(self, text: str, patterns: Tokens) -> bool | None:
        """Whether a text matches one of the patterns; None if that is not known."""
        if any(pattern.source == "*" for pattern in patterns):
            return True
        words = [self.variables.text(pattern.parts) for pattern in patterns if isinstance(pattern, Word)]
        if MARK in text or any(MARK in word or _PATTERN.search(word) for word in words):
            return None
        return text in words

    def _condition(self, end: str) -> bool | None:
        """Run a condition. Returns whether it succeeds; None if that is not known."""
        self.succeeds = None
        self._run_through(end)
        return None if self.skips else self.succeeds

    def _loop(self, kind: str) -> None:
        name = ""
        never = False
        if kind == "for":
            name = self._next()
            first = self.at
            self.variables.place = f"line {self.tokens[first - 1].line} of {self.name}"
            while self._next() not in ("do", ""):
                pass
            never = name.isidentifier() and self._has_no_words(self.tokens[first : self.at - 1])
        else:
            never = self._condition("do") is (kind == "until")
        start = self.at
        before = dict(self.variables.values)
        calls = len(self.findings.calls)
        if name and not never and not self.skips:
            self.variables.forget([name])
        # Two times, because what a round reads may come from the round before it; what rounds differ in is not known.
        for _ in range(2):
            del self.findings.calls[calls:]
            self.at = start
            self._run_through("done", skips=never)
            self.variables.values = merge_ways([before, self.variables.values])
        self.succeeds = None

    def _has_no_words(self, tokens: Tokens) -> bool:
        """Whether a loop runs not even once."""
        words = [token for token in tokens if isinstance(token, Word)]
        if not words:  # the arguments
            return not self.variables.values.get("@", Value((), "")).elements
        return not any(self.variables.fields(word) for word in words[1:])

    def _define(self, name: str) -> None:
        self._pass_over("(", ")", "\n")
        end = {"{": "}", "(": ")"}.get(self._next(), "}")
        function = (self.tokens, self.at, end, self.name)
        self._run_through(end, skips=True)  # runs when it is called
        if not self.skips:
            self.functions[name] = function

    def _call_function(self, name: str, arguments: Sequence[str]) -> None:
        function = tokens, at, end, file = self.functions.pop(name)
        with self._arguments(arguments):
            self._run_tokens(tokens, at, file, end)
        self.functions[name] = function

    @contextlib.contextmanager
    def _arguments(self, arguments: Sequence[str]) -> Iterator[None]:
        """`$1` and so on are these arguments meanwhile."""
        outer = self.variables.values.get("@")
        self.variables.values["@"] = Value(tuple(arguments), self.variables.place)
        yield
        self.variables.values.pop("@")
        if outer:
            self.variables.values["@"] = outer

    def _command(self, first: Word) -> None:
        words = [first]
        while self.at < len(self.tokens) and isinstance(token := self.tokens[self.at], Word):
            words.append(token)
            self.at += 1
        if len(words) == 1 and [token.source for token in self.tokens[self.at : self.at + 2]] == ["(", ")"]:
            self._define(first.source)
            self.succeeds = True
        elif not self.skips:
            negated = self.negated
            self.negated = False
            self.variables.place = f"line {first.line} of {self.name}"
            succeeds = self._run_simple(words)
            self.succeeds = not succeeds if negated and succeeds is not None else succeeds

    def _run_simple(self, words: Sequence[Word]) -> bool | None:
        """Run a command. Returns whether it succeeds; None if that is not known."""
        first = words[0].source
        if first.startswith("(("):
            self.variables.forget(_CALCULATED.findall(first))
            return None
        first_field = next((n for n, word in enumerate(words) if not ASSIGNMENT.match(word.source)), len(words))
        if first_field == len(words) or first in _DECLARATIONS:
            return self._assign(words)
        fields = [text for word in words[first_field:] for text in self.variables.fields(word)]
        match fields:
            case ["shift", *count]:
                self.variables.shift(int(count[0]) if count and count[0].isdigit() else 1)
            case ["set", "--", *arguments]:
                self.variables.values["@"] = Value(tuple(arguments), self.variables.place)
            case ["set", option, *names] if _EXPORTING.fullmatch(option) or "allexport" in names:
                self.exports_all = option[0] == "-"
            case ["unset", *names]:
                for name in names:
                    self.variables.values.pop(name, None)
            case [name, *arguments] if name in self.functions:
                self._call_function(name, arguments)
            case ["let", *_]:
                self.variables.forget(name for text in fields for name in _CALCULATED.findall(text))
            case ["read" | "mapfile" | "readarray", *names]:
                self.variables.forget(name for name in names if name.isidentifier())
            case ["printf", "-v", name, *_]:
                self.variables.forget([name])
            case ["echo" | "printf", *_]:
                pass
            case ["true" | "false" | ":" as name, *_]:
                return name != "false"
            case [name, *_] if name in TESTS:
                return evaluate_test(fields)
            case ["source" | ".", path, *arguments]:
                self._source(path, arguments)
            case _:
                self._start(fields, words[:first_field])
        return None

    def _assign(self, words: Sequence[Word]) -> bool | None:
        """Run assignments, or a command such as `export` with assignments; see `_run_simple`."""
        is_declaration = words[0].source in _DECLARATIONS
        assignments = words[is_declaration:]
        for word in assignments:
            if word.source.startswith("IFS="):
                raise RecipeError(f"{self.variables.place} sets IFS, and words are split at blanks here: remove it")
            self.variables.assign(word)
        if self.exports_all or words[0].source == "export" or any(word.source == "-x" for word in assignments):
            self.exported |= dict.fromkeys(_names(assignments))
        return None if any(isinstance(part, Output) for word in words for part in word.parts) else True

    def _start(self, fields: Sequence[str], assignments: Sequence[Word]) -> None:
        """Run a program: the trainer, or another script that may start it."""
        for place, text in enumerate(fields):
            match = _TRAINER.fullmatch(text)
            if match and (match[2] or (place and _runs_module(fields[place - 1]))):
                implied = ENTRY_POINTS.get(match[1] or match[2])
                if implied is None:
                    raise RecipeError(f"the script starts {text}; only {MODULE} and {MODULE}_v1 are supported")
                environment = dict.fromkeys([*self.exported, *_set_by(fields[:place]), *_names(assignments)])
                call = _Call([*implied, *fields[place + 1 :]], list(environment), self.command)
                self.findings.calls.append(call)
                return
        if fields and _SETTING.fullmatch(fields[0]):
            raise RecipeError(
                f"{self.variables.place}: {fields[0]} is not part of a command; end the line before it with \\"
            )
        if script := _script_in(fields):
            self._start_script(script, assignments)

    def _start_script(self, script: _ScriptCall, assignments: Sequence[Word]) -> None:
        """Run another script, which gets the variables that are exported, or set in front of its name."""
        other = OtherScript(self.path, script.script.replace(MARK, "")) if script.is_text else self._find(script.script)
        if other is None:
            self.findings.not_found[script.script.replace(MARK, "")] = None
            return
        front = dict(item.split("=", 1) for item in script.front if ASSIGNMENT.match(item))
        names = dict.fromkeys([*self.exported, *_names(assignments), *front, *_set_by(script.front)])
        variables = Variables(dict(self.variables.values), self.findings.conditional, self.variables.place)
        for word in assignments:
            variables.assign(word)
        variables.values |= {name: Value((text,), variables.place) for name, text in front.items()}
        shell = _Shell(self.findings, self.command, other.path, {})
        shell.variables.values = {name: value for name, value in variables.values.items() if name in names}
        shell.exported = names
        if script.arguments:
            shell.variables.values["@"] = Value(tuple(script.arguments), self.variables.place)
        calls = len(self.findings.calls)
        shell.run_text("bash -c" if script.is_text else other.path, other.text, other.path)
        if len(self.findings.calls) > calls and not script.is_text:
            self.findings.read[other.path] = None

    def _source(self, path: str, arguments: Sequence[str]) -> None:
        """Run another script in this shell. One of the system, or that is no `.sh`, is left alone."""
        if path.startswith("/") or not path.endswith(".sh"):
            return
        other = self._find(path)
        if other is None:
            self.findings.not_sourced[path.replace(MARK, "")] = None
            return
        self.findings.read[other.path] = None
        with self._arguments(arguments) if arguments else contextlib.nullcontext():
            self.run_text(other.path, other.text, other.path)

    def _find(self, path: str) -> OtherScript | None:
        """Another script; of a path whose beginning is not known, the rest is looked for."""
        *unknown, known = path.split(MARK)
        if unknown and not known.startswith("/"):
            return None
        return self.findings.find(known.lstrip("/") if unknown else known, self.path)


@dataclass(frozen=True, slots=True)
class _ScriptCall:
    """The call of a script: its path, or for `bash -c` its text, and the words in front of it."""

    front: Sequence[str]
    script: str
    is_text: bool
    arguments: Sequence[str]


def _script_in(words: Sequence[str]) -> _ScriptCall | None:
    """The script that a command runs."""
    shell = next((place for place, word in enumerate(words) if word.rpartition("/")[2] in _SHELLS), len(words))
    front = words[:shell]
    rest = list(words[shell + 1 :])
    is_text = False
    if shell == len(words):
        first = next((n for n, word in enumerate(words) if word not in _IN_FRONT and not ASSIGNMENT.match(word)), shell)
        first = words.index("--") + 1 if "--" in words else first
        front = words[:first]
        rest = list(words[first:])
        if not rest or not rest[0].endswith(".sh"):
            return None
    else:
        while rest and rest[0][:1] in ("-", "+"):
            option, *rest = rest
            is_text = is_text or _SHELL_TEXT.fullmatch(option) is not None
            del rest[: _SHELL_OPTION.fullmatch(option) is not None]
    if not rest:
        return None
    return _ScriptCall(front, rest[0], is_text, rest[2 if is_text else 1 :])  # `bash -c TEXT NAME ARGUMENT…`


def _runs_module(word: str) -> bool:
    """Whether the next word may be a module that is run: `python3 -m`, or a variable that is not known."""
    return MARK in word or _MODULE_OPTION.fullmatch(word) is not None


def _set_by(words: Sequence[str]) -> Iterator[str]:
    """Environment variables that a command in front of the trainer sets for it: of `env`, and of `ray job submit`.

    Of a file with a runtime environment, whose content is not known, it is said that there are some.
    """
    if words[:1] == ["env"]:
        yield from (match["name"] for word in words if (match := ASSIGNMENT.match(word)))
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, is_joined, value = word.partition("=")
        text = value if is_joined else following
        if option == "--runtime-env":
            yield f"those of {text.replace(MARK, '')}"
        elif option == "--runtime-env-json":
            with contextlib.suppress(ValueError, AttributeError):  # a variable of the script, or a mistake
                yield from json.loads(text).get("env_vars", {})


def _names(assignments: Sequence[Word]) -> Iterator[str]:
    """Names of the variables that these words set."""
    names = (re.split(r"\+?=", word.source, maxsplit=1)[0] for word in assignments)
    return (name for name in names if name.isidentifier())
