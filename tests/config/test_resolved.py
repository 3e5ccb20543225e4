from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config import resolved
from launcher.config.changes import fingerprint, is_free
from launcher.config.compose import compose
from launcher.config.layers import leaves
from launcher.errors import UserError


@pytest.mark.parametrize("recipe", ["mild", "medium", "hot"])
def test_the_resolved_file_reads_back_equal(tmp_path: Path, recipe: str) -> None:
    config = compose([f"recipe={recipe}"]).config
    resolved.write(config, tmp_path / "config.yaml")
    assert resolved.read(tmp_path / "config.yaml") == config
    assert list(tmp_path.iterdir()) == [tmp_path / "config.yaml"]


def test_the_digest_follows_what_decides_the_result() -> None:
    base = resolved.digest(compose(["recipe=mild"]).config)
    assert base == resolved.digest(compose(["recipe=mild", "run_name=other", "runs=/elsewhere"]).config)
    assert base != resolved.digest(compose(["recipe=mild", "seed=7"]).config)


def test_a_damaged_file_names_itself_and_the_key(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(resolved.dump(compose([]).config).replace("seed: 42", "seed: many"))
    with pytest.raises(UserError, match=r"seed=many .*config.yaml.*a whole number"):
        resolved.read(path)
    with pytest.raises(UserError, match="no run folder"):
        resolved.read(tmp_path / "absent" / "config.yaml")


def test_a_file_of_another_version_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(resolved.dump(compose([]).config).replace("seed: 42\n", ""))
    with pytest.raises(UserError, match=r"seed=.*config.yaml.*is missing, .*another version of train .*: use that one"):
        resolved.read(path)


@pytest.mark.parametrize("name", ["hot", "nvidia_v1_5", "algoperf_nadamw"])
def test_a_file_of_before_newer_keys_reads_as_what_it_did(tmp_path: Path, name: str) -> None:
    words = ["schedule.warmup_includes_peak=false", "dataset.exif_orientation=false", "hardware=this_machine"]
    config = compose([f"recipe={name}", *words]).config
    today = resolved.as_mapping(config)
    older = json.loads(json.dumps(today))
    del older["compile"], older["cuda_graphs"], older["hardware"]["cores"], older["hardware"]["spot_per_hour"]
    del older["model"]["weights"], older["model"]["weights_sha256"]
    del older["schedule"]["warmup_includes_peak"], older["schedule"]["counts_warmup"], older["schedule"]["fit"]
    older["model"]["zero_init_residual"] = older["model"].pop("residual_batchnorm_weight") == 0
    for key in ("val_split", "skip_bad", "exif_orientation", "test_path"):
        del older["dataset"][key]
    del older["optimizer"]["backbone_lr"]
    older["optimizer"]["decay_norm_and_bias"] = older["optimizer"].pop("no_decay") == "none"
    older["algorithms"].get("colout", {}).pop("order", None)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(older))
    assert resolved.read(tmp_path / "config.yaml") == config
    # what the checkpoints of that folder hold
    values = {key: value for key, value in leaves(older) if not is_free(key)}
    assert fingerprint(config) == hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize(
    "word",
    [
        "schedule.counts_warmup=true",
        "schedule.warmup_includes_peak=true",
        "algorithms.colout.order=after_resizing",
        "optimizer.no_decay=norms",
        "model.residual_batchnorm_weight=8.0",
    ],
)
def test_a_newer_key_with_another_value_is_another_run(word: str) -> None:
    assert fingerprint(compose(["recipe=hot", word]).config) != fingerprint(compose(["recipe=hot"]).config)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError):
        resolved.read(path)
