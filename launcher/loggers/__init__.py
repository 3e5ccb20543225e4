"""Loggers, one file each with its values and code: destinations of records besides metrics.jsonl."""

from launcher.config.schema import RunConfig
from launcher.loggers.tensorboard import TensorBoardSink
from launcher.records.background import BackgroundSink
from launcher.records.run_folder import RunFolder
from launcher.records.sinks import AttemptsWriter, MetricsWriter, Sink


def build_sinks(folder: RunFolder, config: RunConfig) -> list[Sink]:
    """Build the sinks of rank 0."""
    logger = config.logger
    sinks: list[Sink] = [MetricsWriter(folder.metrics), AttemptsWriter(folder.attempts)]
    if logger.tensorboard:
        sinks.append(BackgroundSink("TensorBoard", TensorBoardSink(folder.tensorboard)))
    if (sink := logger.sink(folder, config)) is not None:
        sinks.append(sink if logger.has_threads else BackgroundSink(f"logger={logger.name}", sink))
    return sinks
