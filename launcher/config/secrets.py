"""Refuse credentials in values of a run: its folder, jobs and logs would keep them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launcher.config.layers import leaves
from launcher.credentials import HIDDEN, is_secret, redacted
from launcher.errors import Problem


def secret_values(values: Mapping[str, Any], origin: Callable[[str], str | None]) -> Iterator[Problem]:
    """Yield the values of a config, which is stored and printed, that are credentials."""
    for key, value in leaves(values):
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and redacted(text) != text:
                kept = "holds a credential, which the run folder would keep; remove it, and set"
                message = f"{kept} {_variables(key, text)}"
                yield Problem(message, key, redacted(text), origin(key))
            elif isinstance(text, str) and text and is_secret(key.rpartition(".")[2]):
                message = "is a credential by its name, which the run folder would keep; read it from an environment"
                yield Problem(f"{message} variable in your code", key, HIDDEN, origin(key))


def _variables(key: str, url: str) -> str:
    """Return the environment variables that hold the credentials for the URL of a key."""
    scheme, is_url, _ = url.partition(":/")
    scheme = scheme.lower()
    if key.startswith("logger."):
        return "the variables of its server, such as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    if scheme in ("s3", "s3a"):
        return "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if scheme in ("gs", "gcs"):
        return "GOOGLE_APPLICATION_CREDENTIALS"
    if is_url and scheme.isalnum():
        return f"the environment variable FSSPEC_{scheme.upper()}, as JSON"
    if key.startswith("submit."):
        return "it in your shell, or submit.secrets to names"
    return "an environment variable that your code reads"
