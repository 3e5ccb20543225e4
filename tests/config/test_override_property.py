"""No command line ends in a traceback: it composes, or every mistake is one line."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.cli.main import main
from launcher.config.keys import all_keys

VALUES = st.one_of(
    st.sampled_from(
        ["on", "off", "null", "true", "8ep", "0.5dur", "[]", "{}", "[a,b]", "{a:1}", "", "lamb", "hot", "${seed}"]
    ),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=12),
)
KEYS = st.one_of(st.sampled_from(all_keys()), st.text(max_size=12))
WORDS = st.one_of(
    st.builds("{}={}".format, KEYS, VALUES),
    st.builds("+{}={}".format, KEYS, VALUES),
    st.builds("~{}".format, KEYS),
    st.text(max_size=20),
)


@settings(max_examples=200, deadline=None)
@example(words=["algorithms.x.y.z=1"])
@example(words=["algorithms.sam=[1]"])
@example(words=["optimizer={name:sgd}"])
@example(words=["optimizer={name:[1]}"])
@example(words=["optimizer.name={a:1}"])
@example(words=["model=[]"])
@example(words=["model={}"])
@example(words=["recipe=[mild]"])
@example(words=["recipe=../../etc/passwd"])
@example(words=["model=../dataset/shapes"])
@example(words=["dataset.path=${dataset.path}"])
@example(words=["epochs=${epochs}"])
@example(words=["image=1", "image.scale=2"])
@example(words=["algorithms={ema:on,sam:{rho:0.1}}"])
@example(words=["schedule.dilate=1e300"])
@example(words=["epochs=100000000000000000000000"])
@example(words=["algorithms.sam.interval.x=1"])
@given(words=st.lists(WORDS, max_size=4))
def test_show_and_plan_end_well_or_name_the_mistake(words: list[str]) -> None:
    for verb in ("show", "plan"):
        errors = io.StringIO()
        with redirect_stdout(io.StringIO()), redirect_stderr(errors):
            # note: an exception that is no UserError escapes here and fails the test
            code = main([verb, "--", *words])
        assert code in (0, 2)
        assert (code == 2) == errors.getvalue().startswith("error: ")
