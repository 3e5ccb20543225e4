"""Make a library wait for minutes, so that a bound of seconds shows who ended a wait, on a busy machine too."""


def of_elastic() -> None:
    """Make elastic wait 300 s, not 30, for the peers of a failed rank and for other nodes at the end."""
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    close = SubprocessContext._close
    SubprocessContext._close = lambda self, death_sig, timeout=30: close(self, death_sig, 10 * timeout)
