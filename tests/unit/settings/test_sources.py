"""Settings: one declaration, four sources, errors that say what to do."""

from pathlib import Path

import pytest

from foveate.core.budget import FIELDS, Budget
from foveate.core.errors import StartupError
from foveate.settings import budgets, declared, load

MiB = 2**20


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("server: {host: 10.0.0.1, port: 1111, drain_seconds: 7}\n")
    monkeypatch.setenv("FOVEATE_SERVER__PORT", "2222")
    monkeypatch.setenv("FOVEATE_SERVER__HOST", "10.0.0.2")
    settings = load({"server.host": "10.0.0.3"}, config=str(file))
    assert (settings.server.host, settings.server.port, settings.server.drain_seconds) == ("10.0.0.3", 2222, 7)
    assert settings.server.keep_alive_seconds == 75


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("limits:\n  arena_bytes_max: 128MiB\n")
    monkeypatch.setenv("FOVEATE_CONFIG", str(file))
    assert load().limits.arena_bytes_max == 128 * MiB


@pytest.mark.parametrize(("text", "meant"), [("off", "off"), ("on", "on"), ("'off'", "off"), ("no", "off")])
def test_on_and_off_need_no_quotes(tmp_path: Path, text: str, meant: str) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text(f"observe: {{requests: {text}}}\n")
    assert load(config=str(file)).observe.requests == meant


