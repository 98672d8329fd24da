from __future__ import annotations

import json

import pytest

from ogkd.errors import ConfigError
from ogkd.prompts.check import check_bank
from ogkd.prompts.generate import Order, chat, generate, read_answer, sift
from stub_server import Reply, serve, texts

TEXTS = texts("kidney stone", 3)
QUESTION = [{"role": "user", "content": "Describe it."}]
KEY = "sk-secret-123"
ORDER = Order(("kidney stone", "normal kidney"), count=4, modality="CT", organ="abdomen")


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(TEXTS),
        f"Sure, here you go:\n```json\n{json.dumps(TEXTS, indent=1)}\n```\nEnjoy!",
        f'<think>["a plan"] let me see</think>{json.dumps(TEXTS)}',
        json.dumps({"prompts": TEXTS}),
        json.dumps([{"text": text} for text in TEXTS]),
        json.dumps([TEXTS]),
        "\n".join(f"{number}. {text}" for number, text in enumerate(TEXTS, 1)),
        "\n".join(f'{number}) "{text}",' for number, text in enumerate(TEXTS, 1)),
        "\n\n".join(f"- **{text}**" for text in TEXTS),
        "```\n" + "\n".join(TEXTS) + "\n```",
        json.dumps([*TEXTS, "the last one is cut sho"])[:-4],
        json.dumps(TEXTS)[:-1] + ",]",
    ],
)
def test_texts_are_read_from_the_forms_that_models_answer_in(answer):
    assert [text.rstrip(".") for text in read_answer(answer)] == TEXTS


def test_only_sound_new_texts_pass():
    near = TEXTS[0].rsplit(" ", 1)[0] + " different"
    wrong = ["too short", TEXTS[0], near, f"Here are {TEXTS[1]}", "word " * 50, TEXTS[1]]
    assert sift([*wrong, TEXTS[1].upper(), TEXTS[2]], [TEXTS[0]]) == [TEXTS[1], TEXTS[2]]


def write(ask, order=ORDER, bank=None):
    """The texts after each answer."""
    return [json.loads(json.dumps(texts)) for _, _, texts in generate(order, ask, bank=bank)]


def test_it_asks_again_until_there_are_enough_and_the_result_passes_the_check():
    asked = []

    def ask(messages):
        asked.append(messages[-1]["content"])
        return json.dumps(texts(f"kidney stone normal {len(asked)}", 3, len(asked)))

    *_, bank = write(ask)
    assert list(bank) == list(ORDER.class_names)
    assert len(asked) == 4  # three at a time, four wanted, two classes
    assert not [finding for finding in check_bank(bank, count=4) if finding.severity == "error"]
    assert "Write 1 descriptions of what is seen on CT images of the abdomen" in asked[1]
    assert 'class "kidney stone"' in asked[1]
    assert '"normal kidney"' in asked[1]
    assert bank["kidney stone"][0] in asked[1]


def test_it_gives_up_on_a_class_after_some_rounds_and_goes_on_with_the_next():
    def ask(messages):
        stuck = 'class "kidney stone"' in messages[-1]["content"]
        return "I cannot help with that." if stuck else json.dumps(texts("normal kidney", 9))

    *_, bank = write(ask, Order(ORDER.class_names, count=4, rounds=3))
    assert {name: len(rows) for name, rows in bank.items()} == {"normal kidney": 4}


def test_what_is_there_is_kept_and_not_asked_for_again():
    have = {"other": ["kept"], "Normal_kidney": texts("normal kidney", 4), "kidney stone": TEXTS}
    (bank,) = write(lambda _: json.dumps(texts("kidney stone", 5, seed=9)), bank=have)
    assert bank["kidney stone"][:3] == TEXTS
    assert len(bank["kidney stone"]) == 4
    assert bank["Normal_kidney"] == have["Normal_kidney"]
    assert bank["other"] == ["kept"]


# Asking an endpoint


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    with serve() as running:
        yield running


def test_a_question_is_posted_with_model_and_key_and_the_text_returned(stub):
    stub.script = [Reply(status=429), Reply(status=503), Reply("hello")]
    assert chat(stub.url, "tiny", key=KEY)(QUESTION) == "hello"
    assert stub.questions == [{"model": "tiny", "messages": QUESTION}] * 3
    assert stub.posts[0][0] == "/v1/chat/completions"
    sent = {name.lower(): value for name, value in stub.posts[0][1].items()}
    assert sent["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    "body",
    [
        b"<html>garbage</html>",
        b'{"choices": [{"message": {"content": "cut',
        b'{"choices": []}',
        b'{"error": "overloaded"}',
        b'{"choices": [{"message": {"content": null}}]}',
        b"[" * 100_000,
    ],
    ids=["html", "truncated", "no choice", "error", "null", "deep"],
)
def test_a_garbled_answer_is_an_empty_one(stub, body):
    stub.script = [Reply(body=body)]
    assert chat(stub.url, "tiny")(QUESTION) == ""


@pytest.mark.parametrize(("status", "requests"), [(400, 1), (401, 1), (403, 1), (404, 1), (500, 5)])
def test_a_refusal_is_one_message_without_the_key(stub, status, requests):
    stub.script = [Reply(status=status, body=f"not for {KEY}".encode())] * 5
    with pytest.raises(ConfigError, match=f"answered {status}") as caught:
        chat(stub.url, "tiny", key=KEY)(QUESTION)
    assert caught.value.argument == "url"
    assert KEY not in str(caught.value)
    assert len(stub.questions) == requests
