"""PURE: the call of a trainer in a shell script.

Read is what recipes are made of: variables, arrays, quotes, functions, conditions. Nothing is run, so the output of
other programs stays as it is written, and is named; so does a variable that the script may set to several values. Of
`if`, `while`, `&&` and `||`, the way is known where the test reads nothing but variables of the script.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .shell_conditions import TESTS, evaluate
from .shell_variables import ASSIGNMENT, MARK, Value, Variables, merged
from .shell_words import Operator, Output, ScriptSyntaxError, Word, split_script

MODULE = "verl_omni.trainer.main_diffusion"
# Entry points, each with the settings that it stands for.
ENTRY_POINTS: dict[str, tuple[str, ...]] = {"main_diffusion": (), "main_diffusion_v1": ("trainer.use_v1=true",)}
_TRAINER = re.compile(r"(?:[A-Za-z_]\w*\.)*(main_\w+)|(?:.*/)?(main_\w+)\.py")
_DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_CALCULATED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)")  # variables that arithmetic sets
_ENDS = ("\n", ";", "&", ")", ";;", ";&", ";;&")  # of a list with && and ||
_LEAVE = ("break", "continue", "return", "exit")
_PATTERN = re.compile(r"[*?\[{]")  # a word that may become other words
_UNKNOWN = re.compile(r"\0([^\0]*)\0|(\$\{\w+\}|\$\w+)")  # `\$NAME` and '$NAME' too, which nothing replaces


class RecipeError(ValueError):
    """A script that does not start the trainer, or starts another one."""


@dataclass(frozen=True, slots=True)
class TrainerCall:
    """Arguments of the trainer.

    Attributes:
        arguments: as the shell would pass them, except for what is in `unknown` and `conditional`.
        unknown: variables without a value, and commands whose output is not known.
        conditional: variables that a condition or a loop of the script sets, each with the line that does.
        environment: names of environment variables that the script sets for the trainer, and does not read itself.
    """

    arguments: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    conditional: tuple[tuple[str, int], ...] = ()
    environment: tuple[str, ...] = ()


def read_script(text: str) -> TrainerCall:
    """Find the call of the trainer, and expand the script's variables in it.

    Raises:
        RecipeError: there is no call, more than one, or one of another trainer; or a quote is not closed.
    """
    try:
        script = _Script(split_script(text))
    except ScriptSyntaxError as error:
        raise RecipeError(f"not a shell script: {error}") from error
    script.run()
    if not script.calls:
        raise RecipeError(f"the script does not start {MODULE}")
    if len(script.calls) > 1:
        raise RecipeError(f"the script starts the trainer {len(script.calls)} times; keep one call")
    found = [match[1] or match[2] for word in script.calls[0] for match in _UNKNOWN.finditer(word)]
    names, conditional = dict.fromkeys(found), script.variables.conditional
    return TrainerCall(
        tuple(word.replace(MARK, "") for word in script.calls[0]),
        tuple(name for name in names if name not in conditional),
        tuple((name, conditional[name]) for name in names if name in conditional),
        tuple(name for name in script.environment if not _is_read(name, text)),
    )


def _is_read(name: str, text: str) -> bool:
    """Whether a script reads a variable, other than for its own default: `export NAME=${NAME:-value}`."""
    return bool(re.search(rf"\$\{{?{re.escape(name)}\b", re.sub(rf"\b{re.escape(name)}=\S*", "", text)))


class _Script:
    """Goes through a script once. Of conditions it goes every way, and compares what each leaves in the variables."""

    def __init__(self, tokens: list[Word | Operator]) -> None:
        self.calls: list[list[str]] = []
        self.environment: dict[str, None] = {}  # exported, or in front of the call
        self.variables = Variables()
        self._tokens, self._at = tokens, 0
        self._functions: dict[str, tuple[int, str]] = {}  # where they begin, and with what they end
        self._succeeds: bool | None = None  # the last command; None if that is not known
        self._negated = False

    def run(self, *until: str) -> str:
        """Run up to one of these words and operators, which is the next token then and returned; empty at the end."""
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.source in until:
                return token.source
            self._at += 1
            match token.source:
                case "&&" | "||":
                    self._skip("\n")
                    # What follows `||` may run without what is in front of it; after `&&`, all in front of it ran.
                    ends = (*_ENDS, *until, "||", *(["&&"] if token.source == "||" else []))
                    self._if_it_succeeds(ends, succeeds=token.source == "&&")
                case "if":
                    self._if()
                case "case":
                    self._case()
                case "for" | "select" | "while" | "until":
                    self._loop(token.source)
                    self._succeeds = None
                case "{":
                    self._group("}")
                case "(":
                    before = dict(self.variables.values)
                    self._group(")")
                    self.variables.values = before
                case "function":
                    self._define(self._next())
                case "!":
                    self._negated = not self._negated
                case "time":
                    pass
                case _:
                    if isinstance(token, Word):
                        self._command(token)
        return ""

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1].source if self._at <= len(self._tokens) else ""

    def _pass(self, *until: str) -> str:
        found = self.run(*until)
        self._at += 1
        return found

    def _group(self, end: str) -> None:
        negated, self._negated = self._negated, False
        self._pass(end)
        if negated:
            self._succeeds = None

    def _skip(self, *sources: str) -> None:
        while self._at < len(self._tokens) and self._tokens[self._at].source in sources:
            self._at += 1

    def _if_it_succeeds(self, until: Sequence[str], *, succeeds: bool) -> None:
        """Run commands that run only if the last one succeeds, or fails."""
        known = self._succeeds
        if known is not None and known != succeeds:
            self._without_effect(*until)
            return
        before = dict(self.variables.values)
        self.run(*until)
        if known is None:
            self.variables.values, self._succeeds = merged([before, self.variables.values]), None

    def _without_effect(self, *until: str) -> str:
        """Go through commands that do not run. Returns what ends them, which is the next token then."""
        before, functions, calls = dict(self.variables.values), dict(self._functions), len(self.calls)
        succeeds, environment = self._succeeds, dict(self.environment)
        found = self.run(*until)
        self.variables.values, self._functions, self._succeeds = before, functions, succeeds
        self.environment = environment
        del self.calls[calls:]
        return found

    def _if(self) -> None:
        before, ends, found, complete = dict(self.variables.values), [], "if", False
        while found not in ("fi", ""):
            self.variables.values = dict(before)
            succeeds = True if found == "else" else self._condition("then")
            never, complete = complete or succeeds is False, complete or succeeds is True
            if never:
                found = self._without_effect("elif", "else", "fi")
                self._at += 1
            else:
                found = self._pass("elif", "else", "fi")
                ends.append(self.variables.values)
        self.variables.values = merged(ends if complete else [before, *ends])
        self._succeeds = None

    def _case(self) -> None:
        first = self._at
        while self._next() not in ("in", ""):
            pass
        word = next((token for token in self._tokens[first : self._at] if isinstance(token, Word)), None)
        text = MARK if word is None else self.variables.text(word.parts)
        before, ends, complete = dict(self.variables.values), [], False
        while True:
            self._skip("\n", "(", ";;", ";&", ";;&")
            if self._next() in ("esac", ""):
                break
            self._at -= 1
            first = self._at
            while self._next() not in (")", ""):
                pass
            chosen = self._matches(text, self._tokens[first : self._at - 1])
            self.variables.values = dict(before)
            if complete or chosen is False:
                self._without_effect(";;", ";&", ";;&", "esac")
            else:
                self.run(";;", ";&", ";;&", "esac")
                ends.append(self.variables.values)
                # What falls through to the next commands is not followed.
                complete = chosen is True and self._tokens[min(self._at, len(self._tokens) - 1)].source in (
                    ";;",
                    "esac",
                )
        self.variables.values, self._succeeds = merged(ends if complete else [before, *ends]), None

    def _matches(self, text: str, patterns: Sequence[Word | Operator]) -> bool | None:
        """Whether a text matches one of the patterns; None if that is not known."""
        if any(pattern.source == "*" for pattern in patterns):
            return True
        words = [self.variables.text(pattern.parts) for pattern in patterns if isinstance(pattern, Word)]
        if MARK in text or any(MARK in each or _PATTERN.search(each) for each in words):
            return None
        return text in words

    def _condition(self, end: str) -> bool | None:
        """Run a condition. Returns whether it succeeds; None if that is not known."""
        self._succeeds = None
        self._pass(end)
        return self._succeeds

    def _loop(self, kind: str) -> None:
        if kind in ("for", "select"):
            name, first = self._next(), self._at
            line = self._tokens[self._at - 1].line
            while self._next() not in ("do", ""):
                pass
            if kind == "for" and self._each(name, self._tokens[first : self._at - 1]):
                return
            self.variables.line = line
            self.variables.forget([name])
        else:
            if self._condition("do") is (kind == "until"):  # not even once
                self._without_effect("done")
                self._at += 1
                return
        start, before, calls = self._at, dict(self.variables.values), len(self.calls)
        self._pass("done")
        # A second time, with what is the same in each round.
        self._at, self.variables.values = start, merged([before, self.variables.values])
        del self.calls[calls:]
        self._pass("done")
        self.variables.values = merged([before, self.variables.values])

    def _each(self, name: str, tokens: Sequence[Word | Operator]) -> bool:
        """Run a loop once for each of its words, if they are known. Returns whether they are."""
        words = [token for token in tokens if isinstance(token, Word)]
        if words:
            fields = [field for word in words[1:] for field in self.variables.fields(word)]
        else:  # the arguments
            arguments = self.variables.values.get("@", Value((), self.variables.line))
            fields = list(arguments.elements) if arguments.certain else [MARK]
        start, before, functions, calls = self._at, dict(self.variables.values), self._functions, len(self.calls)
        self._without_effect("done")
        body, end = {token.source for token in self._tokens[start : self._at]}, self._at + 1
        is_known = name.isidentifier() and not any(MARK in each or _PATTERN.search(each) for each in fields)
        if is_known and body.isdisjoint(_LEAVE):
            for field in fields:
                self._at, self.variables.values[name] = start, Value((field,), self.variables.line)
                self._pass("done")
            self._at = end
            if len(self.calls) == calls:
                return True
        self._at, self.variables.values, self._functions = start, before, functions
        del self.calls[calls:]
        return False

    def _define(self, name: str) -> None:
        self._skip("(", ")", "\n")
        end = {"{": "}", "(": ")"}.get(self._next(), "}")
        functions = {**self._functions, name: (self._at, end)}
        before, calls, environment = dict(self.variables.values), len(self.calls), dict(self.environment)
        self._pass(end)  # runs when it is called
        self._functions, self.environment = functions, environment
        self.variables.values = before
        del self.calls[calls:]

    def _call(self, name: str, arguments: list[str]) -> None:
        (start, end), back, outer = self._functions.pop(name), self._at, self.variables.values.get("@")
        self._at, self.variables.values["@"] = start, Value(tuple(arguments), self.variables.line)
        self.run(end)
        self._at, self._functions[name] = back, (start, end)
        self.variables.values.pop("@")
        if outer:
            self.variables.values["@"] = outer

    def _command(self, first: Word) -> None:
        negated, self._negated = self._negated, False
        succeeds = self._simple(first)
        self._succeeds = not succeeds if negated and succeeds is not None else succeeds

    def _simple(self, first: Word) -> bool | None:
        """Run a command. Returns whether it succeeds; None if that is not known."""
        words, self.variables.line = [first], first.line
        while self._at < len(self._tokens) and isinstance(token := self._tokens[self._at], Word):
            words.append(token)
            self._at += 1
        if len(words) == 1 and [token.source for token in self._tokens[self._at : self._at + 2]] == ["(", ")"]:
            self._define(first.source)
            return None
        if first.source.startswith("(("):
            self.variables.forget(_CALCULATED.findall(first.source))
            return None
        own = next((n for n, word in enumerate(words) if not ASSIGNMENT.match(word.source)), len(words))
        if own == len(words) or first.source in _DECLARATIONS:
            for word in words[own == 0 :]:
                self.variables.assign(word)
            if first.source == "export" and not self.calls:
                self._export(words[1:])
            # NAME=value in front of a command is its environment.
            return None if any(isinstance(part, Output) for word in words for part in word.parts) else True
        fields = [field for word in words[own:] for field in self.variables.fields(word)]
        match fields:
            case ["shift", *count]:
                self.variables.shift(int(count[0]) if count and count[0].isdigit() else 1)
            case ["set", "--", *arguments]:
                self.variables.values["@"] = Value(tuple(arguments), first.line)
            case ["unset", *names]:
                for name in names:
                    self.variables.values.pop(name, None)
            case [name, *arguments] if name in self._functions:
                self._call(name, arguments)
            case ["let", *_]:
                self.variables.forget(name for field in fields for name in _CALCULATED.findall(field))
            case ["read" | "mapfile" | "readarray", *names]:
                self.variables.forget(name for name in names if name.isidentifier())
            case ["printf", "-v", name, *_]:
                self.variables.forget([name])
            case ["echo" | "printf", *_]:
                pass
            case ["true" | "false" | ":" as name, *_]:
                return name != "false"
            case [name, *_] if name in TESTS:
                return evaluate(fields)
            case _:
                calls = len(self.calls)
                self._start(fields)
                if len(self.calls) > calls:
                    self._export(words[:own])
        return None

    def _export(self, words: Sequence[Word]) -> None:
        names = (re.split(r"\+?=", word.source, maxsplit=1)[0] for word in words)
        self.environment |= dict.fromkeys(name for name in names if name.isidentifier())

    def _start(self, fields: list[str]) -> None:
        for place, field in enumerate(fields):
            if match := _TRAINER.fullmatch(field):
                implied = ENTRY_POINTS.get(match[1] or match[2])
                if implied is None:
                    raise RecipeError(f"the script starts {field}; only {MODULE} and {MODULE}_v1 are supported")
                self.calls.append([*implied, *fields[place + 1 :]])
                self.environment |= dict.fromkeys(_set_by(fields[:place]))
                return


def _set_by(words: Sequence[str]) -> Iterator[str]:
    """Environment variables that a command in front of the trainer sets for it: of `env`, and of `ray job submit`.

    Of a file with a runtime environment, whose content is not known, it is said that there are some.
    """
    if words[:1] == ["env"]:
        yield from (match["name"] for word in words if (match := ASSIGNMENT.match(word)))
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, is_joined, value = word.partition("=")
        text = value if is_joined else following
        if option == "--runtime-env":
            yield f"those of {text.replace(MARK, '')}"
        elif option == "--runtime-env-json":
            with contextlib.suppress(ValueError, AttributeError):  # a variable of the script, or a mistake
                yield from json.loads(text).get("env_vars", {})