def test_lists_are_given_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_FETCH__PRIVATE_NETWORKS", "127.0.0.0/8, 10.0.0.0/8")
    settings = load({"fetch.ports": "80,8080"})
    assert settings.fetch.private_networks == ("127.0.0.0/8", "10.0.0.0/8")
    assert settings.fetch.ports == (80, 8080)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server: {prot: 1}", "Did you mean server.port?"),
        ("sever: {port: 1}", "Did you mean server?"),
        ("server: {port: 70000}", "less than or equal to 65535"),
        ("multimodal_budget: {default: {max_item_bytes: lots}}", "for example 1048576, 16MiB or 2GiB"),
        ("server: [", "cannot be read"),
        ("server: {port: 1}\nlog:\n  level: info\n  level: debug", "has 'level' twice, the second time in line 4"),
        ("server: {port: 1}\nserver: {port: 2}", "has 'server' twice, the second time in line 2"),
        ("multimodal_budget: {max_images: 4}", "Did you mean multimodal_budget.default.max_images?"),
        ("multimodal_budget: {on_excess: {max_image_width: fit}}", "Did you mean multimodal_budget.default.on_excess?"),
        ("auth:", "'auth' (file"),
        ("auth:", "it is empty; write settings below it, or leave it out."),
        ("server: 3", "it must hold settings, name: value."),
        ("just some words", "must hold sections with settings"),
        ("media: {formats: []}", "at least one format"),
        ("media: {formats: 3}", "expected a list"),
        ("media: {formats: [jpg]}", "Did you mean jpeg?"),
        ("multimodal_budget: {default: {max_images: true}}", "true is not a value it can have"),
        ("multimodal_budget: {default: {max_item_bytes: true}}", "true is not a value it can have"),
        ("fetch: {ports: [true]}", "expected a list"),
        ("multimodal_budget: {default: {on_excess: {max_image_widht: fit}}}", "Did you mean max_image_width?"),
        ("multimodal_budget: {default: {on_excess: fitt}}", "Did you mean fit?"),
        ("multimodal_budget: {default: {on_excess: {max_image_width: fitt}}}", "Did you mean fit?"),
        ("multimodal_budget: {default: {video_sampling: unifrom}}", "Did you mean uniform?"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text(text)
    with pytest.raises(StartupError) as caught:
        load(config=str(file))
    assert said in caught.value.public
    assert "\n" not in caught.value.public


def test_paths_in_a_file_are_relative_to_it_and_those_of_flags_are_not(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("auth: {keys_file: keys.yaml}\nfetch: {file_root: media}")
    settings = load(config=str(file))
    assert settings.auth.keys_file == str(tmp_path / "keys.yaml")
    assert settings.fetch.file_root == str(tmp_path / "media")
    assert load({"auth.keys_file": "keys.yaml"}, config=str(file)).auth.keys_file == "keys.yaml"


def test_a_merged_mapping_may_be_changed(tmp_path: Path) -> None:
    text = "multimodal_budget: {default: &d {max_images: 2, max_videos: 3}, other: {<<: *d, max_images: 5}}"
    assert (tiers(tmp_path, text)["other"].max_images, tiers(tmp_path, text)["other"].max_videos) == (5, 3)


def test_an_unknown_environment_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_SERVER__PROT", "1")
    with pytest.raises(StartupError, match="Did you mean FOVEATE_SERVER__PORT"):
        load()


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(StartupError, match="does not exist"):
        load(config="no/such/file.yaml")


TIERS = """
multimodal_budget:
  default:
    max_images: 4
    max_image_width: 2048
    max_image_height: 2048
    max_video_frames: 32
  trusted_batch_job:
    max_images: 16
    max_video_frames: 96
"""


def tiers(tmp_path: Path, text: str, flags: dict[str, object] | None = None) -> dict[str, Budget]:
    file = tmp_path / "foveate.yaml"
    file.write_text(text)
    return budgets(load(flags, config=str(file)).multimodal_budget)


def test_tiers_inherit_from_default_and_default_from_what_is_built_in(tmp_path: Path) -> None:
    made = tiers(tmp_path, TIERS)
    default, batch = made["default"], made["trusted_batch_job"]
    assert (default.tier, batch.tier) == ("default", "trusted_batch_job")
    assert (default.max_images, batch.max_images) == (4, 16)
    assert (default.max_video_frames, batch.max_video_frames) == (32, 96)
    assert default.max_image_width == batch.max_image_width == 2048
    assert default.max_item_bytes == batch.max_item_bytes == Budget().max_item_bytes


def test_without_any_tier_the_default_is_what_is_built_in() -> None:
    assert budgets(load().multimodal_budget) == {"default": Budget()}


def test_flags_and_environment_set_the_default_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_MULTIMODAL_BUDGET__DEFAULT__MAX_IMAGES", "7")
    monkeypatch.setenv("FOVEATE_MULTIMODAL_BUDGET__DEFAULT__MAX_IMAGE_WIDTH", "99")
    flags = {
        "multimodal_budget.default.max_item_bytes": "5MiB",
        "multimodal_budget.default.max_image_width": "100",
        "multimodal_budget.default.on_excess": "max_image_width=fit, max_visual_tokens=reject",
    }
    made = tiers(tmp_path, TIERS, flags)
    assert (made["default"].max_images, made["default"].max_image_width) == (7, 100)
    assert made["trusted_batch_job"].max_images == 16
    assert made["trusted_batch_job"].max_item_bytes == 5 * MiB
    assert made["default"].on_excess == {"max_image_width": "fit", "max_visual_tokens": "reject"}


def test_one_word_makes_everything_fit_that_can(tmp_path: Path) -> None:
    text = "multimodal_budget: {default: {on_excess: fit}, strict: {on_excess: {max_image_width: reject}}, empty: }"
    made = tiers(tmp_path, text)
    assert all(made[name].fits("max_video_frames") for name in made)
    assert made["empty"].fits("max_image_width")
    assert not made["strict"].fits("max_image_width")
    assert not made["default"].fits("max_images")


@pytest.mark.parametrize(
    ("tier", "said"),
    [
        ("{max_image_widht: 1}", "'multimodal_budget.a.max_image_widht' (file {file}). Did you mean max_image_width?"),
        ("{max_images: many}", "'multimodal_budget.a.max_images' (file {file}) is wrong: input should be a valid int"),
        ("{max_images: -1}", "greater than or equal to 0"),
        ("{max_images: null}", "valid integer"),
        ("{video_sampling: fsp}", "'uniform' or 'fps'"),
        ("{on_excess: {max_images: fit}}", "'max_images' cannot be made to fit; these can: max_image_width, "),
        ("{on_excess: {max_image_width: crop}}", "'reject' or 'fit'"),
        ("{on_excess: shrink}", "expected reject, fit"),
        ("3", "'multimodal_budget.a' (file {file}) is wrong"),
    ],
)
def test_a_wrong_tier_is_one_line_that_names_key_and_source(tmp_path: Path, tier: str, said: str) -> None:
    with pytest.raises(StartupError) as caught:
        tiers(tmp_path, f"multimodal_budget: {{a: {tier}}}")
    assert said.replace("{file}", str(tmp_path / "foveate.yaml")) in caught.value.public
    assert "\n" not in caught.value.public


def test_a_tier_has_a_name_that_fits_a_header(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="'a b' is not a tier's name"):
        tiers(tmp_path, "multimodal_budget: {'a b': {}}")


def test_what_is_wrong_is_traced_to_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_MULTIMODAL_BUDGET__DEFAULT__MAX_IMAGES", "x")
    with pytest.raises(StartupError, match="environment FOVEATE_MULTIMODAL_BUDGET__DEFAULT__MAX_IMAGES"):
        load()
    with pytest.raises(StartupError, match="flag --max-images"):
        load({"multimodal_budget.default.max_images": "y"})
    monkeypatch.setenv("FOVEATE_MULTIMODAL_BUDGET__DEFAULT__MAX_IMAGES", "1")
    monkeypatch.setenv("FOVEATE_MULTIMODAL_BUDGET__DEFAULT__MAX_IMAGE", "1")
    with pytest.raises(StartupError, match="Did you mean FOVEATE_MULTIMODAL_BUDGET__DEFAULT__MAX_IMAGES"):
        load()


@pytest.mark.parametrize(
    "key", ["model.device", "topology.encoder_device", "topology.prefill_device", "topology.decode_device"]
)
def test_a_device_is_one_before_anything_is_loaded(key: str) -> None:
    for value in ("gpu", "cuda:", "cuda:x", "0", ""):
        with pytest.raises(StartupError, match=f"'{key}'.*expected cpu, cuda or cuda:N, not '{value}'"):
            load({key: value})
    for value in ("cpu", "cuda", "cuda:12"):
        load({key: value})


@pytest.mark.parametrize(
    "key", ["engine.cpus", "media.cpus", "topology.encoder_cpus", "topology.prefill_cpus", "topology.decode_cpus"]
)
def test_cores_are_numbers_and_ranges(key: str) -> None:
    section, name = key.split(".")
    for value, cores in (("0,2", (0, 2)), ("4-7", (4, 5, 6, 7)), ("0, 2-3", (0, 2, 3)), ("", ())):
        assert getattr(getattr(load({key: value}), section), name) == cores
    for value in ("-1", "3-1", "x", "1-", "0x1"):
        with pytest.raises(StartupError, match=f"'{key}'.*expected cores such as 0,1 or 4-7, not '{value}'"):
            load({key: value})


def test_an_encoder_is_a_class_in_a_module() -> None:
    for value in ("nosuch", "a:b:c", "module:", ""):
        with pytest.raises(StartupError, match=f"flag --encoder.*expected package.module:Class, not '{value}'"):
            load({"model.encoder": value})
    assert load({"model.encoder": "a.b:C"}).model.encoder == "a.b:C"


def test_every_field_of_a_budget_can_be_set() -> None:
    names = {entry.name for entry in declared() if entry.section == "multimodal_budget"}
    assert names == {f"default.{name}" for name in Budget.__struct_fields__ if name != "tier"}
    assert {field.name for field in FIELDS} <= set(Budget.__struct_fields__)


def test_a_tier_may_be_called_as_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "foveate.yaml"
    file.write_text("multimodal_budget: {max_images: {max_images: 64}}")
    assert budgets(load(config=str(file)).multimodal_budget)["max_images"].max_images == 64


def test_a_server_starts_in_the_shell_of_an_operator_with_an_admin_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_ADMIN_KEY", "fov-some-key")
    load()
    monkeypatch.setenv("FOVEATE_ADMIN_KEYS", "fov-some-key")
    with pytest.raises(StartupError, match="FOVEATE_ADMIN_KEYS is not a setting"):
        load()
