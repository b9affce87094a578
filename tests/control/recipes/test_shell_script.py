"""Recipes as shell scripts: the arguments of the trainer are those that bash would pass."""

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.recipes import OtherScript, RecipeError, read_script

FindScript = Callable[[str, str], OtherScript | None]
MODULE = "verl_omni.trainer.main_diffusion"
CALL = f"python3 -m {MODULE}"
SCRIPTS = {
    "continued lines": f"{CALL} \\\n    a=1 \\\n    b=2",
    "quotes": f"""{CALL} a="['x', 'y']" b='["console", "wandb"]' c="x y" d=it\\'s""",
    "comments": f"# first\n{CALL} a=1 # {CALL}\n# {CALL} b=2\n",
    "variables": f"N=3\nexport PATH_OF=data/x.parquet M=4\n{CALL} a=$N b=${{PATH_OF}} c=x${{M}}y",
    "defaults": f"{CALL} a=${{MISSING_HERE:-7}} b=${{MISSING_HERE-8}} c=${{1:-vllm_omni}}",
    "the default of a default": f"N=3\n{CALL} a=${{MISSING_HERE:-$N}}",
    "arrays": f"DATA=(\n    a=1   # one\n    'b=[1, 2]'\n)\nMORE=(c=3)\n{CALL} \"${{DATA[@]}}\" d=4 ${{MORE[@]}}",
    "the script's own arguments": f'{CALL} a=1 "$@"\n',
    "the script's arguments from the second": f'{CALL} a=1 "${{@:2}}"\n',
    "variables of the environment": f"CUDA_VISIBLE_DEVICES=0,1 PYTHONUNBUFFERED=1 {CALL} a=1",
    "other statements": f"set -x\nif [ -d . ]; then\n    mkdir -p x && cd x\nfi\n{CALL} a=1 2>&1 | cat\necho b=2",
    "interpolation of Hydra": f"{CALL} 'a=${{trainer.seed}}' b=1",
    "defaults that are empty": f"""A=(a=1)
[[ -n "${{NO1:-}}" ]] && A+=(b=2)
{CALL} "${{A[@]}}" "${{NO1:-}}" ${{NO1:-}} "${{NO1+c=3}}" d="${{NO1-}}" """,
    "escapes": rf"""T=$'x\ty\n\'z\' \x41\102\u0043\\ \q'
{CALL} a="$T" b=$'c'd "e=$'f'" """,
    "several lines in quotes": f"{CALL} a='first\nsecond' b=1",
    "appended elements": f"MORE=(a=1)\nMORE+=(b='x y' c=3)\n{CALL} \"${{MORE[@]}}\"",
    "elements appended to nothing": f'MORE=()\nMORE+=(b=2)\nLESS=()\n{CALL} ${{MORE[@]}} "${{LESS[@]}}"',
    "appended text": f"ARGS='a=1'\nARGS+=' b=2'\n{CALL} $ARGS",
    "several settings in one text": f"ARGS='a=1 b=2'\n{CALL} $ARGS \"c=$ARGS\"",
    "words of a text around others": f"ARGS=' a=1 b='\n{CALL} z=0$ARGS$ARGS\"3\"",
    "empty texts": f"NONE=\n{CALL} $NONE a=$NONE b=${{NONE:-1}} c=${{NONE-2}} d=\"$NONE\" e=''",
    "an array that may be empty": f'E=()\nF=(a="x y" b=1)\n{CALL} ${{E[@]+"${{E[@]}}"}} ${{F[@]+"${{F[@]}}"}}',
    "an element": f'A=(x y)\n{CALL} a=$A b=${{A[1]}} c="${{A[*]}}"',
    "joined by another sign": f'M=(to_q \'to k\')\nIFS=,\n{CALL} a="[${{M[*]}}]" b="${{M[@]}}"',
    "split at another sign": f"S='a=1 b=2'\nIFS=$'\\n\\t'\nT=$'c=3\\nd=4'\n{CALL} $S $T \"$S\"",
    "split as before": f"OLD=$IFS\nIFS=,\nIFS=$OLD\nS='a=1 b=2'\n{CALL} $S",
    "split at nothing": f"S='a=1 b=2'\nIFS=\n{CALL} $S",
    "lengths": f"H=(node0 node1)\n{CALL} a=${{#H[@]}} b=${{#H[*]}} c=${{#H}} d=$(( ${{#H[@]}} * 8 ))",
    "escaped signs": f'{CALL} a="\\${{data.seed}}" b=\\$ c="\\`\\\\\\\'" d="$" e=50%',
    "defaults of defaults": f'{CALL} a=${{NO1:-${{NO2:-x}}}} b="${{NO1:-${{NO2:-"x y"}}}}" c=${{NO1:+z}}',
    "a default of several words": f"{CALL} ${{NO1:-b=1 c=2}} ${{NO1:-'d=3 4'}}",
    "a default that is assigned": f": ${{N:=7}}\n{CALL} a=$N",
    "a value that is required": f"N=3\n{CALL} a=${{N:?usage}} b=${{N:+4}}",
    "a log file": f'{CALL} a=1 "$@" 2>&1 | tee log',
    "a log file in the background": f"{CALL} a=1 >log 2>&1 &\nwait",
    "redirections": f"{CALL} a=1 >>log 2>/dev/null </dev/null b=2 &>log <<< text c=3",
    "a process that gets the output": f"{CALL} a=1 > >(cat) b=2 2> >(cat)\nwait",
    "apostrophes in comments": f"N=4 # it's a number\n# don't\n{CALL} a=$N # isn't \"it\nb=2",
    "signs that begin no comment": f"{CALL} a=x#y b=${{NO1:-#}} c='# no' # c",
    "here-documents": f"cat <<'EOF'\nit's N=5\nEOF\ncat <<-END\n\tN=6\n\tEND\nN=3\n{CALL} a=$N",
    "arithmetic": f'N=4\nM=$((N / 2))\n{CALL} a=$((2*2)) b=$((-7 / M)) c=$((-7 % 4 + (N - 1) * $M)) d="$(( $N ))"',
    "arithmetic with a test": f"N=4 M=8\n{CALL} a=$(( N / M > 0 ? N / M : 1 )) b=$((N!=4?2:M+1)) c=$((N == 4))",
    "a continued word": f'{CALL} a=first\\\nsecond b="x\\\ny"',
    "a comment ends a continued line": f"{CALL} a=1 \\\n  # b=2 \\\nc=3",
    "a function": f"""run() {{\n  local name=$1\n  shift\n  {CALL} a=$name b=${{3:-5}} "$@"\n}}\nrun x y=1 'z=2 3'""",
    "variables of a function": "A=1 B=1 C=1 D=1\n"
    "f() { local A=2 B; declare -g D=2; B=3; C=$A; g; E=${B:-5}; if false; then local C; fi; C+=4; typeset F=6; }\n"
    f"g() {{ A+=0; local A=$A$A; G=$A; }}\nf\n{CALL} a=$A b=$B c=$C d=$D e=$E f=${{F:-7}} g=$G",
    "arrays of a function": 'A=(x)\nf() { local -a A; A+=(y z); local B=(${A[@]}) C; C+=(w); S="${B[*]}${C[*]}"; }\n'
    f"B=u\nf\n{CALL} ${{A[@]}} $B $S",
    "a function in another": f'function run {{\n{CALL} "$@"\n}}\nmain() {{ run a=1 "$@"; }}\nmain b=$((1 + 1))',
    "a function that returns": "f() { N=1; if [ $1 = a ]; then N=2; return; fi; N=3; (return); N=4; }\n"
    "g() { case $1 in c) return 0 ;; *) M=1 ;; esac; f a; return; M=2; }\n"
    f"f a\nA=$N\nf b\nB=$N\ng c\ng d\n{CALL} a=$A b=$B c=$N d=$M",
    "arguments that are set": f'set -- a=1 b=2\n{CALL} "$@" c=$2',
    "a subshell": f"N=1\n(N=2; M=3)\n(cd . && {CALL} a=$N b=${{M:-4}})",
    "the same on every way": f"if [ -d . ]; then N=1; elif true; then N=1; else N=1; fi\n{CALL} a=$N",
    "within a condition": f"N=1\nif [ -d . ]; then\n N=2\n cd . && M=3 && {CALL} a=$N b=$M\nfi",
    "conditions of something else": "case $N in x|y) A=1 ;; (*) B=1;; esac\nfor i in 1 2; do C=1; done"
    f"\nwhile false; do D=1; done\n[[ -n $N && a < b ]] && E=1\n(( F = 1 ))\n{CALL} a=1",
    "a group": f"{{ N=1; {{ M=2; }}; }}\n{CALL} a=$N b=$M",
    "a command in a variable": f"RUN='{CALL}'\nALSO=(a=1)\n$RUN ${{ALSO[@]}}",
    "a comment as an output": f"{CALL} a=1 \\\n  `# it is b` \\\n  b=2",
    "a text from a here-document": f"T=$(cat <<'EOF'\nfor \"x\" in {{{{ 'y' }}}}\n\nEOF\n)\n{CALL} \"a=$T\"",
    "a loop over no arguments": f'A=(a=1)\nfor each in "$@"; do A+=("$each"); done\n{CALL} "${{A[@]}}"',
    "a loop without a list": f'run() {{ for each; do A+=("$each"); done; }}\nrun b=1 "c=2 3"\n{CALL} "${{A[@]}}"',
    "loops over words": f"L=(3 4)\nfor a in 1 2; do for b in ${{L[@]}}; do S+=$a$b,; done; done\n{CALL} a=$S b=$b",
    "arguments that are read": "while [[ $# -gt 0 ]]; do\ncase $1 in -n) N=$2; shift ;; esac\nshift\ndone\n"
    f"{CALL} a=${{N:-2}} b=$#",
    "tests of variables": f'D=${{D:-gpu}}\nif [ "$D" = npu ]; then N=16; elif [[ $D == gpu ]]; then N=4; else N=1; fi\n'
    f'[ -z "${{NO1:-}}" ] || M=9\n[ $D != npu ] && M=3 || M=4\nif ! test $N -lt 3 && [ $M ]; then O=5; fi\n'
    f"until [ $M -ge 2 ]; do O=6; done\n{CALL} a=$N b=$M c=$O",
    "what succeeds after loops and groups": "while [ 1 -gt 2 ]; do A=1; done && B=2\nfor i in; do A=1; done && C=3\n"
    f"! {{ [ 1 = 2 ]; [ 1 = 1 ]; }}\n[ 1 = 2 ] || [ 1 = 1 ] && D=4\n{CALL} a=${{A:-0}} d=$D",
    "a call that a test chooses": f"D=gpu\nif [ $D = npu ]; then {CALL} a=1; else {CALL} a=2; fi",
    "arithmetic tests": "N=4 M=8\nif (( N * 2 > M )); then A=1; elif ((N*2 == M)); then A=2; else A=3; fi\n"
    f"(( N - 4 )) && B=1 || B=2\nwhile (( N > 4 )); do C=1; done\n{CALL} a=$A b=$B c=${{C:-0}}",
    "a case": "D=${D:-gpu}\ncase $D in\n npu|ascend) N=16 ;;\n gpu|cuda) N=4; case x$N in x5) N=5;; x4) M=3;; esac ;;\n"
    f" *) exit 1 ;;\nesac\ncase no in a) N=1 ;; esac\ncase $N in (*) O=2;; 4) O=3;; esac\n{CALL} a=$N b=$M c=$O",
    "changed texts": "P=/data/ocr.v2/train.parquet M=Qwen/Qwen-Image\n"
    f"{CALL} a=${{M##*/}} b=${{P%/*}}/test.parquet c=${{M#*/}} d=${{P%%.*}} e=${{P/train/test}} f=${{P//a/o}} "
    "g=${M,,} h=${M^^} i=${M#none} j=${P%.parquet} k=${P//data} l=${M%%none*}",
    "switches": "F=${F:-false}\nif $F; then N=1; else N=2; fi\n$F || M=3\nT=true\n! $T || O=4\n: && P=5\n"
    f"until :; do Q=6; done\n{CALL} a=$N b=$M c=${{O:-0}} d=$P e=${{Q:-0}}",
    "unset": f"N=1\nunset N\n{CALL} a=${{N:-2}}",
    "an evaluated text": f"""N=3\nCMD="{CALL} a='[1, 2]' b=\\"x y\\" c=$N d=\\$N"\necho "$CMD"\neval $CMD "e='5 6'\"""",
    "evaluated assignments": f'V=A\neval "$V=\'1 2\'" B=3\neval\n{CALL} a="$A" b=$B',
    "messages": f"echo {CALL} a=2\nprintf '%s' {CALL}\n{CALL} a=1",
}


