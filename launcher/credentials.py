"""Credentials in texts: hidden where they are printed, found where they would be stored."""

import re

HIDDEN = "***"
# note: in abfs://container@account and sftp://me@host it is no secret
_USER = re.compile(r"(\b(?:https?|ftp)://)[^\s/?#@'\"]+@|(\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#@'\":]*:[^\s/?#@'\"]+@")
_QUERY = re.compile(
    r"([?&;][^=\s&?'\"]*(?:token|signature|\bsig\b|secret|passw|credential|api-?_?key|accesskey)[^=\s&]*=)[^&\s'\")]+",
    re.IGNORECASE,
)
# note: as environment variables are written; `tokens=196` is none
_VARIABLE = re.compile(r"\b([A-Z0-9_]*(?:_KEY|TOKEN|SECRET|PASSW)[A-Z0-9_]*=)(?!\*\*\*|\.\.\.)[^\s'\",;)]+")
_SECRET_NAME = re.compile(r"(^|_)key$|(^|_)token$|secret(?!s)|passw", re.IGNORECASE)


def redacted(text: str) -> str:
    """Hide user info of URLs, tokens of their queries, and values of variables such as AWS_SECRET_ACCESS_KEY."""
    if "://" in text:
        text = _USER.sub(lambda match: f"{match[1] or match[2]}{HIDDEN}@", text)
        text = _QUERY.sub(rf"\1{HIDDEN}", text)
    return _VARIABLE.sub(rf"\1{HIDDEN}", text) if "=" in text else text


def is_secret(name: str) -> bool:
    """Return whether a value of this name is a credential, such as `api_key`."""
    return _SECRET_NAME.search(name) is not None
