"""Group F: what is kept under which key, and who meets it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import httpx
import pytest
from blake3 import blake3
from PIL import Image
from tests.blackbox.conftest import SMALL
from tests.blackbox.field_cases.conftest import CHAT
from tests.blackbox.field_cases.marks import ANSWERED, Right, field_case
from tests.blackbox.origins import Origin, cacheable, signed
from tests.blackbox.pictures import COLOURS, DESCRIBE, ask, case, chat, data_url, encoded, image, one, url_of, user
from tests.blackbox.replies import content, server_timing
from tests.blackbox.server import Server, eventually

ESTIMATE = "/v1/estimate"
ACME, OTHER = (f"fov-test-key-{tenant}-0123456789" for tenant in ("acme", "other"))
EMBEDDED = 64 * 192 * 4
"""Bytes of a 224×224 picture's embeddings, as the shipped model makes them: visual tokens, width, float32."""
WORK = {"media_decode", "mm_processor", "vision_encode"}


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def scoped(tmp_path_factory: pytest.TempPathFactory, web: Origin) -> Iterator[Server]:
    """A server that keeps its two tenants apart, and has a media cache; it may fetch from ``web``."""
    keys = f"acme:default:plain:{ACME},other:default:plain:{OTHER}"
    caches = ("--cache-scope", "per_tenant", "--cache-media-bytes-max", "4MiB")
    fetch = ("--fetch-http-allowed", "--fetch-private-networks", "127.0.0.1/32", "--fetch-ports", str(web.port))
    made = Server(tmp_path_factory.mktemp("scoped"), *SMALL, *caches, *fetch, forked=True, FOVEATE_AUTH__KEYS=keys)
    try:
        yield made
        made.stop()
    finally:
        made.kill_all()


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose encoder cache has room for two pictures, and which keeps no inputs."""
    made = Server(
        tmp_path_factory.mktemp("cramped"),
        *SMALL,
        "--cache-processor-bytes-max",
        "0",
        "--cache-encoder-bytes-max",
        str(2 * EMBEDDED),
        forked=True,
    )
    try:
        yield made
        made.stop()
    finally:
        made.kill_all()


def by(server: Server, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.base_url, timeout=120, headers={"authorization": f"Bearer {key}"})


def cached(http: httpx.Client, asked: dict[str, Any]) -> list[bool]:
    """Return which media of a request an estimate says are in the encoder cache."""
    response = http.post(ESTIMATE, json=asked)
    assert response.status_code == 200, response.text
    return [item["encoder_cached"] for item in response.json()["items"]]


def timing(http: httpx.Client, asked: dict[str, Any], answer: str | None = None) -> set[str]:
    """Ask; return the stages that the answer took."""
    response = http.post(CHAT, json=asked)
    assert answer is None or content(response) == answer
    return set(server_timing(response))


def tokens(http: httpx.Client, asked: dict[str, Any]) -> int:
    response = http.post(CHAT, json=asked)
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["prompt_tokens_details"]["image_tokens"])


def palette(colour: str) -> bytes:
    """Return a circle in a palette of white and ``colour``: the pixel bytes are the same whatever the colour."""
    mask = one("black", "circle").convert("L").point(lambda level: int(level < 128))
    picture = Image.frombytes("P", mask.size, mask.tobytes())
    picture.putpalette([255, 255, 255, *COLOURS[colour]])
    return encoded(picture, bits=8)


@field_case(84, "black 30×150, then black 150×30: the second is not taken for the first", ANSWERED)
def test_equal_bytes_of_another_shape(http: httpx.Client, right: Right) -> None:
    # A number behind the end makes the files no other test's, whose entries the caches may hold; the pixels stay.
    tall, wide = (ask(data_url(case(f"case084_zeros_{size}.png") + b"84")) for size in ("30x150", "150x30"))
    right.check(http.post(CHAT, json=tall))
    assert cached(http, tall) == [True]
    assert cached(http, wide) == [False]
    right.check(http.post(CHAT, json=wide))


@field_case(84, "the same pixel bytes under a red and a blue palette: a red circle, then a blue one", ANSWERED)
def test_equal_bytes_under_another_palette(http: httpx.Client, right: Right) -> None:
    for colour in ("red", "blue", "red", "blue"):
        answer = http.post(CHAT, json=ask(data_url(palette(colour))))
        right.check(answer)
        assert content(answer) == f"A {colour} circle."


def ending_like(digest: str, data: bytes, *, places: slice) -> bytes:
    """Return ``data`` with a number after its end whose BLAKE3 has the same digits in ``places`` as ``digest``."""
    longer = (data + number.to_bytes(4, "big") for number in range(1 << 20))
    return next(found for found in longer if blake3(found).hexdigest()[places] == digest[places])


@field_case(86, "two pictures whose hashes agree in their first, or last, 16 bits: each gets its own answer", ANSWERED)
@pytest.mark.parametrize("places", [slice(0, 4), slice(60, 64)])
def test_hashes_that_agree_in_part(http: httpx.Client, places: slice, right: Right) -> None:
    first = encoded(one("red", "circle", seed=86 + places.start))
    second = ending_like(blake3(first).hexdigest(), encoded(one("blue", "circle")), places=places)
    for data, colour in ((first, "red"), (second, "blue"), (first, "red")):
        answer = http.post(CHAT, json=ask(data_url(data)))
        right.check(answer)
        assert content(answer) == f"A {colour} circle."


@field_case(88, "one `uuid` beside a 30×30 and then a 300×300 picture", Right(409, "media_id_conflict"))
def test_a_reused_name(http: httpx.Client, right: Right) -> None:
    small, large = ({**image(url_of(one("red", "circle", size=(side, side)))), "uuid": "case88"} for side in (30, 300))
    assert http.post(CHAT, json=chat(user(small, DESCRIBE))).status_code == 200
    right.check(http.post(CHAT, json=chat(user(large, DESCRIBE))), param="messages[0].content[0]")


@field_case(88, "the same `uuid` for another picture by another tenant: a name belongs to its tenant", ANSWERED)
def test_a_name_belongs_to_its_tenant(scoped: Server, right: Right) -> None:
    for key, colour in ((ACME, "red"), (OTHER, "blue")):
        with by(scoped, key) as http:
            picture = {**image(url_of(one(colour, "circle"))), "uuid": "case88"}
            answer = http.post(CHAT, json=chat(user(picture, DESCRIBE)))
            right.check(answer)
            assert content(answer) == f"A {colour} circle."


@field_case(88, "a `uuid` without the picture, by the tenant that sent it", ANSWERED)
@pytest.mark.parametrize("without", [{"image_url": None}, {"image_url": {}}, {"image_url": {"url": None}}, {}])
def test_a_picture_sent_once(http: httpx.Client, without: dict[str, Any], right: Right) -> None:
    sent = {**image(url_of(one("green", "circle", seed=88))), "uuid": "case88 again"}
    assert content(http.post(CHAT, json=chat(user(sent, DESCRIBE)))) == "A green circle."
    answer = http.post(CHAT, json=chat(user({"type": "image_url", "uuid": "case88 again", **without}, DESCRIBE)))
    right.check(answer)
    assert content(answer) == "A green circle."
    assert not WORK & set(server_timing(answer))
    assert answer.json()["usage"]["prompt_tokens_details"]["images"] == 1


@field_case(88, "a guessed `uuid` without the picture, by another tenant", Right(404, "media_not_held"))
def test_a_guessed_name(scoped: Server, right: Right) -> None:
    sent = {**image(url_of(one("green", "circle", seed=880))), "uuid": "case88 guessed"}
    guess = chat(user({"type": "image_url", "image_url": None, "uuid": "case88 guessed"}, DESCRIBE))
    with by(scoped, ACME) as acme, by(scoped, OTHER) as other:
        content(acme.post(CHAT, json=chat(user(sent, DESCRIBE))))
        right.check(other.post(CHAT, json=guess), param="messages[0].content[0].image_url")
        assert content(acme.post(CHAT, json=guess)) == "A green circle."


@field_case(
    89, "one picture with two values of `max_pixels`: the second is smaller, and not taken from the first", ANSWERED
)
def test_options_are_part_of_the_key(http: httpx.Client, right: Right) -> None:
    url = url_of(one("red", "circle", seed=89, size=(448, 448)))
    asked = [ask(url, mm_processor_kwargs={"max_pixels": pixels}) for pixels in (100_000, 20_000)]
    full = tokens(http, asked[0])
    assert [cached(http, body) for body in asked] == [[True], [False]]
    right.check(http.post(CHAT, json=asked[1]))
    assert tokens(http, asked[1]) < full == tokens(http, asked[0])


@field_case(89, "`max_pixels` beyond what the model makes of a picture", Right(400, "invalid_parameter"))
def test_options_stay_within_the_model_s_limits(http: httpx.Client, right: Right) -> None:
    body = ask(url_of(one("red", "circle")), mm_processor_kwargs={"max_pixels": 10**9})
    right.check(http.post(CHAT, json=body), param="mm_processor_kwargs.max_pixels")


def shows(colour: str, seed: int) -> bytes:
    return encoded(one(colour, "circle", seed=seed))


@field_case(
    90,
    "`latest.png`, first red, then green, asked for again before its second of declared freshness is up: green in the end, as a use does "
    "not make it last",
    ANSWERED,
)
def test_a_changed_object_is_seen_when_its_time_is_up(scoped: Server, web: Origin, right: Right) -> None:
    path, second = "/case90/latest.png", ("Cache-Control", "max-age=1")
    web.pages[path] = cacheable(shows("red", 90), second)
    asked = ask(f"{web.url}{path}")
    with by(scoped, ACME) as http:
        assert content(http.post(CHAT, json=asked)) == "A red circle."
        web.pages[path] = cacheable(shows("green", 90), second)

        def green() -> bool:
            answer = http.post(CHAT, json=asked)
            right.check(answer)
            return content(answer) == "A green circle."

        eventually("the green one", green, seconds=30)
    assert web.gets[path] == 2


@field_case(
    90, "a picture that is `no-store`, one with an `ETag` and one that is fresh: fetched, asked about, used", ANSWERED
)
def test_what_an_origin_says_is_done(scoped: Server, web: Origin, right: Right) -> None:
    found = []
    for name, *fields in (
        ("never", ("Cache-Control", "no-store, max-age=600")),
        ("asked", ("Cache-Control", "no-cache"), ("ETag", '"90"')),
        ("fresh", ("Cache-Control", "max-age=600")),
    ):
        path = f"/case90/{name}.png"
        web.pages[path] = cacheable(shows("blue", 90), *fields)
        with by(scoped, ACME) as http:
            answers = [http.post(CHAT, json=ask(f"{web.url}{path}?secret")) for _ in range(2)]
        right.check(answers[1])
        assert content(answers[1]) == "A blue circle."
        line = scoped.record(answers[1].json()["id"])
        found.append((name, web.gets[path], line["fetches"], line["items"][0].get("source")))
    assert found == [("never", 2, 1, None), ("asked", 2, 1, "revalidated"), ("fresh", 1, 0, "cache")]


@field_case(90, "another tenant's URL, which its origin calls private, with tenants kept apart: fetched anew", ANSWERED)
def test_a_url_is_kept_for_its_tenant_alone(scoped: Server, web: Origin, right: Right) -> None:
    path = "/case90/private.png"
    web.pages[path] = cacheable(shows("green", 901), ("Cache-Control", "private, max-age=600"))
    asked = ask(f"{web.url}{path}")
    for key, gets in ((ACME, 1), (OTHER, 2), (ACME, 2), (OTHER, 2)):
        with by(scoped, key) as http:
            right.check(http.post(CHAT, json=asked))
        assert web.gets[path] == gets


@field_case(91, "one object under two signatures, each fetched; then without one", Right(400, "media_fetch_rejected"))
def test_signatures_are_never_stripped(scoped: Server, web: Origin, right: Right) -> None:
    """A new signature costs a fetch and nothing more: by content the picture is known."""
    path, signatures = "/case91.png", ("sig=1", "sig=2")
    web.pages[path] = signed(signatures, cacheable(shows("red", 91), ("Cache-Control", "max-age=600")))
    with by(scoped, ACME) as http:
        for gets, query in enumerate(signatures, start=1):
            stages = timing(http, ask(f"{web.url}{path}?{query}"), "A red circle.")
            assert web.gets[path] == gets
            assert (WORK & stages == set()) is (gets == 2)
        right.check(http.post(CHAT, json=ask(f"{web.url}{path}")))
        assert content(http.post(CHAT, json=ask(f"{web.url}{path}?sig=1"))) == "A red circle."
    assert web.gets[path] == 3


@field_case(
    92, "another tenant's picture, with tenants kept apart: it takes every stage that a new one takes", ANSWERED
)
def test_no_hit_tells_of_another_tenants_pictures(scoped: Server, right: Right) -> None:
    asked = ask(url_of(one("green", "circle", seed=92)))
    with by(scoped, ACME) as acme, by(scoped, OTHER) as other:
        right.check(acme.post(CHAT, json=asked))
        estimate = other.post(ESTIMATE, json=asked).json()
        assert (estimate["encoder_cache_hits"], estimate["processor_cache_hits"]) == (0, 0)
        answer = other.post(CHAT, json=asked)
        right.check(answer)
        assert set(server_timing(answer)) >= WORK
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        for mine in (acme, other):
            assert not WORK & timing(mine, asked, "A green circle.")


def several(*seeds: int) -> dict[str, Any]:
    colours = list(COLOURS)
    pictures = [image(url_of(one(colours[seed % 7], "circle", seed=9000 + seed))) for seed in seeds]
    return chat(user(*pictures, "Describe both images."))


def assert_nothing_left(server: Server) -> None:
    """All that is in the arena is what the caches keep, and nobody uses it."""
    server.wait_idle()
    now = server.metrics()
    assert now.total("foveate_encoder_cache_pinned_entries") == 0
    assert now.total("foveate_encoder_cache_bytes") == now.total("foveate_arena_used_bytes") <= 2 * EMBEDDED


@field_case(
    94,
    "four pictures where the encoder cache has room for two: seen as with room for all, and nothing of them is left",
    ANSWERED,
)
def test_a_cache_that_is_too_small_for_one_request(cramped: Server, http: httpx.Client, right: Right) -> None:
    asked = several(1, 2, 3, 4)
    with cramped.client() as narrow:
        for _ in range(3):
            answer = narrow.post(CHAT, json=asked)
            right.check(answer)
            assert content(answer) == content(http.post(CHAT, json=asked))
    assert cramped.metrics().total("foveate_encoder_cache_crowded_refusals_total") >= 2
    eventually(
        "an arena with nothing but what is cached",
        lambda: cramped.metrics().total("foveate_arena_used_bytes") <= 2 * EMBEDDED,
    )
    assert_nothing_left(cramped)


@field_case(
    95,
    "room for two pictures: again and again three requests at once, of two each, and a fourth whose client leaves",
    ANSWERED,
)
def test_entries_evicted_while_others_want_them(cramped: Server, http: httpx.Client, right: Right) -> None:
    rounds = [[several(seed, seed + 1) for seed in (turn, turn + 2, turn + 4)] for turn in (10, 11, 12, 10, 11)]
    expected = {json.dumps(asked): content(http.post(CHAT, json=asked)) for asked in chain(*rounds)}
    evicted = cramped.metrics().total("foveate_encoder_cache_evictions_total")

    def send(asked: dict[str, Any]) -> httpx.Response:
        with cramped.client() as narrow:
            return narrow.post(CHAT, json=asked)

    def leave(asked: dict[str, Any]) -> None:
        with httpx.Client(base_url=cramped.base_url, timeout=0.05) as narrow, contextlib.suppress(httpx.TransportError):
            narrow.post(CHAT, json=asked)

    with ThreadPoolExecutor(4) as pool:
        for number, asked in enumerate(rounds):
            gone = pool.submit(leave, several(number, number + 1))
            for sent, answer in zip(asked, pool.map(send, asked), strict=True):
                right.check(answer)
                assert content(answer) == expected[json.dumps(sent)]
            gone.result()
    assert cramped.metrics().total("foveate_encoder_cache_evictions_total") > evicted
    eventually(
        "an arena with nothing but what is cached",
        lambda: cramped.metrics().total("foveate_arena_used_bytes") <= 2 * EMBEDDED,
    )
    assert_nothing_left(cramped)


@field_case(
    98, "two requests without a key, where none is configured: both are tenant `anyone`, and the second hits", ANSWERED
)
def test_requests_without_a_tenant(http: httpx.Client, right: Right) -> None:
    asked = ask(url_of(one("blue", "circle", seed=98)))
    right.check(http.post(CHAT, json=asked))
    assert http.get("/v1/budget").json()["tenant"] == "anyone"
    assert cached(http, asked) == [True]
    assert not WORK & timing(http, asked)