# The first file is the recipe.
SEVERAL_FILES = {
    "more overrides": {"r.sh": 'bash base.sh b=2 "c=3 4" "$@"', "base.sh": f'{CALL} a=1 b=${{2:-0}} "$@"'},
    "no overrides": {"r.sh": 'bash base.sh "$@"', "base.sh": f'{CALL} a=1 b=${{1:-2}} "$@"'},
    "the folder of the script": {
        "r.sh": 'D=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nbash "$D/sub/mid.sh" b=2',
        "sub/mid.sh": 'bash "$(dirname "$0")/base.sh" "$@" c=3',
        "sub/base.sh": f'{CALL} a=1 "$@"',
        "base.sh": f"{CALL} a=2",
    },
    "variables that are exported, and others": {
        "r.sh": "A=1\nexport B=2 E\nE=5\ndeclare -x F=6\nG=7\nC=$A bash base.sh d=4\n",
        "base.sh": f'{CALL} ${{A:-a}} ${{B:-b}} ${{C:-c}} "$@" ${{E:-e}} ${{F:-f}} ${{G:-g}}',
    },
    "all variables are exported": {
        "r.sh": "A=1\nset -a\nB=2\nset +a\nC=3\nset -o allexport\nD=4\nbash base.sh",
        "base.sh": f"{CALL} ${{A:-a}} ${{B:-b}} ${{C:-c}} ${{D:-d}}",
    },
    "env": {"r.sh": 'env A=1 "B=2 3" bash base.sh c=4', "base.sh": f'{CALL} a=$A "b=$B" "$@"'},
    "a path in front of overrides": {
        "r.sh": "chmod +x sub/base.sh\nexec ./sub/base.sh b=2",
        "sub/base.sh": f'#!/bin/bash\n{CALL} a=1 "$@"',
    },
    "options of the shell": {"r.sh": "bash -x -euo pipefail base.sh b=2", "base.sh": f'{CALL} a=1 "$@"'},
    "the text of a shell": {"r.sh": f"""N=1\nexport M=2\nbash -ec '{CALL} a=${{N:-0}} b=$M c=$1' name 3"""},
    "a shell in a shell": {"r.sh": f"N=1\nbash -c \"bash -ec '{CALL} a=$N b=\\${{N:-2}}'\""},
    "a script that sets variables": {
        "r.sh": '. ./common.sh x\nsource common.sh "y z"\nrun c=3 "$@"\nrm -f *.log',
        "common.sh": f'A+=" ${{1:-}}"\nrun() {{\n  local B=2\n  {CALL} "a=$A" b=$B "$@"\n}}',
    },
    "variables of the other script stay there": {
        "r.sh": f"A=1\nf() {{ B=2; }}\nbash other.sh\nf\n{CALL} a=$A b=$B",
        "other.sh": "A=3\nf() { B=4; }\nexport B=5",
    },
    "from a function, under a condition": {
        "r.sh": 'run() { if [ $1 = sd3 ]; then shift; bash base.sh "$@"; fi; }\nrun sd3 b=2',
        "base.sh": f'if [ "$1" = b=2 ]; then A=1; fi\n{CALL} a=$A "$@"',
    },
}


