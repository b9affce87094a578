"""PURE: what a shell script does, as far as it calls the trainer.

Read is what recipes are made of: variables, arrays, quotes, functions, conditions, calls of other scripts. Nothing is
run, so the output of other programs stays as it is written, and is named; so does a variable that the script may set to
several values. Of `if`, `while`, `&&` and `||`, the way is known where the test reads nothing but variables of the
script. Without the arguments that it needs, a script ends with `exit`, or a function with `return 1`: these are not
followed, since a recipe has no arguments here.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from .script_calls import (
    FindScript,
    OtherScript,
    RecipeError,
    ScriptCall,
    find_script,
    runs_module,
    variables_set_by,
)
from .shell_conditions import TESTS, evaluate
from .shell_variables import ASSIGNMENT, MARK, Value, Variables, merged
from .shell_words import Operator, Output, ScriptSyntaxError, Word, split_script

MODULE = "verl_omni.trainer.main_diffusion"
# Entry points, each with the settings that it stands for.
ENTRY_POINTS: dict[str, tuple[str, ...]] = {"main_diffusion": (), "main_diffusion_v1": ("trainer.use_v1=true",)}
SCRIPT = "the script"
_SETTING = re.compile(r"\+{0,2}[A-Za-z_]\w*(?:\.[\w/]+)+=.*", re.DOTALL)
_EXPORTING = re.compile(r"[-+]\w*a\w*")  # `set -a`
_MOST_SCRIPTS = 20  # that call one another
_TRAINER = re.compile(r"(?:[A-Za-z_]\w*\.)*(main_\w+)|(?:.*/)?(main_\w+)\.py")
_LOCAL = ("declare", "local", "typeset")  # in a function, its own variables
_DECLARATIONS = ("export", "readonly", *_LOCAL)
_GLOBAL = re.compile(r"-\w*g\w*")  # `declare -g`
_REFERENCE = re.compile(r"-\w*n\w*")  # `local -n NAME=OTHER`
_CALCULATED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)")  # variables that arithmetic sets
_ENDS = ("\n", ";", "&", ")", ";;", ";&", ";;&")  # tokens that end a list with && and ||
_LEAVE = ("break", "continue", "return", "exit")
_PATTERN = re.compile(r"[*?\[{]")  # a word that may become other words


class Script:
    """Goes through a script once. Follows every branch of a condition, and compares the variables after each branch."""

    def __init__(self, find: FindScript) -> None:
        self.calls: list[list[str]] = []
        self.environment: dict[str, None] = {}  # exported, or in front of the call
        self.variables = Variables()
        self.texts: list[str] = []
        self.read: dict[str, None] = {}  # paths of other scripts
        self.not_found: dict[str, None] = {}
        self.not_sourced: dict[str, None] = {}  # not found, and may set variables
        self._find = find
        self._path = ""  # path of the running script; empty for the recipe
        self._running: list[str] = []  # texts, each called by the one before it
        self._tokens: list[Word | Operator] = []
        self._at = 0
        self._sources: list[tuple[int, str]] = []  # lines of all texts are counted on: the first of each, and its name
        self._last_line = 0
        self._exports_all = False
        self._functions: dict[str, tuple[list[Word | Operator], int, str]] = {}  # where they begin, and how they end
        self._succeeds: bool | None = None  # the last command; None if that is not known
        self._returned = False  # what follows in this function does not run
        self._ends: list[dict[str, Value]] | None = None  # variables at each `return` of it; None outside of functions
        # For each running function, the earlier values of the variables that it declares; None: not set.
        self._outer: list[dict[str, Value | None]] = []
        self._negated = False

    def run_recipe(self, text: str) -> None:
        """Run the recipe itself.

        Raises:
            RecipeError: a quote is not closed, or it starts another trainer.
        """
        self._run_text(SCRIPT, text, "")

    def place(self, line: int) -> str:
        """A line, as messages call it."""
        first, name = max(source for source in self._sources if source[0] <= line)
        return f"line {line - first + 1} of {name}"

    def _split(self, name: str, text: str) -> list[Word | Operator]:
        first = self._last_line + 1
        self._last_line += text.count("\n") + 1
        self._sources.append((first, name))
        self.texts.append(text)
        try:
            return split_script(text, first)
        except ScriptSyntaxError as error:
            raise RecipeError(f"{'' if name == SCRIPT else f'{name}: '}not a shell script: {error}") from error

    def _run_shell(
        self, name: str, text: str, path: str, exported: Mapping[str, Value], arguments: Sequence[str] = ()
    ) -> None:
        """Run a text in a new shell, which gets these variables."""
        with self._undone(keeps_calls=True):
            self.variables.values = dict(exported)
            if arguments:
                self.variables.values["@"] = Value(tuple(arguments), self.variables.line)
            self._functions = {}
            self._exports_all = False
            self._ends = None
            self.environment |= dict.fromkeys(exported)
            self._run_text(name, text, path)

    def _run_text(self, name: str, text: str, path: str) -> None:
        """Run a text here, unless it is running already: a script may start itself in a container."""
        if text in self._running:
            return
        if len(self._running) == _MOST_SCRIPTS:
            raise RecipeError(f"{name}: scripts call one another more than {_MOST_SCRIPTS} deep")
        self._running.append(text)
        with self._reading(self._split(name, text), 0, path):
            self.run()
        self._running.pop()

    @contextlib.contextmanager
    def _reading(self, tokens: list[Word | Operator], at: int, path: str) -> Iterator[None]:
        """Read other tokens meanwhile, from a place on."""
        outer = (self._tokens, self._at, self._path)
        self._tokens = tokens
        self._at = at
        self._path = path
        yield
        self._tokens, self._at, self._path = outer

    @contextlib.contextmanager
    def _undone(self, *, keeps_calls: bool) -> Iterator[None]:
        """Run commands that change no variable, function or setting of the shell, and end no function.

        Args:
            keeps_calls: whether they run all the same, so that their calls count, with the environment of these.
        """
        values = dict(self.variables.values)
        functions = dict(self._functions)
        environment = dict(self.environment)
        calls = len(self.calls)
        exports_all = self._exports_all
        returned = self._returned
        ends = self._ends
        succeeds = self._succeeds
        outer = [dict(declared) for declared in self._outer]
        self._ends = None if ends is None else []
        yield
        self._outer = outer
        self.variables.values = values
        self._functions = functions
        self._exports_all = exports_all
        self._returned = returned
        self._ends = ends
        if not keeps_calls:
            self._succeeds = succeeds
            del self.calls[calls:]
        if len(self.calls) == calls:
            self.environment = environment

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
                    with self._undone(keeps_calls=True):
                        self._group(")")
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
        keyword = self.run(*until)
        self._at += 1
        return keyword

    def _group(self, end: str) -> None:
        negated = self._negated
        self._negated = False
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
        returned = self._returned
        self.run(*until)
        if known is None:
            self._join([before, *self._end()], returned)
            self._succeeds = None

    def _end(self) -> list[dict[str, Value]]:
        """The variables here, if the function has not returned."""
        return [] if self._returned else [self.variables.values]

    def _join(self, ends: Sequence[dict[str, Value]], returned: bool) -> None:
        """Go on after several ways, of which those that return are not among `ends`."""
        if ends:
            self.variables.values = merged(ends)
        self._returned = returned or not ends

    @contextlib.contextmanager
    def _until_return(self) -> Iterator[None]:
        """Run a function, or a script that is read in."""
        outer = self._ends
        self._ends = []
        yield
        self._join([*self._ends, *self._end()], returned=False)
        self._ends = outer

    def _without_effect(self, *until: str) -> str:
        """Go through commands that do not run. Returns what ends them, which is the next token then."""
        with self._undone(keeps_calls=False):
            return self.run(*until)

    def _if(self) -> None:
        before = dict(self.variables.values)
        returned = self._returned
        ends: list[dict[str, Value]] = []
        keyword = "if"
        complete = False
        while keyword not in ("fi", ""):
            self.variables.values = dict(before)
            self._returned = returned
            succeeds = True if keyword == "else" else self._condition("then")
            never = complete or succeeds is False
            complete = complete or succeeds is True
            if never:
                keyword = self._without_effect("elif", "else", "fi")
                self._at += 1
            else:
                keyword = self._pass("elif", "else", "fi")
                ends += self._end()
        self._join(ends if complete else [before, *ends], returned)
        self._succeeds = None

    def _case(self) -> None:
        first = self._at
        while self._next() not in ("in", ""):
            pass
        word = next((token for token in self._tokens[first : self._at] if isinstance(token, Word)), None)
        text = MARK if word is None else self.variables.text(word.parts)
        before = dict(self.variables.values)
        returned = self._returned
        ends: list[dict[str, Value]] = []
        complete = False
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
            self._returned = returned
            if complete or chosen is False:
                self._without_effect(";;", ";&", ";;&", "esac")
            else:
                self.run(";;", ";&", ";;&", "esac")
                ends += self._end()
                # What falls through to the next commands is not followed.
                complete = chosen is True and self._tokens[min(self._at, len(self._tokens) - 1)].source in (
                    ";;",
                    "esac",
                )
        self._join(ends if complete else [before, *ends], returned)
        self._succeeds = None

    def _matches(self, text: str, patterns: Sequence[Word | Operator]) -> bool | None:
        """Whether a text matches one of the patterns; None if that is not known."""
        if any(pattern.source == "*" for pattern in patterns):
            return True
        words = [self.variables.text(pattern.parts) for pattern in patterns if isinstance(pattern, Word)]
        if MARK in text or any(MARK in word or _PATTERN.search(word) for word in words):
            return None
        return text in words

    def _condition(self, end: str) -> bool | None:
        """Run a condition. Returns whether it succeeds; None if that is not known."""
        self._succeeds = None
        self._pass(end)
        return self._succeeds

    def _loop(self, kind: str) -> None:
        if kind in ("for", "select"):
            name = self._next()
            first = self._at
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
        start = self._at
        before = dict(self.variables.values)
        returned = self._returned
        calls = len(self.calls)
        self._pass("done")
        # A second time, with what is the same in each round.
        self._at = start
        self._join([before, *self._end()], returned)
        del self.calls[calls:]
        self._pass("done")
        self._join([before, *self._end()], returned)

    def _each(self, name: str, tokens: Sequence[Word | Operator]) -> bool:
        """Run a loop once for each of its words, if they are known. Returns whether they are."""
        words = [token for token in tokens if isinstance(token, Word)]
        if words:
            fields = [field for word in words[1:] for field in self.variables.fields(word)]
        else:  # the arguments
            arguments = self.variables.values.get("@", Value((), self.variables.line))
            fields = list(arguments.elements) if arguments.certain else [MARK]
        start = self._at
        before = dict(self.variables.values)
        functions = self._functions
        calls = len(self.calls)
        self._without_effect("done")
        body = {token.source for token in self._tokens[start : self._at]}
        end = self._at + 1
        is_known = name.isidentifier() and not any(MARK in field or _PATTERN.search(field) for field in fields)
        if is_known and body.isdisjoint(_LEAVE):
            for field in fields:
                self._at = start
                self.variables.values[name] = Value((field,), self.variables.line)
                self._pass("done")
            self._at = end
            if len(self.calls) == calls:
                return True
        self._at = start
        self.variables.values = before
        self._functions = functions
        del self.calls[calls:]
        return False

    def _define(self, name: str) -> None:
        self._skip("(", ")", "\n")
        end = {"{": "}", "(": ")"}.get(self._next(), "}")
        function = (self._tokens, self._at, end)
        with self._undone(keeps_calls=False):
            self._pass(end)  # runs when it is called
        self._functions = {**self._functions, name: function}

    def _call(self, name: str, arguments: list[str]) -> None:
        function = self._functions.pop(name)
        tokens, at, end = function
        with self._reading(tokens, at, self._path), self._arguments(arguments), self._scope(), self._until_return():
            self.run(end)
        self._functions[name] = function

    @contextlib.contextmanager
    def _scope(self) -> Iterator[None]:
        """Restore the variables that a function declares as its own, at its end."""
        self._outer.append({})
        yield
        for name, value in self._outer.pop().items():
            if value is None:
                self.variables.values.pop(name, None)
            else:
                self.variables.values[name] = value

    @contextlib.contextmanager
    def _arguments(self, arguments: Sequence[str]) -> Iterator[None]:
        """`$1` and so on are these arguments meanwhile."""
        outer = self.variables.values.get("@")
        self.variables.values["@"] = Value(tuple(arguments), self.variables.line)
        yield
        self.variables.values.pop("@")
        if outer:
            self.variables.values["@"] = outer

    def _command(self, first: Word) -> None:
        negated = self._negated
        self._negated = False
        succeeds = self._simple(first)
        self._succeeds = not succeeds if negated and succeeds is not None else succeeds

    def _simple(self, first: Word) -> bool | None:
        """Run a command. Returns whether it succeeds; None if that is not known."""
        words = [first]
        self.variables.line = first.line
        while self._at < len(self._tokens) and isinstance(token := self._tokens[self._at], Word):
            words.append(token)
            self._at += 1
        if len(words) == 1 and [token.source for token in self._tokens[self._at : self._at + 2]] == ["(", ")"]:
            self._define(first.source)
            return None
        if self._returned:
            return None
        if first.source.startswith("(("):
            if changed := _CALCULATED.findall(first.source):
                self.variables.forget(changed)
                return None
            value = self.variables.text(first.parts)
            return None if MARK in value else value != "0"
        assigned = next((n for n, word in enumerate(words) if not ASSIGNMENT.match(word.source)), len(words))
        if assigned == len(words) or first.source in _DECLARATIONS:
            if first.source in _LOCAL:
                self._declare(words[1:])
            else:
                for word in words[assigned == 0 :]:
                    self.variables.assign(word)
            is_export = first.source == "export" or (assigned == 0 and any(word.source == "-x" for word in words))
            if (is_export or self._exports_all) and not self.calls:
                self._export(words[assigned == 0 :])
            # NAME=value in front of a command is its environment.
            return None if any(isinstance(part, Output) for word in words for part in word.parts) else True
        fields = [field for word in words[assigned:] for field in self.variables.fields(word)]
        match fields:
            case ["shift", *count]:
                self.variables.shift(int(count[0]) if count and count[0].isdigit() else 1)
            case ["set", "--", *arguments]:
                self.variables.values["@"] = Value(tuple(arguments), first.line)
            case ["set", option, *names] if _EXPORTING.fullmatch(option) or "allexport" in names:
                self._exports_all = option[0] == "-"
            case ["unset", *names]:
                for name in names:
                    self.variables.values.pop(name, None)
            case [name, *arguments] if name in self._functions:
                self._call(name, arguments)
            case ["return"] | ["return", "0"] if self._ends is not None:
                self._ends.append(dict(self.variables.values))
                self._returned = True
            case ["let", *_]:
                self.variables.forget(name for field in fields for name in _CALCULATED.findall(field))
            case ["read" | "mapfile" | "readarray", *names]:
                self.variables.forget(name for name in names if name.isidentifier())
            case ["printf", "-v", name, *_]:
                self.variables.forget([name])
            case ["echo" | "printf", *_]:
                pass
            case ["eval", *texts]:
                self._run_text("eval", " ".join(texts).replace(MARK, ""), self._path)
            case ["true" | "false" | ":" as name, *_]:
                return name != "false"
            case [name, *_] if name in TESTS:
                return evaluate(fields)
            case ["source" | ".", path, *arguments]:
                self._source(path, arguments)
            case _:
                calls = len(self.calls)
                self._start(fields, words[:assigned])
                if len(self.calls) > calls:
                    self._export(words[:assigned])
        return None

    def _declare(self, words: Sequence[Word]) -> None:
        """Do what `local`, `declare` and `typeset` do with these words."""
        options = [word.source for word in words if word.source[:1] == "-"]
        is_local = bool(self._outer) and not any(map(_GLOBAL.fullmatch, options))
        for word in words:
            name, *_ = re.split(r"\[|\+?=", word.source, maxsplit=1)
            if is_local and name.isidentifier() and name not in self._outer[-1]:
                self._outer[-1][name] = self.variables.values.get(name)
                if name == word.source:
                    self.variables.values[name] = Value((), self.variables.line)
            self.variables.assign(word)
            if any(map(_REFERENCE.fullmatch, options)) and (value := self.variables.values.get(name)):
                self.variables.forget([name, *value.elements])  # one stands for the other from here on

    def _export(self, words: Sequence[Word]) -> None:
        names = (re.split(r"\+?=", word.source, maxsplit=1)[0] for word in words)
        self.environment |= dict.fromkeys(name for name in names if name.isidentifier())

    def _start(self, fields: list[str], assignments: Sequence[Word]) -> None:
        """Run a program: the trainer, or another script that may start it."""
        for index, field in enumerate(fields):
            match = _TRAINER.fullmatch(field)
            if match and (match[2] or (index and runs_module(fields[index - 1]))):
                implied = ENTRY_POINTS.get(match[1] or match[2])
                if implied is None:
                    raise RecipeError(f"the script starts {field}; only {MODULE} and {MODULE}_v1 are supported")
                self.calls.append([*implied, *fields[index + 1 :]])
                self.environment |= dict.fromkeys(variables_set_by(fields[:index]))
                return
        if fields and _SETTING.fullmatch(fields[0]):
            where = self.place(self.variables.line)
            raise RecipeError(f"{where}: {fields[0]} is not part of a command; end the line before it with \\")
        if script := find_script(fields):
            self._start_script(script, assignments)

    def _start_script(self, script: ScriptCall, assignments: Sequence[Word]) -> None:
        """Run another script, which gets the variables that are exported, or set in front of its name."""
        if script.is_text:
            called = OtherScript(self._path, script.script.replace(MARK, ""))
        elif (script_file := self._other(script.script)) is not None:
            called = script_file
        else:
            self.not_found[script.script.replace(MARK, "")] = None
            return
        calls = len(self.calls)
        with self._undone(keeps_calls=True):
            for word in assignments:
                self.variables.assign(word)
            self._export(assignments)
            for assignment in filter(ASSIGNMENT.match, script.front):
                name, _, text = assignment.partition("=")
                self.variables.values[name] = Value((text,), self.variables.line)
                self.environment[name] = None
            self.environment |= dict.fromkeys(variables_set_by(script.front))
            exported = {name: value for name, value in self.variables.values.items() if name in self.environment}
            named = "bash -c" if script.is_text else called.path
            self._run_shell(named, called.text, called.path, exported, script.arguments)
        if len(self.calls) > calls and not script.is_text:
            self.read[called.path] = None

    def _source(self, path: str, arguments: Sequence[str]) -> None:
        """Run another script in this shell. One of the system, or that is no `.sh`, is left alone."""
        if path.startswith("/") or not path.endswith(".sh"):
            return
        if (sourced := self._other(path)) is None:
            self.not_sourced[path.replace(MARK, "")] = None
            return
        self.read[sourced.path] = None
        with self._arguments(arguments) if arguments else contextlib.nullcontext(), self._until_return():
            self._run_text(sourced.path, sourced.text, sourced.path)

    def _other(self, path: str) -> OtherScript | None:
        """Another script; of a path whose beginning is not known, the rest is looked for."""
        *unknown, known = path.split(MARK)
        if unknown and not known.startswith("/"):
            return None
        return self._find(known.lstrip("/") if unknown else known, self._path)
