"""A chat template of several lines becomes one of one line in a job, and makes the same text."""

import random
from collections.abc import Callable

import jinja2
import pytest

from omni_operator.recipes import convert
from omni_operator.recipes.one_line import in_one_line

NAME = "actor_rollout_ref.model.custom_chat_template"
# As transformers reads chat templates (transformers/utils/chat_template_utils.py).
ENVIRONMENT = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
REQUIRED = [
    "actor_rollout_ref.model.path=m",
    "data.train_files=t.parquet",
    "trainer.total_training_steps=1",
    "reward.custom_reward_function.path=r.py",
]
MESSAGES = [{"role": "system", "content": "Draw."}, {"role": "user", "content": "a sign\nthat says 'it'"}]
TEMPLATES = (
    "{% for message in messages %}\n<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}\n",
    "{%- for message in messages -%}\n    {%- if message['role'] == 'user' %}\n        {{- message['content'] }}\n"
    "    {%- endif %}\n{%- endfor %}",
    "{# first\nsecond #}\n  {{ messages[0]['content']\n  }}  \n{{ 'x\ny' }}\n\n",
    "{% set n = 1 %}\n{% if messages %}\nyes\n  {% endif %}{%+ if not messages %}no{% endif +%}\nend",
)


def rendered(template: str) -> str:
    return ENVIRONMENT.from_string(template).render(messages=MESSAGES, m="M", ms=["A", "B"])


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_script_s_template_of_several_lines_is_in_the_job(template: str, quote: str) -> None:
    from verl_omni.trainer.settings import configuration

    text = template if quote == '"' else template.replace("'", '"')
    wanted = rendered(text)
    converted = convert([*REQUIRED, f"{NAME}={quote}{text}{quote}"])
    (override,) = [
        setting for setting in converted.document["spec"]["algorithm"]["overrides"] if setting.startswith(NAME)
    ]
    assert "\n" not in override and not converted.refused
    loaded = configuration.load([*REQUIRED, override]).actor_rollout_ref.model.custom_chat_template
    assert rendered(loaded) == wanted


def random_template(draw: random.Random) -> str:
    """Texts, tags and comments with and without signs that remove blanks, one in another."""
    blanks = ("", " ", "\n", "\n  ", "  \n", " x\n", "y", "\n\n", "\t{z")

    def tag(kind: str) -> str:
        return f"{draw.choice(('{%', '{%-', '{%+'))} {kind} {draw.choice(('%}', '-%}'))}{draw.choice(blanks)}"

    def value(sign: str, inner: str, end: str) -> str:
        return f"{{{sign}{draw.choice(('', '-'))}{inner}{draw.choice(('', '-'))}{end}}}{draw.choice(blanks)}"

    def block(depth: int) -> str:
        kind = draw.choice(("for a in ms", "if m"))
        return f"{tag(kind)}{piece(depth + 1)}{piece(depth + 1)}{tag('end' + kind.split()[0])}"

    def piece(depth: int) -> str:
        kinds: tuple[Callable[[], str], ...] = (
            lambda: draw.choice(blanks),
            lambda: value("{", draw.choice((" m ", " 'a\nb' ", "\n m\n")), "}"),
            lambda: value("#", " c\nd ", "#"),
            lambda: block(depth),
        )
        return draw.choice(kinds[:1] if depth > 2 else kinds)()

    return "".join(piece(0) for _ in range(3))


def test_any_template_makes_the_same_text_in_one_line() -> None:
    draw = random.Random(5)
    templates = [text for text in (random_template(draw) for _ in range(60)) if "{" in text]
    for template in templates:
        line = in_one_line(f'"{template}"')
        assert "\n" not in line and rendered(line[1:-1]) == rendered(template), template
    assert len(templates) > 40
