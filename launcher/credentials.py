"""Credentials in texts: hidden where they are printed, found where they would be stored."""

import re
from collections.abc import Sequence
from itertools import pairwise

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
_TOKEN = r"(?<!class[_-])(?<!cls[_-])(?<!pad[_-])(?<!mask[_-])(?<!eos[_-])(?<!bos[_-])(?<!unk[_-])(?<!sep[_-])token"
_NAME = rf"\b(?:{_VARIABLE}|(?i:[\w.-]*(?:{_KEY}|{_TOKEN}|secret|passw\w*)))"
_QUOTED = r"'[^']+'|\"[^\"]+\""
_SWITCH = r"(?i:true|false|null|none|[\d.]+)(?![\w/+-])"
# note: `$PASS` and `$(cat file)` name a credential
_NO_VALUE = rf"(?!\*\*\*|\.\.\.|['\"]?\$|{_SWITCH})"
_VALUE = rf"(?:{_QUOTED}|[^\s'\",;)\]]+)"
_ASSIGNED = re.compile(rf"({_NAME}=){_NO_VALUE}{_VALUE}")
_FLAG = rf"(?<![\w-])--(?i:[\w.-]*(?:{_KEY}|{_TOKEN}|secret|passw\w*|passphrase|\bpass))"
# note: `--secret WANDB_API_KEY` names a variable, and `--token is not an option` is prose
_FLAG_VALUE = re.compile(rf"({_FLAG} +){_NO_VALUE}(?!-|(?:is|needs|and|or)\b|[A-Z0-9]+(?:_[A-Z0-9]+)+\b){_VALUE}")
_IS_FLAG = re.compile(_FLAG)
_LOGIN = re.compile(r"(?<!\S)(-u|--(?:proxy-)?user)([ =])['\"]?[^\s:'\"$]+:[^\s'\"$]+['\"]?")
# note: no user info are the digest of image:tag@sha256:..., and the revision of hf-hub:model@v1
_BARE_USER = re.compile(
    r"(?<![\w/.@:+\\-])(?!hf[-_]hub:)[A-Za-z0-9][\w.+-]*:[^\s/\\?#@'\":,;=()\[\]{}$]+@(?!sha\d+:)(?=[A-Za-z\[]|\d+\.\d)"
)
_MAPPED = re.compile(rf"({_NAME}['\"]?: ?)(?:{_QUOTED})|(\b{_VARIABLE}: )[^\s'\",;)*]+")
_HEADER = re.compile(
    r"(\b(?:Authorization|x-[\w-]*(?:key|token))['\"]?: ?['\"]?(?:[A-Za-z]+ )?)(?![A-Za-z]+ )[^\s'\",*]+", re.IGNORECASE
)
_SECRET_NAME = re.compile(r"(^|_)key$|(^|_)token$|(^|_)pat$|secret(?!s)|passw|(^|_)pass$", re.IGNORECASE)


def redacted(text: str) -> str:
    """Hide user info of URLs and hosts, tokens of queries, and values of --token and AWS_SECRET_ACCESS_KEY."""
    if ":/" in text:
        text = _USER.sub(lambda match: f"{match[1] or match[2]}{HIDDEN}@", text)
        text = _QUERY.sub(rf"\1{HIDDEN}", text)
    if "@" in text:
        text = _BARE_USER.sub(f"{HIDDEN}@", text)
    if "-" in text:
        text = _FLAG_VALUE.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1\2{HIDDEN}", text))
    if "=" in text:
        text = _ASSIGNED.sub(rf"\1{HIDDEN}", text)
    if ": " in text or "':" in text or '":' in text:
        text = _MAPPED.sub(lambda match: f"{match[1] or match[2]}{HIDDEN}", text)
        text = _HEADER.sub(rf"\1{HIDDEN}", text)
    return text


def redacted_words(words: Sequence[str]) -> list[str]:
    """Hide credentials in the words of a command line, also in the word after a flag such as --token."""
    return [HIDDEN if takes_secret(before) else redacted(word) for before, word in pairwise(["", *words])]


def takes_secret(word: str) -> bool:
    """Return whether a word is a flag, such as --api-key, before a credential."""
    return _IS_FLAG.fullmatch(word) is not None


def is_secret(name: str) -> bool:
    """Return whether a value of this name is a credential, such as `api_key`."""
    return _SECRET_NAME.search(name) is not None
