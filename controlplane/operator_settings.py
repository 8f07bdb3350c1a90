"""The key that an operator keeps outside of the server, read once by what prepares the database.

Apart from `settings.py` because no serving process needs it: only its hash is stored, and only that is ever compared.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

_FORM = re.compile(r"nodus_[A-Za-z0-9_-]{43}")


class OperatorSettings(BaseSettings):
    """Where the operator's key comes from."""

    model_config = SettingsConfigDict(env_prefix="NODUS_SERVER_", frozen=True, extra="ignore")

    operator_key: SecretStr = Field(
        default=SecretStr(""),
        description="A key of the first administrator, 256 random bits; another one replaces it at the next start.",
    )
    operator_key_file: Path | None = Field(
        default=None, description="A file with that key, as orchestrators mount secrets; counts when no key is given."
    )

    def key(self) -> str | None:
        """The key, None when there is none; ValueError when it is not one, OSError when the file cannot be read."""
        text = self.operator_key.get_secret_value()
        if not text and self.operator_key_file is not None:
            text = self.operator_key_file.read_text().strip()
        if text and not _FORM.fullmatch(text):
            raise ValueError(
                "the operator's key must be `nodus_` and 43 letters, digits, `-` or `_`; this makes one: "
                "echo nodus_$(openssl rand -base64 32 | tr +/ -_ | tr -d =)"
            )
        return text or None
