"""Let a language model write prompts: ask, filter the answers, ask for what is missing.

Only `chat` uses the network: any endpoint with OpenAI's API, local or hosted, by its client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ogkd.download import parse_url
from ogkd.errors import ConfigError
from ogkd.files import read_toml
from ogkd.prompts.bank import fold
from ogkd.prompts.check import LONGEST, SHORTEST, similar, text_faults, words_of

Messages = Sequence[Mapping[str, str]]
Ask = Callable[[Messages], str]

_TIMEOUT = 120.0  # seconds for an answer
_RETRIES = 4  # of a request, by the client
_AT_ONCE = 25  # texts per question; with more, models lose count and repeat themselves
_SHOWN = 15  # existing texts that the model is asked not to repeat
_THOUGHT = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.S | re.I)
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]|\\.)*)"\s*(?=[,\]\n}]|\Z)')
_BULLET = re.compile(r"^\s*(?:\(?\d{1,3}[.):]|[-*•–—]+|#+)\s+")


def chat(url: str, model: str, *, key: str | None = None) -> Ask:
    """A function that asks `model` at the endpoint whose base URL is `url`.

    The client retries a busy endpoint. An answer that is no chat completion is an empty one, to
    be asked for again.
    """
    try:
        import openai
    except ImportError as error:
        raise ConfigError(
            'Asking a language model needs the package openai: pip install "ogkd[prompts]".'
        ) from error
    parse_url(url)
    client = openai.OpenAI(
        base_url=url,
        api_key=key or "none",  # the client insists on one
        timeout=_TIMEOUT,
        max_retries=_RETRIES,
    )

    def ask(messages: Messages) -> str:
        conversation: Any = list(messages)
        try:
            answer = client.chat.completions.create(model=model, messages=conversation)
            content = answer.choices[0].message.content
        except openai.APIStatusError as error:  # its text may repeat the key
            raise ConfigError(f"{url} answered {error.status_code}.", argument="url") from None
        except openai.APIConnectionError as error:
            raise ConfigError(f"No answer from {url} ({error}).", argument="url") from None
        except (ValueError, AttributeError, IndexError, TypeError, RecursionError):
            return ""
        return content if isinstance(content, str) else ""

    return ask


@dataclass(frozen=True)
class Order:
    """A bank that is asked for."""

    class_names: tuple[str, ...]
    count: int = 50
    modality: str = "medical"  # the word before "images"
    organ: str | None = None
    rounds: int = 8  # the most questions for one class


def messages_for(order: Order, name: str, have: Sequence[str]) -> Messages:
    """The question for the texts that a class still lacks."""
    wording = read_toml(Path(__file__).with_name("question.toml"))
    question = wording["question"].format(
        wanted=min(order.count - len(have), _AT_ONCE),
        modality=order.modality,
        organ=f" of the {order.organ}" if order.organ else "",
        name=name,
        shortest=SHORTEST + 2,
        longest=LONGEST - 8,
        others=", ".join(f'"{other}"' for other in order.class_names if other != name) or "none",
        have=json.dumps(list(have[-_SHOWN:]), ensure_ascii=False) if have else "none",
    )
    return [{"role": "system", "content": wording["role"]}, {"role": "user", "content": question}]


def read_answer(answer: str) -> list[str]:
    """Extract the texts of an answer: a JSON list, even if incomplete, or numbered lines.

    >>> read_answer('Here you are: ["first text", "second te')
    ['first text']
    """
    answer = _THOUGHT.sub("", answer)
    # Not a JSON parser: the complete strings of a list that is cut or slightly broken are usable.
    strings = [_unescape(match) for match in _STRING.findall(answer.partition("[")[2])]
    lines = (_BULLET.sub("", line) for line in answer.splitlines() if "```" not in line)
    return [text for text in map(_clean, strings or lines) if text]


def _unescape(raw: str) -> str:
    try:
        return str(json.loads(f'"{raw}"'))
    except ValueError:
        return raw


def _clean(text: str) -> str:
    text = " ".join(text.split()).replace("**", "").replace("’", "'").rstrip(",")
    return text[1:-1].strip() if text[:1] == text[-1:] == '"' else text


def sift(texts: Sequence[str], have: Sequence[str]) -> list[str]:
    """Keep the texts without faults that differ from each other and from those in `have`."""
    known = [frozenset(words_of(text)) for text in have]
    kept = []
    for text in texts:
        words = frozenset(words_of(text))
        if not text_faults(text) and not any(similar(words, row) for row in known):
            known.append(words)
            kept.append(text)
    return kept


def generate(
    order: Order, ask: Ask, *, bank: Mapping[str, Sequence[str]] | None = None
) -> Iterator[tuple[str, int, dict[str, list[str]]]]:
    """Write up to `count` texts for each class, starting from those in `bank`.

    Yields after each answer: the class that was asked for, how many of its texts are new, and all
    texts so far. A class may get fewer if the model does not provide enough.
    """
    texts = {name: list(rows) for name, rows in (bank or {}).items()}
    keys = {fold(name): name for name in texts}
    for name in order.class_names:
        key = keys.get(fold(name), name)
        for _ in range(order.rounds):
            have = texts.get(key, [])
            if (missing := order.count - len(have)) <= 0:
                break
            answer = read_answer(ask(messages_for(order, name, have)))
            everything = [text for rows in texts.values() for text in rows]
            if new := sift(answer, everything)[:missing]:
                texts[key] = have + new
            yield name, len(new), texts