def passed_by_bash(arguments: list[str], folder: Path) -> list[str]:
    """The arguments that bash, started with `arguments`, passes to `python3`, which is a stub that prints them."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "python3"
    program.write_text('#!/bin/sh\nshift 2\nfor each in "$@"; do printf "%s\\0" "$each"; done > "$OUT"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "OUT": str(folder / "out")}
    subprocess.run(["bash", *arguments], cwd=folder, env=environment, check=True, capture_output=True)
    return (folder / "out").read_text().split("\0")[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_arguments_are_those_of_bash(name: str, tmp_path: Path) -> None:
    call = read_script(SCRIPTS[name])
    assert list(call.arguments) == passed_by_bash(["-c", SCRIPTS[name]], tmp_path)
    assert (call.unknown, call.conditional) == ((), ())


def finder(files: dict[str, str]) -> FindScript:
    """The other files, next to the script that calls them."""

    def find(path: str, caller: str) -> OtherScript | None:
        name = os.path.normpath(os.path.join(os.path.dirname(caller), path))
        return OtherScript(name, files[name]) if name in files else None

    return find


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("name", SEVERAL_FILES)
def test_the_arguments_of_a_script_that_calls_another_one_are_those_of_bash(name: str, tmp_path: Path) -> None:
    files = SEVERAL_FILES[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    call = read_script(files["r.sh"], finder(files))
    assert list(call.arguments) == passed_by_bash(["r.sh"], tmp_path)
    assert (call.unknown, call.conditional, call.missing) == ((), (), ())


def test_what_is_named_of_another_script_is_named_with_its_file() -> None:
    files = {
        "base.sh": f'A=1\n[ $GPU ] && A=2\nexport HF_HOME=/x\n. lib/x.sh\n{CALL} a=$A b=$B c=$C d=$D "$@"',
        "lib/y.sh": "D=4\n[ $GPU ] && D=5\n",
    }
    recipe = 'B=0\n\n[ $GPU ] && B=1\nexport B WANDB_MODE=offline\n. lib/y.sh\nexport D\nbash "$HOME/base.sh"'
    call = read_script(recipe, finder(files))
    assert call.arguments == ("a=$A", "b=$B", "c=$C", "d=$D") and call.unknown == ("$C",)
    places = {"$A": "line 2 of base.sh", "$B": "line 3 of the script", "$D": "line 2 of lib/y.sh"}
    assert call.conditional == tuple(places.items())
    assert call.environment == ("WANDB_MODE", "HF_HOME")
    assert (call.read, call.missing) == (("lib/y.sh", "base.sh"), ("lib/x.sh",))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"r.sh": "bash $HOME/base.sh a=1"}, f"the script does not start {MODULE}; $HOME/base.sh, which"),
        ({"r.sh": "bash base.sh", "base.sh": "echo 'x"}, "base.sh: not a shell script: no closing quotation (line 1)"),
        ({"r.sh": "bash a.sh", "a.sh": "bash b.sh", "b.sh": "bash a.sh"}, f"the script does not start {MODULE}"),
        ({"r.sh": 'export X=\'X+=" "; bash -c "$X"\'\neval "$X"\nbash -c "$X"'}, "bash -c: scripts call one"),
    ],
)
def test_other_scripts_that_cannot_be_read_are_refused(files: dict[str, str], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_script(files["r.sh"], finder(files))
    assert str(caught.value).startswith(message)


def test_a_script_that_starts_itself_in_a_container_has_one_call() -> None:
    files = {"r.sh": f'if [ ! -f /.dockerenv ]; then docker run x bash /w/r.sh "$@"; exit; fi\n{CALL} a=1'}
    call = read_script(files["r.sh"], lambda path, caller: OtherScript("r.sh", files["r.sh"]))
    assert call.arguments == ("a=1",)


def test_a_comment_or_an_assignment_at_the_beginning_is_no_yaml() -> None:
    assert read_script(f"# kind: RayJob\nN=1 : x\n: ${{M:=2}}\n{CALL} a=$M").arguments == ("a=2",)


def test_a_setting_on_a_line_of_its_own_is_refused() -> None:
    """The shell would take it for the name of a program, and the run would not have it."""
    with pytest.raises(RecipeError, match=r"^line 3 of the script: data.x=2 is not part of a command; end the line"):
        read_script(f"# first\n{CALL} data.y=1\n  data.x=2\n")


def test_a_module_is_called_only_where_a_program_runs_it() -> None:
    assert read_script(f"pkill -f {MODULE}\ngit checkout main_branch\n{CALL} a=1").arguments == ("a=1",)
    for call in ("$PYTHON verl_omni", "python3 -um verl_omni", "torchrun --nnodes 1 --module verl_omni"):
        assert read_script(f"{call}.trainer.main_diffusion a=1").arguments == ("a=1",)


@pytest.mark.parametrize(
    ("arguments", "unknown"),
    [
        ("a=$HOME/x b=${NAME}", ("$HOME", "${NAME}")),
        ("a=$(nproc --all) b=2", ("$(nproc --all)",)),
        ('a="$(nproc)" b=`hostname`', ("$(nproc)", "`hostname`")),
        ("a=${HOME%/} b=${#HOME} c=${HOME/a/b}", ("${HOME%/}", "${#HOME}", "${HOME/a/b}")),
        ("a=${1:?usage} b=$2", ("${1:?usage}", "$2")),
        ("a=${NAME:-${HOME:-$OTHER}/x}", ("$OTHER",)),
        ("a=$((2 ** 3)) b=$((N * 2)) c=$((1 / 0))", ("$((2 ** 3))", "$((N * 2))", "$((1 / 0))")),
        ("a='$NAME' b=\\${NAME}", ("$NAME", "${NAME}")),
        ("a='${trainer.seed}' b=\"\\${oc.env:HOME}\"", ()),
        ("a=~/x ~ b=${NAME:-~/y} c.d=~/z '~/w' e=\"~\"", ("$HOME",)),
    ],
)
def test_what_is_known_only_when_the_script_runs_is_named(arguments: str, unknown: tuple[str, ...]) -> None:
    assert read_script(f"{CALL} {arguments}").unknown == unknown


@pytest.mark.parametrize(
    ("script", "arguments", "conditional"),
    [
        ('MODE=x\nif [ "$GPU" ]; then\n  MODE=y\nfi', ["a=$MODE"], [("$MODE", 3)]),
        ("if [ $GPU ]; then\n  MODE=x\nelse\n  MODE=y\nfi", ["a=$MODE"], [("$MODE", 4)]),
        ('[ "$GPU" = npu ] && MODE=x', ["a=$MODE"], [("$MODE", 1)]),
        ("MODE=z\n[[ -n $GPU && -d /x ]] || MODE=x", ["a=$MODE"], [("$MODE", 2)]),
        ("case $1 in\n  npu) MODE=x ;;\n  *) MODE=y ;;\nesac", ["a=$MODE"], [("$MODE", 3)]),
        ("for MODE in x $GPU; do\n  echo\ndone", ["a=$MODE"], [("$MODE", 1)]),
        ("MODE=\nwhile f; do\n  MODE+=x\ndone", ["a=$MODE"], [("$MODE", 3)]),
        ("read -r MODE < file", ["a=$MODE"], [("$MODE", 1)]),
        ("(( MODE = 1 ))\nlet MODE+=1", ["a=$MODE"], [("$MODE", 2)]),
        ("f() {\nlocal -n each=$1\neach+=x\n}\nf MODE", ["a=$MODE"], [("$MODE", 2)]),
        ("[ $GPU ] && N=1\nMODE=${N:-2}x", ["a=${N:-2}x"], [("${N:-2}", 1)]),
    ],
)
def test_a_variable_that_a_condition_sets_is_named_with_the_line(
    script: str, arguments: list[str], conditional: list[tuple[str, int]]
) -> None:
    call = read_script(f"{script}\n{CALL} a=$MODE")
    named = [(name, f"line {line} of the script") for name, line in conditional]
    assert (list(call.arguments), list(call.conditional)) == (arguments, named)
    assert call.unknown == ()


UNKNOWN = ("[ -d /x ]", "[ $GPU = 1 ]", "[[ a < b ]]", "[[ gpu == g* ]]", "[[ a =~ b ]]", "[ 1 -eq x ]", "[ a -o b ]")


@pytest.mark.parametrize("test", [*UNKNOWN, "f", "! f", "[[ -n a && -n $GPU ]]", "N=$(nproc)"])
def test_a_condition_that_is_not_known_leaves_both_ways_open(test: str) -> None:
    call = read_script(f"f() {{ [ a = a ]; return $X; }}\nMODE=x\nif {test}; then MODE=y; fi\n{CALL} a=$MODE")
    assert call.arguments == ("a=$MODE",) and [name for name, _ in call.conditional] == ["$MODE"]


@pytest.mark.parametrize("loop", ["i in *.sh", "i in {1..3}", "i in $NAMES", "i in $(ls)", "((i = 0; i < 2; i++))"])
def test_a_loop_over_words_that_are_not_known_may_run_any_number_of_times(loop: str) -> None:
    call = read_script(f"N=1\nfor {loop}; do N=2; done\nfor i in 3 4; do M=$i; break; done\n{CALL} a=$N b=$M")
    assert [name for name, _ in call.conditional] == ["$N", "$M"]


def test_elements_that_a_condition_appends_are_named_and_the_others_are_there() -> None:
    call = read_script(f'MORE=(a=1)\nif [ "$GPU" ]; then\n  MORE+=(b=2)\nfi\n{CALL} "${{MORE[@]}}" c=3')
    assert call.arguments == ("a=1", "${MORE[@]}", "c=3")
    assert call.conditional == (("${MORE[@]}", "line 3 of the script"),)


def test_lines_that_end_as_on_windows_are_lines() -> None:
    assert read_script(f"N=1\r\n{CALL} a=$N \\\r\n  b=2\r\n").arguments == ("a=1", "b=2")


STATEMENTS = st.recursive(
    st.sampled_from(
        ["A=1", "A=2", "B=$A", "B+=x", "A=${B:-3}", "L+=(k=$A)", "L=(k=0)", "unset B", "B=$((A + 1))", ": ${B:=4}"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("\n".join),
        st.builds('if [ "$X" = 1 ]; then\n{}\nelif [ "$Y" = 1 ]; then {}\nelse {}\nfi'.format, inner, inner, inner),
        st.builds('if [ "$Y" = 1 ]\nthen {}; fi'.format, inner),
        st.builds('if [ "$A" = 1 ]; then {}; elif [[ -z $B ]]; then {}; else {}; fi'.format, inner, inner, inner),
        st.builds('if [ "$X" = 1 ]; then {}; elif [ "$B" != b ]; then {}; fi'.format, inner, inner),
        st.builds('[ "$A" -gt 1 ] 2>/dev/null && {{ {}; }} || {{ {}; }}'.format, inner, inner),
        st.builds('for A in "$B" 7; do {}; done'.format, inner),
        st.builds('[ "$X" = 1 ] && {{\n{}\n}}'.format, inner),
        st.builds('[[ "$X" = 1 && "$Y" = 1 ]] || {{ {}; }} && {{ {}; }}'.format, inner, inner),
        st.builds('case "$X$Y" in\n00) {} ;;\n01|10) {} ;;\nesac'.format, inner, inner),
        st.builds("for i in 1 2; do {}; done".format, inner),
        st.builds("f() {{\n{}\nA=$1\n}}\nf 5".format, inner),
        st.builds("f() {{\nlocal {}\n{}\n}}\nf".format, st.sampled_from(["A", "B=$A L", "-a L=(m) A=3"]), inner),
        st.builds("if (( A > 1 )); then {}; else {}; fi 2>/dev/null".format, inner, inner),
        st.builds('g() {{\nif [ "$X" = 1 ]; then {}; return; fi\n{}\n}}\ng'.format, inner, inner),
        st.builds('g() {{\n{}\n[ "$A" = 1 ] && return 0\n{}\n}}\ng'.format, inner, inner),
        st.builds("( {} )".format, inner),
    ),
    max_leaves=8,
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
# The same scripts on each run, however busy the machine is.
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(STATEMENTS)
def test_what_is_not_named_is_what_bash_passes_whatever_conditions_hold(statements: str) -> None:
    script = f'A=0 B=b L=()\n{statements}\n{CALL} a=$A b=$B "${{L[@]}}"'
    call = read_script(script)
    named = [*call.unknown, *(name for name, _ in call.conditional)]
    runs = "python3() { shift 2; printf '%s\\0' \"$@\"; }\nfor X in 0 1; do for Y in 0 1; do (\n" + script
    done = subprocess.run(["bash", "-c", runs + "\n); printf '\\1'; done; done"], check=True, capture_output=True)
    for output in done.stdout.decode().split("\1")[:-1]:
        passed = output.split("\0")[:-1]
        complete = "${L[@]}" not in call.arguments
        ours = [word for word in call.arguments if word != "${L[@]}"]
        assert len(passed) == len(ours) if complete else len(passed) >= len(ours)
        for word, of_bash in zip(ours, passed, strict=False):
            assert word == of_bash or any(name in word for name in named)


@given(
    st.lists(st.sampled_from([*"""$({[`"'\\#<>;&|)}]=\n a1""", "if", "fi", "case", "in", "esac", "do", "done", CALL]))
)
def test_any_text_is_read_or_refused(pieces: list[str]) -> None:
    with suppress(RecipeError):
        read_script("".join(pieces) + f"\n{CALL} a=1")


def test_a_path_of_the_trainer_is_a_call_too() -> None:
    assert read_script("python verl_omni/trainer/main_diffusion.py a=1").arguments == ("a=1",)


def test_the_trainer_v1_is_the_trainer_with_a_setting() -> None:
    assert read_script(f"{CALL}_v1 a=1").arguments == ("trainer.use_v1=true", "a=1")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo hello", "the script does not start verl_omni.trainer.main_diffusion"),
        (f"# {CALL}\nssh node '{CALL} a=1'", f"the script does not start {MODULE}; line 2 names it, but in a text"),
        (f"bash <<END\n{CALL} a=1\nEND", f"the script does not start {MODULE}; line 2 names it, but in a text"),
        ("python3 -m verl.trainer.main_ppo a=1", f"the script starts verl.trainer.main_ppo; only {MODULE}"),
        ("python3 -m verl_omni.trainer.main_omni a=1", "the script starts verl_omni.trainer.main_omni; only"),
        (f"{CALL} a=1\n{CALL} a=2", "the script starts the trainer 2 times; keep one call"),
        (f"{CALL} a='1", "not a shell script: no closing quotation"),
        (f"# Of KubeRay\nkind: RayJob\nspec:\n  entrypoint: {CALL} a=1\n", "not a shell script: copy the command"),
        (f"- {CALL} a=1\n", "not a shell script: copy the command"),
        (f'{{"command": "{CALL} a=1"}}', "not a shell script: copy the command"),
        (f"{{{{- if .Values.x }}}}\n{CALL} a=1\n", "not a shell script: copy the command"),
    ],
)
def test_another_script_is_refused(script: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_script(script)
    assert str(caught.value).startswith(message)
    assert "names it" in message or "names it" not in str(caught.value)


def test_an_element_with_a_name_stays_as_it_is_written() -> None:
    call = read_script(f"declare -A M=([a]=1)\n{CALL} a=${{M[a]}} b=${{M[a]:-2}}")
    assert call.arguments == ("a=${M[a]}", "b=${M[a]:-2}")
    assert call.unknown == ("${M[a]}", "${M[a]:-2}")


def test_environment_variables_of_the_trainer_are_named() -> None:
    script = f"""
export DIFFUSION_ATTENTION_BACKEND=TORCH_SDPA WANDB_MODE
export HF_HOME=${{HF_HOME:-/cache}}
export DATA=${{DATA:-/data}}
ROLLOUT_TP=1
unused() {{ export NEVER=1; }}
if [ gpu = npu ]; then export ASCEND=1; fi
OTHER=1 echo other
RAY_ADDRESS=auto {CALL} data.train_files=$DATA/x.parquet a=$ROLLOUT_TP
export LATER=1
"""
    call = read_script(script)
    assert call.environment == ("DIFFUSION_ATTENTION_BACKEND", "WANDB_MODE", "HF_HOME", "RAY_ADDRESS")
    assert call.arguments == ("data.train_files=/data/x.parquet", "a=1")


@pytest.mark.parametrize(
    ("front", "named"),
    [
        ("env NCCL_DEBUG=INFO HF_HOME=/x", ("NCCL_DEBUG", "HF_HOME")),
        ("A=1 env -u B C=2", ("C", "A")),
        ("ray job submit --runtime-env=verl/trainer/runtime_env.yaml --", ("all in verl/trainer/runtime_env.yaml",)),
        ("ray job submit --runtime-env $ENV_FILE --", ("all in $ENV_FILE",)),
        ("""ray job submit --runtime-env-json='{"env_vars": {"X_1": "1"}, "pip": []}' --working-dir . --""", ("X_1",)),
        ('ray job submit --runtime-env-json "$JSON" --', ()),
        ("ray job submit --runtime-env-json '[]' --", ()),
        ("nohup", ()),
    ],
)
def test_variables_that_a_command_in_front_of_the_trainer_sets_are_named(front: str, named: tuple[str, ...]) -> None:
    call = read_script(f"{front} {CALL} a=1 b='c=2'")
    assert (call.environment, call.arguments) == (named, ("a=1", "b=c=2"))
