"""A causal language model of the Hugging Face Hub, at one revision."""

from pathlib import Path
from typing import Any

import torch

from tasks.data.resolve import MissingData, data_roots


class HubModel:
    """Weights and tokenizer of a Hub repository.

    Looked for in `<data root>/models/<repository>` first, then in the Hub's own cache and on the Hub.

    Args:
        repository: owner/name.
        revision: commit; part of a run's config, and so of its id.
        name, size_mb, licence, source: what messages say.
    """

    def __init__(
        self, repository: str, revision: str, *, name: str, size_mb: float, licence: str, source: str = ""
    ) -> None:
        self.repository, self.revision, self.name = repository, revision, name
        self.size_mb, self.licence, self.source = size_mb, licence, source

    def model(self, dtype: torch.dtype = torch.float32) -> Any:
        """A new causal language model in evaluation mode, weights frozen; raises `MissingData`."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.path(), dtype=dtype).eval().requires_grad_(False)

    def tokenizer(self) -> Any:
        """Its tokenizer; raises `MissingData`."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path())

    def path(self, download: bool = False) -> Path:
        """Local folder; a download is started only on request, since such models are large.

        Raises:
            MissingData: not here, and not downloaded.
        """
        from huggingface_hub import snapshot_download

        for root in data_roots():
            folder = root / "models" / self.repository
            if (folder / "config.json").is_file():
                return folder
        try:
            return Path(
                snapshot_download(self.repository, revision=self.revision, local_files_only=not download)
            )
        except Exception as error:  # whatever the Hub's client says, the user's way out is the same
            raise MissingData(
                f"{self.name} is missing: {self.repository} at {self.revision[:12]} ({self.size_mb:g} MB, "
                f"{self.licence}); run: make fetch-<paper>"
            ) from error

    def fetch(self) -> None:
        """Make the model available locally; raises `MissingData`."""
        self.path(download=True)
