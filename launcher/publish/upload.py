"""Upload of a folder to a repository of the Hugging Face Hub; the token stays with the Hub's library."""

from pathlib import Path

from launcher.errors import UserError
from launcher.weights.hub import one_line_errors, repository


def check_repository(text: str, *, public: bool) -> None:
    """Check that a repository can be written, as far as the Hub shows without a write.

    Raises UserError if the text is none, this machine has no token or no connection, or the repository exists with
    another visibility.
    """
    name, revision = repository(text)
    if revision is not None:
        raise UserError(f"{text} has a revision, and an upload makes a new one; remove what follows the @")
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    if get_token() is None:
        raise UserError(f"{text} needs a token of the Hub; run `hf auth login`, or set HF_TOKEN")
    with one_line_errors(text):
        try:
            is_private = bool(HfApi().repo_info(name).private)
        except RepositoryNotFoundError:
            return
    if is_private == public:
        is_now, remedy = ("private", "remove --public") if is_private else ("public", "add --public")
        raise UserError(f"{text} is {is_now} already; choose another name, or {remedy}")


def upload(folder: Path, text: str, *, public: bool, message: str) -> str:
    """Create the repository if it is missing, upload a folder in one commit, and return the address.

    Raises UserError if the Hub refuses it.
    """
    from huggingface_hub import HfApi

    api, name = HfApi(), repository(text).name
    with one_line_errors(text):
        api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    return f"{api.endpoint}/{name}"
