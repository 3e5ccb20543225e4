"""Images from FFCV files, decoded in threads."""

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.data.ffcv.values import FFCVValues


@dataclass(frozen=True, config=STRICT)
class FFCVLoader(FFCVValues):
    """Images from FFCV files; `workers` are threads per rank."""

    source = "launcher.data.ffcv.inspection:FFCVFiles"
