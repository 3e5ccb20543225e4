"""Credentials in texts: hidden where they are printed, found where they would be stored."""

import re

HIDDEN = "***"
# note: in abfs://container@account and sftp://me@host it is no secret; a path has one slash less, and the secret keys
# of AWS have slashes, but a port has none before an @
_USER = re.compile(
    r"(\b(?i:https?|ftp):/{1,2})[^\s/?#'\"]+@"
    r"|(\b[A-Za-z][A-Za-z0-9+.-]*:/{1,2})[^\s/?#@'\":]*:(?!\d+/)[^\s?#'\"@]+(?:@[^\s/?#'\"@]+)*@"
)
_QUERY = re.compile(
    r"([?&;#](?:(?:key|auth|pwd)|[^=\s&?'\"]*"
    r"(?:token|signature|\bsig\b|secret|passw|credential|api-?_?key|accesskey)[^=\s&]*)=)[^&\s'\")]+",
    re.IGNORECASE,
)
# note: as environment variables, keys and options are written; a folder `sort_key=a` and `pad_token=x` are none
_VARIABLE = r"[A-Z0-9_]*(?:_KEY|TOKEN|SECRET|PASSW|(?<![A-Z])PASS(?:PHRASE)?(?![A-Z])|_PAT\b)[A-Z0-9_]*"
_KEY = r"(?:api|access|account|secret|private|auth|storage)[_-]?key"
_TOKEN = r"(?<!class_)(?<!cls_)(?<!pad_)(?<!mask_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)token"
_NAME = rf"\b(?:{_VARIABLE}|(?i:[\w.-]*(?:{_KEY}|{_TOKEN}|secret|passw\w*)))"
_QUOTED = r"'[^']+'|\"[^\"]+\""
_SWITCH = r"(?i:true|false|null|none|[\d.]+)(?![\w/+-])"
_ASSIGNED = re.compile(rf"({_NAME}=)(?!\*\*\*|\.\.\.|{_SWITCH})(?:{_QUOTED}|[^\s'\",;)\]]+)")
_MAPPED = re.compile(rf"({_NAME}['\"]?: ?)(?:{_QUOTED})|(\b{_VARIABLE}: )[^\s'\",;)*]+")
_HEADER = re.compile(
    r"(\b(?:Authorization|x-[\w-]*(?:key|token))['\"]?: ?['\"]?(?:[A-Za-z]+ )?)(?![A-Za-z]+ )[^\s'\",*]+", re.IGNORECASE
)
_SECRET_NAME = re.compile(r"(^|_)key$|(^|_)token$|(^|_)pat$|secret(?!s)|passw|(^|_)pass$", re.IGNORECASE)


def redacted(text: str) -> str:
    """Hide user info of URLs, tokens of their queries, and values of names such as AWS_SECRET_ACCESS_KEY."""
    if ":/" in text:
        text = _USER.sub(lambda match: f"{match[1] or match[2]}{HIDDEN}@", text)
        text = _QUERY.sub(rf"\1{HIDDEN}", text)
    if "=" in text:
        text = _ASSIGNED.sub(rf"\1{HIDDEN}", text)
    if ": " in text or "':" in text or '":' in text:
        text = _MAPPED.sub(lambda match: f"{match[1] or match[2]}{HIDDEN}", text)
        text = _HEADER.sub(rf"\1{HIDDEN}", text)
    return text


def is_secret(name: str) -> bool:
    """Return whether a value of this name is a credential, such as `api_key`."""
    return _SECRET_NAME.search(name) is not None
